"""Curriculum: new episodes, task weights and saved state."""

import json

import numpy as np
import pytest

from phalanx.text import make_text_vector_env
from phalanx.training import Curriculum, CurriculumConfig

TASKS = ("lights_out:easy:multi", "binary:easy:multi")


def curriculum() -> Curriculum:
    return Curriculum(make_text_vector_env(",".join(TASKS)), CurriculumConfig(min_task_weight=0.01), seed=3)


def test_tasks_that_are_sometimes_solved_are_sampled_most_often() -> None:
    tasks = curriculum()
    for update in range(30):
        episodes = tasks.sample(update, 4)
        # The first task is always solved, the second one by every other attempt.
        tasks.record(episodes, np.array([[1, one.task == TASKS[0]] for one in episodes], bool))
    assert tasks.success_rates[TASKS[0]] == pytest.approx(1, abs=0.1)
    assert tasks.success_rates[TASKS[1]] == pytest.approx(0.5)
    names = [one.task for one in tasks.sample(30, 100)]
    assert names.count(TASKS[1]) > 60


def test_no_episode_is_sampled_twice() -> None:
    tasks = curriculum()
    episodes = [episode for update in range(3) for episode in tasks.sample(update, 8)]
    assert len(set(episodes)) == 24


def test_restored_curriculum_samples_the_same_episodes() -> None:
    tasks = curriculum()
    tasks.record(tasks.sample(0, 4), np.array([[1, 0]] * 4, bool))
    restored = curriculum()
    restored.load_state_dict(json.loads(json.dumps(tasks.state_dict())))
    assert restored.sample(1, 6) == tasks.sample(1, 6)
    assert restored.success_rates == tasks.success_rates

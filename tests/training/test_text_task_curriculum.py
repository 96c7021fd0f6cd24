"""Task curriculum: weights, retries, and saved state."""

import json

import numpy as np
import pytest

from phalanx.text import make_text_vector_env
from phalanx.training import TaskCurriculum, TaskCurriculumConfig

TASK = "lights_out:easy:multi"


def curriculum(**settings: object) -> TaskCurriculum:
    return TaskCurriculum(make_text_vector_env(TASK), TaskCurriculumConfig(**settings), seed=3)


def test_partially_solved_episodes_are_retried_until_all_attempts_succeed() -> None:
    tasks = curriculum(retry_fraction=0.5)
    first = tasks.sample(0, 4)
    assert len(set(first)) == 4
    assert tasks.num_retries(first) == 0
    tasks.record(first, np.array([[1, 1], [1, 0], [0, 1], [0, 0]], bool))
    second = tasks.sample(1, 4)
    # Half of the episodes are retries: the two that were solved sometimes.
    assert second[:2] == [first[1], first[2]]
    assert not set(second[2:]) & set(first)
    rate = tasks.success_rates[TASK]
    tasks.record(second, np.array([[1, 1], [0, 0], [0, 0], [0, 0]], bool))
    # Only the two new episodes affect the success rate.
    assert tasks.success_rates[TASK] == pytest.approx(0.9 * rate)
    assert tasks.sample(2, 4)[0] == first[2]
    assert tasks.num_retries(tasks.sample(3, 4)) == 1


def test_oldest_retries_are_dropped_and_none_are_kept_without_retries() -> None:
    tasks = curriculum(retry_fraction=1.0, retry_capacity=2)
    first = tasks.sample(0, 3)
    tasks.record(first, np.array([[1, 0]] * 3, bool))
    assert tasks.sample(1, 3)[:2] == first[1:]
    without_retries = curriculum()
    without_retries.record(without_retries.sample(0, 3), np.array([[1, 0]] * 3, bool))
    assert without_retries.state_dict()["retry_episodes"] == []


def test_restored_curriculum_samples_the_same_episodes() -> None:
    tasks = curriculum(retry_fraction=0.5)
    tasks.record(tasks.sample(0, 4), np.array([[1, 0]] * 4, bool))
    restored = curriculum(retry_fraction=0.5)
    restored.load_state_dict(json.loads(json.dumps(tasks.state_dict())))
    assert restored.sample(1, 6) == tasks.sample(1, 6)
    assert restored.success_rates == tasks.success_rates

"""Demonstrations: what the environment shows while plans solve its pairs, step by step.

Whether plans are exact and short is in `test_planner`.
"""

from importlib.util import find_spec

import jax
import numpy as np
import pytest

from phalanx.arc import (
    ActionConfig,
    ArcConfig,
    ArcEnvironment,
    ArcObservation,
    ArcTask,
    DatasetConfig,
    EpisodeConfig,
    ExpertEpisodeBatch,
    ObservationConfig,
    SolutionStep,
    generate_tasks,
    plan_expert_episodes,
)
from tests.helpers.arc_grids import task

pytestmark = pytest.mark.skipif(
    find_spec("phalanx._native") is None, reason="planning needs the compiled extension"
)

TASKS = [
    task("fill", [("00/00", "30/00"), ("10/00", "12/34")], [("0", "1")]),
    task("same", [("12/34", "12/34")]),
    task("tests only", [], [("00/00", "55/00")]),
]


def environment(tasks, selection_format="point", allowed=None, **settings) -> ArcEnvironment:
    config = ArcConfig(
        episode=EpisodeConfig(**settings),
        dataset=DatasetConfig(max_grid_height=10, max_grid_width=10),
        action=ActionConfig(selection_format=selection_format, allowed_operations=allowed),
    )
    return ArcEnvironment.create(config, tasks)


def whole(batches) -> ExpertEpisodeBatch:
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *batches)


def by_episode(steps: ExpertEpisodeBatch) -> dict[int, list[tuple[list[list[int]], tuple[int, ...]]]]:
    """The top left of each grid seen, and what was done then."""
    actions = np.stack([steps.action.operation, steps.action.row, steps.action.col], axis=-1)
    found: dict[int, list] = {}
    for grid, action, episode in zip(steps.observation, actions.tolist(), steps.episode, strict=True):
        found.setdefault(int(episode), []).append((grid[:2, :2].tolist(), tuple(action)))
    return found


def test_steps_contain_observation_and_planned_action():
    shown = plan_expert_episodes(environment(TASKS))
    assert (len(shown), shown.num_steps, shown.dropped) == (3, 6, 0)
    assert list(zip(shown.tasks.tolist(), shown.pairs.tolist(), strict=True)) == [(0, 0), (0, 1), (2, 0)]
    seen = by_episode(whole(shown.batches(batch_size=2)))
    assert seen[0] == [([[0, 0], [0, 0]], (3, 0, 0))]
    assert seen[2] == [([[0, 0], [0, 0]], (5, 0, 0)), ([[5, 0], [0, 0]], (5, 0, 1))]
    assert seen[1][0][0] == [[1, 0], [0, 0]] and len(seen[1]) == 3


def test_episodes_end_with_submit_if_required():
    shown = plan_expert_episodes(environment(TASKS, require_submit=True))
    assert len(shown) == 4 and shown.num_steps == 6 + 4
    seen = by_episode(whole(shown.batches()))
    assert [episode[-1][1][0] for episode in seen.values()] == [34] * 4
    assert seen[2] == [([[1, 2], [3, 4]], (34, 0, 0))]


def test_plans_longer_than_an_episode_are_dropped():
    shown = plan_expert_episodes(environment(TASKS, max_episode_steps=2))
    assert (len(shown), shown.dropped) == (2, 1)
    assert plan_expert_episodes(environment(TASKS[:1], max_episode_steps=1)).num_steps == 1


def test_no_episodes_give_no_batches():
    shown = plan_expert_episodes(environment(TASKS[1:2]))
    assert (len(shown), shown.num_steps, list(shown.batches())) == (0, 0, [])


def test_plans_use_only_allowed_operations():
    fills = tuple(range(1, 10))
    shown = plan_expert_episodes(environment(TASKS, "bbox", allowed=fills))
    assert {int(operation) for plan in shown.plans for operation in plan.operations} <= set(fills)
    with pytest.raises(ValueError, match="task 'fill': pair 1: no plan with the allowed operations"):
        plan_expert_episodes(environment(TASKS, "bbox", allowed=(1, 2, 3, 5)))
    with pytest.raises(ValueError, match="needs Submit"):
        plan_expert_episodes(environment(TASKS, "bbox", allowed=fills, require_submit=True))


def test_evaluation_mode_is_rejected():
    with pytest.raises(ValueError, match="need an environment in training mode"):
        plan_expert_episodes(environment(TASKS[:1], mode="evaluation"))


@pytest.mark.parametrize("selection_format", ["point", "bbox", "mask"])
def test_generated_tasks_of_all_families_have_expert_episodes(selection_format):
    tasks = generate_tasks(num_tasks=30, seed=2)
    config = environment(tasks, selection_format, require_submit=True).config
    seeing = ObservationConfig(input_grid=True, scalars=True)
    shown = plan_expert_episodes(
        ArcEnvironment.create(config.model_copy(update={"observation": seeing}), tasks)
    )
    steps = whole(shown.batches(batch_size=64))
    assert len(shown) == 90 and shown.dropped == 0
    assert isinstance(steps.observation, ArcObservation)
    assert len(steps.episode) == len(steps.action.operation) == shown.num_steps
    for episode, plan in enumerate(shown.plans):
        mine = steps.episode == episode
        assert steps.action.operation[mine].tolist() == plan.operations.tolist()
        assert steps.observation.step_count[mine].tolist() == list(range(len(plan)))
    first = steps.observation.step_count == 0
    assert np.array_equal(steps.observation.working_grid[first], steps.observation.input_grid[first])


def test_plan_that_does_not_solve_its_pair_raises_error():
    wrong = ArcTask("wrong", TASKS[0].demos[:1], (), solutions=((SolutionStep(4, 0, 0, 0, 0),),))
    with pytest.raises(RuntimeError, match="task 'wrong': the plan for pair 0 does not end with the output"):
        list(plan_expert_episodes(environment([wrong])).batches())

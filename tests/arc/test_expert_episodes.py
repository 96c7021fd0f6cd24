"""Expert episodes: the observations and actions of plans that solve the pairs."""

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
    ObservationConfig,
    PlannedEpisodeSteps,
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


def create_environment(tasks, selection_format="point", allowed=None, **settings) -> ArcEnvironment:
    config = ArcConfig(
        episode=EpisodeConfig(**settings),
        dataset=DatasetConfig(max_grid_height=10, max_grid_width=10),
        action=ActionConfig(selection_format=selection_format, allowed_operations=allowed),
    )
    return ArcEnvironment.create(config, tasks)


def concatenate(batches) -> PlannedEpisodeSteps:
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *batches)


def group_by_episode(steps: PlannedEpisodeSteps) -> dict[int, list[tuple[list[list[int]], tuple[int, ...]]]]:
    """Return the top left 2x2 cells of each observed grid and the action, by episode."""
    actions = np.stack([steps.action.operation, steps.action.row, steps.action.col], axis=-1)
    result: dict[int, list] = {}
    for grid, action, episode in zip(steps.observation, actions.tolist(), steps.episode, strict=True):
        result.setdefault(int(episode), []).append((grid[:2, :2].tolist(), tuple(action)))
    return result


def test_steps_contain_observation_and_planned_action():
    episodes = plan_expert_episodes(create_environment(TASKS))
    assert (len(episodes), episodes.num_steps, episodes.dropped) == (3, 6, 0)
    assert list(zip(episodes.tasks.tolist(), episodes.pairs.tolist(), strict=True)) == [
        (0, 0),
        (0, 1),
        (2, 0),
    ]
    steps_by_episode = group_by_episode(concatenate(episodes.batches(batch_size=2)))
    assert steps_by_episode[0] == [([[0, 0], [0, 0]], (3, 0, 0))]
    assert steps_by_episode[2] == [([[0, 0], [0, 0]], (5, 0, 0)), ([[5, 0], [0, 0]], (5, 0, 1))]
    assert steps_by_episode[1][0][0] == [[1, 0], [0, 0]] and len(steps_by_episode[1]) == 3


def test_episodes_end_with_submit_if_required():
    episodes = plan_expert_episodes(create_environment(TASKS, require_submit=True))
    assert len(episodes) == 4 and episodes.num_steps == 6 + 4
    steps_by_episode = group_by_episode(concatenate(episodes.batches()))
    assert [episode[-1][1][0] for episode in steps_by_episode.values()] == [34] * 4
    assert steps_by_episode[2] == [([[1, 2], [3, 4]], (34, 0, 0))]


def test_plans_longer_than_an_episode_are_dropped():
    episodes = plan_expert_episodes(create_environment(TASKS, max_episode_steps=2))
    assert (len(episodes), episodes.dropped) == (2, 1)
    assert plan_expert_episodes(create_environment(TASKS[:1], max_episode_steps=1)).num_steps == 1


def test_no_episodes_give_no_batches():
    episodes = plan_expert_episodes(create_environment(TASKS[1:2]))
    assert (len(episodes), episodes.num_steps, list(episodes.batches())) == (0, 0, [])


def test_plans_use_only_allowed_operations():
    fills = tuple(range(1, 10))
    episodes = plan_expert_episodes(create_environment(TASKS, "bbox", allowed=fills))
    assert {int(operation) for plan in episodes.plans for operation in plan.operations} <= set(fills)
    with pytest.raises(ValueError, match="task 'fill': pair 1: no plan with the allowed operations"):
        plan_expert_episodes(create_environment(TASKS, "bbox", allowed=(1, 2, 3, 5)))
    with pytest.raises(ValueError, match="needs Submit"):
        plan_expert_episodes(create_environment(TASKS, "bbox", allowed=fills, require_submit=True))


def test_evaluation_mode_is_rejected():
    with pytest.raises(ValueError, match="need an environment in training mode"):
        plan_expert_episodes(create_environment(TASKS[:1], mode="evaluation"))


@pytest.mark.parametrize("selection_format", ["point", "bbox", "mask"])
def test_generated_tasks_of_all_families_have_expert_episodes(selection_format):
    tasks = generate_tasks(num_tasks=30, seed=2)
    config = create_environment(tasks, selection_format, require_submit=True).config
    observation = ObservationConfig(input_grid=True, scalars=True)
    episodes = plan_expert_episodes(
        ArcEnvironment.create(config.model_copy(update={"observation": observation}), tasks)
    )
    steps = concatenate(episodes.batches(batch_size=64))
    assert len(episodes) == 90 and episodes.dropped == 0
    assert isinstance(steps.observation, ArcObservation)
    assert len(steps.episode) == len(steps.action.operation) == episodes.num_steps
    for episode, plan in enumerate(episodes.plans):
        rows = steps.episode == episode
        assert steps.action.operation[rows].tolist() == plan.operations.tolist()
        assert steps.observation.step_count[rows].tolist() == list(range(len(plan)))
    first = steps.observation.step_count == 0
    assert np.array_equal(steps.observation.working_grid[first], steps.observation.input_grid[first])


def test_plan_that_does_not_solve_its_pair_raises_error():
    wrong = ArcTask("wrong", TASKS[0].demos[:1], (), solutions=((SolutionStep(4, 0, 0, 0, 0),),))
    with pytest.raises(RuntimeError, match="task 'wrong': the plan for pair 0 does not end with the output"):
        list(plan_expert_episodes(create_environment([wrong])).batches())

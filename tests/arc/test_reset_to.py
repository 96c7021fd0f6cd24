"""Resetting to given tasks and pairs."""

import jax.numpy as jnp
import numpy as np
import pytest

from phalanx.arc import ArcConfig, ArcEnvironment, ArcTask, DatasetConfig, EpisodeConfig, GridPair
from phalanx.arc.state import ArcState


def create_task(id: str, demos: list[int], tests: list[int]) -> ArcTask:
    """Create a task of one-cell pairs whose input color identifies the pair."""
    groups = [tuple(GridPair(np.array([[c]]), np.array([[0]])) for c in group) for group in (demos, tests)]
    return ArcTask(id, *groups)


TASKS = [create_task("a", [1, 2], [3]), create_task("b", [], [4, 5]), create_task("c", [6], [7, 8, 9])]


def create_environment(mode: str, backend: str) -> ArcEnvironment:
    config = ArcConfig(
        episode=EpisodeConfig(mode=mode),
        dataset=DatasetConfig(max_grid_height=2, max_grid_width=2),
        backend=backend,
    )
    return ArcEnvironment.create(config, TASKS)


def reset_to(mode: str, backend: str, starts: list[tuple[int, int]]) -> tuple[ArcState, list[int]]:
    tasks, pairs = (jnp.array(column, jnp.int32) for column in zip(*starts, strict=True))
    states, observations = create_environment(mode, backend).batch_reset_to(tasks, pairs)
    assert jnp.array_equal(observations, states.working_grid)
    return states, observations[:, 0, 0].tolist()


@pytest.mark.parametrize("backend", ["auto", "xla"])
def test_training_pairs_are_demonstrations_or_tests_if_there_are_none(backend: str) -> None:
    states, colors = reset_to("training", backend, [(0, 1), (2, 0), (1, 1), (0, 0)])
    assert colors == [2, 6, 5, 1]
    assert states.task_index.tolist() == [0, 2, 1, 0]
    assert states.pair_index.tolist() == [1, 0, 1, 0]
    assert states.step_count.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("backend", ["auto", "xla"])
def test_evaluation_pairs_are_tests(backend: str) -> None:
    states, colors = reset_to("evaluation", backend, [(0, 0), (2, 0), (2, 2), (1, 0)])
    assert colors == [3, 7, 9, 4]
    assert states.pair_index.tolist() == [2, 1, 3, 0]


def test_pair_index_wraps_around() -> None:
    assert reset_to("training", "auto", [(0, 2), (0, 3)])[1] == [1, 2]

"""Initial states: weighted task sampling, the initial working grid, and states from a given grid."""

import jax
import numpy as np
import pytest

from phalanx.arc import (
    ArcConfig,
    ArcEnvironment,
    ArcTask,
    DatasetConfig,
    EpisodeConfig,
    GridPair,
    TaskBuffer,
    as_grid,
    batch_reset,
)
from phalanx.arc.task_sampling import cumulative_weights
from phalanx.compat.jaxarc.batch_processing import stack_states
from tests.helpers.arc_rollouts import BACKENDS, oracle_starts, oracle_view, skip_without, view
from tests.helpers.arc_scenarios import random_tasks

pytestmark = pytest.mark.slow

CANVAS = DatasetConfig(max_grid_height=9, max_grid_width=11)
KEYS = jax.random.split(jax.random.PRNGKey(7), 400)


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    skip_without(request.param)
    return request.param


def create_config(backend: str = "auto", initial_grid: str = "input", mode: str = "training") -> ArcConfig:
    episode = EpisodeConfig(initial_grid=initial_grid, mode=mode)
    return ArcConfig(backend=backend, dataset=CANVAS, episode=episode)


def one_cell_task(name: str, *colors: int) -> ArcTask:
    """Create a task whose demonstrations map one cell of 0 to the colors, and its test to 9."""
    pairs = [GridPair(as_grid([[0]]), as_grid([[color]])) for color in (*colors, 9)]
    return ArcTask(name, tuple(pairs[:-1]), tuple(pairs[-1:]))


@pytest.mark.parametrize("mode", ["training", "evaluation"])
@pytest.mark.parametrize("initial_grid", ["input", "blank", "random", "demonstration"])
def test_initial_states_match_reference(backend: str, initial_grid: str, mode: str) -> None:
    config = create_config(backend, initial_grid, mode)
    tasks = random_tasks(config.grid_shape, mode == "training")
    states, observations = batch_reset(KEYS, config, TaskBuffer.from_tasks(tasks))
    expected = oracle_view(oracle_starts(KEYS, tasks, config), config)
    actual = view(states)
    for field, expected_value in expected.items():
        np.testing.assert_array_equal(actual[field], expected_value, field)
    np.testing.assert_array_equal(observations, expected["working_grid"])


def test_random_initial_grids_are_uniform_and_distinct() -> None:
    task = ArcTask("wide", (GridPair(np.zeros((9, 11), int), np.ones((9, 11), int)),), ())
    states, _ = batch_reset(KEYS, create_config(initial_grid="random"), task)
    grids = np.asarray(states.working_grid)
    counts = np.bincount(grids.ravel(), minlength=10) / grids.size
    assert len(counts) == 10 and np.abs(counts - 0.1).max() < 0.01
    assert len({grid.tobytes() for grid in grids}) == len(KEYS)


def test_demonstration_initial_grid_does_not_reveal_answer() -> None:
    states, _ = batch_reset(KEYS, create_config(initial_grid="demonstration"), one_cell_task("two", 3, 4))
    initial, target = np.asarray(states.working_grid)[:, 0, 0], np.asarray(states.target_grid)[:, 0, 0]
    assert set(zip(initial.tolist(), target.tolist(), strict=True)) == {(3, 4), (4, 3)}
    single, _ = batch_reset(KEYS, create_config(initial_grid="demonstration"), one_cell_task("one", 3))
    assert (np.asarray(single.working_grid)[:, 0, 0] == 0).all(), (
        "without another demonstration, the initial grid is the input"
    )


@pytest.mark.parametrize("weights", [(1, 0, 3, 0), (0, 0, 0, 5), (2, 1, 1, 4)])
def test_weighted_task_sampling_matches_reference(backend: str, weights: tuple[int, ...]) -> None:
    tasks = [one_cell_task(name, 1) for name in "abcd"]
    config = create_config(backend)
    buffer = TaskBuffer.from_tasks(tasks, num_tasks=7)
    environment = ArcEnvironment.create(config, buffer).with_task_weights(weights)
    sampled = batch_reset(KEYS, environment)[0].task_index
    expected = [tasks.index(state.task) for state in oracle_starts(KEYS, tasks, config, weights)]
    assert sampled.tolist() == expected
    frequencies = np.bincount(expected, minlength=4) / len(KEYS)
    assert np.abs(frequencies - np.array(weights) / sum(weights)).max() < 0.08


def test_tasks_of_weight_0_have_empty_intervals() -> None:
    arrays = TaskBuffer.from_tasks([one_cell_task(str(i), 1) for i in range(64)], num_tasks=80).arrays
    for seed in range(20):
        rng = np.random.default_rng(seed)
        weights = np.where(rng.random(80) < 0.5, 0, rng.random(80) * 10.0 ** rng.integers(-6, 6, 80))
        bounds = np.asarray(cumulative_weights(weights.astype(np.float32), arrays))
        assert (np.diff(bounds) >= 0).all()
        zero_weight = (weights.astype(np.float32) == 0) | (np.arange(80) >= 64)
        assert (np.diff(bounds, prepend=np.float32(0))[zero_weight] == 0).all()


def test_padding_of_buffer_does_not_change_sampling() -> None:
    tasks = [one_cell_task("a", 1), one_cell_task("b", 1, 2), one_cell_task("c", 1)]
    unpadded, _ = batch_reset(KEYS, create_config(), TaskBuffer.from_tasks(tasks))
    padded_buffer = TaskBuffer.from_tasks(tasks, num_tasks=20, num_pairs=50, num_rows=9)
    padded, _ = batch_reset(KEYS, create_config(), padded_buffer)
    jax.tree.map(np.testing.assert_array_equal, jax.tree.leaves(unpadded), jax.tree.leaves(padded))
    assert padded_buffer != TaskBuffer.from_tasks(tasks) and len(padded_buffer) == 3
    assert repr(padded_buffer) == "TaskBuffer(3 tasks, 7 pairs, up to 1x1)"


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ((1, 2, 3), r"there are 2 tasks, so weights must have shape \(2,\), got \(3,\)"),
        ((0, 0), "at least one must be positive"),
        ((1, -1), "not negative"),
        ((1, float("nan")), "finite"),
    ],
)
def test_invalid_weights_are_reported(weights: tuple[float, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ArcEnvironment.create(
            create_config(), [one_cell_task("a", 1), one_cell_task("b", 1)]
        ).with_task_weights(weights)


def test_too_small_padded_shape_is_reported() -> None:
    with pytest.raises(ValueError, match="num_pairs is 3, but these tasks need 4"):
        TaskBuffer.from_tasks([one_cell_task("a", 1), one_cell_task("b", 1)], num_pairs=3)


def test_state_can_be_created_from_grid(backend: str) -> None:
    wide = GridPair(as_grid([[1, 2], [3, 4]]), as_grid([[1, 2], [3, 5]]))
    environment = ArcEnvironment.create(
        create_config(backend), [one_cell_task("a", 1), ArcTask("b", (wide,), (wide,))]
    )
    state = environment.state_from_grid([[1, 2], [3, 0]], task="b")
    assert (int(state.task_index), int(state.height), int(state.width)) == (1, 2, 2)
    assert np.asarray(state.working_grid)[:2, :2].tolist() == [[1, 2], [3, 0]]
    assert float(state.similarity) == 0.75 and int(state.step_count) == 0 and not state.episode_done
    solved = environment.state_from_grid([[1, 2], [3, 5]], task=1)
    assert float(solved.similarity) == 1.0 and solved.solved_pairs[0] and not solved.solved_pairs[1]
    # An observation is also accepted; its cells outside the grid are ignored.
    restored = environment.state_from_grid(environment.observe(state), task="b")
    jax.tree.map(np.testing.assert_array_equal, state, restored)
    assert stack_states([state, solved]).batch_shape == (2,)


def test_invalid_grids_and_tasks_are_reported() -> None:
    environment = ArcEnvironment.create(create_config(), one_cell_task("a", 1))
    with pytest.raises(ValueError, match=r"cell \(0, 1\) must be a colou?r"):
        environment.state_from_grid([[1, 11]])
    with pytest.raises(ValueError, match=r"a grid of \(10, 1\) does not fit a canvas of \(9, 11\)"):
        environment.state_from_grid(np.zeros((10, 1), int))
    with pytest.raises(ValueError, match="task 1 does not exist: there are 1 tasks"):
        environment.state_from_grid([[1]], task=1)
    with pytest.raises(KeyError, match="no task 'b'"):
        environment.state_from_grid([[1]], task="b")

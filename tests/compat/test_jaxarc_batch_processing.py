"""Batches of ARC environments through `jaxarc.envs` and `jaxarc.batch_processing`."""

import inspect
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phalanx.compat.jaxarc import batch_processing
from phalanx.compat.jaxarc.envs import (
    EnvironmentConfig,
    JaxArcConfig,
    PointAction,
    UnifiedActionConfig,
    UnifiedDatasetConfig,
    arc_reset,
    arc_step,
    batch_reset,
    batch_step,
    create_mock_task,
    create_point_action,
)
from phalanx.compat.jaxarc.state import ArcEnvState
from phalanx.compat.jaxarc.types import JaxArcTask

SIZE = 6
LIMIT = 4
# The mock task has a black 16x16 grid, whose column 7 is to be blue. The canvas is larger than the grid.
CANVAS = (18, 20)
TASK = create_mock_task()
CONFIG = JaxArcConfig(
    environment=EnvironmentConfig(max_episode_steps=LIMIT),
    dataset=UnifiedDatasetConfig(max_grid_height=CANVAS[0], max_grid_width=CANVAS[1]),
    action=UnifiedActionConfig(selection_format="point"),
)


def split(seed: int, count: int = SIZE) -> jax.Array:
    return jax.random.split(jax.random.PRNGKey(seed), count)


def paint(color: int, rows: jax.Array, column: int = 7) -> PointAction:
    return PointAction(operation=jnp.full(SIZE, color), row=rows, col=jnp.full(SIZE, column))


@pytest.fixture(scope="module")
def start() -> ArcEnvState:
    return batch_reset(split(3), CONFIG, TASK)[0]


def test_functions_take_the_arguments_of_jaxarc() -> None:
    assert list(inspect.signature(batch_reset).parameters) == ["keys", "config", "task_data"]
    assert list(inspect.signature(batch_step).parameters)[:3] == ["states", "actions", "config"]
    states, _ = batch_reset(keys=split(0), config=CONFIG, task_data=TASK)
    batch_step(states=states, actions=paint(1, jnp.arange(SIZE)), config=CONFIG)
    assert isinstance(states, ArcEnvState) and isinstance(TASK, JaxArcTask)


def test_reset_starts_one_episode_per_key() -> None:
    states, observations = batch_reset(split(0), CONFIG, TASK)
    assert states.working_grid.shape == observations.shape == (SIZE, *CANVAS)
    # Cells outside the grid are -1.
    assert np.unique(states.working_grid).tolist() == [-1, 0]
    assert states.step_count.tolist() == [0] * SIZE and not states.episode_done.any()
    # 15 of 16 columns are already right.
    np.testing.assert_allclose(states.similarity_score, 15 / 16)


def test_equal_keys_start_equal_episodes() -> None:
    assert len({tuple(key.tolist()) for key in split(11)}) == SIZE
    first, second = (batch_reset(split(11), CONFIG, TASK) for _ in range(2))
    assert eqx.tree_equal(first[0].working_grid, second[0].working_grid)
    assert eqx.tree_equal(first[1], second[1])


def test_each_environment_takes_its_own_action(start: ArcEnvState) -> None:
    # Even environments paint a black cell black; odd ones paint a cell of the target column blue.
    actions = PointAction(
        operation=jnp.arange(SIZE) % 2, row=jnp.arange(SIZE) + 4, col=jnp.full(SIZE, 7, jnp.int32)
    )
    states, observations, rewards, dones, infos = batch_step(start, actions, CONFIG)
    assert [int(states.working_grid[i, i + 4, 7]) for i in range(SIZE)] == [0, 1] * 3
    assert infos.operation_type.tolist() == [0, 1] * 3
    assert observations.shape == (SIZE, *CANVAS)
    assert rewards.shape == dones.shape == infos.similarity.shape == (SIZE,) and not dones.any()
    assert rewards[1] > rewards[0] and infos.similarity_improvement[1] > 0


def test_actions_can_depend_on_the_states(start: ArcEnvState) -> None:
    states, painted = start, []
    for _ in range(3):
        blue, red = paint(1, jnp.zeros(SIZE, int)), paint(2, jnp.ones(SIZE, int))
        is_early = states.step_count < 2
        actions = jax.tree.map(lambda early, late, mask=is_early: jnp.where(mask, early, late), blue, red)
        states, _, _, _, infos = batch_step(states, actions, CONFIG)
        painted.append(infos.operation_type.tolist())
    assert painted == [[1] * SIZE, [1] * SIZE, [2] * SIZE]


def test_episodes_end_at_the_step_limit(start: ArcEnvState) -> None:
    states, total, lengths = start, np.zeros(SIZE), np.zeros(SIZE, int)
    active = np.ones(SIZE, bool)
    while active.any():
        # Painting black cells black never solves the task, so each step costs the step penalty.
        states, _, rewards, dones, _ = batch_step(states, paint(0, jnp.arange(SIZE)), CONFIG)
        total, lengths = total + np.asarray(rewards) * active, lengths + active
        active &= ~np.asarray(dones)
    assert lengths.tolist() == [LIMIT] * SIZE
    np.testing.assert_allclose(total, -0.01 * LIMIT, rtol=1e-5)


def test_functions_can_be_compiled_by_the_user(start: ArcEnvState) -> None:
    states, _ = eqx.filter_jit(batch_reset)(split(3), CONFIG, TASK)
    assert eqx.tree_equal(states.working_grid, start.working_grid)
    actions = paint(1, jnp.arange(SIZE))
    compiled = eqx.filter_jit(lambda states, actions: batch_step(states, actions, CONFIG))
    expected = batch_step(start, actions, CONFIG)
    assert eqx.tree_equal(compiled(start, actions)[0].working_grid, expected[0].working_grid)


@pytest.mark.parametrize("max_batch_size", [2, SIZE])
def test_any_number_of_single_states_can_be_stepped(max_batch_size: int) -> None:
    states = [arc_reset(key, CONFIG, TASK)[0] for key in split(5, 5)]
    actions = [create_point_action(1, row, 7) for row in range(5)]
    results = batch_processing.process_dynamic_batch(states, actions, CONFIG, max_batch_size)
    expected = [arc_step(*pair, CONFIG) for pair in zip(states, actions, strict=True)]
    np.testing.assert_array_equal(results[0].working_grid, [step[0].working_grid for step in expected])
    np.testing.assert_array_equal(results[2], [step[2] for step in expected])


def test_batch_sizes_are_measured_in_powers_of_two() -> None:
    best, measured = batch_processing.find_optimal_batch_size(CONFIG, TASK, max_batch_size=3, repeats=2)
    assert list(measured) == [1, 2] and best in measured
    assert set(measured[2]) == {"per_env_time", "throughput", "total_time"}


def test_memory_analysis_counts_all_leaves() -> None:
    found = batch_processing.analyze_memory_usage(CONFIG, TASK, batch_sizes=[1, SIZE])
    row = found[SIZE]
    assert set(row) == {"total_mb", "per_env_mb", "state_mb", "obs_mb"}
    # 10 boards with one word per row, 8 registers and the similarity, four bytes each.
    assert math.isclose(row["state_mb"], SIZE * (10 * CANVAS[0] + 8 + 1) * 4 / 2**20)
    assert math.isclose(row["obs_mb"], SIZE * CANVAS[0] * CANVAS[1] / 2**20)
    assert math.isclose(row["per_env_mb"], found[1]["total_mb"])


def test_warm_up_prints_the_batch_size(capsys: pytest.CaptureFixture[str]) -> None:
    assert set(batch_processing.warm_up_batch_functions(SIZE, CONFIG, TASK)) == {"reset", "step"}
    assert f"compiled for {SIZE} environments" in capsys.readouterr().out


def test_inspection_prints_states(start: ArcEnvState, capsys: pytest.CaptureFixture[str]) -> None:
    rows = batch_processing.inspect_batch_states(start, indices=[0, 4])
    assert [row["index"] for row in rows] == [0, 4]
    printed = capsys.readouterr().out.splitlines()
    for line in ("Batch size: 6", "Grid shape: (18, 20)", "Environment 4:", "  Step count: 0"):
        assert line in printed
    assert "  Unique colors: [-1, 0]" in printed and "  Episode done: False" in printed


def test_monitor_counts_and_times_operations(start: ArcEnvState) -> None:
    timer = batch_processing.BatchPerformanceMonitor()
    states, observations = timer.time_batch_reset(split(3), CONFIG, TASK)
    assert observations.shape == (SIZE, *CANVAS)
    for row in range(2):
        states, *_ = timer.time_batch_step(states, paint(1, jnp.full(SIZE, row)), CONFIG)
    assert states.step_count.tolist() == [2] * SIZE
    found = timer.get_stats()
    assert (found["total_operations"], found["avg_batch_size"]) == (3, SIZE)
    assert found["reset_time_mean"] > 0 and found["step_time_mean"] > 0
    assert found["reset_time_std"] == 0 and found["step_time_std"] >= 0

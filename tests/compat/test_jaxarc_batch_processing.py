"""The functions of the batch-processing guide have the names, arguments and results of the guide."""

import math

import jax
import jax.numpy as jnp
import pytest

from phalanx.compat.jaxarc import batch_processing
from phalanx.compat.jaxarc.envs import (
    EnvironmentConfig,
    JaxArcConfig,
    PointAction,
    UnifiedActionConfig,
    UnifiedDatasetConfig,
    batch_reset,
    create_mock_task,
)
from phalanx.compat.jaxarc.state import ArcEnvState
from phalanx.compat.jaxarc.types import JaxArcTask


@pytest.fixture(scope="module")
def config() -> JaxArcConfig:
    return JaxArcConfig(
        environment=EnvironmentConfig(max_episode_steps=100),
        dataset=UnifiedDatasetConfig(max_grid_height=30, max_grid_width=30),
        action=UnifiedActionConfig(selection_format="point"),
    )


@pytest.fixture(scope="module")
def task() -> JaxArcTask:
    return create_mock_task()


@pytest.fixture(scope="module")
def batch_states(config: JaxArcConfig, task: JaxArcTask) -> ArcEnvState:
    return batch_reset(jax.random.split(jax.random.PRNGKey(42), 16), config, task)[0]


def test_find_optimal_batch_size(config: JaxArcConfig, task: JaxArcTask) -> None:
    optimal_bs, perf_results = batch_processing.find_optimal_batch_size(config, task, max_batch_size=4)
    assert optimal_bs in perf_results
    assert list(perf_results) == [1, 2, 4]
    assert {"per_env_time", "throughput", "total_time"} <= set(perf_results[1])


def test_memory_analysis_counts_all_leaves(config: JaxArcConfig, task: JaxArcTask) -> None:
    memory_analysis = batch_processing.analyze_memory_usage(config, task, batch_sizes=[1, 16])
    row = memory_analysis[16]
    assert set(row) == {"total_mb", "per_env_mb", "state_mb", "obs_mb"}
    # 10 boards of 30 rows, 8 registers and the similarity, four bytes each.
    assert math.isclose(row["state_mb"], 16 * (10 * 30 + 8 + 1) * 4 / 2**20)
    assert math.isclose(row["obs_mb"], 16 * 30 * 30 / 2**20)


def test_warm_up_prints_the_batch_size(
    config: JaxArcConfig, task: JaxArcTask, capsys: pytest.CaptureFixture[str]
) -> None:
    batch_processing.warm_up_batch_functions(16, config, task)
    assert "Warmed up batch functions for batch size 16" in capsys.readouterr().out


def test_inspection_prints_states(batch_states: ArcEnvState, capsys: pytest.CaptureFixture[str]) -> None:
    batch_processing.inspect_batch_states(batch_states)
    printed = capsys.readouterr().out
    for line in (
        "Batch size: 16",
        "Grid shape: (30, 30)",
        "Environment 2:",
        "Step count: 0",
        "Episode done: False",
    ):
        assert line in printed


def test_monitor_counts_and_times_operations(config: JaxArcConfig, task: JaxArcTask) -> None:
    monitor = batch_processing.BatchPerformanceMonitor()
    keys = jax.random.split(jax.random.PRNGKey(42), 16)
    states, _ = monitor.time_batch_reset(keys, config, task)
    actions = PointAction(operation=jnp.zeros(16, jnp.int32), row=jnp.full(16, 5), col=jnp.full(16, 5))
    monitor.time_batch_step(states, actions, config)
    stats = monitor.get_stats()
    assert stats["total_operations"] == 2
    assert stats["avg_batch_size"] == 16
    assert stats["step_time_mean"] > 0

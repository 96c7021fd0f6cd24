"""Functions that measure speed and memory."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

from phalanx.arc import (
    ArcConfig,
    ArcEnvironment,
    ArcTask,
    GridPair,
    PointAction,
    as_grid,
    batch_reset,
    batch_step,
)
from phalanx.arc.spec import make_arc
from phalanx.arc.state import NUM_BOARDS, RegisterIndex
from phalanx.compat.jaxarc import batch_processing as profiling
from phalanx.compat.jaxarc.batch_processing import (
    BatchPerformanceMonitor,
    analyze_memory_usage,
    find_optimal_batch_size,
    inspect_batch_states,
    warm_up_batch_functions,
)
from phalanx.core.vector import _reset, _step

TASK = ArcTask("nines", (GridPair(as_grid([[0, 0]]), as_grid([[9, 9]])),), ())
CONFIG = ArcConfig(dataset={"max_grid_height": 2, "max_grid_width": 3})
ENVIRONMENT = ArcEnvironment.create(CONFIG, TASK)
FILL = PointAction([3, 3], [0, 0], [0, 0])


def test_batch_size_search_tries_powers_of_two_and_selects_the_fastest(capsys, monkeypatch):
    seconds = iter([1.0, 0.4, 2.0])  # steps of sizes 1, 2 and 4

    def timed(call):
        call()
        return next(seconds), None

    monkeypatch.setattr(profiling, "_timed", timed)
    best, results = find_optimal_batch_size(ENVIRONMENT, None, max_batch_size=5, repeats=1)
    assert list(results) == [1, 2, 4]
    assert results[2] == {
        "per_env_time": 0.2,
        "throughput": 5.0,
        "total_time": 0.4,
    }
    assert best == 2
    printed = capsys.readouterr().out
    assert "2 environments: 5 steps/s, 200,000.0 us per step\n" in printed
    assert printed.endswith("\nfastest: 2 environments\n")


def test_batch_size_search_measures_wall_clock_time():
    _, results = find_optimal_batch_size(ENVIRONMENT, max_batch_size=1, repeats=2)
    assert 0 < results[1]["total_time"] < 10
    assert math.isclose(results[1]["throughput"] * results[1]["per_env_time"], 1)


def test_batch_size_search_stops_when_memory_is_exhausted(capsys, monkeypatch):
    def measure(environment, batch_size, repeats):
        if batch_size == 4:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory")
        return {"per_env_time": 1.0, "throughput": 1.0 * batch_size}

    monkeypatch.setattr(profiling, "_measure_batch_size", measure)
    best, results = find_optimal_batch_size(ENVIRONMENT, max_batch_size=64)
    assert (best, list(results)) == (2, [1, 2])
    assert "4 environments do not fit into memory" in capsys.readouterr().out


def test_batch_size_search_raises_other_errors(monkeypatch):
    def measure(environment, batch_size, repeats):
        raise jax.errors.JaxRuntimeError("INTERNAL: broken kernel")

    monkeypatch.setattr(profiling, "_measure_batch_size", measure)
    with pytest.raises(jax.errors.JaxRuntimeError, match="broken kernel"):
        find_optimal_batch_size(ENVIRONMENT)
    with pytest.raises(ValueError, match="max_batch_size must be at least 1, got 0"):
        find_optimal_batch_size(ENVIRONMENT, max_batch_size=0)


def test_memory_analysis_includes_all_leaves(capsys):
    results = analyze_memory_usage(ENVIRONMENT, None, batch_sizes=[1, 4])
    # Two rows of 4 bytes per board, the registers and the similarity; 6 cells of one byte are observed.
    state = 4 * (2 * NUM_BOARDS + len(RegisterIndex) + 1)
    assert math.isclose(results[4]["state_mb"], 4 * state / 2**20)
    assert math.isclose(results[4]["obs_mb"], 4 * 6 / 2**20)
    assert math.isclose(results[4]["total_mb"], 4 * (state + 6) / 2**20)
    assert math.isclose(results[4]["per_env_mb"], (state + 6) / 2**20)
    printed = f"4 environments: 0.000 MB, {(state + 6) / 2**20:.6f} MB each (+0.0% per environment"
    assert printed in capsys.readouterr().out
    with pytest.raises(ValueError, match="at least one batch size"):
        analyze_memory_usage(ENVIRONMENT, batch_sizes=())


def test_warm_up_compiles_the_functions(capsys):
    config = make_arc(CONFIG, task=TASK, max_episode_steps=99)
    seconds = warm_up_batch_functions(2, config)
    assert set(seconds) == {"reset", "step"}
    assert "compiled for 2 environments: reset" in capsys.readouterr().out
    compiled = _reset._cache_size(), _step._cache_size()
    states, _ = batch_reset(jax.random.split(jax.random.PRNGKey(3), 2), config)
    batch_step(states, FILL, config)
    assert (_reset._cache_size(), _step._cache_size()) == compiled


def test_monitor_times_operations_and_returns_their_results():
    timer = BatchPerformanceMonitor()
    keys = jax.random.split(jax.random.PRNGKey(0), 2)
    states, observations = timer.time_batch_reset(keys, ENVIRONMENT)
    assert observations.shape == (2, 2, 3)
    for _ in range(2):
        states, *_ = timer.time_batch_step(states, FILL, ENVIRONMENT)
    assert states.step_count.tolist() == [2, 2]
    found = timer.get_stats()
    assert found["total_operations"] == 3
    assert found["avg_batch_size"] == 2
    assert found["step_time_mean"] == sum(timer.step_times) / 2 > 0
    assert found["reset_time_std"] == 0


def test_monitor_without_data_reports_nan():
    found = BatchPerformanceMonitor().get_stats()
    assert found["total_operations"] == 0
    assert math.isnan(found["step_time_mean"])


def test_states_with_grids_are_shown_as_grids(capsys):
    class Grids(eqx.Module):
        working_grid: jax.Array
        step_count: jax.Array
        similarity_score: jax.Array
        episode_done: jax.Array

    grids = Grids(
        jnp.array([[[0, 3], [3, -1]], [[1, 1], [1, 1]]]),
        jnp.array([4, 0]),
        jnp.array([0.25, 1.0]),
        jnp.array([False, True]),
    )
    rows = inspect_batch_states(grids, indices=(0, 1, 7))
    assert rows[0] == {
        "index": 0,
        "Step count": 4,
        "Similarity": 0.25,
        "Episode done": False,
        "Unique colors": [-1, 0, 3],
    }
    assert [row["index"] for row in rows] == [0, 1]
    printed = capsys.readouterr().out
    assert printed.startswith("Batch size: 2\nGrid shape: (2, 2)\n\nEnvironment 0:\n  Step count: 4\n")

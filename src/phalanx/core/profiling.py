"""How fast and how large a batch is on this machine: throughput, memory, warm-up, timing, inspection.

Benchmarks with peers and repeats are in `benchmarks/`; these are the quick looks while writing an agent.
"""

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any, Protocol, TypeVar, runtime_checkable

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from phalanx.core.environment import Environment, EnvironmentConfigLike, Keys, as_environment
from phalanx.core.vector import batch_reset, batch_step, environment_of

Configured = Environment | EnvironmentConfigLike
_T = TypeVar("_T")

_MEGABYTE = 1024 * 1024
_MEMORY_FILE = Path("/proc/meminfo")
_SHARE = 0.25
"""Of the free memory that a batch may take: the compiler keeps copies, and others need some too."""
_UNKNOWN = 1 << 30
"""Bytes that are taken to be free where nobody says."""


def find_optimal_batch_size(
    config: Configured, task: Any = None, max_batch_size: int = 1024, *, repeats: int = 10
) -> tuple[int, dict[int, dict[str, float]]]:
    """The batch size, among powers of two, with the most steps a second; and all measurements.

    For each size: `total_time` of one batch step, `per_env_time`, `throughput` (steps a second), and
    `reset_time` and `reset_throughput`. Every step starts from fresh episodes with legal random actions and
    is waited for. A size that the device has no memory for ends the search.
    """
    if max_batch_size < 1:
        raise ValueError(f"max_batch_size must be at least 1, got {max_batch_size}")
    environment = as_environment(config, task)
    results: dict[int, dict[str, float]] = {}
    for batch_size in (2**power for power in range(max_batch_size.bit_length())):
        try:
            results[batch_size] = _measure(environment, batch_size, repeats)
        except jax.errors.JaxRuntimeError as error:
            if not results or "RESOURCE_EXHAUSTED" not in str(error):
                raise
            print(f"Batch {batch_size:3d}: out of memory, stopping here ({error})")
            break
        row = results[batch_size]
        print(
            f"Batch {batch_size:3d}: {row['per_env_time'] * 1000:.4f}ms/env, "
            f"{row['throughput']:.0f} steps/sec, {row['reset_throughput']:.0f} resets/sec"
        )
    best = max(results, key=lambda size: results[size]["throughput"])
    print(f"\nOptimal batch size: {best}")
    return best, results


def analyze_memory_usage(
    config: Configured, task: Any = None, batch_sizes: Sequence[int] = (1, 16, 64, 256)
) -> dict[int, dict[str, float]]:
    """Megabytes of states and observations, all leaves counted, for each batch size.

    What states share (an ARC task buffer) is not counted: it does not grow with the batch.
    """
    if not batch_sizes:
        raise ValueError("batch_sizes must name at least one batch size")
    results: dict[int, dict[str, float]] = {}
    for batch_size in batch_sizes:
        states, observations = batch_reset(_keys(batch_size), as_environment(config, task))
        state, observation = _bytes(states) / _MEGABYTE, _bytes(observations) / _MEGABYTE
        total = state + observation
        results[batch_size] = {
            "total_mb": total,
            "per_env_mb": total / batch_size,
            "state_mb": state,
            "obs_mb": observation,
        }
        print(f"Batch {batch_size:3d}: {total:.3f}MB total, {total / batch_size:.6f}MB per env")
    baseline = results[batch_sizes[0]]["per_env_mb"]
    print("\nMemory scaling efficiency:")
    for batch_size in batch_sizes[1:]:
        overhead = (results[batch_size]["per_env_mb"] / baseline - 1) * 100
        print(f"  Batch {batch_size:3d}: {overhead:+.1f}% overhead per env")
    return results


def warm_up_batch_functions(batch_size: int, config: Configured, task: Any = None) -> dict[str, float]:
    """Compile `batch_reset` and `batch_step` for a batch size; the seconds that each first call took."""
    keys = _keys(batch_size)
    reset_time, (states, _) = _timed(lambda: batch_reset(keys, config, task))
    actions = _sample_actions(environment_of(config, states), keys, states)
    step_time, _ = _timed(lambda: batch_step(states, actions, config))
    print(f"✅ Warmed up batch functions for batch size {batch_size}")
    return {"reset": reset_time, "step": step_time}


class BatchPerformanceMonitor:
    """Times batch resets and steps, waiting for each result; the first call of a shape includes compiling."""

    def __init__(self) -> None:
        self.reset_times: list[float] = []
        self.step_times: list[float] = []
        self.batch_sizes: list[int] = []

    def time_batch_reset(self, keys: Keys, config: Configured, task: Any = None) -> tuple[PyTree, PyTree]:
        """`batch_reset`, timed."""
        elapsed, result = _timed(lambda: batch_reset(keys, config, task))
        self.reset_times.append(elapsed)
        self.batch_sizes.append(len(keys))
        return result

    def time_batch_step(self, states: PyTree, actions: PyTree, config: Configured) -> tuple[Any, ...]:
        """`batch_step`, timed."""
        elapsed, result = _timed(lambda: batch_step(states, actions, config))
        self.step_times.append(elapsed)
        return result

    def get_stats(self) -> dict[str, int | float]:
        """Means and standard deviations in seconds; NaN where nothing has been timed yet."""
        return {
            "reset_time_mean": _mean(self.reset_times),
            "reset_time_std": _deviation(self.reset_times),
            "step_time_mean": _mean(self.step_times),
            "step_time_std": _deviation(self.step_times),
            "avg_batch_size": _mean(self.batch_sizes),
            "total_operations": len(self.reset_times) + len(self.step_times),
        }


@runtime_checkable
class GridStates(Protocol):
    """A batch of states that edit grids, as `phalanx.arc` has them."""

    @property
    def working_grid(self) -> Int[Array, "batch rows cols"]: ...
    @property
    def step_count(self) -> Int[Array, " batch"]: ...
    @property
    def similarity_score(self) -> Float[Array, " batch"]: ...
    @property
    def episode_done(self) -> Bool[Array, " batch"]: ...


def inspect_batch_states(batch_states: PyTree, indices: Sequence[int] = (0, 1, 2)) -> list[dict[str, Any]]:
    """Print some environments of a batch and return what was printed, one dict for each.

    States with grids show steps, similarity, whether done, and colours; of other states every leaf is shown.
    """
    rows = []
    leaves = jax.tree_util.tree_leaves_with_path(batch_states)
    if not leaves or any(leaf.ndim == 0 for _, leaf in leaves):
        raise ValueError("batch_states must be a batch: every leaf needs a leading batch axis")
    batch_size = leaves[0][1].shape[0]
    grids = isinstance(batch_states, GridStates)
    print(f"Batch size: {batch_size}")
    if grids:
        print(f"Grid shape: {batch_states.working_grid.shape[1:]}")
    else:
        print(f"{type(batch_states).__name__} has no grids; showing its leaves")
    for index in indices:
        if not 0 <= index < batch_size:
            continue
        if grids:
            row = {
                "Step count": int(batch_states.step_count[index]),
                "Similarity": round(float(batch_states.similarity_score[index]), 3),
                "Episode done": bool(batch_states.episode_done[index]),
                "Unique colors": np.unique(np.asarray(batch_states.working_grid[index])).tolist(),
            }
        else:
            row = {jax.tree_util.keystr(path).lstrip("."): _show(leaf[index]) for path, leaf in leaves}
        print(f"\nEnvironment {index}:")
        for name, value in row.items():
            print(f"  {name}: {value}")
        rows.append({"index": index, **row})
    return rows


def _measure(environment: Environment, batch_size: int, repeats: int) -> dict[str, float]:
    keys = _keys(batch_size)
    states, _ = batch_reset(keys, environment)
    actions = _sample_actions(environment, keys, states)
    jax.block_until_ready(batch_step(states, actions, environment))
    reset_elapsed = fmean(_timed(lambda: batch_reset(keys, environment))[0] for _ in range(repeats))
    elapsed = fmean(_timed(lambda: batch_step(states, actions, environment))[0] for _ in range(repeats))
    return {
        "per_env_time": elapsed / batch_size,
        "throughput": batch_size / elapsed,
        "total_time": elapsed,
        "reset_time": reset_elapsed,
        "reset_throughput": batch_size / reset_elapsed,
    }


@jax.jit
def _sample_actions(environment: Environment, keys: Keys, states: PyTree) -> PyTree:
    return jax.vmap(environment.sample_action)(keys, states)


def _keys(batch_size: int) -> Keys:
    return jax.random.split(jax.random.PRNGKey(42), batch_size)


def _timed(call: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = jax.block_until_ready(call())
    return time.perf_counter() - start, result


def _bytes(tree: PyTree) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))


def _mean(values: Sequence[int | float]) -> float:
    return fmean(values) if values else math.nan


def _deviation(values: Sequence[int | float]) -> float:
    return pstdev(values) if values else math.nan


def _show(leaf: Array) -> Any:
    return leaf.item() if leaf.ndim == 0 else f"{leaf.dtype}{list(leaf.shape)}"


def batch_size_for_memory(
    bytes_per_candidate: int, available: int | None = None, *, at_most: int = 1024
) -> int:
    """How many candidates a quarter of the available bytes hold: a power of two, from 1 to `at_most`.

    Without `available` the memory is that which the default device or, on a CPU, the system says is free.

    >>> adaptive_batch_size(1000, available=300_000)
    64
    """
    if bytes_per_candidate < 1 or at_most < 1:
        raise ValueError(f"need positive numbers, got {bytes_per_candidate} bytes and at most {at_most}")
    free = available_memory() if available is None else available
    fit = min(int(free * _SHARE) // bytes_per_candidate, at_most)
    return 1 << max(fit.bit_length() - 1, 0)


def available_memory() -> int:
    """Bytes that are free on the default device."""
    device = jax.devices()[0]
    stats = device.memory_stats() if device.platform != "cpu" else None
    if stats and "bytes_limit" in stats:
        return int(stats["bytes_limit"]) - int(stats.get("bytes_in_use", 0))
    if device.platform == "cpu" and _MEMORY_FILE.is_file():
        for line in _MEMORY_FILE.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return 1024 * int(line.split()[1])
    return _UNKNOWN


def retry_with_smaller_batches(run: Callable[[int], _T], batch_size: int) -> tuple[_T, int]:
    """What `run` gives for a batch size, halved as often as memory runs out, and the size it ran with."""
    while True:
        try:
            return run(batch_size), batch_size
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error) or batch_size == 1:
                raise
            batch_size //= 2

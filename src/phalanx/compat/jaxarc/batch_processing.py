"""Functions from JaxARC's batch-processing guide: batch sizes, timing, stacking and policy rollouts."""

import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, pstdev
from typing import Any

from phalanx.extras import require_extra

with require_extra(__name__, "jax", "jax", "equinox"):
    import equinox as eqx
    import jax
    import jax.numpy as jnp

import numpy as np
from jaxtyping import Array, Float, PyTree

from phalanx.arc import functional as _functional
from phalanx.arc.env import ArcEnvironment
from phalanx.arc.functional import Configured, as_environment, environment_of
from phalanx.arc.state import ArcState
from phalanx.core.environment import Key, Keys
from phalanx.nn.policy_network import PolicyNetwork
from phalanx.training.rollout import keys_for

PolicyFunction = Callable[[Any], Mapping[str, Any]]
"""Function that takes a batch of states and returns `actions` and `log_probs`."""


def batch_policy_rollout(
    policy_fn: PolicyFunction,
    batch_states: PyTree,
    config: Configured,
    num_steps: int = 10,
) -> dict[str, Any]:
    """Run a policy for `num_steps` steps in each environment.

    All steps run in one compiled call, so the policy must be traceable by JAX. Later calls with the
    same policy function need no recompilation. If the policy is an Equinox module or a partial function, its
    arrays may change without recompilation.

    Returns:
        `states` (in which the actions were selected), `actions`, `rewards`, `dones` and `log_probs`, with
        shape [steps, batch, ...]. Finished environments stay finished, with reward 0.
    """
    if num_steps < 1:
        raise ValueError(f"num_steps must be at least 1, got {num_steps}")
    if isinstance(policy_fn, functools.partial):
        # JAX's version is a pytree, so that its array arguments are traced.
        policy_fn = jax.tree_util.Partial(policy_fn.func, *policy_fn.args, **policy_fn.keywords)
    return _rollout(policy_fn, batch_states, environment_of(config, batch_states), num_steps)


@eqx.filter_jit
def _rollout(
    policy_fn: PolicyFunction, batch_states: PyTree, environment: ArcEnvironment, num_steps: int
) -> dict[str, Any]:
    def step(states: PyTree, _: None) -> tuple[PyTree, dict[str, Any]]:
        output = policy_fn(states)
        if not isinstance(output, Mapping) or not {"actions", "log_probs"} <= set(output):
            got = sorted(output) if isinstance(output, Mapping) else type(output).__name__
            raise TypeError(f"policy_fn must return a dict with 'actions' and 'log_probs', got {got}")
        after, _observations, rewards, dones, _info = environment.batch_step(states, output["actions"])
        chosen = {name: output[name] for name in ("actions", "log_probs")}
        return after, {"states": states, "rewards": rewards, "dones": dones, **chosen}

    return jax.lax.scan(step, batch_states, None, length=num_steps)[1]


def compute_batch_values(value_fn: Callable[[dict[str, Array]], Any], batch_states: ArcState) -> Any:
    """Apply a value function to the features of a batch of states; see `extract_state_features`."""
    return value_fn(extract_state_features(batch_states))


def extract_state_features(batch_states: ArcState) -> dict[str, Array]:
    """Return the working grid and the target grid of each state, their similarity, and the step count."""
    same_names = ("working_grid", "target_grid", "step_count")
    features = {name: getattr(batch_states, name) for name in same_names}
    return features | {"similarity": batch_states.similarity_score}


class NetworkPolicy(eqx.Module):
    """Wraps a network as a policy for `batch_policy_rollout`. Without `key`, the policy is greedy.

    `batch_policy_rollout` does not pass PRNG keys to a policy. To sample actions, this policy derives one key
    per environment from `key`, the environment's index in the batch and the number of steps taken. In
    addition to `actions` and `log_probs`, it returns `values`.
    """

    network: PolicyNetwork
    environment: ArcEnvironment
    key: Key | None = None

    def __call__(self, states: PyTree) -> dict[str, Any]:
        keys = None
        if self.key is not None:
            rows = keys_for(self.key, jnp.arange(len(states.step_count), dtype=jnp.int32))
            keys = jax.vmap(jax.random.fold_in)(rows, states.step_count)

        def one(state: PyTree, key: Key | None) -> tuple[PyTree, Float[Array, ""], Float[Array, ""]]:
            observation = self.environment.observe(state)
            distribution, value = self.network(observation)
            action = distribution.mode() if key is None else distribution.sample(key)
            return action, distribution.log_prob(action), value

        actions, log_probs, values = jax.vmap(one)(states, keys)
        return {"actions": actions, "log_probs": log_probs, "values": values}


def find_optimal_batch_size(
    config: Configured, task: Any = None, max_batch_size: int = 1024, *, repeats: int = 10
) -> tuple[int, dict[int, dict[str, float]]]:
    """Measure the speed of power-of-two batch sizes, and return the fastest size and all measurements.

    The measurements for a batch size are `total_time` (the time of one batch step) and `per_env_time`, both
    in seconds, and `throughput` in steps per second. Every measured step starts in initial states
    and takes random legal actions. The search ends when the device runs out of memory.
    """
    if max_batch_size < 1:
        raise ValueError(f"max_batch_size must be at least 1, got {max_batch_size}")
    environment = as_environment(config, task)
    results: dict[int, dict[str, float]] = {}
    for size in (2**power for power in range(max_batch_size.bit_length())):
        try:
            found = results[size] = _measure_batch_size(environment, size, repeats)
        except jax.errors.JaxRuntimeError as error:
            if not results or "RESOURCE_EXHAUSTED" not in str(error):
                raise
            print(f"{size} environments do not fit into memory: {error}")
            break
        microseconds = 1e6 * found["per_env_time"]
        print(f"{size} environments: {found['throughput']:,.0f} steps/s, {microseconds:,.1f} us per step")
    best = max(results, key=lambda size: results[size]["throughput"])
    print(f"fastest: {best} environments")
    return best, results


def analyze_memory_usage(
    config: Configured, task: Any = None, batch_sizes: Sequence[int] = (1, 16, 64, 256)
) -> dict[int, dict[str, float]]:
    """Return the size of states and observations in megabytes for each batch size.

    Data that all states share, such as the task buffer, is not counted.
    """
    if not batch_sizes:
        raise ValueError("batch_sizes must contain at least one batch size")
    environment = as_environment(config, task)
    results = {size: _measure_memory(environment, size) for size in batch_sizes}
    reference = results[batch_sizes[0]]["per_env_mb"]
    for size, row in results.items():
        each = row["per_env_mb"]
        change = f"{each / reference - 1:+.1%} per environment compared with the first size"
        print(f"{size} environments: {row['total_mb']:.3f} MB, {each:.6f} MB each ({change})")
    return results


def _measure_memory(environment: ArcEnvironment, batch_size: int) -> dict[str, float]:
    trees = _functional.batch_reset(_keys(batch_size), environment)
    state, observation = (sum(leaf.nbytes for leaf in jax.tree.leaves(tree)) / 2**20 for tree in trees)
    total = state + observation
    return {"state_mb": state, "obs_mb": observation, "total_mb": total, "per_env_mb": total / batch_size}


def warm_up_batch_functions(batch_size: int, config: Configured, task: Any = None) -> dict[str, float]:
    """Compile `batch_reset` and `batch_step` for a batch size by calling each of them once.

    Returns the time of each call in seconds, as `reset` and `step`.
    """
    keys = _keys(batch_size)
    reset_time, (states, _) = _timed(lambda: _functional.batch_reset(keys, config, task))
    actions = _sample_actions(environment_of(config, states), keys, states)
    step_time, _ = _timed(lambda: _functional.batch_step(states, actions, config))
    print(f"compiled for {batch_size} environments: reset {reset_time:.2f} s, step {step_time:.2f} s")
    return {"reset": reset_time, "step": step_time}


class BatchPerformanceMonitor:
    """Measures the time of batch resets and steps. The first measurement for each batch size includes the
    compilation time."""

    def __init__(self) -> None:
        self.reset_times: list[float] = []
        self.step_times: list[float] = []
        self.batch_sizes: list[int] = []

    def time_batch_reset(self, keys: Keys, config: Configured, task: Any = None) -> tuple[PyTree, PyTree]:
        """Call `batch_reset` and record its time."""
        seconds, started = _timed(lambda: _functional.batch_reset(keys, config, task))
        self.batch_sizes += [len(keys)]
        self.reset_times += [seconds]
        return started

    def time_batch_step(self, states: PyTree, actions: PyTree, config: Configured) -> tuple[Any, ...]:
        """Call `batch_step` and record its time."""
        seconds, stepped = _timed(lambda: _functional.batch_step(states, actions, config))
        self.step_times += [seconds]
        return stepped

    def get_stats(self) -> dict[str, int | float]:
        """Return the mean and the standard deviation of the reset and step times in seconds, the mean batch
        size, and the number of calls. Statistics without measurements are NaN."""
        return {
            "reset_time_mean": _apply(fmean, self.reset_times),
            "reset_time_std": _apply(pstdev, self.reset_times),
            "step_time_mean": _apply(fmean, self.step_times),
            "step_time_std": _apply(pstdev, self.step_times),
            "avg_batch_size": _apply(fmean, self.batch_sizes),
            "total_operations": len(self.step_times) + len(self.reset_times),
        }


def inspect_batch_states(batch_states: PyTree, indices: Sequence[int] = (0, 1, 2)) -> list[dict[str, Any]]:
    """Print the step count, similarity, done flag and colors of some environments in a batch.

    Indices outside the batch are skipped.

    Returns:
        One dictionary with the printed values per environment.
    """
    batch_size, *grid_shape = batch_states.working_grid.shape
    print(f"Batch size: {batch_size}\nGrid shape: {tuple(grid_shape)}")
    rows: list[dict[str, Any]] = []
    for index in indices:
        if 0 <= index < batch_size:
            row = {
                "Step count": int(batch_states.step_count[index]),
                "Similarity": round(float(batch_states.similarity_score[index]), 3),
                "Episode done": bool(batch_states.episode_done[index]),
                "Unique colors": np.unique(np.asarray(batch_states.working_grid[index])).tolist(),
            }
            lines = [f"  {name}: {value}" for name, value in row.items()]
            print("\n".join([f"\nEnvironment {index}:", *lines]))
            rows.append({"index": index, **row})
    return rows


def _measure_batch_size(environment: ArcEnvironment, batch_size: int, repeats: int) -> dict[str, float]:
    keys = _keys(batch_size)
    states, _ = _functional.batch_reset(keys, environment)
    actions = _sample_actions(environment, keys, states)
    jax.block_until_ready(_functional.batch_step(states, actions, environment))
    elapsed = fmean(
        _timed(lambda: _functional.batch_step(states, actions, environment))[0] for _ in range(repeats)
    )
    return {
        "per_env_time": elapsed / batch_size,
        "throughput": batch_size / elapsed,
        "total_time": elapsed,
    }


@jax.jit
def _sample_actions(environment: ArcEnvironment, keys: Keys, states: PyTree) -> PyTree:
    return jax.vmap(environment.sample_action)(keys, states)


def _keys(batch_size: int) -> Keys:
    return jax.random.split(jax.random.PRNGKey(0), batch_size)


def _timed(call: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = jax.block_until_ready(call())
    return time.perf_counter() - start, result


def _apply(statistic: Callable[[Sequence[float]], float], values: Sequence[float]) -> float:
    """Compute a statistic, or return NaN if there are no values."""
    return statistic(values) if values else math.nan


def stack_states(states_list: Sequence[PyTree]) -> PyTree:
    """Stack single states into a batch."""
    return _stack(states_list, "state")


def stack_actions(actions_list: Sequence[PyTree]) -> PyTree:
    """Stack single actions of the same format into a batch."""
    return _stack(actions_list, "action")


def pad_states(states_list: Sequence[PyTree], size: int) -> PyTree:
    """Stack states into a batch of exactly `size` entries, padded with copies of the last state."""
    return _stack(_pad(states_list, size, "state"), "state")


def pad_actions(actions_list: Sequence[PyTree], size: int) -> PyTree:
    """Stack actions into a batch of exactly `size` entries, padded with copies of the last action."""
    return _stack(_pad(actions_list, size, "action"), "action")


def unpad_results(results: PyTree, size: int) -> PyTree:
    """Return the first `size` entries of every leaf, without the padding."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(results):
        if leaf.ndim == 0 or leaf.shape[0] < size:
            raise ValueError(
                f"cannot take {size} results from a batch: result{jax.tree_util.keystr(path)} "
                f"has shape {leaf.shape}"
            )
    return jax.tree.map(lambda leaf: leaf[:size], results)


def combine_batch_results(results: Sequence[PyTree]) -> PyTree:
    """Concatenate the results of several batches in order."""
    _check_same_structure(results, "batch result")
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *results)


def process_dynamic_batch(
    states_list: Sequence[PyTree],
    actions_list: Sequence[PyTree],
    config: Configured,
    max_batch_size: int = 64,
) -> tuple[Any, ...]:
    """Step any number of single states in batches of exactly `max_batch_size`.

    The last batch is padded, so `batch_step` is compiled for only one batch size. The result is that of
    `batch_step`, with one entry per state.
    """
    if max_batch_size < 1:
        raise ValueError(f"max_batch_size must be at least 1, got {max_batch_size}")
    if len(states_list) != len(actions_list):
        raise ValueError(
            f"every state needs one action: got {len(states_list)} states and {len(actions_list)} actions"
        )
    _check_same_structure(states_list, "state")
    _check_same_structure(actions_list, "action")
    stepped = []
    for start in range(0, len(states_list), max_batch_size):
        states = states_list[start : start + max_batch_size]
        actions = actions_list[start : start + max_batch_size]
        padded = _functional.batch_step(
            pad_states(states, max_batch_size), pad_actions(actions, max_batch_size), config
        )
        stepped.append(unpad_results(padded, len(states)))
    return combine_batch_results(stepped)


def _stack(items: Sequence[PyTree], what: str) -> PyTree:
    _check_same_structure(items, what)
    return jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *items)


def _pad(items: Sequence[PyTree], size: int, what: str) -> list[PyTree]:
    """Append copies of the last item to a list until it has `size` items. An empty list stays empty."""
    if len(items) > size:
        raise ValueError(f"cannot pad {len(items)} {what}s to {size}; increase the size or split the list")
    return [*items, *list(items[-1:]) * (size - len(items))]


def _check_same_structure(items: Sequence[PyTree], what: str) -> None:
    """Raise ValueError if the list is empty or its items differ in structure or shape."""
    if not items:
        raise ValueError(f"need at least one {what}, got an empty list")
    # Results of batches may differ in their first axis.
    skip = 1 if what == "batch result" else 0
    structures: list[Any] = [jax.tree.structure(item) for item in items]
    shapes = [[jnp.shape(leaf)[skip:] for leaf in jax.tree.leaves(item)] for item in items]
    for index, (structure, shape) in enumerate(zip(structures, shapes, strict=True)):
        if structure != structures[0]:
            raise ValueError(
                f"{what}s with different structures cannot form one batch: {what} 0 is {structures[0]}, "
                f"{what} {index} is {structure}"
            )
        if shape != shapes[0]:
            raise ValueError(f"{what} {index} has shapes {shape}, {what} 0 has {shapes[0]}")

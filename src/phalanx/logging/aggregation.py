"""What an update's batch has to say: reduced and sampled on the device, brought to the host as one buffer.

What becomes of it is in `experiment`.
"""

import functools
import math
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Num, PyTree, UInt8, UInt32

from phalanx.logging.config import LoggingConfig
from phalanx.logging.records import is_scalar

_WORDS = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint64}


def pack_bytes(tree: PyTree) -> UInt8[Array, " bytes"]:
    """Every leaf's bytes one after another, inside a compiled function.

    A dozen small arrays would be a dozen transfers, each with an accelerator's full latency.
    """
    parts = [_bytes_of(jnp.asarray(leaf)) for leaf in jax.tree.leaves(tree)]
    return jnp.concatenate(parts) if parts else jnp.zeros((0,), jnp.uint8)


def unpack_bytes(buffer: UInt8[np.ndarray, " bytes"], like: PyTree) -> PyTree:
    """The pytree again, as NumPy arrays; `like` has the shapes and types (see `jax.eval_shape`)."""
    leaves, structure = jax.tree.flatten(like)
    arrays, start = [], 0
    for leaf in leaves:
        dtype = np.dtype(leaf.dtype)
        end = start + math.prod(leaf.shape) * dtype.itemsize
        arrays.append(_numbers(buffer[start:end], dtype).reshape(leaf.shape))
        start = end
    return jax.tree.unflatten(structure, arrays)


def _numbers(data: UInt8[np.ndarray, " bytes"], dtype: np.dtype) -> np.ndarray:
    # Turned round on the host where the highest byte comes first in memory.
    ordered = data if sys.byteorder == "little" else data.reshape(-1, dtype.itemsize)[:, ::-1]
    return np.frombuffer(ordered.tobytes(), dtype)


def _bytes_of(leaf: Array) -> UInt8[Array, " bytes"]:
    """A leaf's bytes, the lowest of each number first.

    By shifts: a bitcast to a narrower type, straight after a maximum over some thousand values, crashes the
    process on the CPU (jaxlib 0.10.2); bitcasts that keep the width do not.
    """
    if leaf.dtype == jnp.bool_:
        return leaf.astype(jnp.uint8).ravel()
    words = jax.lax.bitcast_convert_type(leaf, _WORDS[leaf.dtype.itemsize]).ravel()
    shifts = jnp.arange(0, 8 * leaf.dtype.itemsize, 8, dtype=words.dtype)
    return (words[:, None] >> shifts).astype(jnp.uint8).ravel()


Summary = dict[str, Any]


def summarize_batch(
    inputs: dict[str, Any], update_step: int, num_environments: int, num_samples: int
) -> Summary:
    """The summary on the host: one compiled call, one transfer.

    `inputs` has, each by name and each possibly empty: `statistics` and `rates` (a value for each
    environment, to be reduced), `scalars` (passed on), `episodes` and `states` (pytrees with a leading axis
    of environments, of which the sampled rows come back), and `finished` (None, or which environments count).
    """
    step = np.uint32(update_step & 0xFFFFFFFF)
    leaves, structure = jax.tree.flatten(inputs)
    specs = tuple(jax.ShapeDtypeStruct(np.shape(leaf), _dtype(leaf)) for leaf in leaves)
    like = _layout(structure, specs, num_environments, num_samples)
    buffer = np.asarray(jax.device_get(_packed_summary(inputs, step, num_environments, num_samples)))
    return unpack_bytes(buffer, like)


def _dtype(leaf: Any) -> Any:
    return leaf.dtype if isinstance(leaf, jax.Array | np.ndarray | np.generic) else jnp.result_type(leaf)


@functools.lru_cache(maxsize=64)
def _layout(structure: Any, specs: tuple[jax.ShapeDtypeStruct, ...], environments: int, samples: int) -> Any:
    """Shapes and types of a summary; asked for at every logging update, so it is traced once."""
    inputs = jax.tree.unflatten(structure, specs)
    step = jax.ShapeDtypeStruct((), jnp.uint32)
    return jax.eval_shape(lambda i, s: _summary(i, s, environments, samples), inputs, step)


@functools.partial(jax.jit, static_argnums=(2, 3))
def _packed_summary(
    inputs: dict[str, Any], step: UInt32[Array, ""], environments: int, samples: int
) -> UInt8[Array, " bytes"]:
    return pack_bytes(_summary(inputs, step, environments, samples))


def _summary(inputs: dict[str, Any], step: UInt32[Array, ""], environments: int, samples: int) -> Summary:
    finished = inputs["finished"]
    metrics: dict[str, Any] = {}
    for prefix, values in inputs["statistics"].items():
        metrics |= {f"{prefix}_{name}": value for name, value in _statistics(values, finished).items()}
    for name, values in inputs["rates"].items():
        metrics[name] = jnp.mean(values, where=finished)
    count = jnp.int32(environments) if finished is None else jnp.sum(finished, dtype=jnp.int32)
    summary = {"metrics": metrics, "scalars": inputs["scalars"], "count": count}
    if samples:
        rows = _sampled_rows(step, environments, samples, finished)
        taken = jax.tree.map(lambda leaf: _plain(leaf[rows]), (inputs["episodes"], inputs["states"]))
        summary |= {"rows": rows, "episodes": taken[0], "states": taken[1]}
    return summary


def _statistics(
    values: Num[Array, " batch"] | Bool[Array, " batch"], finished: Bool[Array, " batch"] | None
) -> dict[str, Array]:
    numbers = values.astype(jnp.float32)
    return {
        "mean": jnp.mean(numbers, where=finished),
        "std": jnp.std(numbers, where=finished),
        "max": jnp.max(numbers, where=finished, initial=-jnp.inf),
        "min": jnp.min(numbers, where=finished, initial=jnp.inf),
    }


def _sampled_rows(
    step: UInt32[Array, ""], environments: int, samples: int, finished: Bool[Array, " batch"] | None
) -> Int[Array, " samples"]:
    """Which environments are sampled: drawn by the update step alone, so that a rerun shows the same ones."""
    key = jax.random.PRNGKey(step)
    if finished is None:
        if samples >= environments:
            return jnp.arange(environments)
        return jax.random.choice(key, environments, shape=(samples,), replace=False)
    order = jax.random.permutation(key, environments)
    finished_first = jnp.argsort(~finished[order], stable=True)
    return order[finished_first][:samples]


def _plain(leaf: Array) -> Array:
    """Random keys are an array type of their own, which has no bytes to copy; their data has."""
    return jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf


def row_of(states: PyTree, place: int) -> PyTree:
    """One of the rows that came back, as a state whose arrays are JAX's again, on the host's CPU."""
    return jax.device_put(jax.tree.map(lambda leaf: leaf[place], states), _host())


@functools.cache
def _host() -> Any:
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        # JAX_PLATFORMS can leave the CPU out; the default device then has to serve.
        return None


_STATISTICS = {
    "episode_returns": ("reward", "log_aggregated_rewards"),
    "similarity_scores": ("similarity", "log_aggregated_similarity"),
    "episode_lengths": ("episode_length", "log_episode_lengths"),
}
_EPISODE_FIELDS: dict[str, tuple[str, Any]] = {
    "episode_returns": ("total_reward", 0.0),
    "episode_lengths": ("total_steps", 0),
    "similarity_scores": ("final_similarity", 0.0),
    "success_mask": ("success", False),
}
"""An episode's field for each key, and its value where the key is absent."""
_STATES = {"initial_states": "initial_state", "final_states": "final_state", "step_states": "step_states"}

_PER_ENVIRONMENT = (*_EPISODE_FIELDS, "episode_mask")
_KNOWN = {"update_step", "task_ids", *_PER_ENVIRONMENT, *_STATES}


class BatchReading(NamedTuple):
    """What one update has to say."""

    metrics: dict[str, float]
    episodes: list[dict[str, Any]]


def read_batch(
    batch_data: Mapping[str, Any], config: LoggingConfig, *, aggregate: bool, sample: bool
) -> BatchReading:
    """Aggregated metrics and sampled episodes of an update, by one compiled call and one transfer.

    Only what is a JAX array travels; a list of states is looked up on the host afterwards, which takes a
    second transfer if they are on a device: pass a batched state instead.
    """
    update_step = update_step_of(batch_data)
    arrays = {name: _array(batch_data[name]) for name in _PER_ENVIRONMENT if name in batch_data}
    environments = _num_environments(arrays)
    scalars = _scalars(batch_data, config) if aggregate else {}
    samples = min(config.num_samples, environments) if sample else 0
    inputs = {
        "statistics": _wanted_statistics(arrays, config) if aggregate and environments else {},
        "rates": _wanted_rates(arrays, config) if aggregate and environments else {},
        "scalars": {name: value for name, value in scalars.items() if isinstance(value, jax.Array)},
        "episodes": _episode_arrays(arrays, batch_data) if samples else {},
        "states": _batched_states(batch_data) if samples else {},
        "finished": arrays.get("episode_mask"),
    }
    summary = summarize_batch(inputs, update_step, environments, samples)
    count = int(summary["count"])
    metrics = {name: float(value) for name, value in summary["metrics"].items()} if count else {}
    metrics |= {name: float(summary["scalars"].get(name, value)) for name, value in scalars.items()}
    return BatchReading(metrics, _episodes(batch_data, summary, update_step, min(samples, count)))


def update_step_of(batch_data: Mapping[str, Any]) -> int:
    """The update's number; 0 where none is given."""
    step = int(batch_data.get("update_step", 0))
    if step < 0:
        raise ValueError(f"update_step must not be negative, got {step}")
    return step


def misfits(batch_data: Mapping[str, Any]) -> dict[str, str]:
    """What cannot be logged, and why: neither known nor a number, or ids and states of another batch."""
    sizes = {np.shape(batch_data[name])[:1] for name in _PER_ENVIRONMENT if name in batch_data}
    found = {}
    for name, value in batch_data.items():
        if name not in _KNOWN and not is_scalar(value):
            found[name] = "is neither a known key nor a single number"
        elif name in ("task_ids", *_STATES) and value is not None and len(sizes) == 1:
            leaves = [value] if name == "task_ids" or _is_listed(value) else jax.tree.leaves(value)
            own = {(len(leaf),) if _is_listed(leaf) else np.shape(leaf)[:1] for leaf in leaves}
            if own != sizes:
                counts = " and ".join(str(size[0] if size else "no") for size in sorted(own))
                found[name] = f"is of {counts} environments and the batch of {next(iter(sizes))[0]}"
    return found


def _array(value: Any) -> Any:
    return value if isinstance(value, jax.Array) else np.asarray(value)


def _num_environments(arrays: Mapping[str, Any]) -> int:
    sizes = {name: array.shape for name, array in arrays.items()}
    for name, shape in sizes.items():
        if len(shape) != 1:
            raise ValueError(f"batch_data[{name!r}] must hold one value an environment, got shape {shape}")
    if len(set(sizes.values())) > 1:
        counts = ", ".join(f"{name} has {shape[0]}" for name, shape in sizes.items())
        raise ValueError(f"batch_data must be of one batch, but {counts}")
    return next((shape[0] for shape in sizes.values()), 0)


def _wanted_statistics(arrays: Mapping[str, Any], config: LoggingConfig) -> dict[str, Any]:
    return {
        prefix: arrays[key]
        for key, (prefix, setting) in _STATISTICS.items()
        if key in arrays and getattr(config, setting)
    }


def _wanted_rates(arrays: Mapping[str, Any], config: LoggingConfig) -> dict[str, Any]:
    wanted = "success_mask" in arrays and config.log_success_rates
    return {"success_rate": arrays["success_mask"]} if wanted else {}


def _scalars(batch_data: Mapping[str, Any], config: LoggingConfig) -> dict[str, Any]:
    """Losses, gradient norm and whatever else is a single number, in the order given."""
    return {
        name: value
        for name, value in batch_data.items()
        if name not in _KNOWN
        and is_scalar(value)
        and (config.log_loss_metrics or not name.endswith("loss"))
        and (config.log_gradient_norms or name != "gradient_norm")
    }


def _episode_arrays(arrays: Mapping[str, Any], batch_data: Mapping[str, Any]) -> dict[str, Any]:
    rows = {field: arrays[key] for key, (field, _) in _EPISODE_FIELDS.items() if key in arrays}
    task_ids = batch_data.get("task_ids")
    return rows | ({"task_id": task_ids} if isinstance(task_ids, jax.Array) else {})


def _is_listed(states: Any) -> bool:
    # Not isinstance: a NamedTuple is a batched state, not a sequence of states.
    return type(states) in (list, tuple)


def _batched_states(batch_data: Mapping[str, Any]) -> dict[str, Any]:
    given = {field: batch_data.get(key) for key, field in _STATES.items()}
    return {field: states for field, states in given.items() if states is not None and not _is_listed(states)}


def _episodes(
    batch_data: Mapping[str, Any], summary: dict[str, Any], update_step: int, samples: int
) -> list[dict[str, Any]]:
    rows = [int(row) for row in summary["rows"][:samples]] if samples else []
    listed = {
        field: [batch_data[key][row] for row in rows]
        for key, field in _STATES.items()
        if _is_listed(batch_data.get(key))
    }
    return [
        _episode(batch_data, summary, update_step, place, row)
        | {field: states[place] for field, states in listed.items()}
        for place, row in enumerate(rows)
    ]


def _episode(
    batch_data: Mapping[str, Any], summary: dict[str, Any], update_step: int, place: int, row: int
) -> dict[str, Any]:
    """A sampled episode, as `log_episode_summary` takes it; the update's number stands for the episode's."""
    taken, states = summary["episodes"], summary["states"]
    episode: dict[str, Any] = {"episode_num": update_step}
    for field, absent in _EPISODE_FIELDS.values():
        episode[field] = type(absent)(taken[field][place]) if field in taken else absent
    episode |= {"environment_id": row, "task_id": _task_id(batch_data, taken, place, row)}
    episode |= {"initial_state": None, "final_state": None}
    return episode | {field: row_of(state, place) for field, state in states.items()}


def _task_id(batch_data: Mapping[str, Any], taken: Mapping[str, Any], place: int, row: int) -> str:
    if "task_id" in taken:
        return str(taken["task_id"][place])
    task_ids = batch_data.get("task_ids")
    return f"batch_task_{row}" if task_ids is None else str(task_ids[row])

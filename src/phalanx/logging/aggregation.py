"""Aggregation of an update's arrays into metrics, and sampling of episodes. Both use NumPy on the host."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from phalanx.extras import require_jax
from phalanx.logging.records import is_scalar

_STATISTICS = {
    "episode_returns": "reward",
    "similarity_scores": "similarity",
    "episode_lengths": "episode_length",
}
"""Maps each aggregated key of `batch_data` to the prefix of its metrics. For example, `episode_returns`
results in `reward_mean` and other metrics that start with `reward`."""
_EPISODE_FIELDS: dict[str, tuple[str, Any]] = {
    "episode_returns": ("total_reward", 0.0),
    "episode_lengths": ("total_steps", 0),
    "similarity_scores": ("final_similarity", None),
    "success_mask": ("success", False),
}
"""Maps keys of `batch_data` to the field of an episode record and the field's default value. Fields without a
default value are left out if the key is missing."""
_STATES = {"initial_states": "initial_state", "final_states": "final_state", "step_states": "step_states"}

_PER_ENVIRONMENT = (*_EPISODE_FIELDS, "episode_mask")
_KNOWN = {"update_step", "task_ids", *_PER_ENVIRONMENT, *_STATES}


SampleRows = Callable[[int, int, int, Any], Int[np.ndarray, " samples"]]
"""Function that selects the environments whose episodes are logged.

Its arguments are the update step, the number of environments, the number of samples, and a boolean mask of
the environments that have finished an episode (None if all environments have). It returns the indices of the
selected environments.
"""


class UpdateSummary(NamedTuple):
    """Metrics of one update, and the records of its sampled episodes."""

    metrics: dict[str, float]
    episodes: list[dict[str, Any]]


def sample_rows(
    update_step: int, num_envs: int, num_samples: int, finished: Bool[np.ndarray, " batch"] | None
) -> Int[np.ndarray, " samples"]:
    """Sample some of the environments that have finished an episode.

    Args:
        update_step: Update number, which is also the random seed.
        num_envs: Number of environments in the batch.
        num_samples: Maximum number of environments to sample.
        finished: Mask of the environments that have finished an episode. None means all environments.

    Returns:
        The indices of the sampled environments.
    """
    candidates = np.arange(num_envs) if finished is None else np.flatnonzero(finished)
    if num_samples >= num_envs:
        return candidates
    return np.random.default_rng(update_step).permutation(candidates)[:num_samples]


def summarize_update(
    batch_data: Mapping[str, Any],
    *,
    aggregate: bool = False,
    num_samples: int = 0,
    sample_rows: SampleRows = sample_rows,
) -> UpdateSummary:
    """Aggregate the metrics of an update and sample episodes.

    Args:
        batch_data: Arrays and scalars by name, as for `ExperimentLogger.log_batch_step`.
        aggregate: Whether to compute metrics. If False, the returned metrics are empty.
        num_samples: Maximum number of episodes to sample.
        sample_rows: Function that selects the environments whose episodes are sampled.
    """
    update_step = get_update_step(batch_data)
    arrays = {name: batch_data[name] for name in _PER_ENVIRONMENT if name in batch_data}
    scalars = {name: value for name, value in batch_data.items() if name not in _KNOWN and is_scalar(value)}
    values = _to_host(arrays | (scalars if aggregate else {}))
    arrays = {name: values.pop(name) for name in arrays}
    num_envs = _check_num_envs(arrays)
    finished = arrays.get("episode_mask")
    count = num_envs if finished is None else int(finished.sum())
    metrics = _aggregate(arrays, finished) if aggregate and count else {}
    metrics |= {name: float(value) for name, value in values.items()}
    num_samples = min(num_samples, count)
    rows = sample_rows(update_step, num_envs, num_samples, finished) if num_samples else np.arange(0)
    return UpdateSummary(metrics, _episodes(batch_data, arrays, update_step, rows))


def get_update_step(batch_data: Mapping[str, Any]) -> int:
    """Return `batch_data["update_step"]` as an integer, or 0 if it is missing."""
    step = int(batch_data.get("update_step", 0))
    if step < 0:
        raise ValueError(f"update_step must not be negative, got {step}")
    return step


def find_invalid_keys(batch_data: Mapping[str, Any]) -> dict[str, str]:
    """Return the keys that cannot be logged, with the reason for each.

    These are unknown keys whose value is not a scalar, and task ids and states that do not have one entry per
    environment.
    """
    sizes = {np.shape(batch_data[name])[:1] for name in _PER_ENVIRONMENT if name in batch_data}
    found = {}
    for name, value in batch_data.items():
        if name not in _KNOWN and not is_scalar(value):
            found[name] = "is neither a known key nor a scalar"
        elif name in ("task_ids", *_STATES) and value is not None and len(sizes) == 1:
            own = {(len(leaf),) if _is_list(leaf) else np.shape(leaf)[:1] for leaf in _leaves(name, value)}
            if own != sizes:
                counts = " and ".join(str(size[0] if size else "no") for size in sorted(own))
                found[name] = f"has {counts} environments, but the batch has {next(iter(sizes))[0]}"
    return found


def _leaves(name: str, value: Any) -> list[Any]:
    if name == "task_ids" or _is_list(value):
        return [value]
    require_jax("a pytree of states")
    import jax

    return jax.tree.leaves(value)


def _to_host(values: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Copy arrays to the host. All transfers are started before the function waits for any of them."""
    for value in values.values():
        if hasattr(value, "copy_to_host_async"):
            value.copy_to_host_async()
    return {name: np.asarray(value) for name, value in values.items()}


def _check_num_envs(arrays: Mapping[str, np.ndarray]) -> int:
    sizes = {name: array.shape for name, array in arrays.items()}
    for name, shape in sizes.items():
        if len(shape) != 1:
            raise ValueError(f"batch_data[{name!r}] must have one value per environment, got shape {shape}")
    if len(set(sizes.values())) > 1:
        counts = ", ".join(f"{name} has {shape[0]}" for name, shape in sizes.items())
        raise ValueError(f"the arrays in batch_data must have the same size, but {counts}")
    return next((shape[0] for shape in sizes.values()), 0)


def _aggregate(
    arrays: Mapping[str, np.ndarray], finished: Bool[np.ndarray, " batch"] | None
) -> dict[str, float]:
    if finished is not None:
        arrays = {name: array[finished] for name, array in arrays.items()}
    metrics: dict[str, float] = {}
    for key, prefix in _STATISTICS.items():
        if key in arrays:
            values = arrays[key].astype(np.float64)
            for statistic in ("mean", "std", "max", "min"):
                metrics[f"{prefix}_{statistic}"] = float(getattr(values, statistic)())
    if "success_mask" in arrays:
        metrics["success_rate"] = float(arrays["success_mask"].mean())
    return metrics


def _is_list(states: Any) -> bool:
    # Not `isinstance`: a NamedTuple is a batched state, not a sequence of states.
    return type(states) in (list, tuple)


def _episodes(
    batch_data: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray],
    update_step: int,
    rows: Int[np.ndarray, " samples"],
) -> list[dict[str, Any]]:
    """Return the episodes of the environments with indices `rows`, as records for `log_episode_summary`."""
    if not len(rows):
        return []
    states = {
        field: _select_states(batch_data[key], rows)
        for key, field in _STATES.items()
        if batch_data.get(key) is not None
    }
    task_ids = batch_data.get("task_ids")
    episodes = []
    for index, row in enumerate(rows.tolist()):
        episode: dict[str, Any] = {"episode_num": update_step}
        for key, (field, default) in _EPISODE_FIELDS.items():
            if key in arrays:
                episode[field] = arrays[key][row].item()
            elif default is not None:
                episode[field] = default
        task_id = f"batch_task_{row}" if task_ids is None else str(task_ids[row])
        episode |= {"environment_id": row, "task_id": task_id, "initial_state": None, "final_state": None}
        episodes.append(episode | {field: selected[index] for field, selected in states.items()})
    return episodes


def _select_states(states: Any, rows: Int[np.ndarray, " samples"]) -> list[Any]:
    """Return the states of the environments with indices `rows`.

    `states` is a list with one state per environment, or one pytree with a leading batch axis. The states
    selected from a pytree consist of JAX arrays.
    """
    if _is_list(states):
        return [states[row] for row in rows.tolist()]
    require_jax("a pytree of states")
    import jax
    import jax.numpy as jnp

    def select(leaf: Any) -> Any:
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        return leaf[rows]

    host = jax.device_get(jax.tree.map(select, states))
    return [jax.device_put(jax.tree.map(lambda leaf, i=i: leaf[i], host)) for i in range(len(rows))]

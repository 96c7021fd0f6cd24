"""What the keys of `batch_data` mean: which are reduced, which pass through, and what an episode's record is.

The computation on the device is in `batch_summary`.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from phalanx.logs.batch_summary import row_of, summarise_batch
from phalanx.logs.config import LoggingConfig
from phalanx.logs.handler import is_scalar

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
    summary = summarise_batch(inputs, update_step, environments, samples)
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


def strange_keys(batch_data: Mapping[str, Any]) -> list[str]:
    """Keys that are neither known nor scalars, and so cannot be logged."""
    return [name for name, value in batch_data.items() if name not in _KNOWN and not is_scalar(value)]


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

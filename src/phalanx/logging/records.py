"""Conversion of logged records to JSON, `key=value` pairs, readable text and scalar metrics."""

import dataclasses
import inspect
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from phalanx.extras import require_jax

Record = Mapping[str, Any]
"""Mapping from names to values that describes one logged event: a step, an evaluation, or the start or
end of an episode."""
Metrics = Mapping[str, float]

_NUMBER_DTYPES = ("bool", "int", "uint", "float", "bfloat")
_MAX_REPR_LENGTH = 200
_NOT_METRICS = ("step", "timestamp", "seed", "tasks")


def is_scalar(value: Any) -> bool:
    """Return whether a value is a single Python, NumPy or JAX number or boolean."""
    if isinstance(value, int | float):
        return True
    # By name, because NumPy has no kind for bfloat16 and similar types.
    return getattr(value, "shape", None) == () and str(value.dtype).startswith(_NUMBER_DTYPES)


def select_scalars(record: Record) -> dict[str, float]:
    """Return the scalar fields of a record as floats. Other fields are omitted."""
    return {name: float(value) for name, value in record.items() if is_scalar(value)}


def evaluation_scalars(record: Record) -> dict[str, float]:
    """Return the metrics of an evaluation record as floats.

    The names of nested metrics are joined with `/`. The step, timestamp, seed, per-task results and all
    values that are not scalars are omitted.

    >>> evaluation_scalars({"step": 5, "mode": "greedy", "success_rate": 0.5, "pass_at_k": {"8": 0.75}})
    {'success_rate': 0.5, 'pass_at_k/8': 0.75}
    """
    return dict(_nested_scalars({k: value for k, value in record.items() if k not in _NOT_METRICS}, ""))


def _nested_scalars(values: Record, prefix: str) -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if is_scalar(value):
            yield f"{prefix}{name}", float(value)
        elif isinstance(value, Mapping):
            yield from _nested_scalars(value, f"{prefix}{name}/")


def flatten_settings(values: Any, prefix: str = "") -> dict[str, str]:
    """Flatten nested settings to a dictionary from dotted keys to strings. Lists are not flattened.

    >>> flatten_settings({"seed": 3, "optimizer": {"lr": 0.2, "betas": [1, 2]}, "note": None})
    {'seed': '3', 'optimizer.lr': '0.2', 'optimizer.betas': '[1, 2]', 'note': 'null'}
    """
    if isinstance(values, Mapping) and values:
        settings: dict[str, str] = {}
        for name, value in values.items():
            settings |= flatten_settings(value, f"{prefix}.{name}" if prefix else str(name))
        return settings
    if not prefix:
        return {}
    return {prefix: values if isinstance(values, str) else json.dumps(values, default=str)}


def format_json(record: Record) -> str:
    """Format a record as one line of standard JSON. Infinity and NaN become strings.

    >>> format_json({"step": 10, "policy_loss": float("nan")})
    '{"step": 10, "policy_loss": "nan"}'
    """
    return json.dumps(to_json_value(record), allow_nan=False, ensure_ascii=False)


def format_pairs(record: Record) -> str:
    """Format a record as `key=value` pairs. Values with spaces are quoted.

    >>> format_pairs({"task_id": "move 3", "success": True})
    'task_id="move 3" success=true'
    """
    return " ".join(f"{name}={_pair_value(value)}" for name, value in to_json_value(record).items())


def format_text(record: Record) -> str:
    """Format a record as one line of readable text, without its timestamp.

    >>> format_text({"event": "episode", "task_id": "move 3", "total_reward": 0.25})
    'episode: task id move 3, total reward 0.25'
    """
    fields = {
        name: value for name, value in to_json_value(record).items() if name not in ("event", "timestamp")
    }
    text = ", ".join(f"{name.replace('_', ' ')} {_text_value(value)}" for name, value in fields.items())
    return f"{record.get('event', 'record')}: {text}"


def state_arrays(state: Any) -> dict[str, Any]:
    """Return the arrays of a state as nested lists, by name.

    If the state has public properties that return arrays, for example an unpacked version of a packed grid,
    these properties and the scalar leaves of the state are returned. Otherwise, all leaves of the pytree are
    returned.
    """
    require_jax("a pytree of states")
    import jax

    properties = inspect.getmembers(type(state), lambda member: isinstance(member, property))
    unpacked = {name: getattr(state, name) for name, _ in properties if not name.startswith("_")}
    unpacked = {name: value for name, value in unpacked.items() if hasattr(value, "dtype")}
    leaves = jax.tree_util.tree_leaves_with_path(jax.device_get(state))
    arrays = {jax.tree_util.keystr(path).lstrip("."): leaf for path, leaf in leaves}
    if unpacked:
        arrays = {name: leaf for name, leaf in arrays.items() if np.ndim(leaf) == 0} | unpacked
    return {name: np.asarray(leaf).tolist() for name, leaf in arrays.items()}


def changed_cells(before: Any, after: Any) -> list[list[int]] | None:
    """Compare the grids of two states.

    Returns:
        `[row, column, old_value, new_value]` for each cell that differs. None if one of the states has no
        `working_grid`.
    """
    grids = [getattr(state, "working_grid", None) for state in (before, after)]
    if any(grid is None for grid in grids):
        return None
    old, new = (np.asarray(grid) for grid in grids)
    cells = [(int(row), int(column)) for row, column in np.argwhere(old != new)]
    return [[*cell, int(old[cell]), int(new[cell])] for cell in cells]


def to_json_value(value: Any) -> Any:
    """Convert a value to JSON types.

    Infinity and NaN become strings. Arrays, sequences, mappings, dataclasses and Pydantic models are
    converted recursively, and other objects become their `repr`, shortened to 200 characters.
    """
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if hasattr(value, "dtype") and hasattr(value, "__array__"):
        array = np.asarray(value)
        return to_json_value((array if array.dtype.kind in "biuSUO" else array.astype(np.float64)).tolist())
    if isinstance(value, Mapping):
        return {str(name): to_json_value(item) for name, item in value.items()}
    if hasattr(value, "_asdict"):
        return to_json_value(value._asdict())
    if isinstance(value, list | tuple | set | frozenset):
        return [to_json_value(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_json_value(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    return repr(value)[:_MAX_REPR_LENGTH]


def _pair_value(value: Any) -> str:
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False) if not value or set(value) & set(' "=\n\\') else value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _text_value(value: Any) -> str:
    # A record must not span several lines.
    return f"{value:.4g}" if isinstance(value, float) else str(value).replace("\n", " ")

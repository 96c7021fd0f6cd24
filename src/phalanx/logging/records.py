"""What happened as records: numbers and plain values of it, in one line of JSON, of pairs, or of text.

Where the lines go is in `handlers`.
"""

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

Data = Mapping[str, Any]
"""What is told about a task's start, a step, an episode or an evaluation, by name."""
Metrics = Mapping[str, float]

_NUMBERS = ("bool", "int", "uint", "float", "bfloat")
_LONGEST_WORDS = 200


def scalars_of(data: Data) -> dict[str, float]:
    """The entries that are numbers (truth values too), for places that only know numbers."""
    return {name: float(value) for name, value in data.items() if is_scalar(value)}


def is_scalar(value: Any) -> bool:
    """Whether this is one number: Python's, NumPy's or a JAX array without axes."""
    if isinstance(value, int | float):
        return True
    # By name: to NumPy, bfloat16 and its like are of no kind that it knows.
    return getattr(value, "shape", None) == () and str(value.dtype).startswith(_NUMBERS)


def evaluation_scalars(record: Data) -> dict[str, float]:
    """An evaluation's figures by name: nested ones with `/` between, but not those of single tasks.

    >>> evaluation_scalars({"step": 5, "mode": "greedy", "success_rate": 0.5, "pass_at_k": {"8": 0.75}})
    {'success_rate': 0.5, 'pass_at_k/8': 0.75}
    """
    left_out = ("step", "timestamp", "seed", "tasks")
    return dict(_numbers({name: value for name, value in record.items() if name not in left_out}, ""))


def _numbers(values: Data, prefix: str) -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if is_scalar(value):
            yield f"{prefix}{name}", float(value)
        elif isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{name}/")


def flat_settings(values: Any, prefix: str = "") -> dict[str, str]:
    """Nested settings by dotted keys, each as text; lists stay whole.

    >>> flat_settings({"seed": 3, "ppo": {"clip": 0.2, "rates": [1, 2]}, "note": None})
    {'seed': '3', 'ppo.clip': '0.2', 'ppo.rates': '[1, 2]', 'note': 'null'}
    """
    if isinstance(values, Mapping) and values:
        found: dict[str, str] = {}
        for name, value in values.items():
            found |= flat_settings(value, f"{prefix}.{name}" if prefix else str(name))
        return found
    if not prefix:
        return {}
    return {prefix: values if isinstance(values, str) else json.dumps(values, default=str)}


def as_json(record: Data) -> str:
    """One line of JSON that every reader takes.

    JSON has no word for a number that is not finite; it becomes the text that Python's `float` reads back.

    >>> as_json({"step": 10, "policy_loss": float("nan")})
    '{"step": 10, "policy_loss": "nan"}'
    """
    return json.dumps(plain(record), allow_nan=False, ensure_ascii=False)


def as_pairs(record: Data) -> str:
    """`key=value` pairs; a value with spaces is quoted.

    >>> as_pairs({"task_id": "move 3", "success": True})
    'task_id="move 3" success=true'
    """
    return " ".join(f"{name}={_bare(value)}" for name, value in plain(record).items())


def as_text(record: Data) -> str:
    """For people.

    >>> as_text({"event": "episode", "task_id": "move 3", "total_reward": 0.25})
    'episode: task id move 3, total reward 0.25'
    """
    fields = {name: value for name, value in plain(record).items() if name not in ("event", "timestamp")}
    words = ", ".join(f"{name.replace('_', ' ')} {_readable(value)}" for name, value in fields.items())
    return f"{record.get('event', 'record')}: {words}"


def arrays_of(state: Any) -> dict[str, Any]:
    """The arrays of a state by name, as nested lists.

    A state that keeps its arrays packed has properties that read them: these are written instead, beside
    what is a single number. Any other state is written leaf by leaf.
    """
    import jax

    views = {name: getattr(state, name) for name in _property_names(type(state))}
    views = {name: value for name, value in views.items() if hasattr(value, "dtype")}
    leaves = jax.tree_util.tree_leaves_with_path(jax.device_get(state))
    named = {jax.tree_util.keystr(path).lstrip("."): leaf for path, leaf in leaves}
    if views:
        named = {name: leaf for name, leaf in named.items() if np.ndim(leaf) == 0} | views
    return {name: np.asarray(leaf).tolist() for name, leaf in named.items()}


def _property_names(kind: type) -> list[str]:
    return [
        name
        for name in dir(kind)
        if not name.startswith("_") and isinstance(getattr(kind, name, None), property)
    ]


def changed_cells(before: Any, after: Any) -> list[list[int]] | None:
    """`[row, column, old, new]` of the cells that differ; None for states without a `working_grid`."""
    grids = [getattr(state, "working_grid", None) for state in (before, after)]
    if any(grid is None for grid in grids):
        return None
    old, new = (np.asarray(grid) for grid in grids)
    cells = [(int(row), int(column)) for row, column in np.argwhere(old != new)]
    return [[*cell, int(old[cell]), int(new[cell])] for cell in cells]


def plain(value: Any) -> Any:
    """The same with nothing in it but what JSON knows; what has no fields of its own becomes a few words."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if hasattr(value, "dtype") and hasattr(value, "__array__"):
        array = np.asarray(value)
        return plain((array if array.dtype.kind in "biuSUO" else array.astype(np.float64)).tolist())
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    return repr(value)[:_LONGEST_WORDS]


def _bare(value: Any) -> str:
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False) if not value or set(value) & set(' "=\n\\') else value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _readable(value: Any) -> str:
    # A line break inside a line of a file would make it two lines.
    return f"{value:.4g}" if isinstance(value, float) else str(value).replace("\n", " ")

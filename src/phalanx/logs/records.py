"""What the logger calls: the handler's interface.

The handlers themselves are in the `*_handler` modules; what becomes of one that raises is in `experiment`.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

Data = Mapping[str, Any]
"""What is told about a task's start, a step or an episode, by name."""
Metrics = Mapping[str, float]


class Handler:
    """One place where a run is written down; a handler overrides the events that concern it.

    A handler raises when it cannot do its work: the logger reports that and goes on without it.
    """

    def log_task_start(self, task_data: Data) -> None:
        """An episode begins."""

    def log_step(self, step_data: Data) -> None:
        """One step of one environment."""

    def log_episode_summary(self, summary_data: Data) -> None:
        """An episode is over."""

    def log_aggregated_metrics(self, metrics: Metrics, step: int) -> None:
        """Metrics of a whole batch at an update."""

    def close(self) -> None:
        """The run is over; nothing is logged after this."""


def scalars_of(data: Data) -> dict[str, float]:
    """The entries that are numbers (truth values too), for places that only know numbers."""
    return {name: float(value) for name, value in data.items() if is_scalar(value)}


def is_scalar(value: Any) -> bool:
    """Whether this is one number: Python's, NumPy's or a JAX array without axes."""
    if isinstance(value, int | float):
        return True
    return getattr(value, "shape", None) == () and getattr(value.dtype, "kind", "") in "biuf"


Record = Mapping[str, Any]


def as_json(record: Record) -> str:
    """One line of JSON that every reader takes.

    JSON has no word for a number that is not finite; it becomes the text that Python's `float` reads back.

    >>> as_json({"step": 10, "policy_loss": float("nan")})
    '{"step": 10, "policy_loss": "nan"}'
    """
    return json.dumps(_plain(record, ""), allow_nan=False, ensure_ascii=False)


def as_pairs(record: Record) -> str:
    """`key=value` pairs; a value with spaces is quoted.

    >>> as_pairs({"task_id": "move 3", "success": True})
    'task_id="move 3" success=true'
    """
    return " ".join(f"{name}={_bare(value)}" for name, value in _plain(record, "").items())


def as_text(record: Record) -> str:
    """For people.

    >>> as_text({"event": "episode", "task_id": "move 3", "total_reward": 0.25})
    'episode: task id move 3, total reward 0.25'
    """
    fields = {name: value for name, value in _plain(record, "").items() if name not in ("event", "timestamp")}
    words = ", ".join(f"{name.replace('_', ' ')} {_readable(value)}" for name, value in fields.items())
    return f"{record.get('event', 'record')}: {words}"


def arrays_of(state: Any) -> dict[str, Any]:
    """The arrays of a state by their path in it, as nested lists."""
    leaves = jax.tree_util.tree_leaves_with_path(jax.device_get(state))
    return {jax.tree_util.keystr(path).lstrip("."): np.asarray(leaf).tolist() for path, leaf in leaves}


def changed_cells(before: Any, after: Any) -> list[list[int]] | None:
    """`[row, column, old, new]` of the cells that differ; None for states without a `working_grid`."""
    grids = [getattr(state, "working_grid", None) for state in (before, after)]
    if any(grid is None for grid in grids):
        return None
    old, new = (np.asarray(grid) for grid in grids)
    cells = [(int(row), int(column)) for row, column in np.argwhere(old != new)]
    return [[*cell, int(old[cell]), int(new[cell])] for cell in cells]


def _plain(value: Any, where: str) -> Any:
    """Only what JSON knows; `where` is for the complaint."""
    if isinstance(value, jax.Array | np.ndarray | np.generic):
        return _plain(np.asarray(value).tolist(), where)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, Mapping):
        return {str(name): _plain(item, f"{where}.{name}".lstrip(".")) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, f"{where}[{place}]") for place, item in enumerate(value)]
    raise TypeError(f"{where} cannot be written: it is a {type(value).__name__}; pass numbers or text")


def _bare(value: Any) -> str:
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False) if not value or set(value) & set(' "=\n\\') else value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _readable(value: Any) -> str:
    # A line break inside a line of a file would make it two lines.
    return f"{value:.4g}" if isinstance(value, float) else str(value).replace("\n", " ")

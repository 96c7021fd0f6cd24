"""Metrics and evaluations as columns over three axes: updates, environment steps, and time.

Which columns share a chart, and how many of their points are drawn, is decided in `curves`.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from phalanx.logs.report.records import finite, following, number

Column = Float64[np.ndarray, " rows"]
"""A value for every row, NaN where the record has none that is finite."""

AXES = ("update", "steps", "seconds")
_STEPS, _SECONDS = "environment_steps", "seconds"


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows in the order of their updates."""

    axes: dict[str, np.ndarray]
    """By name, of `AXES`, those that are known; `update` always is."""
    columns: dict[str, np.ndarray]
    """By metric."""
    present: dict[str, np.ndarray]
    """By metric, the rows that have it: a NaN there is a gap in the curve, a missing value is none."""

    def __len__(self) -> int:
        return len(self.axes["update"])

    def first(self, name: str) -> float | None:
        """The first finite value of a column."""
        return self._end(name, 0)

    def last(self, name: str) -> float | None:
        """The last finite value of a column."""
        return self._end(name, -1)

    def _end(self, name: str, place: int) -> float | None:
        values = self.columns.get(name)
        values = np.empty(0) if values is None else values[np.isfinite(values)]
        return float(values[place]) if len(values) else None


def metrics_table(records: Iterable[dict[str, Any]]) -> Table:
    """The lines of `batch_metrics.jsonl`; lines of the same step are one row."""
    rows: list[dict[str, Any]] = []
    for record in following(records):
        if rows and rows[-1]["step"] == record["step"]:
            rows[-1]["metrics"] |= record["metrics"]
        else:
            rows.append({**record, "metrics": dict(record["metrics"])})
    columns, present = _columns([row["metrics"] for row in rows])
    axes = {"update": np.array([row["step"] for row in rows], np.float64)}
    if (steps := _take_axis(columns, present, _STEPS)) is not None:
        axes["steps"] = steps
    seconds = _take_axis(columns, present, _SECONDS)
    if seconds is None:
        seconds = _since_the_first([row.get("timestamp") for row in rows])
    if seconds is not None:
        axes["seconds"] = seconds
    return Table(axes, columns, present)


def evaluation_tables(records: Iterable[dict[str, Any]], metrics: Table) -> dict[tuple[str, str], Table]:
    """By split and mode, the evaluations of a run; families are columns named `family:NAME`.

    Evaluations do not say when they were: the metrics tell which second an update was.
    """
    grouped: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for record in records:
        key = (str(record.get("split", "held-out")), str(record.get("mode", "greedy")))
        grouped.setdefault(key, []).append(record)
    tables = {key: _evaluation_table(following(group), metrics) for key, group in grouped.items()}
    return {key: table for key, table in tables.items() if len(table)}


def _evaluation_table(rows: list[dict[str, Any]], metrics: Table) -> Table:
    # An update that was evaluated again counts as it was last.
    rows = list({row["step"]: row for row in rows}.values())
    values = []
    for row in rows:
        fields = {name: row.get(name) for name in ("success_rate", "similarity", "steps_to_solve")}
        for name, family in families_of(row).items():
            fields[f"family:{name}"] = family.get("success_rate")
        # An evaluation that solved nothing has no steps to solve: a gap, and not a line across it.
        values.append({name: np.nan if value is None else value for name, value in fields.items()})
    columns, present = _columns(values)
    update = np.array([row["step"] for row in rows], np.float64)
    axes = {"update": update}
    steps = np.array([np.nan if (s := finite(row.get(_STEPS))) is None else s for row in rows])
    for name, known in (("steps", steps), ("seconds", None)):
        if known is not None and np.isfinite(known).all():
            axes[name] = known
        elif name in metrics.axes and len(metrics):
            axes[name] = _at(update, metrics.axes["update"], metrics.axes[name])
    return Table(axes, columns, present)


def families_of(evaluation: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """What an evaluation says of each family of tasks."""
    families = evaluation.get("families")
    if not isinstance(families, Mapping):
        return {}
    return {str(name): value for name, value in families.items() if isinstance(value, Mapping)}


def _columns(rows: list[dict[str, Any]]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    columns: dict[str, np.ndarray] = {}
    present: dict[str, np.ndarray] = {}
    for place, row in enumerate(rows):
        for name, value in row.items():
            # Nearly all are plain floats, and there are many of them.
            found = value if type(value) is float else number(value)
            if found is None:
                continue
            if name not in columns:
                columns[name] = np.full(len(rows), np.nan)
                present[name] = np.zeros(len(rows), bool)
            columns[name][place] = found
            present[name][place] = True
    for column in columns.values():
        column[~np.isfinite(column)] = np.nan
    return columns, present


def _take_axis(
    columns: dict[str, np.ndarray], present: dict[str, np.ndarray], name: str
) -> np.ndarray | None:
    """A column that only grows, taken out of the others; one that does not stays a metric."""
    values = columns.get(name)
    if values is None or not np.isfinite(values).all() or (np.diff(values) < 0).any():
        return None
    del columns[name], present[name]
    return values


def _since_the_first(stamps: list[Any]) -> np.ndarray | None:
    values = [finite(stamp) for stamp in stamps]
    known = np.array([value for value in values if value is not None])
    if len(known) != len(values) or not len(known) or (np.diff(known) < 0).any():
        return None
    return known - known[0]


def _at(
    where: Float64[np.ndarray, " points"], update: Column, axis: Column
) -> Float64[np.ndarray, " points"]:
    """The axis's value at some updates; training starts at nothing."""
    if update[0] > 0:
        update, axis = np.append(0.0, update), np.append(0.0, axis)
    return np.interp(where, update, axis)


Rows = Int64[np.ndarray, " kept"]


def extreme_rows(columns: list[np.ndarray], limit: int) -> Rows:
    """At most `limit` rows that show what all of them show: in each stretch, every column's low and high.

    The first and the last row stay; so does a gap (NaN) of the first column wherever there is one.

    >>> extreme_rows([np.array([0.0, 1, 2, 9, 4, 5, -7, 7, 8, 9])], 6).tolist()
    [0, 3, 6, 9]
    """
    rows = len(columns[0])
    if rows <= limit:
        return np.arange(rows)
    stretches = max(1, (limit - 2) // (2 * len(columns) + 1))
    size = -(-rows // stretches)
    starts = np.arange(0, rows, size)
    kept = [np.array([0, rows - 1])]
    for place, column in enumerate(columns):
        # Rows that fill up the last stretch are gaps, which no extreme is.
        parts = np.append(column, np.full(len(starts) * size - rows, np.nan)).reshape(len(starts), size)
        gaps = np.isnan(parts)
        kept += [
            starts + np.where(gaps, np.inf, parts).argmin(1),
            starts + np.where(gaps, -np.inf, parts).argmax(1),
        ]
        if place == 0:
            gaps[-1, rows - starts[-1] :] = False
            kept.append((starts + gaps.argmax(1))[gaps.any(1)])
    return np.unique(np.concatenate(kept))

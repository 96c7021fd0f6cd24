"""Reads JSON Lines files, skipping invalid lines, and converts their records to columns of numbers."""

import dataclasses
import json
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from phalanx.formatting import format_count
from phalanx.io.append_only import iter_lines
from phalanx.io.untrusted import MAX_BYTES, is_regular_file, read_limited

IsValid = Callable[[dict[str, Any]], bool]

_MAX_CHARACTERS = 1 << 30


def has_step(record: Mapping[str, Any]) -> bool:
    """Return whether a record has an integer `step`, which is the update number."""
    return isinstance(record.get("step"), int) and not isinstance(record["step"], bool)


def has_metrics(record: Mapping[str, Any]) -> bool:
    """Return whether a record has an integer `step` (the update number) and a `metrics` mapping."""
    return has_step(record) and isinstance(record.get("metrics"), Mapping)


def load_valid_records(
    path: Path, notes: list[str], is_valid: IsValid = lambda record: True
) -> list[dict[str, Any]]:
    """Read the valid records of a JSON Lines file, including rotated files.

    Unlike `read_records`, this function skips invalid lines, because reports are most useful for failed runs,
    and the files of a failed run may be damaged. If the file does not exist, an empty list is returned.

    Args:
        path: Path of the file.
        notes: List to which descriptions of problems are appended.
        is_valid: Function that returns whether a record is valid. By default, all JSON objects are valid.
    """
    records, num_invalid = [], 0
    for line in _iter_lines(path, notes):
        record = _parse_object(line)
        if record is None or not is_valid(record):
            num_invalid += 1
        else:
            records.append(record)
    if num_invalid:
        notes.append(f"{path.name}: skipped {format_count(num_invalid, 'invalid line')}.")
    return records


def load_object(path: Path, notes: list[str]) -> dict[str, Any]:
    """Read a JSON object from a file.

    Returns `{}` if the file does not exist or is invalid. If it is invalid, a description of the problem is
    appended to `notes`.
    """
    if not path.exists():
        return {}
    if not is_regular_file(path) or path.stat().st_size > MAX_BYTES:
        notes.append(f"{path.name} was skipped: it is a symbolic link or larger than {MAX_BYTES:,} bytes.")
        return {}
    record = _parse_object(read_limited(path).decode(errors="replace"))
    if record is None:
        notes.append(f"{path.name} was skipped: it is not a JSON object.")
    return record or {}


def parse_number(value: Any) -> float | None:
    """Convert a JSON number to a float, or to NaN if it is not finite. Return None for other JSON values.

    The strings "nan", "inf" and "-inf" count as numbers that are not finite.

    >>> parse_number(3), parse_number("nan"), parse_number("inf"), parse_number("three"), parse_number(None)
    (3.0, nan, nan, None, None)
    """
    if isinstance(value, str):
        return math.nan if value in ("nan", "inf", "-inf") else None
    if not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return math.nan
    return number if math.isfinite(number) else math.nan


def parse_finite(value: Any) -> float | None:
    """Convert a JSON value to a float. Return None if the value is not a finite number."""
    number = parse_number(value)
    return None if number is None or math.isnan(number) else number


def drop_repeated_updates(records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Remove each record that is followed by a record of an earlier update.

    Such records are outdated: a resumed run repeats the updates after its checkpoint. If an update has
    several records, all of them are kept. The returned records are sorted by update.
    """
    kept: list[dict[str, Any]] = []
    for record in records:
        while kept and kept[-1]["step"] > record["step"]:
            kept.pop()
        kept.append(record)
    return kept


def _iter_lines(path: Path, notes: list[str]) -> Iterator[str]:
    num_characters = 0
    try:
        for line in iter_lines(path):
            num_characters += len(line)
            if num_characters > _MAX_CHARACTERS:
                raise ValueError(f"it has more than {_MAX_CHARACTERS:,} characters")
            yield line
    except FileNotFoundError:
        return
    except (ValueError, EOFError, OSError, zlib.error) as error:
        notes.append(f"{path.name} could only be read in part: {error}.")


def _parse_object(line: str) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


Column = Float64[np.ndarray, " rows"]
"""Column of a `MetricTable`: one value per row, with NaN where there is no finite value."""

_STEPS, _SECONDS = "env_steps", "seconds"
EVALUATION_UNITS = {
    "success_rate": "fraction",
    "similarity": "fraction",
    "steps_to_solve": "",
    "mean_proof_length": "",
    "episode_return": "",
    "mrr_100": "fraction",
    "mrr": "fraction",
    "loss": "",
    "mean_token_accuracy": "fraction",
    "proofs_per_expansion": "",
}
"""Unit of each evaluation metric that the report shows, in the order of the report's charts. A `fraction` is
shown as a percentage. Other metrics have no unit."""


@dataclasses.dataclass(frozen=True)
class MetricTable:
    """Table of metrics with one row per update."""

    axes: dict[str, np.ndarray]
    """Position of each row on each horizontal axis, by axis name. `update` is always present. `steps`
    (environment steps) and `seconds` (training time) are present only if they are known."""
    columns: dict[str, np.ndarray]
    """For each metric, its value in every row, or NaN where there is no finite value."""
    present: dict[str, np.ndarray]
    """For each metric, a boolean mask of the rows in which the metric was logged. If such a row contains NaN,
    the curve has a gap there."""
    intervals: dict[str, tuple[np.ndarray, np.ndarray]] = dataclasses.field(default_factory=dict)
    """For each metric, the lower and upper bounds of its confidence interval across seeds. Empty if the table
    does not combine several seeds."""

    def __len__(self) -> int:
        return len(self.axes["update"])

    def first(self, name: str) -> float | None:
        """Return the first finite value of a metric, or None if there is none."""
        return self._finite_value(name, 0)

    def last(self, name: str) -> float | None:
        """Return the last finite value of a metric, or None if there is none."""
        return self._finite_value(name, -1)

    def _finite_value(self, name: str, index: int) -> float | None:
        values = self.columns.get(name)
        values = np.empty(0) if values is None else values[np.isfinite(values)]
        return float(values[index]) if len(values) else None


def metrics_table(records: Iterable[dict[str, Any]]) -> MetricTable:
    """Convert the records of `batch_metrics.jsonl` to a table. Records of the same update are merged."""
    rows: list[dict[str, Any]] = []
    for record in drop_repeated_updates(records):
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
        seconds = _seconds_since_first([row.get("timestamp") for row in rows])
    if seconds is not None:
        axes["seconds"] = seconds
    return MetricTable(axes, columns, present)


def evaluation_tables(
    records: Iterable[dict[str, Any]], metrics: MetricTable
) -> dict[tuple[str, str], MetricTable]:
    """Convert the records of `evaluations.jsonl` to one table for each pair of split and mode.

    The success rate of a group of tasks is in the `group:NAME` column. If the records lack a column for the
    x-axis, such as the elapsed time, its values are interpolated from the training metrics.

    Args:
        records: Records of evaluations.
        metrics: Table of the training metrics of the same run.
    """
    return {key: _evaluation_table(group, metrics) for key, group in group_evaluations(records).items()}


def group_evaluations(records: Iterable[dict[str, Any]]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Group evaluation records by split and mode, which default to `held-out` and `greedy`.

    Outdated records of updates that a resumed run repeated are removed; see `drop_repeated_updates`.
    """
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for record in records:
        key = str(record.get("split", "held-out")), str(record.get("mode", "greedy"))
        groups.setdefault(key, []).append(record)
    return {key: drop_repeated_updates(group) for key, group in groups.items()}


def _evaluation_table(rows: list[dict[str, Any]], metrics: MetricTable) -> MetricTable:
    # If an update was evaluated again, the last evaluation counts.
    rows = list({row["step"]: row for row in rows}.values())
    values = []
    for row in rows:
        fields = {name: row.get(name) for name in EVALUATION_UNITS if name in row}
        for name, scores in group_scores(row).items():
            fields[f"group:{name}"] = scores.get("success_rate")
        # An evaluation without solved tasks has no steps to solve, which must be a gap in the curve.
        values.append({name: np.nan if value is None else value for name, value in fields.items()})
    columns, present = _columns(values)
    update = np.array([row["step"] for row in rows], np.float64)
    axes = {"update": update}
    steps = np.array([parse_finite(row.get(_STEPS)) for row in rows], np.float64)
    if np.isfinite(steps).all():
        axes["steps"] = steps
    for name in ("steps", "seconds"):
        if name not in axes and name in metrics.axes and len(metrics):
            axes[name] = _interpolate(update, metrics.axes["update"], metrics.axes[name])
    return MetricTable(axes, columns, present)


def group_scores(evaluation: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the scores of each group of tasks in an evaluation record, by name of the group."""
    groups = evaluation.get("groups")
    if not isinstance(groups, Mapping):
        return {}
    return {str(name): scores for name, scores in groups.items() if isinstance(scores, Mapping)}


def _columns(rows: list[dict[str, Any]]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    columns: dict[str, np.ndarray] = {}
    present: dict[str, np.ndarray] = {}
    for index, row in enumerate(rows):
        for name, value in row.items():
            # Nearly all values are floats, for which the function call would dominate the time.
            number = value if type(value) is float else parse_number(value)
            if number is None:
                continue
            if name not in columns:
                columns[name] = np.full(len(rows), np.nan)
                present[name] = np.zeros(len(rows), bool)
            columns[name][index] = number
            present[name][index] = True
    for column in columns.values():
        column[~np.isfinite(column)] = np.nan
    return columns, present


def _take_axis(
    columns: dict[str, np.ndarray], present: dict[str, np.ndarray], name: str
) -> np.ndarray | None:
    """Remove a column from the metrics and return it as an axis.

    Return None if the column does not exist. If it has gaps or decreasing values, return None and keep it as
    a metric.
    """
    values = columns.get(name)
    if values is None or not np.isfinite(values).all() or (np.diff(values) < 0).any():
        return None
    del columns[name], present[name]
    return values


def _seconds_since_first(timestamps: list[Any]) -> np.ndarray | None:
    values = np.array([parse_finite(timestamp) for timestamp in timestamps], np.float64)
    if not len(values) or np.isnan(values).any() or (np.diff(values) < 0).any():
        return None
    return values - values[0]


def _interpolate(
    points: Float64[np.ndarray, " points"], update: Column, axis: Column
) -> Float64[np.ndarray, " points"]:
    """Interpolate an axis, such as environment steps or seconds, linearly between updates.

    Args:
        points: Updates at which to interpolate.
        update: Updates with known values, in ascending order.
        axis: Value of the axis at each of these updates. At update 0, the value is 0 if it is not given.
    """
    if update[0] > 0:
        update, axis = np.append(0.0, update), np.append(0.0, axis)
    return np.interp(points, update, axis)


def downsample_rows(columns: list[np.ndarray], max_rows: int) -> Int64[np.ndarray, " kept"]:
    """Select rows of a table for drawing curves, so that the shapes of the curves are preserved.

    The rows are divided into intervals, and the minimum and maximum of each column in each interval are
    selected. The first and the last row are always selected. If the first column contains NaN (a gap) in an
    interval, the first such row is selected as well.

    Args:
        columns: Columns of equal length.
        max_rows: Maximum number of selected rows, at least `2 * len(columns) + 3`.

    Returns:
        The indices of the selected rows in ascending order.

    >>> downsample_rows([np.array([0.0, 1, 2, 9, 4, 5, -7, 7, 8, 9])], 6).tolist()
    [0, 3, 6, 9]
    """
    num_rows = len(columns[0])
    if num_rows <= max_rows:
        return np.arange(num_rows)
    num_intervals = max(1, (max_rows - 2) // (2 * len(columns) + 1))
    size = -(-num_rows // num_intervals)
    starts = np.arange(0, num_rows, size)
    selected = [np.array([0, num_rows - 1])]
    for index, column in enumerate(columns):
        # The last interval is padded with NaN, which is never a minimum or maximum.
        padding = np.full(len(starts) * size - num_rows, np.nan)
        intervals = np.append(column, padding).reshape(len(starts), size)
        gaps = np.isnan(intervals)
        selected += [
            starts + np.where(gaps, np.inf, intervals).argmin(1),
            starts + np.where(gaps, -np.inf, intervals).argmax(1),
        ]
        if index == 0:
            gaps[-1, num_rows - starts[-1] :] = False
            selected.append((starts + gaps.argmax(1))[gaps.any(1)])
    return np.unique(np.concatenate(selected))

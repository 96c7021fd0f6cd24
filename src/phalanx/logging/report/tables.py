"""A run's JSON lines, read so that a damaged one costs only itself, and as tables of numbers by update.

Which curves are drawn of the tables is in `curves`; the other files of a run are read in `run_directory`.
"""

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
from phalanx.io.jsonl import read_lines
from phalanx.io.untrusted import MAX_BYTES, is_regular_file, read_limited

Valid = Callable[[dict[str, Any]], bool]

_MOST_TEXT = 1 << 30


def _anything(record: dict[str, Any]) -> bool:
    return True


def has_step(record: Mapping[str, Any]) -> bool:
    """Whether a record says at which update it was written."""
    return isinstance(record.get("step"), int) and not isinstance(record["step"], bool)


def has_metrics(record: Mapping[str, Any]) -> bool:
    """Whether a record is a line of metrics."""
    return has_step(record) and isinstance(record.get("metrics"), Mapping)


def read_whole_records(path: Path, notes: list[str], valid: Valid = _anything) -> list[dict[str, Any]]:
    """The records of a file, rotated pieces included; what cannot be used is counted in `notes`.

    A file that is not there has no records. `read_records` is the strict reader; a report is wanted most
    when a run went wrong.
    """
    if not _exists(path):
        return []
    records, bad = [], 0
    for line in _lines(path, notes):
        record = _record(line)
        if record is None or not valid(record):
            bad += 1
        else:
            records.append(record)
    if bad:
        notes.append(f"{path.name}: {format_count(bad, 'line')} could not be read and {_were(bad)} left out.")
    return records


def read_object(path: Path, notes: list[str]) -> dict[str, Any]:
    """A JSON file that holds one object; one that does not is named in `notes`."""
    if not path.exists():
        return {}
    if not is_regular_file(path) or path.stat().st_size > MAX_BYTES:
        notes.append(f"{path.name} is a link or too large, and was left out.")
        return {}
    record = _record(read_limited(path).decode(errors="replace"))
    if record is None:
        notes.append(f"{path.name} is not a JSON object and was left out.")
    return record or {}


def number(value: Any) -> float | None:
    """The number that a field holds, NaN for one that is not finite, None for what is no number.

    >>> number(3), number("nan"), number("inf"), number("three"), number(None)
    (3.0, nan, nan, None, None)
    """
    if isinstance(value, str):
        return math.nan if value in ("nan", "inf", "-inf") else None
    if not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return math.nan
    return found if math.isfinite(found) else math.nan


def finite(value: Any) -> float | None:
    """The finite number that a field holds, or None."""
    found = number(value)
    return None if found is None or math.isnan(found) else found


def following(records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The records in the order of their steps, as the last writer left them.

    A run that resumes from a checkpoint writes some steps again: what came after the checkpoint the first
    time is history that the run took back.
    """
    kept: list[dict[str, Any]] = []
    for record in records:
        while kept and kept[-1]["step"] > record["step"]:
            kept.pop()
        kept.append(record)
    return kept


def _exists(path: Path) -> bool:
    return path.exists() or any(path.parent.glob(f"{path.stem}.*{path.suffix}*"))


def _lines(path: Path, notes: list[str]) -> Iterator[str]:
    read = 0
    try:
        for line in read_lines(path):
            read += len(line)
            if read > _MOST_TEXT:
                raise ValueError(f"it holds more than {_MOST_TEXT:,} letters")
            yield line
    except FileNotFoundError:
        return
    except (ValueError, EOFError, OSError, zlib.error) as error:
        notes.append(f"{path.name} was read only in part: {error}.")


def _record(line: str) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _were(count: int) -> str:
    return "was" if count == 1 else "were"


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
        fields = {
            name: row.get(name)
            for name in ("success_rate", "similarity", "steps_to_solve", "mean_proof_length")
        }
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
    families = evaluation.get("groups", evaluation.get("families"))
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

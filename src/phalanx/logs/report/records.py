"""The JSON lines of a run, read so that a damaged one costs only itself.

What the records mean is decided by those who read them: `tables` and `episodes`.
"""

import json
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from phalanx.logs.line_files import read_lines

Valid = Callable[[dict[str, Any]], bool]


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
        notes.append(f"{path.name}: {_counted(bad, 'line')} could not be read and {_were(bad)} left out.")
    return records


def read_object(path: Path, notes: list[str]) -> dict[str, Any]:
    """A JSON file that holds one object; one that does not is named in `notes`."""
    if not path.exists():
        return {}
    record = _record(path.read_bytes().decode(errors="replace"))
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
    try:
        yield from read_lines(path)
    except FileNotFoundError:
        return
    except (UnicodeDecodeError, EOFError, OSError, zlib.error) as error:
        notes.append(f"{path.name} is damaged and was read only in part: {error}.")


def _record(line: str) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _were(count: int) -> str:
    return "was" if count == 1 else "were"

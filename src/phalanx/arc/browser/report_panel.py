"""Panel of the report page in which an ARC policy can be tried. This module validates the exported policy."""

import base64
import re
from pathlib import Path
from typing import Any

import numpy as np

from phalanx.formatting import escape_untrusted
from phalanx.logging.report.panels import Panel
from phalanx.logging.report.tables import read_object

FILE_NAME = "browser_policy.json"
SCRIPTS = ("rules.js", "network.js", "grids.js", "panel.js")
OBSERVED_GRIDS = ("working", "input", "clipboard", "selected")
"""Names of the grids that a network can observe, in the order of its input."""
_COLORS = 10
_CHANNELS = 4
_PAIR_OPERATIONS = (35, 36, 37, 38, 40, 41)
_NUM_FILL_OPERATIONS = 20
"""Number of fill and flood-fill operations, which have the lowest ids and share their weights."""
_MAX_NAME_LENGTH = 120


def read_agent_panel(folder: Path, notes: list[str]) -> Panel | None:
    """Read the exported policy of a run and return the panel for the report page.

    Returns None if there is no policy or if it cannot be used; in the latter case, the reason is added to
    `notes`. The file may be untrusted, so only validated values are used.
    """
    record = read_object(folder / FILE_NAME, notes)
    if not record:
        return None
    if isinstance(reason := record.get("unsupported_reason"), str):
        notes.append(f"The agent cannot be tried in this page: {escape_untrusted(reason)[:300]}.")
        return None
    try:
        data = _validate(record)
    except (ValueError, TypeError, KeyError) as error:
        notes.append(f"{FILE_NAME} was skipped: {escape_untrusted(error)[:300]}.")
        return None
    return Panel("arc_policy", data, tuple(Path(__file__).parent / name for name in SCRIPTS))


def _validate(record: dict[str, Any]) -> dict[str, Any]:
    if record.get("format") != 1:
        raise ValueError(f"its format is {record.get('format')!r}, and this version reads 1")
    canvas = [_check_integer(side, "canvas", 1, 30) for side in _check_list(record["canvas"], "canvas", 2, 2)]
    named = _check_list(record["operations"], "operations", 1, 42)
    ids = [_check_integer(one["id"], "operations", 0, 39) for one in named]
    if ids != sorted(set(ids)) or set(ids) & set(_PAIR_OPERATIONS):
        raise ValueError("operations must be sorted, without those that change the pair")
    sees = [name for name in OBSERVED_GRIDS if name in _check_list(record["sees"], "sees", 1, 4)]
    if sees != record["sees"] or sees[0] != OBSERVED_GRIDS[0]:
        raise ValueError(f"sees must be some of {', '.join(OBSERVED_GRIDS)}, in this order")
    if record["selection"] not in ("point", "bbox"):
        raise ValueError("selection must be point or bbox")
    colors = _check_list(record["palette"], "palette", _COLORS, _COLORS)
    if not all(isinstance(color, str) and re.fullmatch("#[0-9A-Fa-f]{6}", color) for color in colors):
        raise ValueError("palette must be ten colors such as #0074D9")
    cells = 1 if record["selection"] == "point" else 2
    return {
        "canvas": canvas,
        "max_steps": _check_integer(record["max_steps"], "max_steps", 1, 10_000),
        "selection": record["selection"],
        "operations": [{"id": id_, "name": _name(one["name"])} for id_, one in zip(ids, named, strict=True)],
        "sees": sees,
        "palette": colors,
        "network": _network(
            record["network"], len(sees), cells, sum(id_ >= _NUM_FILL_OPERATIONS for id_ in ids)
        ),
        "puzzles": [_puzzle(one, canvas) for one in _check_list(record["puzzles"], "puzzles", 0, 200)],
    }


def _network(record: Any, grids: int, cells: int, others: int) -> dict[str, Any]:
    """Validate the network of a record. The number of weights must match the sizes, and all weights must be
    finite."""
    width, depth = (
        _check_integer(record["width"], "width", 1, 256),
        _check_integer(record["depth"], "depth", 1, 64),
    )
    block = 9 * width * width + 2 * _dense_size(2 * width, width)
    heads = _dense_size(width, 2 * cells) + _dense_size(2 * width, 2 + others)
    heads += _dense_size(2 * width, others * cells) if others else 0
    expected = _dense_size(grids * _CHANNELS, width) + _COLORS * width + depth * block + heads
    weights = np.frombuffer(base64.b64decode(record["weights"], validate=True), "<f4")
    if len(weights) != expected or not np.isfinite(weights).all():
        raise ValueError(f"the network must have {expected:,} finite weights, got {len(weights):,}")
    return {"width": width, "depth": depth, "weights": base64.b64encode(weights.tobytes()).decode()}


def _dense_size(inputs: int, outputs: int) -> int:
    return (inputs + 1) * outputs


def _puzzle(record: Any, canvas: list[int]) -> dict[str, Any]:
    family = record["family"]
    return {
        "task": _name(record["task"]),
        "family": None if family is None else _name(family),
        "input": _grid(record["input"], canvas),
        "output": None if record["output"] is None else _grid(record["output"], canvas),
    }


def _grid(record: Any, canvas: list[int]) -> list[str]:
    rows = _check_list(record, "a grid", 1, canvas[0])
    digits = all(isinstance(row, str) and re.fullmatch("[0-9]+", row) for row in rows)
    if not digits or {len(row) for row in rows} != {len(rows[0])} or len(rows[0]) > canvas[1]:
        raise ValueError("a grid must be rows of digits of equal length that fit on the canvas")
    return rows


def _check_list(value: Any, name: str, low: int, high: int) -> list[Any]:
    if not isinstance(value, list) or not low <= len(value) <= high:
        raise ValueError(f"{name} must be a list of {low} to {high} entries")
    return value


def _check_integer(value: Any, name: str, low: int, high: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ValueError(f"{name} must be an integer from {low} to {high}, got {value!r:.40}")
    return value


def _name(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("names must be strings")
    return escape_untrusted(value)[:_MAX_NAME_LENGTH]

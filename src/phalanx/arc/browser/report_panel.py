"""The policy of a run as the page plays it: `agent.json`, which may be a stranger's, checked field by field.

The scripts of this package run it in the page; the trainer writes it.
"""

import base64
import re
from pathlib import Path
from typing import Any

import numpy as np

from phalanx.formatting import escape_untrusted
from phalanx.logging.report.tables import read_object

AGENT = "agent.json"
SEEN = ("working", "input", "clipboard", "selected")
"""The boards that a network may see, in its order."""
_COLORS = 10
_MARKS = 4
_PAIR_SWITCHES = (35, 36, 37, 38, 40, 41)
_PAINTING = 20
"""Operations below are fills and flood fills; they share their weights."""
_LONGEST_NAME = 120


def read_agent_panel(folder: Path, notes: list[str]) -> dict[str, Any] | None:
    """What the page needs of a run's policy, made anew of what was checked; None where there is none.

    A file that cannot be used is named in `notes`.
    """
    said = read_object(folder / AGENT, notes)
    if not said:
        return None
    if isinstance(why_not := said.get("why_not"), str):
        notes.append(f"The agent cannot be tried in this page: {escape_untrusted(why_not)[:300]}.")
        return None
    try:
        return _checked(said)
    except (ValueError, TypeError, KeyError) as error:
        notes.append(f"{AGENT} was left out: {escape_untrusted(error)[:300]}.")
        return None


def _checked(said: dict[str, Any]) -> dict[str, Any]:
    if said.get("format") != 1:
        raise ValueError(f"its format is {said.get('format')!r}, and this version reads 1")
    canvas = [_whole(side, "canvas", 1, 30) for side in _listed(said["canvas"], "canvas", 2, 2)]
    named = _listed(said["operations"], "operations", 1, 42)
    ids = [_whole(one["id"], "operations", 0, 39) for one in named]
    if ids != sorted(set(ids)) or set(ids) & set(_PAIR_SWITCHES):
        raise ValueError("operations must be sorted, and none may go to another pair")
    sees = [name for name in SEEN if name in _listed(said["sees"], "sees", 1, 4)]
    if sees != said["sees"] or sees[0] != SEEN[0]:
        raise ValueError(f"sees must be some of {', '.join(SEEN)}, in this order")
    if said["selection"] not in ("point", "bbox"):
        raise ValueError("selection must be point or bbox")
    colors = _listed(said["palette"], "palette", _COLORS, _COLORS)
    if not all(isinstance(color, str) and re.fullmatch("#[0-9A-Fa-f]{6}", color) for color in colors):
        raise ValueError("palette must be ten colors such as #0074D9")
    places = 1 if said["selection"] == "point" else 2
    return {
        "canvas": canvas,
        "max_steps": _whole(said["max_steps"], "max_steps", 1, 10_000),
        "selection": said["selection"],
        "operations": [{"id": id_, "name": _name(one["name"])} for id_, one in zip(ids, named, strict=True)],
        "sees": sees,
        "palette": colors,
        "network": _network(said["network"], len(sees), places, sum(id_ >= _PAINTING for id_ in ids)),
        "puzzles": [_puzzle(one, canvas) for one in _listed(said["puzzles"], "puzzles", 0, 200)],
    }


def _network(said: Any, grids: int, places: int, others: int) -> dict[str, Any]:
    """The weights, which must be as many as the sizes ask for, all finite."""
    width, depth = _whole(said["width"], "width", 1, 256), _whole(said["depth"], "depth", 1, 64)
    block = 9 * width * width + 2 * _dense(2 * width, width)
    heads = _dense(width, 2 * places) + _dense(2 * width, 2 + others)
    heads += _dense(2 * width, others * places) if others else 0
    wanted = _dense(grids * _MARKS, width) + _COLORS * width + depth * block + heads
    weights = np.frombuffer(base64.b64decode(said["weights"], validate=True), "<f4")
    if len(weights) != wanted or not np.isfinite(weights).all():
        raise ValueError(f"the network must have {wanted:,} finite weights, and {len(weights):,} are there")
    return {"width": width, "depth": depth, "weights": base64.b64encode(weights.tobytes()).decode()}


def _dense(inputs: int, outputs: int) -> int:
    return (inputs + 1) * outputs


def _puzzle(said: Any, canvas: list[int]) -> dict[str, Any]:
    family = said["family"]
    return {
        "task": _name(said["task"]),
        "family": None if family is None else _name(family),
        "input": _grid(said["input"], canvas),
        "output": None if said["output"] is None else _grid(said["output"], canvas),
    }


def _grid(said: Any, canvas: list[int]) -> list[str]:
    rows = _listed(said, "a grid", 1, canvas[0])
    digits = all(isinstance(row, str) and re.fullmatch("[0-9]+", row) for row in rows)
    if not digits or {len(row) for row in rows} != {len(rows[0])} or len(rows[0]) > canvas[1]:
        raise ValueError("a grid must be rows of digits, equally long, on the canvas")
    return rows


def _listed(value: Any, name: str, least: int, most: int) -> list[Any]:
    if not isinstance(value, list) or not least <= len(value) <= most:
        raise ValueError(f"{name} must be a list of {least} to {most} entries")
    return value


def _whole(value: Any, name: str, least: int, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ValueError(f"{name} must be a whole number from {least} to {most}, got {value!r:.40}")
    return value


def _name(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("names must be text")
    return escape_untrusted(value)[:_LONGEST_NAME]

"""The kinds of puzzles by name; a kind's module is imported when it is asked for.

What a kind is is in `kind`.
"""

import difflib
import functools
import importlib
from typing import Any

from phalanx.puzzles.kind import PuzzleKind

KINDS = {
    "binary": "Binary",
    "bridges": "Bridges",
    "countdown": "Countdown",
    "futoshiki": "Futoshiki",
    "hitori": "Hitori",
    "knights": "Knights",
    "lights_out": "LightsOut",
    "nonogram": "Nonogram",
    "sokoban": "Sokoban",
    "sudoku": "Sudoku",
}
"""Names, which are modules of `phalanx.puzzles.kinds`, and the classes in them."""


@functools.cache
def puzzle_kind(name: str) -> PuzzleKind[Any, Any]:
    """The kind of this name; a `ValueError` names the nearest where there is none.

    >>> puzzle_kind("sudoku").unique
    True
    """
    if name not in KINDS:
        near = difflib.get_close_matches(name, KINDS, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(KINDS)}"
        raise ValueError(f"there is no kind of puzzle {name!r}; {hint}")
    kind: PuzzleKind[Any, Any] = getattr(
        importlib.import_module(f"phalanx.puzzles.kinds.{name}"), KINDS[name]
    )()
    return kind


def puzzle_kinds() -> tuple[PuzzleKind[Any, Any], ...]:
    """All kinds, by name."""
    return tuple(puzzle_kind(name) for name in KINDS)

"""Registry of all puzzle kinds."""

import difflib
from typing import Any

from phalanx.puzzles.kind import PuzzleKind
from phalanx.puzzles.kinds.binary import Binary
from phalanx.puzzles.kinds.bridges import Bridges
from phalanx.puzzles.kinds.countdown import Countdown
from phalanx.puzzles.kinds.futoshiki import Futoshiki
from phalanx.puzzles.kinds.hitori import Hitori
from phalanx.puzzles.kinds.knights import KnightsAndKnaves
from phalanx.puzzles.kinds.lights_out import LightsOut
from phalanx.puzzles.kinds.nonogram import Nonogram
from phalanx.puzzles.kinds.sokoban import Sokoban
from phalanx.puzzles.kinds.sudoku import Sudoku

_CLASSES = (
    Binary,
    Bridges,
    Countdown,
    Futoshiki,
    Hitori,
    KnightsAndKnaves,
    LightsOut,
    Nonogram,
    Sokoban,
    Sudoku,
)

KINDS: dict[str, PuzzleKind[Any, Any]] = {kind.name: kind() for kind in _CLASSES}
"""All puzzle kinds by name, in alphabetical order."""


def puzzle_kind(name: str) -> PuzzleKind[Any, Any]:
    """Return the puzzle kind with this name. Raises `ValueError` if there is none.

    >>> puzzle_kind("sudoku").has_unique_solution
    True
    """
    if name not in KINDS:
        near = difflib.get_close_matches(name, KINDS, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(KINDS)}"
        raise ValueError(f"unknown puzzle kind {name!r}; {hint}")
    return KINDS[name]


def puzzle_kinds() -> tuple[PuzzleKind[Any, Any], ...]:
    """Return all puzzle kinds in alphabetical order."""
    return tuple(KINDS.values())

"""Sudoku puzzles with boards of 4x4, 6x6 or 9x9 cells."""

import functools
from collections.abc import Sequence
from typing import ClassVar

from phalanx.puzzles.kind import Puzzle
from phalanx.puzzles.kinds.grid import AllDifferentPuzzleKind, rows_and_columns


class Sudoku(AllDifferentPuzzleKind):
    """Sudoku: fill a 4x4, 6x6 or 9x9 board so that each row, column and box contains every digit once.

    The `blanks` parameter is the number of cells that the generator leaves blank. The digits of all other
    cells are given. For example, an easy sudoku has 16 cells, of which 7 are blank and 9 are given.
    """

    name = "sudoku"
    description = "each digit once in every row, column and box"
    difficulties: ClassVar = {
        "easy": {"size": 4, "box_rows": 2, "box_columns": 2, "blanks": 7},
        "medium": {"size": 6, "box_rows": 2, "box_columns": 3, "blanks": 20},
        "hard": {"size": 9, "box_rows": 3, "box_columns": 3, "blanks": 50},
    }

    def groups(self, puzzle: Puzzle) -> Sequence[Sequence[int]]:
        return _groups(*self.parameters(puzzle.difficulty)[:3])

    def rules(self, puzzle: Puzzle) -> str:
        size, rows, columns, _ = self.parameters(puzzle.difficulty)
        return (
            f"This is a sudoku of {size}x{size} cells. Write a digit from 1 to {size} into every blank cell "
            f"(.) such that each digit stands once in every row, in every column, and in every box of {rows} "
            f"rows and {columns} columns; the first box is at the top left."
        )


@functools.cache
def _groups(size: int, rows: int, columns: int) -> tuple[Sequence[int], ...]:
    boxes = (
        [(top + k // columns) * size + left + k % columns for k in range(size)]
        for top in range(0, size, rows)
        for left in range(0, size, columns)
    )
    return (*rows_and_columns(size), *boxes)

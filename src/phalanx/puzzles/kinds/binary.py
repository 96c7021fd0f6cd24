"""Binary puzzles, also known as binairo or takuzu, in which a board is filled with zeros and ones."""

from typing import ClassVar

from phalanx.puzzles.kind import Puzzle
from phalanx.puzzles.kinds.grid import Cells, GridPuzzleKind, rows_and_columns


class Binary(GridPuzzleKind):
    """Binary puzzle: fill a board of even size with zeros and ones.

    Each row and column must have as many zeros as ones, and no three equal digits next to each other. No two
    rows may be equal, and no two columns may be equal.
    """

    name = "binary"
    description = "as many zeros as ones in every row and column, no three equal digits next to each other"
    symbols = ".01"
    difficulties: ClassVar = {
        "easy": {"size": 4, "blanks": 8},
        "medium": {"size": 6, "blanks": 22},
        "hard": {"size": 8, "blanks": 42},
    }

    def rules(self, puzzle: Puzzle) -> str:
        return (
            f"This is a binary puzzle of {puzzle.size}x{puzzle.size} cells. Write 0 or 1 into every blank "
            f"cell (.) such that every row and every column has {puzzle.size // 2} zeros and "
            f"{puzzle.size // 2} ones, never three equal digits follow one another in a row or column, no "
            "two rows are equal, and no two columns are."
        )

    def is_solved(self, puzzle: Puzzle, state: Cells) -> bool:
        if 0 in state:
            return False
        size = puzzle.size
        lines = ["".join([self.symbols[state[cell]] for cell in line]) for line in rows_and_columns(size)]
        return (
            all(2 * line.count("0") == size and "000" not in line and "111" not in line for line in lines)
            and len(set(lines[:size])) == size
            and len(set(lines[size:])) == size
        )

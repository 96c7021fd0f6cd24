"""Futoshiki puzzles, which are Latin squares with inequality signs between cells."""

from typing import ClassVar

from phalanx.puzzles.kind import Puzzle
from phalanx.puzzles.kinds.grid import AllDifferentPuzzleKind, Cells, rows_and_columns


class Futoshiki(AllDifferentPuzzleKind):
    """Futoshiki: fill a Latin square such that the inequality signs between neighboring cells hold.

    `clues` is a flat sequence with two cells per inequality sign. The first of the two cells must contain the
    smaller digit. The `signs` parameter is the number of inequality signs, and `blanks` is the number of
    cells that the generator leaves blank.
    """

    name = "futoshiki"
    description = "each digit once in every row and column, with inequality signs between neighbors"
    difficulties: ClassVar = {
        "easy": {"size": 4, "signs": 5, "blanks": 9},
        "medium": {"size": 5, "signs": 8, "blanks": 19},
        "hard": {"size": 7, "signs": 16, "blanks": 38},
    }

    def rules(self, puzzle: Puzzle) -> str:
        return (
            f"This is a futoshiki of {puzzle.size}x{puzzle.size} cells. Write a digit from 1 to "
            f"{puzzle.size} into every blank cell (.) such that each digit stands once in every row and in "
            "every column, and the signs are true: < and > between two cells of a row say which is smaller, "
            "^ says that the cell above is smaller than the one below, and v that it is larger."
        )

    def is_solved(self, puzzle: Puzzle, state: Cells) -> bool:
        pairs = zip(puzzle.clues[::2], puzzle.clues[1::2], strict=True)
        return super().is_solved(puzzle, state) and all(state[small] < state[large] for small, large in pairs)

    def draw_board(self, puzzle: Puzzle, state: Cells) -> str:
        size = puzzle.size
        across, down = self._signs(puzzle)
        lines = []
        for cells in rows_and_columns(size)[:size]:
            lines.append("".join([f"{self.symbols[state[cell]]} {across[cell]} " for cell in cells]).rstrip())
            lines.append("   ".join([down[cell] for cell in cells]).rstrip())
        return "\n".join(lines[:-1])

    def compact_board(self, puzzle: Puzzle, state: Cells) -> str:
        # Digits, signs to the right and signs below are three boards of the same size, so that the distance
        # between a cell, its signs and its digit in the answer is the same for all cells.
        boards = ([self.symbols[value] for value in state], *self._signs(puzzle))
        rows = rows_and_columns(puzzle.size)[: puzzle.size]
        lines = ["".join(board[row.start : row.stop]) for board in boards for row in rows]
        return "\n".join(lines[:-1])

    def _signs(self, puzzle: Puzzle) -> tuple[list[str], list[str]]:
        """Return the sign to the right of each cell and the sign below each cell.

        A space means that there is no sign.
        """
        size = puzzle.size
        across, down = [" "] * size**2, [" "] * size**2
        for small, large in zip(puzzle.clues[::2], puzzle.clues[1::2], strict=True):
            first = min(small, large)
            signs, letters = (across, "<>") if abs(small - large) == 1 else (down, "^v")
            signs[first] = letters[small != first]
        return across, down

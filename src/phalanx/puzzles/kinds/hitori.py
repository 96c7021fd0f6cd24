"""Hitori puzzles, in which cells with repeated numbers are shaded."""

from typing import ClassVar

from phalanx.puzzles.kind import Puzzle
from phalanx.puzzles.kinds.grid import (
    Cells,
    GridPuzzleKind,
    format_board,
    is_connected,
    neighbors,
    rows_and_columns,
)


class Hitori(GridPuzzleKind):
    """Hitori: shade cells until no number appears twice among the white cells of a row or column.

    Shaded cells must not be neighbors, and the white cells must be connected.

    `given` contains the number in each cell. A state contains 1 for each shaded cell and 0 for each white
    cell. The `shaded` parameter is the maximum number of shaded cells in the solution.
    """

    name = "hitori"
    description = "shade cells until no number appears twice in a row or column"
    symbols = ".#"
    difficulties: ClassVar = {
        "easy": {"size": 4, "shaded": 4},
        "medium": {"size": 5, "shaded": 6},
        "hard": {"size": 7, "shaded": 12},
    }

    def rules(self, puzzle: Puzzle) -> str:
        return (
            f"This is a hitori of {puzzle.size}x{puzzle.size} cells. Shade cells such that no number stands "
            "twice among the cells of a row or column that are not shaded, no two shaded cells are neighbors "
            "in a row or column, and one can walk from each cell that is not shaded to every other, from "
            "neighbor to neighbor. A shaded cell is drawn with # behind its number. `#` shades a "
            "cell.\n\nNumbers:\n" + format_board(puzzle.size, [str(number) for number in puzzle.given])
        )

    def initial_state(self, puzzle: Puzzle) -> Cells:
        return (0,) * puzzle.size**2

    def draw_board(self, puzzle: Puzzle, state: Cells) -> str:
        cells = zip(puzzle.given, state, strict=True)
        return format_board(
            puzzle.size, [f"{number}#" if shaded else f"{number}." for number, shaded in cells]
        )

    def compact_board(self, puzzle: Puzzle, state: Cells) -> str:
        # A letter stands for a shaded number, so that boards and answers have the same width and every cell
        # has the same distance to its answer.
        cells = zip(puzzle.given, state, strict=True)
        symbols = [chr(ord("a") + number - 1) if shaded else str(number) for number, shaded in cells]
        return format_board(puzzle.size, symbols).replace(" ", "")

    def is_solved(self, puzzle: Puzzle, state: Cells) -> bool:
        size, numbers = puzzle.size, puzzle.given
        for line in rows_and_columns(size):
            white = [numbers[cell] for cell in line if not state[cell]]
            if len(set(white)) < len(white):
                return False
        near = neighbors(size)
        if any(state[cell] and any(state[other] for other in near[cell]) for cell in range(size * size)):
            return False
        white_cells = {cell for cell, shaded in enumerate(state) if not shaded}
        return is_connected(white_cells, white_cells, size)

    def _is_given(self, puzzle: Puzzle, cell: int) -> bool:
        return False

    def _describe_blank(self) -> str:
        return " for a shaded cell, and . for another"

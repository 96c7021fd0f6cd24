"""Hitori: shade cells until no number is left twice in a line.

What it shares with other boards of cells is in `cells`.
"""

from typing import ClassVar

from phalanx.puzzles.kind import Puzzle
from phalanx.puzzles.kinds.grid import Cells, GridPuzzle, drawn, lines_of
from phalanx.puzzles.twins.regions import connected, neighbors


class Hitori(GridPuzzle):
    """The numbers are given, a state says which cells are shaded."""

    name = "hitori"
    about = "shade cells until no number is left twice in a line"
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
            "cell.\n\nNumbers:\n" + drawn(puzzle.size, [str(number) for number in puzzle.given])
        )

    def start(self, puzzle: Puzzle) -> Cells:
        return (0,) * puzzle.size**2

    def draw(self, puzzle: Puzzle, state: Cells) -> str:
        cells = zip(puzzle.given, state, strict=True)
        return drawn(puzzle.size, [f"{number}#" if shaded else f"{number}." for number, shaded in cells])

    def compact(self, puzzle: Puzzle, state: Cells) -> str:
        # A letter for a shaded number: boards and answers are as wide, so that cells stand equally far apart.
        cells = zip(puzzle.given, state, strict=True)
        symbols = [chr(ord("a") + number - 1) if shaded else str(number) for number, shaded in cells]
        return drawn(puzzle.size, symbols).replace(" ", "")

    def is_solved(self, puzzle: Puzzle, state: Cells) -> bool:
        size, numbers = puzzle.size, puzzle.given
        for line in lines_of(size):
            white = [numbers[cell] for cell in line if not state[cell]]
            if len(set(white)) < len(white):
                return False
        near = neighbors(size)
        if any(state[cell] and any(state[other] for other in near[cell]) for cell in range(size * size)):
            return False
        white_cells = {cell for cell, shaded in enumerate(state) if not shaded}
        return connected(white_cells, white_cells, size)

    def _is_given(self, puzzle: Puzzle, cell: int) -> bool:
        return False

    def _blank(self) -> str:
        return " for a shaded cell, and . for another"

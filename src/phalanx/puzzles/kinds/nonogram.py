"""Nonograms: cells to be filled such that the runs of every row and column are those of its clue.

What it shares with other boards of cells is in `cells`.
"""

from typing import Any, ClassVar

from phalanx.puzzles.kind import Puzzle
from phalanx.puzzles.kinds.grid import Cells, GridPuzzle, lines_of
from phalanx.puzzles.twins.lines import runs_of


class Nonogram(GridPuzzle):
    """Clues are the runs of rows, then of columns, each with zeros behind. A blank is an empty cell."""

    name = "nonogram"
    about = "fill cells such that each line has the runs that its clue names"
    symbols = ".#"
    difficulties: ClassVar = {
        "easy": {"size": 4, "filled": 60},
        "medium": {"size": 6, "filled": 58},
        "hard": {"size": 10, "filled": 56},
    }

    def _puzzle(self, seed: int, difficulty: str, record: Any) -> Puzzle:
        size = self.difficulties[difficulty]["size"]
        clues, solution = record[: -size * size], record[-size * size :]
        return Puzzle(self.name, seed, difficulty, size, (0,) * size**2, tuple(clues), tuple(solution))

    def rules(self, puzzle: Puzzle) -> str:
        rows, columns = (
            "\n".join(f"{number}: {' '.join(map(str, runs)) or '0'}" for number, runs in enumerate(clues, 1))
            for clues in (self._clues(puzzle)[: puzzle.size], self._clues(puzzle)[puzzle.size :])
        )
        return (
            f"This is a nonogram of {puzzle.size}x{puzzle.size} cells. Fill cells (#) and leave others blank "
            "(.) such that the filled cells of every line stand in runs as long as its clue says, in this "
            f"order and with a blank at least between two runs.\n\nRow clues:\n{rows}\n\nColumn "
            f"clues:\n{columns}"
        )

    def is_solved(self, puzzle: Puzzle, state: Cells) -> bool:
        lines = zip(lines_of(puzzle.size), self._clues(puzzle), strict=True)
        return all(runs_of([state[cell] for cell in line]) == clue for line, clue in lines)

    def compact(self, puzzle: Puzzle, state: Cells) -> str:
        # As many places for each clue, 0 where it has no more runs; a run of ten is an A.
        lengths = "".join(f"{length:X}" for length in puzzle.clues)
        half = len(lengths) // 2
        return f"{lengths[:half]}\n{lengths[half:]}\n{super().compact(puzzle, state)}"

    def _clues(self, puzzle: Puzzle) -> list[list[int]]:
        slots = (puzzle.size + 1) // 2
        clues = (puzzle.clues[at : at + slots] for at in range(0, len(puzzle.clues), slots))
        return [[length for length in clue if length] for clue in clues]

    def _blank(self) -> str:
        return ", and . for a blank"

    def _question(self, puzzle: Puzzle) -> bytes:
        return bytes(puzzle.clues)

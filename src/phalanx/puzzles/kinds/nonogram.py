"""Nonogram puzzles, in which cells are filled according to the run lengths of each row and column."""

import itertools
from collections.abc import Sequence
from typing import Any, ClassVar

from phalanx.puzzles.kind import Puzzle
from phalanx.puzzles.kinds.grid import Cells, GridPuzzleKind, rows_and_columns


class Nonogram(GridPuzzleKind):
    """Nonogram: fill cells so that the runs of filled cells in each row and column match its clue.

    The clue of a row or column lists the lengths of its runs. `clues` is a flat sequence with the clues of
    all rows, followed by those of all columns, each padded with zeros to the same length. A state contains 1
    for each filled cell and 0 for each empty cell. The `filled` parameter is the approximate percentage of
    cells that are filled in the solution.
    """

    name = "nonogram"
    description = "fill cells such that the runs of filled cells in each row and column match its clue"
    symbols = ".#"
    difficulties: ClassVar = {
        "easy": {"size": 4, "filled": 60},
        "medium": {"size": 6, "filled": 58},
        "hard": {"size": 10, "filled": 56},
    }

    def _from_record(self, seed: int, difficulty: str, record: Any) -> Puzzle:
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
        lines = zip(rows_and_columns(puzzle.size), self._clues(puzzle), strict=True)
        return all(run_lengths([state[cell] for cell in line]) == clue for line, clue in lines)

    def compact_board(self, puzzle: Puzzle, state: Cells) -> str:
        # Each clue has the same number of characters: 0 after the last run, A for a run of ten.
        lengths = "".join(f"{length:X}" for length in puzzle.clues)
        half = len(lengths) // 2
        return f"{lengths[:half]}\n{lengths[half:]}\n{super().compact_board(puzzle, state)}"

    def _clues(self, puzzle: Puzzle) -> list[list[int]]:
        slots = (puzzle.size + 1) // 2
        clues = (puzzle.clues[at : at + slots] for at in range(0, len(puzzle.clues), slots))
        return [[length for length in clue if length] for clue in clues]

    def _describe_blank(self) -> str:
        return ", and . for a blank"

    def _solver_input(self, puzzle: Puzzle) -> bytes:
        return bytes(puzzle.clues)


def run_lengths(line: Sequence[int]) -> list[int]:
    """Return the lengths of the runs of filled cells in a row or column.

    >>> run_lengths([1, 1, 0, 1, 0])
    [2, 1]
    """
    return [sum(1 for _ in cells) for filled, cells in itertools.groupby(line) if filled]

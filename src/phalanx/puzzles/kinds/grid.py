"""Puzzles whose moves write a symbol into a cell of a square board; what their rules are is each kind's own.

Rows and columns count from 1 at the top left, as people write them.
"""

import functools
import re
from collections.abc import Sequence
from typing import Any, ClassVar, TypeAlias

from phalanx.puzzles.kind import Puzzle, PuzzleKind
from phalanx.text.env import quote

Cells: TypeAlias = tuple[int, ...]
"""A symbol's number for each cell, row after row; 0 is a blank."""

_MOVE = re.compile(r"(?:place |set )?(\d{1,3})[ ,]+(\d{1,3})[ ,]+(\S)", re.ASCII | re.IGNORECASE)


class GridPuzzle(PuzzleKind[Cells, tuple[int, int]]):
    """A board of `size` x `size` cells; a move is a cell and a symbol's number."""

    symbols: ClassVar[str]
    """The symbols by number; the first is a blank."""

    def values(self, puzzle: Puzzle) -> int:
        """How many symbols there are besides the blank."""
        return len(self.symbols) - 1

    def _puzzle(self, seed: int, difficulty: str, record: Any) -> Puzzle:
        size = self.difficulties[difficulty]["size"]
        cells = size * size
        given, solution, clues = record[:cells], record[cells : 2 * cells], record[2 * cells :]
        return Puzzle(self.name, seed, difficulty, size, tuple(given), tuple(clues), tuple(solution))

    def start(self, puzzle: Puzzle) -> Cells:
        return puzzle.given

    def draw(self, puzzle: Puzzle, state: Cells) -> str:
        return drawn(puzzle.size, [self.symbols[value] for value in state])

    def moves(self, puzzle: Puzzle) -> str:
        return (
            f"Answer with one line: `ROW COLUMN SYMBOL`, such as `1 2 {self.symbols[1]}`. Rows and columns "
            f"count from 1. Symbols are {self._symbols(puzzle)}; `.` takes one back."
        )

    def whole(self, puzzle: Puzzle) -> str:
        return (
            f"Answer with the whole board: {puzzle.size} lines of {puzzle.size} symbols with spaces between "
            f"them. Symbols are {self._symbols(puzzle)}{self._blank()}."
        )

    def parse(self, puzzle: Puzzle, state: Cells, text: str) -> tuple[int, int]:
        found = _MOVE.fullmatch(text)
        if found is None:
            raise ValueError(f"a move reads `ROW COLUMN SYMBOL`, got {quote(text)}")
        row, column, symbol = int(found[1]), int(found[2]), found[3]
        check_cell(row, column, puzzle.size)
        value = self._value(puzzle, symbol)
        cell = (row - 1) * puzzle.size + column - 1
        if self._is_given(puzzle, cell):
            raise ValueError(f"row {row}, column {column} is given and cannot be changed")
        if state[cell] == value:
            raise ValueError(f"row {row}, column {column} has {symbol} already")
        return cell, value

    def legal_moves(self, puzzle: Puzzle, state: Cells) -> list[str]:
        size = puzzle.size
        return [
            f"{cell // size + 1} {cell % size + 1} {symbol}"
            for cell in range(size * size)
            if not self._is_given(puzzle, cell)
            for value, symbol in enumerate(self.symbols[: self.values(puzzle) + 1])
            if state[cell] != value
        ]

    def apply(self, puzzle: Puzzle, state: Cells, move: tuple[int, int]) -> Cells:
        cell, value = move
        return (*state[:cell], value, *state[cell + 1 :])

    def solve(self, puzzle: Puzzle, state: Cells) -> list[str] | None:
        return [
            f"{cell // puzzle.size + 1} {cell % puzzle.size + 1} {self.symbols[value]}"
            for cell, value in enumerate(puzzle.solution)
            if state[cell] != value
        ]

    def answer(self, puzzle: Puzzle) -> str:
        return drawn(puzzle.size, [self.symbols[value] for value in puzzle.solution])

    def compact_answer(self, answer: str) -> str:
        return answer.replace(" ", "") if "\n" in answer else answer

    def read(self, puzzle: Puzzle, text: str) -> Cells:
        size = puzzle.size
        rows = ["".join(line.split()) for line in text.splitlines() if line.strip()]
        if len(rows) != size:
            raise ValueError(f"a whole answer has {size} lines, got {len(rows)}")
        for number, row in enumerate(rows, 1):
            if len(row) != size:
                raise ValueError(f"line {number} must have {size} symbols, got {len(row)}")
        cells = tuple(self._value(puzzle, symbol) for row in rows for symbol in row)
        for cell, value in enumerate(cells):
            if self._is_given(puzzle, cell) and value != puzzle.given[cell]:
                place = f"row {cell // size + 1}, column {cell % size + 1}"
                raise ValueError(f"{place} is given and cannot be changed")
        return cells

    def _is_given(self, puzzle: Puzzle, cell: int) -> bool:
        return puzzle.given[cell] != 0

    def _blank(self) -> str:
        """What a blank means in a whole answer; nothing where there must be none."""
        return ""

    def _value(self, puzzle: Puzzle, symbol: str) -> int:
        value = self.symbols.find(symbol)
        if not 0 <= value <= self.values(puzzle):
            raise ValueError(f"{quote(symbol)} is no symbol here; there are {self._symbols(puzzle)}")
        return value

    def _symbols(self, puzzle: Puzzle) -> str:
        return " ".join(self.symbols[1 : self.values(puzzle) + 1])


class LatinPuzzle(GridPuzzle):
    """Digits from 1 to the size, each once in every group of cells."""

    symbols = ".123456789"

    def values(self, puzzle: Puzzle) -> int:
        return puzzle.size

    def groups(self, puzzle: Puzzle) -> Sequence[Sequence[int]]:
        """Cells that must all be different."""
        return lines_of(puzzle.size)

    def is_solved(self, puzzle: Puzzle, state: Cells) -> bool:
        if 0 in state:
            return False
        return all(len({state[cell] for cell in group}) == puzzle.size for group in self.groups(puzzle))


@functools.cache
def lines_of(size: int) -> tuple[range, ...]:
    """The cells of each row, then of each column."""
    rows = [range(row * size, (row + 1) * size) for row in range(size)]
    return (*rows, *(range(column, size * size, size) for column in range(size)))


def drawn(size: int, symbols: Sequence[str]) -> str:
    """A board as lines of symbols with spaces between them."""
    return "\n".join([" ".join(symbols[start : start + size]) for start in range(0, size * size, size)])


def check_cell(row: int, column: int, size: int) -> None:
    """Refuse what is not on the board; rows and columns count from 1."""
    for name, place in (("row", row), ("column", column)):
        if not 1 <= place <= size:
            raise ValueError(f"there is no {name} {place}; {name}s count from 1 to {size}")


def read_lines(text: str, most: int) -> list[str]:
    """The lines of a whole answer; refused where there are more than `most`."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) > most:
        raise ValueError(f"a whole answer has at most {most} lines here, got {len(lines)}")
    return lines

"""Base classes and helpers for puzzles on a square board.

In texts, rows and columns are counted from 1, starting at the top left. In code, a cell is represented by its
index in row-major order, counted from 0.
"""

import functools
import re
from collections.abc import Sequence
from typing import Any, ClassVar, TypeAlias

from phalanx.puzzles.kind import Puzzle, PuzzleKind, match_move
from phalanx.text.answers import quote

Cells: TypeAlias = tuple[int, ...]
"""One integer per cell, in row-major order. In a `GridPuzzleKind`, each integer is the index of the cell's
symbol, and 0 stands for a blank cell."""

CellAndSymbol: TypeAlias = tuple[int, int]
"""Move in a `GridPuzzleKind`: the index of a cell and the index of its new symbol."""

_MOVE = re.compile(r"(?:place |set )?(\d{1,3})[ ,]+(\d{1,3})[ ,]+(\S)", re.ASCII | re.IGNORECASE)


class GridPuzzleKind(PuzzleKind[Cells, CellAndSymbol]):
    """Base class for puzzles in which the cells of a square board are filled with symbols.

    A state contains, for each cell, the index of its symbol in `symbols`. A move consists of a cell and the
    index of its new symbol.
    """

    symbols: ClassVar[str]
    """Characters that stand for the possible contents of a cell. The first one stands for a blank cell."""

    def num_symbols(self, puzzle: Puzzle) -> int:
        """Return the number of symbols that can be used in a puzzle, not counting the blank."""
        return len(self.symbols) - 1

    def _from_record(self, seed: int, difficulty: str, record: Any) -> Puzzle:
        size = self.difficulties[difficulty]["size"]
        cells = size * size
        given, solution, clues = record[:cells], record[cells : 2 * cells], record[2 * cells :]
        return Puzzle(self.name, seed, difficulty, size, tuple(given), tuple(clues), tuple(solution))

    def draw_board(self, puzzle: Puzzle, state: Cells) -> str:
        return format_board(puzzle.size, [self.symbols[value] for value in state])

    def move_format(self, puzzle: Puzzle) -> str:
        return (
            f"Answer with one line: `ROW COLUMN SYMBOL`, such as `1 2 {self.symbols[1]}`. Rows and columns "
            f"count from 1. Symbols are {self._symbol_list(puzzle)}; `.` takes one back."
        )

    def answer_format(self, puzzle: Puzzle) -> str:
        return (
            f"Answer with the whole board: {puzzle.size} lines of {puzzle.size} symbols with spaces between "
            f"them. Symbols are {self._symbol_list(puzzle)}{self._describe_blank()}."
        )

    def parse_move(self, puzzle: Puzzle, state: Cells, text: str) -> CellAndSymbol:
        row, column, symbol = match_move(_MOVE, text, "a move reads `ROW COLUMN SYMBOL`").groups()
        cell = parse_cell(row, column, puzzle.size)
        value = self._value(puzzle, symbol)
        if self._is_given(puzzle, cell):
            raise ValueError(f"{cell_name(cell, puzzle.size)} is given and cannot be changed")
        if state[cell] == value:
            raise ValueError(f"{cell_name(cell, puzzle.size)} has {symbol} already")
        return cell, value

    def legal_moves(self, puzzle: Puzzle, state: Cells) -> list[str]:
        return [
            f"{cell_text(cell, puzzle.size)} {symbol}"
            for cell in range(puzzle.size**2)
            if not self._is_given(puzzle, cell)
            for value, symbol in enumerate(self.symbols[: self.num_symbols(puzzle) + 1])
            if state[cell] != value
        ]

    def apply(self, puzzle: Puzzle, state: Cells, move: CellAndSymbol) -> Cells:
        cell, value = move
        return (*state[:cell], value, *state[cell + 1 :])

    def solve(self, puzzle: Puzzle, state: Cells) -> list[str] | None:
        return [
            f"{cell_text(cell, puzzle.size)} {self.symbols[value]}"
            for cell, value in enumerate(puzzle.solution)
            if state[cell] != value
        ]

    def solution_text(self, puzzle: Puzzle) -> str:
        return format_board(puzzle.size, [self.symbols[value] for value in puzzle.solution])

    def compact_answer(self, answer: str) -> str:
        return answer.replace(" ", "") if "\n" in answer else answer

    def parse_answer(self, puzzle: Puzzle, text: str) -> Cells:
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
                raise ValueError(f"{cell_name(cell, size)} is given and cannot be changed")
        return cells

    def _is_given(self, puzzle: Puzzle, cell: int) -> bool:
        return puzzle.given[cell] != 0

    def _describe_blank(self) -> str:
        """Return the part of the answer format that explains blank cells.

        It is empty if solutions have no blank cells.
        """
        return ""

    def _value(self, puzzle: Puzzle, symbol: str) -> int:
        value = self.symbols.find(symbol)
        if not 0 <= value <= self.num_symbols(puzzle):
            raise ValueError(f"{quote(symbol)} is no symbol here; there are {self._symbol_list(puzzle)}")
        return value

    def _symbol_list(self, puzzle: Puzzle) -> str:
        return " ".join(self.symbols[1 : self.num_symbols(puzzle) + 1])


class AllDifferentPuzzleKind(GridPuzzleKind):
    """Base class for puzzles in which every group of cells, such as a row, must contain each digit once.

    The digits are 1 to the size of the board.
    """

    symbols = ".123456789"

    def num_symbols(self, puzzle: Puzzle) -> int:
        return puzzle.size

    def groups(self, puzzle: Puzzle) -> Sequence[Sequence[int]]:
        """Return the groups of cells that must contain each digit once. By default, these are the rows and
        the columns."""
        return rows_and_columns(puzzle.size)

    def is_solved(self, puzzle: Puzzle, state: Cells) -> bool:
        if 0 in state:
            return False
        return all(len({state[cell] for cell in group}) == puzzle.size for group in self.groups(puzzle))


@functools.cache
def rows_and_columns(size: int) -> tuple[range, ...]:
    """Return the cells of each row, followed by the cells of each column."""
    rows = [range(row * size, (row + 1) * size) for row in range(size)]
    return (*rows, *(range(column, size * size, size) for column in range(size)))


@functools.cache
def neighbors(size: int) -> tuple[tuple[int, ...], ...]:
    """Return the neighbors of each cell (above, below, left and right) that are on the board."""
    return tuple(
        tuple(
            (row + down) * size + column + right
            for down, right in ((-1, 0), (1, 0), (0, -1), (0, 1))
            if 0 <= row + down < size and 0 <= column + right < size
        )
        for row in range(size)
        for column in range(size)
    )


def is_connected(open_cells: set[int], targets: set[int], size: int) -> bool:
    """Return whether all cells in `targets` are connected by paths of neighboring cells in `open_cells`."""
    if not targets:
        return True
    near, stack = neighbors(size), [min(targets)]
    seen = set(stack)
    while stack:
        for other in near[stack.pop()]:
            if other in open_cells and other not in seen:
                seen.add(other)
                stack.append(other)
    return targets <= seen


def format_board(size: int, symbols: Sequence[str]) -> str:
    """Format a board as lines of symbols separated by spaces."""
    return "\n".join([" ".join(symbols[start : start + size]) for start in range(0, size * size, size)])


def parse_cell(row: str, column: str, size: int) -> int:
    """Return the cell at a row and column, which are counted from 1.

    Raises:
        ValueError: If the cell is not on the board.
    """
    for name, index in (("row", int(row)), ("column", int(column))):
        if not 1 <= index <= size:
            raise ValueError(f"there is no {name} {index}; {name}s count from 1 to {size}")
    return (int(row) - 1) * size + int(column) - 1


def cell_text(cell: int, size: int) -> str:
    """Return the row and column of a cell as they are written in moves, such as `1 2`."""
    return f"{cell // size + 1} {cell % size + 1}"


def cell_name(cell: int, size: int) -> str:
    """Return the row and column of a cell for messages, such as `row 1, column 2`."""
    return f"row {cell // size + 1}, column {cell % size + 1}"

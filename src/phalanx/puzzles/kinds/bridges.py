"""Bridges (hashiwokakero): join all islands by as many bridges as their numbers say.

How they are made and solved fast is in `src/native/puzzles/regions.cc`.
"""

import functools
import re
from typing import Any, ClassVar

from phalanx.puzzles.kind import Puzzle, PuzzleKind
from phalanx.puzzles.kinds.grid import Cells, check_cell, drawn, read_lines
from phalanx.puzzles.twins.regions import Edge, crossings_of, edges_of, joined
from phalanx.text.env import quote

_MOVE = re.compile(
    r"(?:bridge )?(\d{1,3})[ ,]+(\d{1,3})[ ,]+(\d{1,3})[ ,]+(\d{1,3})[ ,]+([012])", re.ASCII | re.IGNORECASE
)

_DRAWN = re.compile(r"[-=|H.]")


class Bridges(PuzzleKind[Cells, tuple[int, int]]):
    """A state says how many bridges each edge has; a move is an edge and how many it shall have."""

    name = "bridges"
    about = "join all islands by as many bridges as their numbers say"
    difficulties: ClassVar = {
        "easy": {"size": 5, "islands": 5},
        "medium": {"size": 7, "islands": 9},
        "hard": {"size": 9, "islands": 15},
    }

    def _puzzle(self, seed: int, difficulty: str, record: Any) -> Puzzle:
        size = self.difficulties[difficulty]["size"]
        given, solution = tuple(record[: size * size]), tuple(record[size * size :])
        return Puzzle(self.name, seed, difficulty, size, given, (), solution)

    def rules(self, puzzle: Puzzle) -> str:
        islands = ", ".join(
            f"{cell // puzzle.size + 1} {cell % puzzle.size + 1} has {number}"
            for cell, number in enumerate(puzzle.given)
            if number
        )
        return (
            f"This is bridges on {puzzle.size}x{puzzle.size} cells. Digits are islands. Build bridges "
            "between islands that stand in one row or column with no island between them: one or two bridges "
            "for each pair, straight, and never across another bridge. Each island must have as many bridges "
            "as its digit says, and all islands must hang together. One bridge is drawn as - or |, two as = "
            f"or H.\n\nIslands by row and column: {islands}."
        )

    def moves(self, puzzle: Puzzle) -> str:
        return (
            "Answer with one line: `ROW COLUMN ROW COLUMN COUNT`, two islands and how many bridges there "
            "shall be between them, 0 to 2, such as `1 1 1 4 2`. Rows and columns count from 1."
        )

    def whole(self, puzzle: Puzzle) -> str:
        return (
            "Answer with one line for each pair of islands that has bridges: `ROW COLUMN ROW COLUMN COUNT`, "
            "such as `1 1 1 4 2`. Rows and columns count from 1."
        )

    def start(self, puzzle: Puzzle) -> Cells:
        return (0,) * len(puzzle.solution)

    def draw(self, puzzle: Puzzle, state: Cells) -> str:
        symbols = [str(number) if number else "." for number in puzzle.given]
        for edge, count in zip(_edges(puzzle)[0], state, strict=True):
            for cell in _between(edge, puzzle.size) if count else ():
                symbols[cell] = ("|H" if edge.down else "-=")[count - 1]
        return drawn(puzzle.size, symbols)

    def parse(self, puzzle: Puzzle, state: Cells, text: str) -> tuple[int, int]:
        found = _MOVE.fullmatch(text)
        if found is None:
            raise ValueError(
                f"a move reads `ROW COLUMN ROW COLUMN COUNT` with a count of 0 to 2, got {quote(text)}"
            )
        places = [int(number) for number in found.groups()]
        count = places.pop()
        for row, column in (places[:2], places[2:]):
            check_cell(row, column, puzzle.size)
        ends = sorted((row - 1) * puzzle.size + column - 1 for row, column in (places[:2], places[2:]))
        _, number_of, crossed = _edges(puzzle)
        edge = number_of.get((ends[0], ends[1]))
        if edge is None:
            raise ValueError(
                f"no bridge can lead from {places[0]} {places[1]} to {places[2]} {places[3]}: they are not "
                "two islands in one row or column with no island between them"
            )
        if count and any(state[other] for other in crossed[edge]):
            raise ValueError("another bridge is in the way")
        if state[edge] == count:
            raise ValueError(f"there are {count} bridges already")
        return edge, count

    def legal_moves(self, puzzle: Puzzle, state: Cells) -> list[str]:
        crossed = _edges(puzzle)[2]
        return [
            self._move(puzzle, edge, count)
            for edge, built in enumerate(state)
            for count in range(3)
            if count != built and not (count and any(state[other] for other in crossed[edge]))
        ]

    def apply(self, puzzle: Puzzle, state: Cells, move: tuple[int, int]) -> Cells:
        edge, count = move
        return (*state[:edge], count, *state[edge + 1 :])

    def is_solved(self, puzzle: Puzzle, state: Cells) -> bool:
        edges, _, crossed = _edges(puzzle)
        missing = list(puzzle.given)
        for edge, count in zip(edges, state, strict=True):
            missing[edge.start] -= count
            missing[edge.end] -= count
        if any(missing) or any(state[e] and any(state[o] for o in crossed[e]) for e in range(len(edges))):
            return False
        return joined(edges, [count > 0 for count in state], sum(number > 0 for number in puzzle.given))

    def solve(self, puzzle: Puzzle, state: Cells) -> list[str] | None:
        wrong = [edge for edge, count in enumerate(puzzle.solution) if state[edge] != count]
        # What is too much goes first: it may be in the way.
        wrong.sort(key=lambda edge: puzzle.solution[edge] > 0)
        return [self._move(puzzle, edge, puzzle.solution[edge]) for edge in wrong]

    def compact_whole(self, puzzle: Puzzle) -> str:
        return self.draw(puzzle, puzzle.solution).replace(" ", "")

    def read(self, puzzle: Puzzle, text: str) -> Cells:
        """The state of moves, a line each, or of a board on which bridges are drawn."""
        if _DRAWN.search(text):
            return self._read_board(puzzle, text)
        state = self.start(puzzle)
        for line in read_lines(text, len(state)):
            state = self.apply(puzzle, state, self.parse(puzzle, state, line))
        return state

    def _read_board(self, puzzle: Puzzle, text: str) -> Cells:
        rows = ["".join(line.split()) for line in read_lines(text, puzzle.size)]
        if [len(row) for row in rows] != [puzzle.size] * puzzle.size:
            raise ValueError(f"a drawn board has {puzzle.size} lines of {puzzle.size} symbols")
        symbols = "".join(rows)
        for cell, number in enumerate(puzzle.given):
            if (str(number) if number else ".") != (symbols[cell] if number else "."):
                place = f"row {cell // puzzle.size + 1}, column {cell % puzzle.size + 1}"
                raise ValueError(f"{place} is the island {number}, got {symbols[cell]!r}")
        state = list(self.start(puzzle))
        for at, edge in enumerate(_edges(puzzle)[0]):
            between = {symbols[cell] for cell in _between(edge, puzzle.size)}
            if len(between) == 1:
                state[at] = 1 + ("|H" if edge.down else "-=").find(between.pop())
        if "".join(self.draw(puzzle, tuple(state)).split()) != symbols:
            raise ValueError("what is drawn there are no bridges from island to island")
        return tuple(state)

    def answer(self, puzzle: Puzzle) -> str:
        return "\n".join(self.solve(puzzle, self.start(puzzle)) or ())

    def _move(self, puzzle: Puzzle, edge: int, count: int) -> str:
        size, ends = puzzle.size, _edges(puzzle)[0][edge]
        places = [f"{cell // size + 1} {cell % size + 1}" for cell in (ends.start, ends.end)]
        return f"{' '.join(places)} {count}"


def _between(edge: Edge, size: int) -> range:
    """The cells between two islands."""
    return range(edge.start, edge.end, size if edge.down else 1)[1:]


def _edges(puzzle: Puzzle) -> tuple[list[Edge], dict[tuple[int, int], int], list[list[int]]]:
    return _edges_of(puzzle.given, puzzle.size)


@functools.lru_cache(4096)
def _edges_of(
    numbers: tuple[int, ...], size: int
) -> tuple[list[Edge], dict[tuple[int, int], int], list[list[int]]]:
    """The edges of a board, their numbers by their ends, and which ones cross each."""
    edges = edges_of(numbers, size)
    crossed: list[list[int]] = [[] for _ in edges]
    for one, other in crossings_of(edges, size):
        crossed[one].append(other)
        crossed[other].append(one)
    return edges, {(edge.start, edge.end): number for number, edge in enumerate(edges)}, crossed

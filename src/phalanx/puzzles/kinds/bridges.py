"""Bridges puzzles, also known as hashiwokakero, in which bridges connect all islands of a board."""

import functools
import math
import re
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

from phalanx.puzzles.kind import Puzzle, PuzzleKind, match_move, split_lines
from phalanx.puzzles.kinds.grid import Cells, cell_name, cell_text, format_board, parse_cell

_MOVE = re.compile(
    r"(?:bridge )?(\d{1,3})[ ,]+(\d{1,3})[ ,]+(\d{1,3})[ ,]+(\d{1,3})[ ,]+([012])", re.ASCII | re.IGNORECASE
)

_DRAWN = re.compile(r"[-=|H.]")


class Edge(NamedTuple):
    """A pair of islands that bridges can connect: in the same row or column, with no island between them."""

    start: int
    """Cell of the left or upper island."""
    end: int
    """Cell of the right or lower island."""
    down: bool
    """True if the islands are in the same column."""


def list_edges(numbers: Sequence[int], size: int) -> list[Edge]:
    """Return all edges of a board: for each island, the edge to its right and the edge below it, if any.

    Args:
        numbers: For each cell, the number that is written on its island, or 0 if the cell has no island.
        size: Side length of the board.
    """
    edges = []
    for cell in range(size * size):
        if not numbers[cell]:
            continue
        right = next((c for c in range(cell + 1, (cell // size + 1) * size) if numbers[c]), None)
        below = next((c for c in range(cell + size, size * size, size) if numbers[c]), None)
        edges += [Edge(cell, right, False)] if right is not None else []
        edges += [Edge(cell, below, True)] if below is not None else []
    return edges


def crossing_edges(edges: Sequence[Edge], size: int) -> list[tuple[int, int]]:
    """Return all pairs of edges that cross, as the indices of the horizontal edge and the vertical edge."""
    return [
        (one, other)
        for one, across in enumerate(edges)
        for other, down in enumerate(edges)
        if not across.down
        and down.down
        and down.start // size < across.start // size < down.end // size
        and across.start % size < down.start % size < across.end % size
    ]


def is_joined(edges: Sequence[Edge], built: Sequence[bool], islands: int) -> bool:
    """Return whether the edges that have bridges connect all islands.

    Args:
        edges: All edges of the board.
        built: For each edge, whether it has at least one bridge.
        islands: Number of islands.
    """
    part: dict[int, set[int]] = {}
    for edge, is_built in zip(edges, built, strict=True):
        for cell in (edge.start, edge.end):
            part.setdefault(cell, {cell})
        if is_built and part[edge.start] is not part[edge.end]:
            union = part[edge.start] | part[edge.end]
            for cell in union:
                part[cell] = union
    return len({id(cells) for cells in part.values()}) == 1 and len(part) == islands


class Bridges(PuzzleKind[Cells, tuple[int, int]]):
    """Bridges: connect all islands such that each island has as many bridges as its number says.

    `given` contains the number on the island in each cell, or 0 if there is no island. A state contains the
    number of bridges on each edge, from 0 to 2. A move is the index of an edge and its new number of bridges.
    """

    name = "bridges"
    description = "connect islands such that each has as many bridges as its number says"
    difficulties: ClassVar = {
        "easy": {"size": 5, "islands": 5},
        "medium": {"size": 7, "islands": 9},
        "hard": {"size": 9, "islands": 15},
    }

    def _from_record(self, seed: int, difficulty: str, record: Any) -> Puzzle:
        size = self.difficulties[difficulty]["size"]
        given, solution = tuple(record[: size * size]), tuple(record[size * size :])
        return Puzzle(self.name, seed, difficulty, size, given, (), solution)

    def rules(self, puzzle: Puzzle) -> str:
        islands = ", ".join(
            f"{cell_text(cell, puzzle.size)} has {number}"
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

    def move_format(self, puzzle: Puzzle) -> str:
        return (
            "Answer with one line: `ROW COLUMN ROW COLUMN COUNT`, two islands and how many bridges there "
            "shall be between them, 0 to 2, such as `1 1 1 4 2`. Rows and columns count from 1."
        )

    def answer_format(self, puzzle: Puzzle) -> str:
        return (
            "Answer with one line for each pair of islands that has bridges: `ROW COLUMN ROW COLUMN COUNT`, "
            "such as `1 1 1 4 2`. Rows and columns count from 1."
        )

    def initial_state(self, puzzle: Puzzle) -> Cells:
        return (0,) * len(puzzle.solution)

    def draw_board(self, puzzle: Puzzle, state: Cells) -> str:
        symbols = [str(number) if number else "." for number in puzzle.given]
        for edge, count in zip(_board_edges(puzzle.given)[0], state, strict=True):
            for cell in _between(edge, puzzle.size) if count else ():
                symbols[cell] = ("|H" if edge.down else "-=")[count - 1]
        return format_board(puzzle.size, symbols)

    def parse_move(self, puzzle: Puzzle, state: Cells, text: str) -> tuple[int, int]:
        found = match_move(_MOVE, text, "a move reads `ROW COLUMN ROW COLUMN COUNT` with a count of 0 to 2")
        size, count = puzzle.size, int(found[5])
        first, second = parse_cell(found[1], found[2], size), parse_cell(found[3], found[4], size)
        _, index_by_ends, crossed = _board_edges(puzzle.given)
        edge = index_by_ends.get((min(first, second), max(first, second)))
        if edge is None:
            raise ValueError(
                f"no bridge can lead from {cell_text(first, size)} to {cell_text(second, size)}: "
                "they are not two islands in one row or column with no island between them"
            )
        if count and any(state[other] for other in crossed[edge]):
            raise ValueError("another bridge is in the way")
        if state[edge] == count:
            raise ValueError(f"there are {count} bridges already")
        return edge, count

    def legal_moves(self, puzzle: Puzzle, state: Cells) -> list[str]:
        crossed = _board_edges(puzzle.given)[2]
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
        edges, _, crossed = _board_edges(puzzle.given)
        missing = list(puzzle.given)
        for edge, count in zip(edges, state, strict=True):
            missing[edge.start] -= count
            missing[edge.end] -= count
        if any(missing) or any(state[e] and any(state[o] for o in crossed[e]) for e in range(len(edges))):
            return False
        return is_joined(edges, [count > 0 for count in state], sum(number > 0 for number in puzzle.given))

    def solve(self, puzzle: Puzzle, state: Cells) -> list[str] | None:
        wrong = [edge for edge, count in enumerate(puzzle.solution) if state[edge] != count]
        # Remove surplus bridges first, because they may block other bridges.
        wrong.sort(key=lambda edge: puzzle.solution[edge] > 0)
        return [self._move(puzzle, edge, puzzle.solution[edge]) for edge in wrong]

    def compact_solution(self, puzzle: Puzzle) -> str:
        return self.draw_board(puzzle, puzzle.solution).replace(" ", "")

    def parse_answer(self, puzzle: Puzzle, text: str) -> Cells:
        """Parse a solution, given as one move per line or as a board with bridges drawn on it."""
        if _DRAWN.search(text):
            return self._parse_board(puzzle, text)
        return super().parse_answer(puzzle, text)

    def _parse_board(self, puzzle: Puzzle, text: str) -> Cells:
        rows = ["".join(line.split()) for line in split_lines(text, puzzle.size)]
        if [len(row) for row in rows] != [puzzle.size] * puzzle.size:
            raise ValueError(f"a drawn board has {puzzle.size} lines of {puzzle.size} symbols")
        symbols = "".join(rows)
        for cell, number in enumerate(puzzle.given):
            if number and symbols[cell] != str(number):
                raise ValueError(
                    f"{cell_name(cell, puzzle.size)} is the island {number}, got {symbols[cell]!r}"
                )
        state = list(self.initial_state(puzzle))
        for index, edge in enumerate(_board_edges(puzzle.given)[0]):
            between = {symbols[cell] for cell in _between(edge, puzzle.size)}
            if len(between) == 1:
                state[index] = 1 + ("|H" if edge.down else "-=").find(between.pop())
        if "".join(self.draw_board(puzzle, tuple(state)).split()) != symbols:
            raise ValueError("what is drawn there are no bridges from island to island")
        return tuple(state)

    def _move(self, puzzle: Puzzle, edge: int, count: int) -> str:
        size, ends = puzzle.size, _board_edges(puzzle.given)[0][edge]
        return f"{cell_text(ends.start, size)} {cell_text(ends.end, size)} {count}"


def _between(edge: Edge, size: int) -> range:
    """Return the cells between the two islands of an edge."""
    return range(edge.start, edge.end, size if edge.down else 1)[1:]


@functools.lru_cache(4096)
def _board_edges(numbers: Cells) -> tuple[list[Edge], dict[tuple[int, int], int], list[list[int]]]:
    """Find the edges of a board, given the number on the island in each cell (0 if there is no island).

    Returns:
        The edges, a mapping from the two cells of an edge to its index, and for each edge the indices of the
        edges that cross it.
    """
    size = math.isqrt(len(numbers))
    edges = list_edges(numbers, size)
    crossed: list[list[int]] = [[] for _ in edges]
    for one, other in crossing_edges(edges, size):
        crossed[one].append(other)
        crossed[other].append(one)
    return edges, {(edge.start, edge.end): number for number, edge in enumerate(edges)}, crossed

"""Lights out: a press switches a light and its neighbors; all must be off.

Solved over the field of two elements, exactly and with as few presses as there can be.
"""

import functools
import operator
import re
from collections.abc import Sequence
from typing import Any, ClassVar

from phalanx.puzzles.kind import Puzzle, PuzzleKind
from phalanx.puzzles.kinds.grid import Cells, check_cell, drawn, read_lines
from phalanx.puzzles.splitmix64 import SplitMix64
from phalanx.puzzles.twins.regions import neighbors
from phalanx.text.env import quote

_MOVE = re.compile(r"(?:press )?(\d{1,3})[ ,]+(\d{1,3})", re.ASCII | re.IGNORECASE)


class LightsOut(PuzzleKind[Cells, int]):
    """A state says which lights are on; a move is a cell."""

    name = "lights_out"
    about = "press lights, which switch their neighbors too, until all are off"
    unique = False
    difficulties: ClassVar = {
        "easy": {"size": 3, "presses": 3},
        "medium": {"size": 4, "presses": 5},
        "hard": {"size": 5, "presses": 9},
    }

    def _make(self, seeds: Sequence[int], parameters: Sequence[int]) -> Sequence[Any]:
        return [_lit(SplitMix64(seed), *parameters) for seed in seeds]

    def _puzzle(self, seed: int, difficulty: str, record: Any) -> Puzzle:
        size = self.difficulties[difficulty]["size"]
        return Puzzle(self.name, seed, difficulty, size, _cells(record, size), (), ())

    def rules(self, puzzle: Puzzle) -> str:
        return (
            f"This is lights out on {puzzle.size}x{puzzle.size} lights. Pressing a light switches it and its "
            "neighbors above, below, left and right, from on (O) to off (.) and back. Switch all lights off."
        )

    def moves(self, puzzle: Puzzle) -> str:
        return "Answer with one line: `ROW COLUMN` of the light to press, such as `1 2`; they count from 1."

    def whole(self, puzzle: Puzzle) -> str:
        return "Answer with one line `ROW COLUMN` for each light to press, such as `1 2`; they count from 1."

    def start(self, puzzle: Puzzle) -> Cells:
        return puzzle.given

    def draw(self, puzzle: Puzzle, state: Cells) -> str:
        return drawn(puzzle.size, [".O"[on] for on in state])

    def parse(self, puzzle: Puzzle, state: Cells, text: str) -> int:
        found = _MOVE.fullmatch(text)
        if found is None:
            raise ValueError(f"a move reads `ROW COLUMN`, got {quote(text)}")
        row, column = int(found[1]), int(found[2])
        check_cell(row, column, puzzle.size)
        return (row - 1) * puzzle.size + column - 1

    def legal_moves(self, puzzle: Puzzle, state: Cells) -> list[str]:
        return [
            f"{row} {column}" for row in range(1, puzzle.size + 1) for column in range(1, puzzle.size + 1)
        ]

    def apply(self, puzzle: Puzzle, state: Cells, move: int) -> Cells:
        lights = list(state)
        for cell in (move, *neighbors(puzzle.size)[move]):
            lights[cell] ^= 1
        return tuple(lights)

    def is_solved(self, puzzle: Puzzle, state: Cells) -> bool:
        return 1 not in state

    def solve(self, puzzle: Puzzle, state: Cells) -> list[str] | None:
        size = puzzle.size
        presses = shortest_presses(sum(on << cell for cell, on in enumerate(state)), size)
        return [f"{cell // size + 1} {cell % size + 1}" for cell in range(size**2) if presses >> cell & 1]

    def teach(self, puzzle: Puzzle, state: Cells) -> list[str] | None:
        """Lights are chased down: a press below each, row by row, then in the first row for what is left.

        Each press follows from few lights, where the shortest way follows from all. On boards above 4x4,
        where it may take longer than an episode, it is the shortest way.
        """
        size, moves = puzzle.size, list[str]()
        if size > 4:
            return self.solve(puzzle, state)
        while 1 in state:
            cell = chasing_press(state, size)
            moves.append(f"{cell // size + 1} {cell % size + 1}")
            state = self.apply(puzzle, state, cell)
        return moves

    def read(self, puzzle: Puzzle, text: str) -> Cells:
        state = puzzle.given
        for line in read_lines(text, puzzle.size**2):
            state = self.apply(puzzle, state, self.parse(puzzle, state, line))
        return state

    def answer(self, puzzle: Puzzle) -> str:
        return "\n".join(self.solve(puzzle, puzzle.given) or ())


def shortest_presses(lights: int, size: int) -> int:
    """The fewest presses, as bits, that switch off these lights, which presses have switched on."""
    rows, free = _reduced(size)
    presses = sum(1 << pivot for pivot, sources in rows if (sources & lights).bit_count() & 1)
    best = presses
    for choice in range(1, 1 << len(free)):
        other = presses
        for number, quiet in enumerate(free):
            other ^= quiet if choice >> number & 1 else 0
        best = min(best, other, key=lambda bits: (bits.bit_count(), bits))
    return best


def chasing_press(state: Cells, size: int) -> int:
    """The press below the first light of all rows but the last; else the first that the last row asks for."""
    above = state[: size * (size - 1)]
    return above.index(1) + size if 1 in above else _first_row(size)[state[-size:]]


@functools.cache
def _first_row(size: int) -> dict[Cells, int]:
    """For what can be left in the last row, a press of the first row that brings it nearer to nothing."""
    effects = _effects(size)
    found: dict[Cells, int] = {}
    for presses in range(1, 1 << size):
        lights = functools.reduce(
            operator.xor, [effects[column] for column in range(size) if presses >> column & 1]
        )
        for cell in range(size * (size - 1)):
            if lights >> cell & 1:
                lights ^= effects[cell + size]
        found.setdefault(_cells(lights, size)[-size:], (presses & -presses).bit_length() - 1)
    return found


def _lit(draws: SplitMix64, size: int, presses: int) -> int:
    effects = _effects(size)
    while True:
        lights = 0
        for cell in draws.order(size * size)[:presses]:
            lights ^= effects[cell]
        # Presses may cancel one another out.
        if lights:
            return lights


@functools.cache
def _effects(size: int) -> tuple[int, ...]:
    near = neighbors(size)
    return tuple(sum(1 << other for other in (cell, *near[cell])) for cell in range(size * size))


@functools.cache
def _reduced(size: int) -> tuple[tuple[tuple[int, int], ...], tuple[int, ...]]:
    """Which lights decide on each press, by elimination; and presses that together switch nothing."""
    cells = size * size
    # The effects are symmetric: row `light` says which presses switch it, and which lights it was made of.
    rows = [(effect, 1 << light) for light, effect in enumerate(_effects(size))]
    pivots: list[tuple[int, int]] = []
    for press in range(cells):
        found = next((at for at in range(len(pivots), cells) if rows[at][0] >> press & 1), None)
        if found is None:
            continue
        rows[len(pivots)], rows[found] = rows[found], rows[len(pivots)]
        effect, sources = rows[len(pivots)]
        rows = [
            (row ^ effect, made ^ sources) if at != len(pivots) and row >> press & 1 else (row, made)
            for at, (row, made) in enumerate(rows)
        ]
        pivots.append((press, len(pivots)))
    decided = {press for press, _ in pivots}
    quiet = tuple(
        1 << open_press | sum(1 << press for press, at in pivots if rows[at][0] >> open_press & 1)
        for open_press in range(cells)
        if open_press not in decided
    )
    return tuple((press, rows[at][1]) for press, at in pivots), quiet


def _cells(bits: int, size: int) -> Cells:
    return tuple(bits >> cell & 1 for cell in range(size * size))

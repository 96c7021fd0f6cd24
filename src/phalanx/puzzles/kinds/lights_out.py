"""Lights Out puzzles. The solver finds the fewest presses with linear algebra over GF(2)."""

import functools
import operator
import re
from collections.abc import Sequence
from typing import Any, ClassVar

from phalanx.puzzles.kind import Puzzle, PuzzleKind
from phalanx.puzzles.kinds.grid import Cells, cell_text, format_board, neighbors, parse_cell
from phalanx.puzzles.splitmix64 import SplitMix64
from phalanx.text.env import quote

_MOVE = re.compile(r"(?:press )?(\d{1,3})[ ,]+(\d{1,3})", re.ASCII | re.IGNORECASE)


class LightsOut(PuzzleKind[Cells, int]):
    """Lights Out: press lights until all are off. Pressing a light toggles it and its neighbors.

    A state is 1 for each light that is on and 0 for each light that is off. A move is the cell to press.
    """

    name = "lights_out"
    description = "press lights, which also toggles their neighbors, until all are off"
    has_unique_solution = False
    difficulties: ClassVar = {
        "easy": {"size": 3, "presses": 3},
        "medium": {"size": 4, "presses": 5},
        "hard": {"size": 5, "presses": 9},
    }

    def _generate_records(self, seeds: Sequence[int], parameters: Sequence[int]) -> Sequence[Any]:
        return [_generate(SplitMix64(seed), *parameters) for seed in seeds]

    def _from_record(self, seed: int, difficulty: str, record: Any) -> Puzzle:
        size = self.difficulties[difficulty]["size"]
        return Puzzle(self.name, seed, difficulty, size, _cells(record, size), (), ())

    def rules(self, puzzle: Puzzle) -> str:
        return (
            f"This is lights out on {puzzle.size}x{puzzle.size} lights. Pressing a light switches it and its "
            "neighbors above, below, left and right, from on (O) to off (.) and back. Switch all lights off."
        )

    def move_format(self, puzzle: Puzzle) -> str:
        return "Answer with one line: `ROW COLUMN` of the light to press, such as `1 2`; they count from 1."

    def answer_format(self, puzzle: Puzzle) -> str:
        return "Answer with one line `ROW COLUMN` for each light to press, such as `1 2`; they count from 1."

    def draw_board(self, puzzle: Puzzle, state: Cells) -> str:
        return format_board(puzzle.size, [".O"[on] for on in state])

    def parse_move(self, puzzle: Puzzle, state: Cells, text: str) -> int:
        found = _MOVE.fullmatch(text)
        if found is None:
            raise ValueError(f"a move reads `ROW COLUMN`, got {quote(text)}")
        return parse_cell(found[1], found[2], puzzle.size)

    def legal_moves(self, puzzle: Puzzle, state: Cells) -> list[str]:
        return [cell_text(cell, puzzle.size) for cell in range(puzzle.size**2)]

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
        return [cell_text(cell, size) for cell in range(size**2) if presses >> cell & 1]

    def solve_as_expert(self, puzzle: Puzzle, state: Cells) -> list[str] | None:
        """Return the solution that light chasing finds, or the shortest solution on boards larger than 4x4.

        Light chasing turns lights off row by row, by pressing the cell below each light that is on. If only
        the last row is then lit, it presses in the first row and starts over. Each press depends on few
        lights, whereas a shortest solution depends on all of them. On large boards, light chasing may take
        longer than an episode.
        """
        size, moves = puzzle.size, list[str]()
        if size > 4:
            return self.solve(puzzle, state)
        while 1 in state:
            cell = chasing_press(state, size)
            moves.append(cell_text(cell, size))
            state = self.apply(puzzle, state, cell)
        return moves


def shortest_presses(lights: int, size: int) -> int:
    """Return the smallest set of presses that turns off all lights.

    Args:
        lights: Lights that are on, as a bit mask over cells. It must be possible to turn them off.
        size: Side length of the board.

    Returns:
        The cells to press, as a bit mask.
    """
    rows, free = _eliminate(size)
    presses = sum(1 << pivot for pivot, sources in rows if (sources & lights).bit_count() & 1)
    best = presses
    for choice in range(1, 1 << len(free)):
        other = presses
        for number, quiet in enumerate(free):
            other ^= quiet if choice >> number & 1 else 0
        best = min(best, other, key=lambda bits: (bits.bit_count(), bits))
    return best


def chasing_press(state: Cells, size: int) -> int:
    """Return the cell that light chasing presses next.

    This is the cell below the first light that is on and not in the last row. If only the last row is lit, it
    is the first of the presses in the top row that are known to clear this pattern of the last row.
    """
    above = state[: size * (size - 1)]
    return above.index(1) + size if 1 in above else _top_row_presses(size)[state[-size:]]


@functools.cache
def _top_row_presses(size: int) -> dict[Cells, int]:
    """Return the first press in the top row for each pattern of the last row that light chasing can leave."""
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


def _generate(rng: SplitMix64, size: int, presses: int) -> int:
    effects = _effects(size)
    while True:
        lights = 0
        for cell in rng.permutation(size * size)[:presses]:
            lights ^= effects[cell]
        # Presses may cancel each other out.
        if lights:
            return lights


@functools.cache
def _effects(size: int) -> tuple[int, ...]:
    near = neighbors(size)
    return tuple(sum(1 << other for other in (cell, *near[cell])) for cell in range(size * size))


@functools.cache
def _eliminate(size: int) -> tuple[tuple[tuple[int, int], ...], tuple[int, ...]]:
    """Solve the linear system of a board by Gaussian elimination over GF(2).

    Returns:
        The first item contains, for each pivot column, the cell to press and a bit mask of lights. The cell
        is pressed if an odd number of these lights is on. The second item is a basis of the null space: bit
        masks of presses that together change no light.
    """
    cells = size * size
    # The effect matrix is symmetric: row `light` has the presses that toggle it, and the lights that were
    # added to it during elimination.
    rows = [(effect, 1 << light) for light, effect in enumerate(_effects(size))]
    pivots: list[tuple[int, int]] = []
    for press in range(cells):
        found = next((at for at in range(len(pivots), cells) if rows[at][0] >> press & 1), None)
        if found is None:
            continue
        rows[len(pivots)], rows[found] = rows[found], rows[len(pivots)]
        effect, sources = rows[len(pivots)]
        rows = [
            (row ^ effect, added ^ sources) if at != len(pivots) and row >> press & 1 else (row, added)
            for at, (row, added) in enumerate(rows)
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

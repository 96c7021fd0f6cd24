"""Lights Out puzzles. The solver uses light chasing to find a solution with the fewest presses."""

import functools
import operator
import re
from collections.abc import Sequence
from typing import Any, ClassVar

from phalanx.puzzles.kind import Puzzle, PuzzleKind, match_move
from phalanx.puzzles.kinds.grid import Cells, cell_text, format_board, neighbors, parse_cell
from phalanx.puzzles.splitmix64 import SplitMix64

_MOVE = re.compile(r"(?:press )?(\d{1,3})[ ,]+(\d{1,3})", re.ASCII | re.IGNORECASE)


class LightsOut(PuzzleKind[Cells, int]):
    """Lights Out: press lights until all are off. Pressing a light toggles it and its neighbors.

    A state contains 1 for each light that is on and 0 for each light that is off. A move is the cell to
    press. The `presses` parameter is the number of cells that the generator presses on a dark board. There
    may be a solution with fewer presses.
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
        lights = tuple(record >> cell & 1 for cell in range(size**2))
        return Puzzle(self.name, seed, difficulty, size, lights, (), ())

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
        row, column = match_move(_MOVE, text, "a move reads `ROW COLUMN`").groups()
        return parse_cell(row, column, puzzle.size)

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
        presses, last_row = _chase(sum(on << cell for cell, on in enumerate(state)), size)
        solutions = [presses ^ others for others in _top_row_presses(size)[last_row]]
        shortest = min(solutions, key=lambda bits: (bits.bit_count(), bits))
        return [cell_text(cell, size) for cell in range(size**2) if shortest >> cell & 1]

    def solve_as_expert(self, puzzle: Puzzle, state: Cells) -> list[str] | None:
        """Return the solution that light chasing finds or, on boards larger than 4x4, a shortest solution.

        Light chasing turns lights off row by row, by pressing the cell below each light that is on. If only
        lights in the last row remain, it presses cells in the first row and starts over. A model can predict
        these presses more easily than a shortest solution, because each press depends on few lights. On
        boards larger than 4x4, light chasing may need more moves than an episode allows.
        """
        size, moves = puzzle.size, list[str]()
        if size > 4:
            return self.solve(puzzle, state)
        while 1 in state:
            cell = chasing_press(state, size)
            moves.append(cell_text(cell, size))
            state = self.apply(puzzle, state, cell)
        return moves


def chasing_press(state: Cells, size: int) -> int:
    """Return the next cell to press in the light-chasing method.

    If a light above the last row is on, this is the cell below the first such light. If only lights in the
    last row are on, it is a cell in the top row: the first press of a solution.
    """
    above = state[: size * (size - 1)]
    if 1 in above:
        return above.index(1) + size
    presses = _top_row_presses(size)[sum(on << column for column, on in enumerate(state[-size:]))][0]
    return (presses & -presses).bit_length() - 1


def _chase(lights: int, size: int) -> tuple[int, int]:
    """Turn off all lights above the last row by pressing, row by row, the cell below each light that is on.

    Returns:
        The pressed cells as a bit mask, and the lights in the last row that are still on as a bit mask.
    """
    presses, effects = 0, _effects(size)
    for cell in range(size * (size - 1)):
        if lights >> cell & 1:
            lights ^= effects[cell + size]
            presses |= 1 << cell + size
    return presses, lights >> size * (size - 1)


@functools.cache
def _top_row_presses(size: int) -> dict[int, list[int]]:
    """Return all solutions of each solvable board on which only lights in the last row are on.

    A solution consists of presses in the top row and the presses that follow from them by light chasing.

    To find all solutions of any other board, call `_chase`, look up the solutions for the lights that it
    leaves on, and XOR each of them with the presses that it returns.

    Returns:
        A dictionary from the lights in the last row, as a bit mask of columns, to the solutions, as bit masks
        of cells.
    """
    effects = _effects(size)
    found: dict[int, list[int]] = {}
    for top_row in range(1 << size):
        pressed = [effects[column] for column in range(size) if top_row >> column & 1]
        presses, last_row = _chase(functools.reduce(operator.xor, pressed, 0), size)
        found.setdefault(last_row, []).append(top_row | presses)
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

"""What a generator draws: an input, its output, and the shortest way from one to the other.

Choosing random places and colors is in `placement`; putting drafts together to tasks is in `generate`.
"""

import dataclasses
import hashlib
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from phalanx.arc.config import MAX_GRID_SIDE
from phalanx.arc.operations import Operation
from phalanx.arc.tasks import Grid, Solution, SolutionStep


class Rect(NamedTuple):
    """A box of cells by its corners, both included."""

    r1: int
    c1: int
    r2: int
    c2: int

    @property
    def height(self) -> int:
        """Rows."""
        return self.r2 - self.r1 + 1

    @property
    def width(self) -> int:
        """Columns."""
        return self.c2 - self.c1 + 1

    @property
    def cells(self) -> tuple[slice, slice]:
        """The index that picks the box out of a grid."""
        return slice(self.r1, self.r2 + 1), slice(self.c1, self.c2 + 1)

    @property
    def transposed(self) -> "Rect":
        """The same cells after rows and columns changed places."""
        return Rect(self.c1, self.r1, self.c2, self.r2)


class GridPairBuilder(NamedTuple):
    """One pair, with a shortest solution that starts from the input."""

    input: Grid
    output: Grid
    solution: Solution


def blank(height: int, width: int) -> Grid:
    """An empty grid to draw on."""
    return np.zeros((height, width), np.int8)


def select(operation: int, box: Rect) -> SolutionStep:
    """The step that applies an operation to a box."""
    return SolutionStep(int(operation), *box)


def point(operation: int, row: int, col: int) -> SolutionStep:
    """The step that applies an operation to one cell."""
    return SolutionStep(int(operation), row, col, row, col)


def fill(color: int, box: Rect) -> SolutionStep:
    """The step that gives a box one color."""
    return select(Operation.FILL_0 + color, box)


def flood(color: int, row: int, col: int) -> SolutionStep:
    """The step that gives the region around a cell one color."""
    return point(Operation.FLOOD_FILL_0 + color, row, col)


_TRANSPOSED_OPERATIONS = {
    Operation.MOVE_UP: Operation.MOVE_LEFT,
    Operation.MOVE_LEFT: Operation.MOVE_UP,
    Operation.MOVE_DOWN: Operation.MOVE_RIGHT,
    Operation.MOVE_RIGHT: Operation.MOVE_DOWN,
    Operation.ROTATE_CLOCKWISE: Operation.ROTATE_COUNTERCLOCKWISE,
    Operation.ROTATE_COUNTERCLOCKWISE: Operation.ROTATE_CLOCKWISE,
    Operation.FLIP_HORIZONTAL: Operation.FLIP_VERTICAL,
    Operation.FLIP_VERTICAL: Operation.FLIP_HORIZONTAL,
}


def transpose_pair(draft: GridPairBuilder) -> GridPairBuilder:
    """The draft with rows and columns exchanged; operations have transposed twins, so it stays shortest."""
    return GridPairBuilder(
        np.ascontiguousarray(draft.input.T),
        np.ascontiguousarray(draft.output.T),
        tuple(
            SolutionStep(
                int(_TRANSPOSED_OPERATIONS.get(Operation(s.operation), s.operation)), s.c1, s.r1, s.c2, s.r2
            )
            for s in draft.solution
        ),
    )


def transpose_if(
    draw: Callable[[int, int], GridPairBuilder | None], height: int, width: int, across: bool
) -> GridPairBuilder | None:
    """Draw a pair on a grid of so many rows and columns, lying on its side if `across`."""
    draft = draw(width, height) if across else draw(height, width)
    return transpose_pair(draft) if across and draft is not None else draft


PairMaker = Callable[[], GridPairBuilder | None]
"""Draws the next pair of one task; None when the draw did not work out and should be repeated."""

RuleMaker = Callable[[np.random.Generator, int, int], PairMaker]
"""Draws a task's rule for a grid of so many rows and columns."""

_PATIENCE = 500
"""Draws in a row that bring no new pair before a task is given up."""


@dataclasses.dataclass(frozen=True)
class TaskFamily:
    """One kind of puzzle. Its rule maker's docstring says what it asks and why its solutions are shortest."""

    name: str
    """As in task ids and configs."""
    text: str
    """One sentence: what happens from input to output."""
    make_rule: RuleMaker
    """Draws one task's rule."""
    point_solvable: bool = False
    """Whether every step of every solution selects one cell."""
    needs_demos: bool = False
    """Whether tasks differ in a rule that only their demonstrations tell."""
    min_size: int = 3
    """The fewest rows and columns that it can be drawn on."""

    def generate(
        self, rng: np.random.Generator, height: int, width: int, num_pairs: int = 4, half: int | None = None
    ) -> tuple[GridPairBuilder, ...]:
        """Draw a rule and pairs with different inputs that follow it.

        With `half` 0 or 1 only inputs from that half of all grids are taken (see `half_of`).
        """
        for side, size in (("height", height), ("width", width)):
            if not self.min_size <= size <= MAX_GRID_SIDE:
                raise ValueError(
                    f"{self.name}: {side} must be between {self.min_size} and {MAX_GRID_SIDE}, got {size}"
                )
        pair = self.make_rule(rng, height, width)
        drafts: dict[bytes, GridPairBuilder] = {}
        fruitless = 0
        while len(drafts) < num_pairs and fruitless < _PATIENCE:
            draft = pair()
            fruitless += 1
            if draft is not None and (half is None or half_of(draft.input) == half):
                cells = draft.input.tobytes()
                if cells not in drafts:
                    drafts[cells] = draft
                    fruitless = 0
        if len(drafts) == num_pairs:
            return tuple(drafts.values())
        raise ValueError(
            f"{self.name}: only {len(drafts)} of {num_pairs} different pairs found at {height}x{width}; "
            "ask for fewer pairs or a larger grid"
        )


def half_of(grid: Grid) -> int:
    """0 or 1: a fixed division of all grids into two halves, so that two splits never share an input."""
    return hashlib.blake2b(grid.tobytes(), digest_size=1).digest()[0] & 1

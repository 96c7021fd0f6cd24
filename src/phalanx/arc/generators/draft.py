"""What a generator draws: an input, its output, and the shortest way from one to the other.

Choosing random places and colours is in `placement`; putting drafts together to tasks is in `generate`.
"""

from typing import NamedTuple

import numpy as np

from phalanx.arc.operations import Operation
from phalanx.arc.tasks import Grid, Solution, SolutionStep


class Box(NamedTuple):
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
    def transposed(self) -> "Box":
        """The same cells after rows and columns changed places."""
        return Box(self.c1, self.r1, self.c2, self.r2)


class Draft(NamedTuple):
    """One pair, with a shortest solution that starts from the input."""

    input: Grid
    output: Grid
    solution: Solution


def blank(height: int, width: int) -> Grid:
    """An empty grid to draw on."""
    return np.zeros((height, width), np.int8)


def whole(grid: Grid) -> Box:
    """The box that covers a grid."""
    return Box(0, 0, grid.shape[0] - 1, grid.shape[1] - 1)


def select(operation: int, box: Box) -> SolutionStep:
    """The step that applies an operation to a box."""
    return SolutionStep(int(operation), *box)


def point(operation: int, row: int, col: int) -> SolutionStep:
    """The step that applies an operation to one cell."""
    return SolutionStep(int(operation), row, col, row, col)


def fill(color: int, box: Box) -> SolutionStep:
    """The step that gives a box one colour."""
    return select(Operation.FILL_0 + color, box)


def flood(color: int, row: int, col: int) -> SolutionStep:
    """The step that gives the region around a cell one colour."""
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


def transposed(draft: Draft) -> Draft:
    """The draft with rows and columns exchanged; operations have transposed twins, so it stays shortest."""
    return Draft(
        np.ascontiguousarray(draft.input.T),
        np.ascontiguousarray(draft.output.T),
        tuple(
            SolutionStep(
                int(_TRANSPOSED_OPERATIONS.get(Operation(s.operation), s.operation)), s.c1, s.r1, s.c2, s.r2
            )
            for s in draft.solution
        ),
    )

"""Plans by filling alone, in plain Python: for machines without the compiled extension.

They are as exact as those of `src/native/arc_plan_search.h` and longer: nothing is moved, copied or flooded.
"""

from collections.abc import Iterator

import numpy as np
from jaxtyping import Bool, Int

from phalanx.arc.config import SelectionFormat
from phalanx.arc.operations import Operation
from phalanx.arc.tasks import Grid

Cells = Bool[np.ndarray, "rows columns"]


def fill_plan(
    start: Grid,
    output: Grid,
    canvas: tuple[int, int],
    selection_format: SelectionFormat,
    allowed: frozenset[int],
) -> tuple[Int[np.ndarray, " steps"], Bool[np.ndarray, "steps rows columns"]] | None:
    """Operations with the cells that each selects: a resize where one is due, then fills by color.

    None where an operation that it takes is not allowed.
    """
    steps: list[tuple[int, Cells]] = []
    rows, columns = output.shape
    if start.shape != output.shape:
        corner = np.zeros(canvas, bool)
        corner[rows - 1, columns - 1] = True
        steps.append((Operation.RESIZE, corner))
    grid = np.zeros_like(output)
    both = tuple(slice(min(sides)) for sides in zip(start.shape, output.shape, strict=True))
    grid[both] = start[both]
    for color in np.unique(output[grid != output]).tolist():
        wrong = (grid != output) & (output == color)
        for cells in _selections(wrong, output == color, selection_format):
            spread = np.zeros(canvas, bool)
            spread[:rows, :columns] = cells
            steps.append((int(color), spread))
    if not allowed.issuperset(operation for operation, _ in steps):
        return None
    operations = np.array([operation for operation, _ in steps], np.int32)
    return operations, np.array([cells for _, cells in steps], bool).reshape(len(steps), *canvas)


def _selections(wrong: Cells, may_be_filled: Cells, selection_format: SelectionFormat) -> Iterator[Cells]:
    """Selections that cover the wrong cells: one mask, or boxes of cells that may be filled, or points."""
    if selection_format == "mask":
        yield wrong
        return
    left = wrong.copy()
    while left.any():
        row, column = np.argwhere(left)[0]
        bottom, right = row + 1, column + 1
        if selection_format == "bbox":
            while right < left.shape[1] and may_be_filled[row, right]:
                right += 1
            while bottom < left.shape[0] and may_be_filled[bottom, column:right].all():
                bottom += 1
        cells = np.zeros_like(left)
        cells[row:bottom, column:right] = True
        left &= ~cells
        yield cells

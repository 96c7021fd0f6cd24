"""Grids, masks and tasks written as text, so that test cases are easy to read."""

from collections.abc import Sequence

import numpy as np

from phalanx.arc.tasks import ArcTask, GridPair, as_grid


def grid(text: str) -> np.ndarray:
    """Parse a grid: `grid("12/30")` has two rows and two columns."""
    return as_grid([[int(cell) for cell in row] for row in text.split("/")])


def mask(text: str, shape: tuple[int, int]) -> np.ndarray:
    """Parse a mask: `mask("#./.#", (3, 3))` selects two cells of a 3x3 canvas."""
    canvas = np.zeros(shape, bool)
    for r, row in enumerate(text.split("/")):
        for c, cell in enumerate(row):
            canvas[r, c] = cell == "#"
    return canvas


def task(name: str, demos: Sequence[tuple[str, str]], tests: Sequence[tuple[str, str]] = ()) -> ArcTask:
    """Create a task from pairs of an input and an output grid."""
    return ArcTask(
        id=name,
        demos=tuple(GridPair(grid(a), grid(b)) for a, b in demos),
        tests=tuple(GridPair(grid(a), grid(b)) for a, b in tests),
    )


def text(canvas: np.ndarray) -> str:
    """Format the area of a canvas, such as `12/30`. Cells outside it are dots."""
    rows = ["".join("." if cell < 0 else str(cell) for cell in row).rstrip(".") for row in canvas.tolist()]
    return "/".join(rows).rstrip("/")


def selection_text(canvas: np.ndarray) -> str:
    """Format a mask without trailing rows and columns that are not selected."""
    rows = ["".join("#" if cell else "." for cell in row).rstrip(".") for row in canvas.tolist()]
    return "/".join(rows).rstrip("/")

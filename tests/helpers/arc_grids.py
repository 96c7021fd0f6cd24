"""Grids, masks and tasks written as text, so that a reader can check a case by eye.

Playing them is in `engine_runs`.
"""

from collections.abc import Sequence

import numpy as np

from phalanx.arc.tasks import ArcTask, GridPair, as_grid


def grid(text: str) -> np.ndarray:
    """`grid("12/30")` is two rows of two colours."""
    return as_grid([[int(cell) for cell in row] for row in text.split("/")])


def mask(text: str, shape: tuple[int, int]) -> np.ndarray:
    """`mask("#./.#", (3, 3))` selects two cells on a 3x3 canvas; the rest of the canvas is not selected."""
    canvas = np.zeros(shape, bool)
    for r, row in enumerate(text.split("/")):
        for c, cell in enumerate(row):
            canvas[r, c] = cell == "#"
    return canvas


def task(name: str, demos: Sequence[tuple[str, str]], tests: Sequence[tuple[str, str]] = ()) -> ArcTask:
    """A task from literal grids, input and output of each pair."""
    return ArcTask(
        id=name,
        demos=tuple(GridPair(grid(a), grid(b)) for a, b in demos),
        tests=tuple(GridPair(grid(a), grid(b)) for a, b in tests),
    )


def text(canvas: np.ndarray) -> str:
    """The area of a canvas as text: `12/30`; an area that is no rectangle shows dots."""
    rows = ["".join("." if cell < 0 else str(cell) for cell in row).rstrip(".") for row in canvas.tolist()]
    return "/".join(rows).rstrip("/")


def selection_text(canvas: np.ndarray) -> str:
    """A mask as text, without the unselected rows and columns at its end."""
    rows = ["".join("#" if cell else "." for cell in row).rstrip(".") for row in canvas.tolist()]
    return "/".join(rows).rstrip("/")

"""Helpers for task families: random choices, placement of boxes, and lower bounds on the length of
solutions."""

from collections.abc import Collection

import numpy as np
from jaxtyping import Int8

from phalanx.arc.generators.family import Rect
from phalanx.arc.operations import NUM_COLORS
from phalanx.arc.tasks import Grid

GRAY = 5
"""Color of walls and markers in task families."""

_TRIES = 8


def pick(rng: np.random.Generator, low: int, high: int) -> int:
    """Sample an integer from `low` to `high`, both included."""
    # `random` takes a quarter as long as `integers`, and generators sample many small numbers.
    return low + int(rng.random() * (high - low + 1))


def chance(rng: np.random.Generator, probability: float) -> bool:
    """Return True with the given probability."""
    return rng.random() < probability


def palette(rng: np.random.Generator, count: int, exclude: Collection[int] = ()) -> list[int]:
    """Sample `count` different colors in random order. Color 0 and the excluded colors are never used."""
    colors = [c for c in range(1, NUM_COLORS) if c not in exclude]
    if count > len(colors):
        raise ValueError(f"{count} different colors were requested, but only {len(colors)} are left")
    return [colors.pop(pick(rng, 0, len(colors) - 1)) for _ in range(count)]


def picture(rng: np.random.Generator, height: int, width: int, colors: list[int]) -> Grid:
    """Create a grid whose cells have random colors from `colors`."""
    return np.array(colors, np.int8)[(rng.random((height, width)) * len(colors)).astype(np.int8)]


class BoxPlacer:
    """Places boxes in a grid so that they do not overlap.

    Args:
        height: Height of the grid.
        width: Width of the grid.
        gap: Minimum number of cells between two boxes.
    """

    def __init__(self, height: int, width: int, gap: int = 0) -> None:
        self.height, self.width = height, width
        self.gap = gap
        self.boxes: list[Rect] = []

    def place(self, rng: np.random.Generator, height: int, width: int) -> Rect | None:
        """Place a box of the given size at a random free position. Returns None if no free position was
        found."""
        if height > self.height or width > self.width:
            return None
        for _ in range(_TRIES):
            r, c = pick(rng, 0, self.height - height), pick(rng, 0, self.width - width)
            box = Rect(r, c, r + height - 1, c + width - 1)
            if self._is_free(box):
                self.boxes.append(box)
                return box
        return None

    def _is_free(self, box: Rect) -> bool:
        r1, c1, r2, c2 = box.r1 - self.gap, box.c1 - self.gap, box.r2 + self.gap, box.c2 + self.gap
        return all(r2 < b.r1 or b.r2 < r1 or c2 < b.c1 or b.c2 < c1 for b in self.boxes)


def blob(
    rng: np.random.Generator, grid: Grid, site: BoxPlacer, color: int, side: int
) -> tuple[int, int] | None:
    """Draw a single-color rectangle of at most `side` x `side` cells in `grid`, at a random free position
    that `site` selects. One corner of the rectangle may be missing. Returns the row and column of one of its
    cells, or None if no free position was found."""
    height = pick(rng, 1, min(side, site.height))
    width = pick(rng, 1, min(side, site.width))
    box = site.place(rng, height, width)
    if box is None:
        return None
    grid[box.cells] = color
    if height > 1 and width > 1 and chance(rng, 0.5):
        r, c = (box.r1, box.r2)[pick(rng, 0, 1)], (box.c1, box.c2)[pick(rng, 0, 1)]
        grid[r, c] = 0
        if (r, c) == (box.r1, box.c1):
            return box.r2, box.c2
    return box.r1, box.c1


GROWTH = (1, 1, 2, 3, 4, 6, 9, 12, 18, 27)
"""Entry k is the largest factor by which k operations, each a copy or a paste, can multiply the number of
cells of a color."""


def least_operations(before: Int8[np.ndarray, "r1 c1"], after: Int8[np.ndarray, "r2 c2"]) -> int:
    """Compute a lower bound on the number of operations that turn one grid into another.

    The bound is based on the growth of colors: a fill or flood fill increases the number of cells of only one
    color, and k copies or pastes multiply the number of cells of any color by at most `GROWTH[k]`. If the
    size of the grid changes, one operation is added for Resize.

    >>> before, after = np.array([[1, 0, 2]], np.int8), np.array([[3, 0, 4]], np.int8)
    >>> least_operations(before, after)
    2
    """
    if before.shape == after.shape and bool((before == after).all()):
        return 0
    had = np.bincount(before.ravel(), minlength=NUM_COLORS).tolist()
    has = np.bincount(after.ravel(), minlength=NUM_COLORS).tolist()
    paints = next(n for n in range(NUM_COLORS) if _can_grow(had, has, n))
    return max(1, paints + (before.shape != after.shape))


def _can_grow(had: list[int], has: list[int], operations: int) -> bool:
    """Return False if no sequence of `operations` fills, copies and pastes can change the number of cells of
    each color from `had` to `has`. True does not guarantee that there is such a sequence."""
    return any(
        sum(has[c] > GROWTH[operations - fills] * had[c] for c in range(1, NUM_COLORS)) <= fills
        for fills in range(operations + 1)
    )


def one_paste_suffices(before: Int8[np.ndarray, "rows cols"], after: Int8[np.ndarray, "rows cols"]) -> bool:
    """Return whether copying one box and pasting it elsewhere turns the input into the output.

    The pasted box must cover every changed cell, and it can be trimmed to the bounding box of the changed
    cells. It is therefore sufficient to compare the output inside this bounding box with every box of the
    same size in the input.
    """
    rows, cols = np.nonzero(before != after)
    if not len(rows):
        return True
    wanted = after[rows.min() : rows.max() + 1, cols.min() : cols.max() + 1]
    offered = np.lib.stride_tricks.sliding_window_view(before, wanted.shape)
    return bool((offered == wanted).all(axis=(2, 3)).any())

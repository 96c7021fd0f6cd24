"""Task families in which objects or regions change their color.

Each function samples pairs of one family. A function that is decorated with `rule_family` first samples the
rule that all pairs of a task share. The docstrings also prove that no solution is shorter than the generated
one. The "color-growth bound" is the lower bound that `least_operations` computes.
"""

import itertools

import numpy as np

from phalanx.arc.generators.family import (
    GeneratedPair,
    PairSampler,
    Rect,
    blank,
    flood,
    pair_family,
    point,
    rule_family,
)
from phalanx.arc.generators.placement import GRAY, BoxPlacer, blob, chance, least_operations, palette, pick
from phalanx.arc.operations import Operation
from phalanx.arc.tasks import Grid


@rule_family(
    "Objects of some colors take new colors, by a mapping that the demonstrations show.", point_solvable=True
)
def recolor(rng: np.random.Generator, height: int, width: int) -> PairSampler:
    """Sample a rule that replaces some colors with other colors.

    Solution: one flood fill per replaced color.

    No shorter solution exists: an input contains one object of each replaced color and no cell of any new
    color. So each new color needs a separate operation (by the color-growth bound of `least_operations`).
    """
    count = pick(rng, 1, min(4, 1 + min(height, width) // 3))
    colors = palette(rng, 2 * count + 1)
    sources, targets, bystander = colors[:count], colors[count : 2 * count], colors[-1]
    side = (max(height, width) + 1) // 2

    def pair() -> GeneratedPair | None:
        before = blank(height, width)
        site = BoxPlacer(height, width)
        cells = [blob(rng, before, site, color, side) for color in sources]
        if chance(rng, 0.5):
            blob(rng, before, site, bystander, side)
        after = before.copy()
        solution = []
        for cell, source, target in zip(cells, sources, targets, strict=True):
            if cell is None:
                return None
            after[before == source] = target
            solution.append(flood(target, *cell))
        return GeneratedPair(before, after, tuple(solution))

    return pair


@pair_family("Two objects exchange their colors.", transpose="pair", point_solvable=True)
def swap_colors(rng: np.random.Generator, rows: int, cols: int) -> GeneratedPair | None:
    """Sample a pair in which two objects that do not touch exchange their colors.

    Solution: one flood fill per object.

    No shorter solution exists: the objects have different sizes, so one of the two colors becomes more
    frequent. A single operation would have to be a fill or flood fill with this color, because a paste needs
    a copy before it. But such an operation does not write the other color.
    """
    first, second = palette(rng, 2)
    before = blank(rows, cols)
    # An empty row separates the objects.
    border = pick(rng, 1, rows - 2)
    side = (max(rows, cols) + 1) // 2
    here = blob(rng, before[:border], BoxPlacer(border, cols), first, side)
    there = blob(rng, before[border + 1 :], BoxPlacer(rows - border - 1, cols), second, side)
    is_first, is_second = before == first, before == second
    if here is None or there is None or is_first.sum() == is_second.sum():
        return None
    after = before.copy()
    after[is_first], after[is_second] = second, first
    row, col = there
    return GeneratedPair(before, after, (flood(second, *here), flood(first, row + border + 1, col)))


@pair_family("The output is one cell: its color is the number of objects.", point_solvable=True)
def count_to_color(rng: np.random.Generator, height: int, width: int) -> GeneratedPair | None:
    """Sample a pair whose output is a single cell. The color of the cell is the number of objects.

    Solution: fill the top-left cell and resize the grid.

    No shorter solution exists: only Resize changes the size of the grid, and Resize alone would keep the
    color of the top-left cell. This color is wrong, because it is either black or the color of the objects,
    which is never equal to their number.
    """
    pitch = pick(rng, 2, max(2, min(4, min(height, width) // 3)))
    rows, cols = (height + 1) // pitch, (width + 1) // pitch
    top, left = pick(rng, 0, height + 1 - rows * pitch), pick(rng, 0, width + 1 - cols * pitch)
    count = pick(rng, 1, min(9, rows * cols))
    (color,) = palette(rng, 1, exclude=(count,))
    before = blank(height, width)
    for slot in rng.permutation(rows * cols)[:count].tolist():
        r, c = top + slot // cols * pitch, left + slot % cols * pitch
        before[r : r + pick(rng, 1, pitch - 1), c : c + pick(rng, 1, pitch - 1)] = color
    after = np.full((1, 1), count, np.int8)
    return GeneratedPair(before, after, (point(count, 0, 0), point(Operation.RESIZE, 0, 0)))


@pair_family(
    "The inside of a closed ring takes the color of the ring; open rings do not change.", point_solvable=True
)
def fill_enclosed(rng: np.random.Generator, height: int, width: int) -> GeneratedPair | None:
    """Sample a pair in which the inside of every closed ring is filled with the color of the ring. Open rings
    do not change.

    Solution: one flood fill per closed ring.

    No shorter solution exists: every ring has a different color, and each of these colors becomes more
    frequent. By the color-growth bound of `least_operations`, one or two rings need one operation each. With
    three rings, the bound can be less than three, because one paste might write several colors. Such pairs
    are not used.
    """
    small = min(height, width)
    most = 1 if small < 7 else 2 if small < 16 else 3
    # Minimum and maximum side of the rings, by the number of rings.
    sides = {1: (3, small), 2: (3, small // 2), 3: (7, max(7, 2 * small // 5))}
    count = pick(rng, 1, most)
    colors = palette(rng, count + 1)
    before = blank(height, width)
    site = BoxPlacer(height, width, gap=1)
    interiors = []
    for color in colors[:count]:
        low, high = sides[count]
        box = site.place(rng, pick(rng, low, high), pick(rng, low, high))
        if box is None:
            return None
        _ring(rng, before, box, color)
        interiors.append(Rect(box.r1 + 1, box.c1 + 1, box.r2 - 1, box.c2 - 1))
    after = before.copy()
    solution = []
    for inner, color in zip(interiors, colors, strict=False):
        after[inner.cells] = color
        solution.append(flood(color, inner.r1, inner.c1))
    if small >= 8 and chance(rng, 0.5):
        _open_ring(rng, (before, after), site, colors[-1])
    if count > 2 and least_operations(before, after) < count:
        return None
    return GeneratedPair(before, after, tuple(solution))


def _ring(rng: np.random.Generator, grid: Grid, box: Rect, color: int) -> None:
    """Draw a ring that is one cell wide. Corners may be missing. A flood fill cannot pass through a missing
    corner, because it does not spread diagonally."""
    grid[box.cells] = color
    grid[box.r1 + 1 : box.r2, box.c1 + 1 : box.c2] = 0
    for r in (box.r1, box.r2):
        for c in (box.c1, box.c2):
            if chance(rng, 0.3):
                grid[r, c] = 0


def _open_ring(rng: np.random.Generator, grids: tuple[Grid, Grid], site: BoxPlacer, color: int) -> None:
    """Draw a ring with a gap in its upper side, if there is space for it. The gap never touches the edge of
    the grid."""
    box = site.place(rng, 3, pick(rng, 3, 4))
    if box is None or box.r1 == 0:
        return
    for grid in grids:
        grid[box.cells] = color
        grid[box.r1 : box.r2, box.c1 + 1] = 0
        grid[box.r1 + 1, box.c1 + 1 : box.c2] = 0


@pair_family(
    "Gray walls separate rooms; a room with a colored cell takes its color.",
    transpose="pair",
    point_solvable=True,
)
def fill_rooms(rng: np.random.Generator, rows: int, cols: int) -> GeneratedPair | None:
    """Sample a pair in which gray walls divide the grid into rooms, and every room that contains a colored
    cell is filled with the color of this cell.

    Solution: one flood fill per colored cell.

    No shorter solution exists: the cells have different colors, and each color grows from one cell to a room,
    so each color needs its own operation (by the color-growth bound of `least_operations`). Pairs for which
    this bound is smaller than the number of colors, which can happen with many small rooms, are not used.
    """
    most = min(5, 1 + min(rows, cols) // 3)
    before = blank(rows, cols)
    for _ in range(pick(rng, 1, 2 if cols >= 8 else 1)):
        before[:, pick(rng, 1, cols - 2)] = GRAY
    if rows >= 5 and cols >= 5 and chance(rng, 0.7):
        before[pick(rng, 2, rows - 3), :] = GRAY
    rooms = _rooms(before)
    if len(rooms) < 2:
        return None
    count = pick(rng, 1, min(most, len(rooms)))
    colors = palette(rng, count, exclude=(GRAY,))
    after = before.copy()
    solution = []
    for index, color in zip(rng.permutation(len(rooms)).tolist(), colors, strict=False):
        room = rooms[index]
        # With a colored cell in a corner, the rest of the room stays connected.
        r, c = (room.r1, room.r2)[pick(rng, 0, 1)], (room.c1, room.c2)[pick(rng, 0, 1)]
        before[r, c] = color
        after[room.cells] = color
        solution.append(flood(color, room.r1 + room.r2 - r, room.c1 + room.c2 - c))
    if count > 2 and least_operations(before, after) < count:
        return None
    return GeneratedPair(before, after, tuple(solution))


def _rooms(walls: Grid) -> list[Rect]:
    """Return the boxes between straight walls. Single-cell boxes are omitted."""
    rows = _spans((walls == GRAY).all(axis=1).tolist())
    cols = _spans((walls == GRAY).all(axis=0).tolist())
    boxes = [Rect(r1, c1, r2, c2) for r1, r2 in rows for c1, c2 in cols]
    return [box for box in boxes if box.height * box.width > 1]


def _spans(blocked: list[bool]) -> list[tuple[int, int]]:
    """Return the first and last index of every run of positions that are not blocked."""
    edges = [-1, *(i for i, wall in enumerate(blocked) if wall), len(blocked)]
    return [(a + 1, b - 1) for a, b in itertools.pairwise(edges) if b - a > 1]

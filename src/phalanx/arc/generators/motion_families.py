"""Families about objects that are moved, mirrored, rotated, cropped or copied."""

import numpy as np

from phalanx.arc.generators.family import (
    GridPairBuilder,
    PairSampler,
    Rect,
    blank,
    point,
    select,
    transpose_if,
)
from phalanx.arc.generators.placement import GRAY, FreeCells, chance, palette, pick, picture
from phalanx.arc.operations import Operation
from phalanx.arc.tasks import Grid, Solution

HEAD = 2
"""Color of the front side of a moving object."""


def move_until_hit(rng: np.random.Generator, height: int, width: int) -> PairSampler:
    """Sample a task in which an object moves in the direction of its red side until it hits a gray wall or
    the side of the grid.

    If the distance is one cell, one move solves it; otherwise, a cut and a paste. Shortest: head and tail
    have two colors, and both appear in cells that had neither, so a single fill is not enough, and without a
    copy there is no paste. A move goes one cell. A flip along the direction of movement puts the head behind,
    and a flip across it does not approach the wall. A rotation puts the cells of the tail along the
    direction, but they must be across it; if tail and head have one cell each, it puts them across, but they
    must be along it.
    """

    def pair() -> GridPairBuilder | None:
        backwards, downwards = chance(rng, 0.5), chance(rng, 0.5)
        lanes, length = (width, height) if downwards else (height, width)
        end = length
        if length >= 4 and chance(rng, 0.6):
            end = pick(rng, 3, length - 1)
        distance = pick(rng, 1, end - 2)
        first = pick(rng, 0, lanes - 1)
        last = pick(rng, first, min(lanes - 1, first + lanes // 3))
        (color,) = palette(rng, 1, exclude=(HEAD, GRAY))

        grids = blank(lanes, length), blank(lanes, length)
        tails = end - distance - 2, end - 2
        for grid, tail in zip(grids, tails, strict=True):
            grid[first : last + 1, tail] = color
            grid[first : last + 1, tail + 1] = HEAD
            if end < length:
                grid[:, end] = GRAY
        if backwards:
            grids = grids[0][:, ::-1], grids[1][:, ::-1]
            tails = length - 2 - tails[0], length - 2 - tails[1]
        here, there = (Rect(first, tail, last, tail + 1) for tail in tails)
        if downwards:
            grids = grids[0].T, grids[1].T
            here, there = here.transposed, there.transposed
        if distance == 1:
            forward = Operation.MOVE_DOWN if downwards else Operation.MOVE_RIGHT
            backward = Operation.MOVE_UP if downwards else Operation.MOVE_LEFT
            solution: Solution = (select(backward if backwards else forward, here),)
        else:
            solution = select(Operation.CUT, here), point(Operation.PASTE, there.r1, there.c1)
        return GridPairBuilder(np.ascontiguousarray(grids[0]), np.ascontiguousarray(grids[1]), solution)

    return pair


def gravity(rng: np.random.Generator, height: int, width: int) -> PairSampler:
    """Sample a task in which rectangles fall to the ground. Solved by one flip per rectangle, of the box from
    its top to the ground.

    Shortest: one rectangle changes, so one operation is needed. Two rectangles differ in color, top and
    distance and share no column. No fill writes two colors, a paste has nothing to paste, and a move moves
    both equally far. A flip or rotation that makes a rectangle fall contains its old and its new cells. A
    horizontal flip moves nothing down; a vertical flip puts a rectangle on the ground only if its axis is
    halfway between the top of the rectangle and the ground, and the tops differ. A rotation takes the lowest
    row from a single column, but both rectangles reach it.
    """

    def pair() -> GridPairBuilder | None:
        count = pick(rng, 1, 2 if min(height, width) >= 4 else 1)
        edges = sorted(rng.permutation(width + 1)[: 2 * count].tolist())
        before, after = blank(height, width), blank(height, width)
        solution, tops, distances = [], set(), set()
        for color, left, right in zip(palette(rng, count), edges[::2], edges[1::2], strict=True):
            tall = pick(rng, 1, max(1, height // 3))
            top = pick(rng, 0, height - tall - 1)
            before[top : top + tall, left:right] = color
            after[height - tall :, left:right] = color
            solution.append(select(Operation.FLIP_VERTICAL, Rect(top, left, height - 1, right - 1)))
            tops.add(top)
            distances.add(height - tall - top)
        if len(tops) < count or len(distances) < count:
            return None
        return GridPairBuilder(before, after, tuple(solution))

    return pair


def mirror(rng: np.random.Generator, height: int, width: int) -> PairSampler:
    """Sample a task in which every object is mirrored, horizontally or vertically. Solved by one flip per
    object.

    Shortest: one object changes, so one operation is needed. Each of two objects has two colors of its own at
    the ends of its first row, which are exchanged. No fill writes several colors, a paste has nothing to
    paste, and of the operations that move cells, only a flip exchanges the ends of a row. One flip has one
    axis, and the axes of the two objects differ.
    """
    across = chance(rng, 0.5)

    def pair() -> GridPairBuilder | None:
        return transpose_if(draw, height, width, across)

    def draw(rows: int, cols: int) -> GridPairBuilder | None:
        boxes = _objects(rng, rows, cols, square=False)
        if len(boxes) == 2 and boxes[0].c1 + boxes[0].c2 == boxes[1].c1 + boxes[1].c2:
            return None
        before = _pictures(rng, rows, cols, boxes)
        after = before.copy()
        for box in boxes:
            after[box.cells] = before[box.cells][:, ::-1]
        return GridPairBuilder(before, after, tuple(select(Operation.FLIP_HORIZONTAL, box) for box in boxes))

    return pair


def rotate(rng: np.random.Generator, height: int, width: int) -> PairSampler:
    """Sample a task in which every object is rotated by 90 degrees and keeps its top-left corner. Solved by
    one rotation per object.

    Shortest: one object changes, so one operation is needed. Each of two objects has two colors of its own at
    the ends of its first row, which both move, and the row becomes a column. No fill writes several colors, a
    paste has nothing to paste, and of the operations that move cells, only this rotation turns a row in this
    way. One rotation moves the corner (r, c) of a box of height h to its new cell only if it has the same r -
    c and r + c + h, and the two objects differ in them.
    """
    across = chance(rng, 0.5)

    def pair() -> GridPairBuilder | None:
        return transpose_if(draw, height, width, across)

    def draw(rows: int, cols: int) -> GridPairBuilder | None:
        # Each object gets a square area, so that it can be rotated; the object itself may be narrower.
        boxes = []
        for room in _objects(rng, rows, cols, square=True):
            tall, wide = room.height, room.width
            if chance(rng, 0.5):
                tall = pick(rng, 2, tall)
            else:
                wide = pick(rng, 2, wide)
            boxes.append(Rect(room.r1, room.c1, room.r1 + tall - 1, room.c1 + wide - 1))
        if len(boxes) == 2 and len({(b.r1 - b.c1, b.r1 + b.c1 + b.height) for b in boxes}) == 1:
            return None
        before = _pictures(rng, rows, cols, boxes)
        after = blank(rows, cols)
        for box in boxes:
            turned = Rect(box.r1, box.c1, box.r1 + box.width - 1, box.c1 + box.height - 1)
            after[turned.cells] = before[box.cells][::-1].T
        return GridPairBuilder(before, after, tuple(select(Operation.ROTATE_CLOCKWISE, box) for box in boxes))

    return pair


def _objects(rng: np.random.Generator, rows: int, cols: int, *, square: bool) -> list[Rect]:
    """Choose one box, or two if there is space, of at least two rows and columns, with a free cell between
    them."""
    small = min(rows, cols)
    count = pick(rng, 1, 2 if small >= 5 else 1)
    site = FreeCells(rows, cols, gap=1)
    boxes = []
    for _ in range(count):
        tall = pick(rng, 2, max(2, small // count))
        wide = tall if square else pick(rng, 2, max(2, small // count))
        box = site.place(rng, tall, wide)
        if box is not None:
            boxes.append(box)
    return boxes


def _pictures(rng: np.random.Generator, rows: int, cols: int, boxes: list[Rect]) -> Grid:
    """Fill the boxes with colors. The colors at the ends of each box's first row occur nowhere else."""
    colors = palette(rng, 9)
    grid = blank(rows, cols)
    for box in boxes:
        left, right = colors.pop(), colors.pop()
        grid[box.cells] = picture(rng, box.height, box.width, colors[:3])
        grid[box.r1, box.c1], grid[box.r1, box.c2] = left, right
    return grid


def crop_to_object(rng: np.random.Generator, height: int, width: int) -> PairSampler:
    """Sample a task whose output is the object alone. Solved by copying it, pasting it into the corner, and
    resizing the grid.

    If the object is one cell away from the corner, a move replaces copy and paste. Shortest: the size
    changes, which takes exactly one Resize, and the object is not in the corner, so at least two operations
    are needed. If two were enough for a longer distance, one other operation would move the object to the
    corner, before or after Resize. Three corners of the object have colors that occur nowhere else: no fill
    writes more than one of them, a paste has nothing to paste, a move goes one cell, and no flip or rotation
    shifts three corners of a box equally.
    """

    def pair() -> GridPairBuilder | None:
        tall, wide = pick(rng, 2, max(2, (2 * height) // 3)), pick(rng, 2, max(2, (2 * width) // 3))
        r, c = pick(rng, 0, height - tall), pick(rng, 0, width - wide)
        if (r, c) == (0, 0):
            return None
        box = Rect(r, c, r + tall - 1, c + wide - 1)
        first, second, third, *rest = palette(rng, 7)
        after = picture(rng, tall, wide, [0, *rest])
        after[0, 0], after[0, -1], after[-1, 0] = first, second, third
        before = blank(height, width)
        before[box.cells] = after
        resize = select(Operation.RESIZE, Rect(0, 0, tall - 1, wide - 1))
        if r + c == 1:
            return GridPairBuilder(
                before, after, (select(Operation.MOVE_UP if r else Operation.MOVE_LEFT, box), resize)
            )
        return GridPairBuilder(
            before, after, (select(Operation.COPY, box), point(Operation.PASTE, 0, 0), resize)
        )

    return pair


def stamp(rng: np.random.Generator, height: int, width: int) -> PairSampler:
    """Sample a task in which a copy of the object appears at every gray cell, which becomes its top-left
    corner. Solved by one copy and one paste per gray cell.

    Shortest: with k copies, each of the object's more than k colors becomes k + 1 times as frequent. k
    operations, f of which are fills, multiply the other colors by at most k - f (color growth, k <= 3).
    """
    small = min(height, width)
    most = 1 if small < 5 else 2 if small < 7 else 3

    def pair() -> GridPairBuilder | None:
        copies = pick(rng, 1, most)
        tall, wide = pick(rng, 1, max(1, height // 3)), pick(rng, 1, max(1, width // 3))
        if tall * wide <= copies:
            tall, wide = (1, copies + 1) if chance(rng, 0.5) else (copies + 1, 1)
        colors = palette(rng, copies + 1, exclude=(GRAY,))
        pattern = picture(rng, tall, wide, colors)
        # Every color must occur at least once, so different random cells get one each.
        pattern.ravel()[rng.permutation(tall * wide)[: copies + 1]] = colors
        site = FreeCells(height, width, gap=0 if small < 5 else 1)
        boxes = [site.place(rng, tall, wide) for _ in range(copies + 1)]
        before, after = blank(height, width), blank(height, width)
        solution = []
        for number, box in enumerate(boxes):
            if box is None:
                return None
            after[box.cells] = pattern
            if number == 0:
                before[box.cells] = pattern
                solution.append(select(Operation.COPY, box))
            else:
                before[box.r1, box.c1] = GRAY
                solution.append(point(Operation.PASTE, box.r1, box.c1))
        return GridPairBuilder(before, after, tuple(solution))

    return pair

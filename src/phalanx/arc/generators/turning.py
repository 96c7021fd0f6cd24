"""Families that turn objects where they stand: mirror, rotate.

Objects that change their place are in `motion`.
"""

import numpy as np

from phalanx.arc.generators.draft import Box, Draft, blank, select, transposed
from phalanx.arc.generators.family import PairMaker
from phalanx.arc.generators.placement import Site, chance, palette, pick, picture
from phalanx.arc.operations import Operation
from phalanx.arc.tasks import Grid


def mirror(rng: np.random.Generator, height: int, width: int) -> PairMaker:
    """Every object is mirrored in its box, left-right or top-bottom as the task's rule says; one flip each.

    Shortest: one object changes, so one operation. Of two objects each has two colours of its own at the ends
    of its first row, which change places. No fill writes several colours, a paste has nothing to paste, and
    of the operations that carry cells only a flip exchanges the ends of a row; one flip has one axis, and
    the two objects' axes differ.
    """
    across = chance(rng, 0.5)

    def pair() -> Draft | None:
        draft = draw(width, height) if across else draw(height, width)
        return transposed(draft) if across and draft is not None else draft

    def draw(rows: int, cols: int) -> Draft | None:
        boxes = _objects(rng, rows, cols, square=False)
        if len(boxes) == 2 and boxes[0].c1 + boxes[0].c2 == boxes[1].c1 + boxes[1].c2:
            return None
        before = _pictures(rng, rows, cols, boxes)
        after = before.copy()
        for box in boxes:
            after[box.cells] = before[box.cells][:, ::-1]
        return Draft(before, after, tuple(select(Operation.FLIP_HORIZONTAL, box) for box in boxes))

    return pair


def rotate(rng: np.random.Generator, height: int, width: int) -> PairMaker:
    """Every object turns by 90 degrees, its top left corner stays, to the side that the task's rule says.

    One rotation each. Shortest: one object changes, so one operation. Of two objects each has two colours of
    its own at the ends of its first row, which both move, and the row becomes a column. No fill writes
    several colours, a paste has nothing to paste, and of the operations that carry cells only this rotation
    turns a row so; one rotation takes the corner (r, c) of a box h rows high to its place only if it has
    the same r - c and r + c + h, and the two objects differ in them.
    """
    across = chance(rng, 0.5)

    def pair() -> Draft | None:
        draft = draw(width, height) if across else draw(height, width)
        return transposed(draft) if across and draft is not None else draft

    def draw(rows: int, cols: int) -> Draft | None:
        # Each object gets a square of room, so that it can turn; it may be narrower itself.
        boxes = []
        for room in _objects(rng, rows, cols, square=True):
            tall, wide = room.height, room.width
            if chance(rng, 0.5):
                tall = pick(rng, 2, tall)
            else:
                wide = pick(rng, 2, wide)
            boxes.append(Box(room.r1, room.c1, room.r1 + tall - 1, room.c1 + wide - 1))
        if len(boxes) == 2 and len({(b.r1 - b.c1, b.r1 + b.c1 + b.height) for b in boxes}) == 1:
            return None
        before = _pictures(rng, rows, cols, boxes)
        after = blank(rows, cols)
        for box in boxes:
            turned = Box(box.r1, box.c1, box.r1 + box.width - 1, box.c1 + box.height - 1)
            after[turned.cells] = before[box.cells][::-1].T
        return Draft(before, after, tuple(select(Operation.ROTATE_CLOCKWISE, box) for box in boxes))

    return pair


def _objects(rng: np.random.Generator, rows: int, cols: int, *, square: bool) -> list[Box]:
    """One box, or two where there is room; at least two rows and columns, with a free cell between them."""
    small = min(rows, cols)
    count = pick(rng, 1, 2 if small >= 5 else 1)
    site = Site(rows, cols, gap=1)
    boxes = []
    for _ in range(count):
        tall = pick(rng, 2, max(2, small // count))
        wide = tall if square else pick(rng, 2, max(2, small // count))
        box = site.place(rng, tall, wide)
        if box is not None:
            boxes.append(box)
    return boxes


def _pictures(rng: np.random.Generator, rows: int, cols: int, boxes: list[Box]) -> Grid:
    """Fill the boxes with colours; those at the ends of each box's first row occur nowhere else."""
    colors = palette(rng, 9)
    grid = blank(rows, cols)
    for box in boxes:
        left, right = colors.pop(), colors.pop()
        grid[box.cells] = picture(rng, box.height, box.width, colors[:3])
        grid[box.r1, box.c1], grid[box.r1, box.c2] = left, right
    return grid

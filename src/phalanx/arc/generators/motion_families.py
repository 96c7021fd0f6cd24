"""Task families in which objects are moved, mirrored, rotated, cropped or copied.

Each function samples pairs of one family. The docstrings also prove that no solution is shorter than the
generated one. The "color-growth bound" is the lower bound that `least_operations` computes.
"""

import numpy as np

from phalanx.arc.generators.family import (
    GeneratedPair,
    Rect,
    blank,
    pair_family,
    point,
    select,
    transpose_pair,
)
from phalanx.arc.generators.placement import GRAY, BoxPlacer, chance, palette, pick, picture
from phalanx.arc.operations import Operation
from phalanx.arc.tasks import Grid, Solution

HEAD = 2
"""Color (red) of the front side of a moving object."""


@pair_family(
    "An object moves in the direction of its red side until it hits a gray wall or the side of the grid."
)
def move_until_hit(rng: np.random.Generator, height: int, width: int) -> GeneratedPair | None:
    """Sample a pair in which an object moves in the direction of its red side until it hits a gray wall or
    the side of the grid.

    Solution: one move if the distance is one cell; otherwise, a cut and a paste.

    A cut and a paste cannot be replaced by a single operation. The object consists of a red head and a tail
    behind it. Both appear in new cells and have different colors, so a fill is not enough. A paste needs a
    copy before it, and a move shifts the object by only one cell. A flip along the direction of movement
    would put the head behind the tail, and a flip across this direction would not bring the object closer to
    the wall. A rotation would turn the tail, which is perpendicular to the direction of movement, by 90
    degrees. If the head and the tail are single cells, the head would not be in front of the tail
    after a rotation.
    """
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
    if distance == 1:
        solution: Solution = (select(Operation.MOVE_LEFT if backwards else Operation.MOVE_RIGHT, here),)
    else:
        solution = select(Operation.CUT, here), point(Operation.PASTE, there.r1, there.c1)
    draft = GeneratedPair(np.ascontiguousarray(grids[0]), np.ascontiguousarray(grids[1]), solution)
    return transpose_pair(draft) if downwards else draft


@pair_family("Rectangles in the air fall to the ground.")
def gravity(rng: np.random.Generator, height: int, width: int) -> GeneratedPair | None:
    """Sample a pair in which one or two rectangles fall to the ground.

    Solution: for each rectangle, one vertical flip of the box that extends from the top row of the rectangle
    to the ground.

    For two rectangles, two operations are necessary because no single operation moves both. The rectangles
    have different colors, top rows and distances to the ground, and no common column. A fill writes only one
    color, a paste needs a copy before it, and a move would move both by the same distance. A horizontal flip
    moves nothing down. A vertical flip puts a rectangle on the ground only if the axis of the flip is halfway
    between the rectangle's top row and the ground, which is a different axis for each rectangle. After a
    rotation, the lowest row comes from a single column, but in the output, both rectangles have cells in the
    lowest row.
    """
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
    return GeneratedPair(before, after, tuple(solution))


@pair_family(
    "Every object is mirrored in its box, along the axis that the demonstrations show.",
    transpose="task",
)
def mirror(rng: np.random.Generator, rows: int, cols: int) -> GeneratedPair | None:
    """Sample a pair in which every object is mirrored horizontally.

    Solution: one flip per object.

    For two objects, two operations are necessary because no single operation mirrors both. In each object,
    the two ends of the first row have colors that occur nowhere else, and mirroring exchanges these colors.
    A flip is the only operation that can do this: a fill writes only one color, and a paste needs a copy
    before it. But a single flip mirrors all cells about the same vertical line, and the two objects have
    different center lines.
    """
    boxes = _objects(rng, rows, cols, square=False)
    if len(boxes) == 2 and boxes[0].c1 + boxes[0].c2 == boxes[1].c1 + boxes[1].c2:
        return None
    before = _pictures(rng, rows, cols, boxes)
    after = before.copy()
    for box in boxes:
        after[box.cells] = before[box.cells][:, ::-1]
    return GeneratedPair(before, after, tuple(select(Operation.FLIP_HORIZONTAL, box) for box in boxes))


@pair_family(
    "Every object is rotated by 90 degrees, in the direction that the demonstrations show.",
    transpose="task",
)
def rotate(rng: np.random.Generator, rows: int, cols: int) -> GeneratedPair | None:
    """Sample a pair in which every object is rotated clockwise by 90 degrees. The position of the top-left
    corner of its box does not change.

    Solution: one rotation per object.

    For two objects, two operations are necessary because no single operation rotates both. The cells at the
    two ends of an object's first row have colors that occur nowhere else, and the row becomes a column. A
    fill writes only one color, a paste needs a copy before it, and only a rotation turns a row into a column.
    One rotation of a larger box could rotate both objects only if `r - c` and `r + c + h` were the same for
    both, where (r, c) is the top-left corner of an object and h is its height. Such pairs are not used.
    """
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
    return GeneratedPair(before, after, tuple(select(Operation.ROTATE_CLOCKWISE, box) for box in boxes))


def _objects(rng: np.random.Generator, rows: int, cols: int, *, square: bool) -> list[Rect]:
    """Choose one or two boxes (two only if there is space), with at least two rows and columns each and a gap
    of at least one cell between them. If `square` is true, each box is a square."""
    small = min(rows, cols)
    count = pick(rng, 1, 2 if small >= 5 else 1)
    site = BoxPlacer(rows, cols, gap=1)
    boxes = []
    for _ in range(count):
        tall = pick(rng, 2, max(2, small // count))
        wide = tall if square else pick(rng, 2, max(2, small // count))
        box = site.place(rng, tall, wide)
        if box is not None:
            boxes.append(box)
    return boxes


def _pictures(rng: np.random.Generator, rows: int, cols: int, boxes: list[Rect]) -> Grid:
    """Create a grid in which each cell of the boxes has a random color. The first and the last cell of each
    box's top row have colors that occur nowhere else in the grid."""
    colors = palette(rng, 9)
    grid = blank(rows, cols)
    for box in boxes:
        left, right = colors.pop(), colors.pop()
        grid[box.cells] = picture(rng, box.height, box.width, colors[:3])
        grid[box.r1, box.c1], grid[box.r1, box.c2] = left, right
    return grid


@pair_family("The grid is cropped to the object.")
def crop_to_object(rng: np.random.Generator, height: int, width: int) -> GeneratedPair | None:
    """Sample a pair whose input contains a single object. The output consists of this object alone.

    Solution: copy the object, paste it into the top-left corner, and resize the grid. If the object is one
    cell away from the corner, a move replaces the copy and the paste.

    No shorter solution exists: only Resize changes the size, and the object is not in the corner, so at least
    two operations are needed. If the object is farther away, two operations would suffice only if a single
    operation could move the object to the corner. There is no such operation: three corners of the object
    have colors that occur nowhere else, and a fill writes only one color. A paste needs a copy before it, a
    move shifts the object by only one cell, and a flip or rotation never shifts three corners of a box by the
    same distance.
    """
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
    move: Solution = (select(Operation.MOVE_UP if r else Operation.MOVE_LEFT, box),)
    if r + c > 1:
        move = select(Operation.COPY, box), point(Operation.PASTE, 0, 0)
    return GeneratedPair(before, after, (*move, resize))


@pair_family("A copy of the object appears at every gray cell.")
def stamp(rng: np.random.Generator, height: int, width: int) -> GeneratedPair | None:
    """Sample a pair whose input contains an object and one to three gray cells. In the output, every gray
    cell is replaced by a copy of the object, whose top-left corner is at the position of the gray cell.

    Solution: copy the object, and paste it once per gray cell. For k gray cells, this takes k + 1 operations.

    No shorter solution exists: the object has at least k + 1 colors, and each of them becomes k + 1 times as
    frequent. Suppose that k operations suffice, f of which are fills. Then at least one color is not filled.
    By the color-growth bound of `least_operations`, the other k - f operations multiply the number of cells
    of this color by at most k, which is not enough.
    """
    small = min(height, width)
    most = 1 if small < 5 else 2 if small < 7 else 3
    copies = pick(rng, 1, most)
    tall, wide = pick(rng, 1, max(1, height // 3)), pick(rng, 1, max(1, width // 3))
    if tall * wide <= copies:
        tall, wide = (1, copies + 1) if chance(rng, 0.5) else (copies + 1, 1)
    colors = palette(rng, copies + 1, exclude=(GRAY,))
    pattern = picture(rng, tall, wide, colors)
    # Every color must occur at least once, so different random cells get one each.
    pattern.ravel()[rng.permutation(tall * wide)[: copies + 1]] = colors
    site = BoxPlacer(height, width, gap=0 if small < 5 else 1)
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
    return GeneratedPair(before, after, tuple(solution))

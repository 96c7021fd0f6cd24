"""Families in which objects change their place: move_until_hit, gravity.

Objects that turn where they stand are in `turning`.
"""

import numpy as np

from phalanx.arc.generators.draft import Box, Draft, blank, point, select
from phalanx.arc.generators.family import PairMaker
from phalanx.arc.generators.placement import GREY, chance, palette, pick
from phalanx.arc.operations import Operation
from phalanx.arc.tasks import Solution

HEAD = 2
"""The colour of the side with which an object moves ahead."""


def move_until_hit(rng: np.random.Generator, height: int, width: int) -> PairMaker:
    """An object moves the way its red head points, until it hits a grey wall or the grid's side.

    One cell away: one move. Further: cut, and paste in front of the wall. Shortest: head and tail are two
    colours, and both appear in places that neither had, so no single fill does it, and without a copy no
    paste. A move goes one cell. A flip along the way puts the head behind, and one across it brings nothing
    nearer to the wall. A rotation lays the tail's cells along the way, where they must stand across it; and
    a tail and head of one cell each it puts across, where they must lie along it.
    """

    def pair() -> Draft | None:
        backwards, downwards = chance(rng, 0.5), chance(rng, 0.5)
        lanes, length = (width, height) if downwards else (height, width)
        end = length
        if length >= 4 and chance(rng, 0.6):
            end = pick(rng, 3, length - 1)
        distance = pick(rng, 1, end - 2)
        first = pick(rng, 0, lanes - 1)
        last = pick(rng, first, min(lanes - 1, first + lanes // 3))
        (color,) = palette(rng, 1, exclude=(HEAD, GREY))

        grids = blank(lanes, length), blank(lanes, length)
        tails = end - distance - 2, end - 2
        for grid, tail in zip(grids, tails, strict=True):
            grid[first : last + 1, tail] = color
            grid[first : last + 1, tail + 1] = HEAD
            if end < length:
                grid[:, end] = GREY
        if backwards:
            grids = grids[0][:, ::-1], grids[1][:, ::-1]
            tails = length - 2 - tails[0], length - 2 - tails[1]
        here, there = (Box(first, tail, last, tail + 1) for tail in tails)
        if downwards:
            grids = grids[0].T, grids[1].T
            here, there = here.transposed, there.transposed
        if distance == 1:
            forward = Operation.MOVE_DOWN if downwards else Operation.MOVE_RIGHT
            backward = Operation.MOVE_UP if downwards else Operation.MOVE_LEFT
            solution: Solution = (select(backward if backwards else forward, here),)
        else:
            solution = select(Operation.CUT, here), point(Operation.PASTE, there.r1, there.c1)
        return Draft(np.ascontiguousarray(grids[0]), np.ascontiguousarray(grids[1]), solution)

    return pair


def gravity(rng: np.random.Generator, height: int, width: int) -> PairMaker:
    """Rectangles in the air fall to the ground; for each, one flip of the box from its top to the ground.

    Shortest: one rectangle changes, so one operation. Two differ in colour, top and distance and share no
    column. No fill writes two colours, a paste has nothing to paste, a move takes both equally far. A flip or
    rotation that makes a rectangle fall holds its old and its new place. A flip left-right moves nothing
    down; one top-bottom puts a rectangle on the ground only if its axis lies halfway between the rectangle's
    top and the ground, and the tops differ. A rotation takes the lowest row from a single column, but both
    rectangles reach it.
    """

    def pair() -> Draft | None:
        count = pick(rng, 1, 2 if min(height, width) >= 4 else 1)
        edges = sorted(rng.permutation(width + 1)[: 2 * count].tolist())
        before, after = blank(height, width), blank(height, width)
        solution, tops, distances = [], set(), set()
        for color, left, right in zip(palette(rng, count), edges[::2], edges[1::2], strict=True):
            tall = pick(rng, 1, max(1, height // 3))
            top = pick(rng, 0, height - tall - 1)
            before[top : top + tall, left:right] = color
            after[height - tall :, left:right] = color
            solution.append(select(Operation.FLIP_VERTICAL, Box(top, left, height - 1, right - 1)))
            tops.add(top)
            distances.add(height - tall - top)
        if len(tops) < count or len(distances) < count:
            return None
        return Draft(before, after, tuple(solution))

    return pair

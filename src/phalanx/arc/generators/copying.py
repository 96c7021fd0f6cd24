"""Families that copy an object: crop_to_object, stamp.

Objects that are moved and leave nothing behind are in `motion`.
"""

import numpy as np

from phalanx.arc.generators.draft import Box, Draft, blank, point, select
from phalanx.arc.generators.family import PairMaker
from phalanx.arc.generators.placement import GREY, Site, chance, palette, pick, picture
from phalanx.arc.operations import Operation


def crop_to_object(rng: np.random.Generator, height: int, width: int) -> PairMaker:
    """The output is the object alone: copy it, paste it into the grid's corner, cut the grid down.

    One cell away from the corner a move replaces copy and paste. Shortest: the size changes, which takes a
    resize and only one, and the object is not in the corner, so two operations at least. Were two enough for
    a longer way, one other operation would carry the object to the corner, before the resize or after it.
    Three of its corners have colours that occur nowhere else: no fill makes more than one of them, a paste
    has nothing to paste, a move goes one cell, and no flip or rotation shifts three corners of a box alike.
    """

    def pair() -> Draft | None:
        tall, wide = pick(rng, 2, max(2, (2 * height) // 3)), pick(rng, 2, max(2, (2 * width) // 3))
        r, c = pick(rng, 0, height - tall), pick(rng, 0, width - wide)
        if (r, c) == (0, 0):
            return None
        box = Box(r, c, r + tall - 1, c + wide - 1)
        first, second, third, *rest = palette(rng, 7)
        after = picture(rng, tall, wide, [0, *rest])
        after[0, 0], after[0, -1], after[-1, 0] = first, second, third
        before = blank(height, width)
        before[box.cells] = after
        resize = select(Operation.RESIZE, Box(0, 0, tall - 1, wide - 1))
        if r + c == 1:
            return Draft(
                before, after, (select(Operation.MOVE_UP if r else Operation.MOVE_LEFT, box), resize)
            )
        return Draft(before, after, (select(Operation.COPY, box), point(Operation.PASTE, 0, 0), resize))

    return pair


def stamp(rng: np.random.Generator, height: int, width: int) -> PairMaker:
    """A copy of the object appears at every grey cell, which becomes its top left: copy, then paste.

    Shortest: with k copies each of the object's colours, of which there are more than k, becomes k + 1 times
    as frequent. k operations, f of them fills, multiply the others by at most k - f (colour growth, k <= 3).
    """
    small = min(height, width)
    most = 1 if small < 5 else 2 if small < 7 else 3

    def pair() -> Draft | None:
        copies = pick(rng, 1, most)
        tall, wide = pick(rng, 1, max(1, height // 3)), pick(rng, 1, max(1, width // 3))
        if tall * wide <= copies:
            tall, wide = (1, copies + 1) if chance(rng, 0.5) else (copies + 1, 1)
        colors = palette(rng, copies + 1, exclude=(GREY,))
        pattern = picture(rng, tall, wide, colors)
        # Every colour must occur at least once: different random cells take one each.
        pattern.ravel()[rng.permutation(tall * wide)[: copies + 1]] = colors
        site = Site(height, width, gap=0 if small < 5 else 1)
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
                before[box.r1, box.c1] = GREY
                solution.append(point(Operation.PASTE, box.r1, box.c1))
        return Draft(before, after, tuple(solution))

    return pair

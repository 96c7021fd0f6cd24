"""Families about the colours of whole objects: recolour, swap_colors, count_to_color.

Filling empty regions is in `regions`.
"""

import numpy as np

from phalanx.arc.generators.draft import Draft, blank, flood, point, transposed
from phalanx.arc.generators.family import PairMaker
from phalanx.arc.generators.placement import Site, blob, chance, palette, pick
from phalanx.arc.operations import Operation


def recolour(rng: np.random.Generator, height: int, width: int) -> PairMaker:
    """Some colours become others, by a mapping that is the task's rule; one flood fill an object.

    Shortest: each mapped colour has one object, and the new colours are absent from the input, so each of
    them needs an operation of its own (colour growth).
    """
    count = pick(rng, 1, min(4, 1 + min(height, width) // 3))
    colors = palette(rng, 2 * count + 1)
    sources, targets, bystander = colors[:count], colors[count : 2 * count], colors[-1]
    side = (max(height, width) + 1) // 2

    def pair() -> Draft | None:
        before = blank(height, width)
        site = Site(height, width)
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
        return Draft(before, after, tuple(solution))

    return pair


def swap_colors(rng: np.random.Generator, height: int, width: int) -> PairMaker:
    """Two objects that do not touch exchange their colours; one flood fill each.

    Shortest: the objects differ in size, so one colour becomes more frequent, which takes a fill or flood
    fill of that colour (a single paste has nothing to paste). That operation writes no other colour, but the
    other object changes too.
    """

    def pair() -> Draft | None:
        across = chance(rng, 0.5)
        draft = draw(width, height) if across else draw(height, width)
        return transposed(draft) if across and draft is not None else draft

    def draw(rows: int, cols: int) -> Draft | None:
        first, second = palette(rng, 2)
        before = blank(rows, cols)
        # An empty row keeps the objects apart.
        border = pick(rng, 1, rows - 2)
        side = (max(rows, cols) + 1) // 2
        here = blob(rng, before[:border], Site(border, cols), first, side)
        there = blob(rng, before[border + 1 :], Site(rows - border - 1, cols), second, side)
        is_first, is_second = before == first, before == second
        if here is None or there is None or is_first.sum() == is_second.sum():
            return None
        after = before.copy()
        after[is_first], after[is_second] = second, first
        row, col = there
        return Draft(before, after, (flood(second, *here), flood(first, row + border + 1, col)))

    return pair


def count_to_color(rng: np.random.Generator, height: int, width: int) -> PairMaker:
    """As many objects as the one cell of the output says with its colour: fill the corner, cut the grid down.

    Shortest: only resize changes the size, and by itself it would keep the corner's colour, which is wrong:
    the objects never have the colour that stands for their number.
    """

    def pair() -> Draft | None:
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
        return Draft(before, after, (point(count, 0, 0), point(Operation.RESIZE, 0, 0)))

    return pair

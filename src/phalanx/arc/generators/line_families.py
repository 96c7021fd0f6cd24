"""Task families in which lines are extended, borders are drawn, or pictures are restored.

Each function samples pairs of one family. A function that is decorated with `rule_family` first samples the
rule that all pairs of a task share. The docstrings also prove that no solution is shorter than the generated
one. The "color-growth bound" is the lower bound that `least_operations` computes.
"""

import numpy as np

from phalanx.arc.generators.family import (
    GeneratedPair,
    PairSampler,
    Rect,
    blank,
    fill,
    flood,
    pair_family,
    point,
    rule_family,
)
from phalanx.arc.generators.placement import (
    GRAY,
    chance,
    least_operations,
    one_paste_suffices,
    palette,
    pick,
    picture,
)
from phalanx.arc.tasks import Grid, SolutionStep


@pair_family("Lines that start at one side continue to the other side, or to a gray cell.", transpose="pair")
def extend_line(rng: np.random.Generator, rows: int, cols: int) -> GeneratedPair | None:
    """Sample a pair in which lines are extended from one side of the grid to the other side, or up to a gray
    cell.

    Solution: one fill per line.

    No shorter solution exists: every line has a different color, and each of these colors becomes more
    frequent, so one or two lines need one operation each (by the color-growth bound of `least_operations`).
    Pairs with three or four lines are used only if this bound is at least the number of lines.
    """
    count = pick(rng, 1, min(4, rows - 1, 1 + cols // 3))
    before = blank(rows, cols)
    after = before.copy()
    solution = []
    lanes = rng.permutation(rows)[:count].tolist()
    for row, color in zip(lanes, palette(rng, count, exclude=(GRAY,)), strict=True):
        end = cols
        if cols >= 5 and chance(rng, 0.3):
            end = pick(rng, 3, cols - 1)
        start = 2
        rightwards = chance(rng, 0.5)
        for grid, reach in ((before, start), (after, end)):
            line = grid[row] if rightwards else grid[row, ::-1]
            line[:reach] = color
            if end < cols:
                line[end] = GRAY
        first, last = (start, end - 1) if rightwards else (cols - end, cols - 1 - start)
        solution.append(fill(color, Rect(row, first, row, last)))
    if count > 2 and least_operations(before, after) < count:
        return None
    return GeneratedPair(before, after, tuple(solution))


@rule_family("A rectangle gets rings around it, in the colors that the demonstrations show.")
def draw_border(rng: np.random.Generator, height: int, width: int) -> PairSampler:
    """Sample a rule that draws one to three rings around a rectangle, with the same colors in every pair.

    Solution: fill the box of each ring, from the outermost to the innermost, and then fill the rectangle. The
    number of operations is one more than the number of rings. The exception is a single ring that one fill or
    flood fill can draw; this operation is then the solution. A fill can draw the ring if the sides of the
    grid cut off so much of it that the rest is a box. A flood fill can draw the ring if it is the entire
    background and connected.

    In all other cases, no shorter solution exists: none of the ring colors occurs in the input, so each ring
    needs a fill or flood fill. A shorter solution would consist of exactly one such operation per ring. None
    of them could be a fill, which would also cover the inside of its ring, including the rectangle, and no
    operation would restore the rectangle. With flood fills only, the first one would cover the entire
    background, including the cells outside the rings. If there are no such cells, a second flood fill would
    cover the first ring.
    """
    small = min(height, width)
    rings = pick(rng, 1, 1 if small < 7 else 2 if small < 11 else 3)
    colors = palette(rng, rings)
    # Only a single ring may be cut off by the sides of the grid: the proof for several rings requires
    # complete rings.
    margin = 0 if rings == 1 else rings

    def pair() -> GeneratedPair | None:
        (color,) = palette(rng, 1, exclude=colors)
        tall = pick(rng, 1, min(height - 2 * margin, 1 + height // 2))
        wide = pick(rng, 1, min(width - 2 * margin, 1 + width // 2))
        r = pick(rng, margin, height - margin - tall)
        c = pick(rng, margin, width - margin - wide)
        box = Rect(r, c, r + tall - 1, c + wide - 1)
        before = blank(height, width)
        before[box.cells] = color
        after = blank(height, width)
        solution = []
        for distance in range(rings, 0, -1):
            ring = _expand(box, distance, height, width)
            after[ring.cells] = colors[distance - 1]
            solution.append(fill(colors[distance - 1], ring))
        after[box.cells] = color
        solution.append(fill(color, box))
        if rings == 1:
            shortcut = _one_operation(before, after, colors[0])
            if shortcut is not None:
                solution = [shortcut]
        return GeneratedPair(before, after, tuple(solution))

    return pair


def _expand(box: Rect, distance: int, height: int, width: int) -> Rect:
    """Extend a box by `distance` cells on every side, but not beyond the grid."""
    return Rect(
        max(box.r1 - distance, 0),
        max(box.c1 - distance, 0),
        min(box.r2 + distance, height - 1),
        min(box.c2 + distance, width - 1),
    )


def _one_operation(before: Grid, after: Grid, color: int) -> SolutionStep | None:
    """Return the fill or flood fill that draws the ring around the rectangle in one operation.

    Return None if there is no such operation.
    """
    rows, cols = np.nonzero(after == color)
    hull = Rect(int(rows.min()), int(cols.min()), int(rows.max()), int(cols.max()))
    if len(rows) == hull.height * hull.width:
        return fill(color, hull)
    # The background is divided if the rectangle reaches from side to side.
    divided = bool((before != 0).all(axis=0).any() or (before != 0).all(axis=1).any())
    if (after != 0).all() and not divided:
        return flood(color, int(rows[0]), int(cols[0]))
    return None


@pair_family("Missing cells of a symmetric picture are restored.", transpose="task", point_solvable=True)
def complete_symmetry(rng: np.random.Generator, rows: int, cols: int) -> GeneratedPair | None:
    """Sample a pair in which one to three missing cells of a symmetric picture are restored.

    Solution: one fill per missing cell.

    No shorter solution exists. The missing cells have different colors, so if one or two cells are missing,
    each of them needs its own operation (by the color-growth bound of `least_operations`). If three cells are
    missing, two operations would suffice only if they were a copy (or cut) and a paste. Pairs for which a
    copy and a paste suffice are not used, and a cut would leave empty cells, which the output does not have.
    """
    small = min(rows, cols)
    most = 1 if small < 4 else 2 if small < 6 else 3
    colors = palette(rng, pick(rng, 2, 5))
    half = picture(rng, rows, (cols + 1) // 2, colors)
    after = np.concatenate([half, half[:, : cols // 2][:, ::-1]], axis=1)
    before = after.copy()
    lost: dict[int, tuple[int, int]] = {}
    wanted = pick(rng, 1, most)
    for _ in range(3 * wanted):
        if len(lost) == wanted:
            break
        r, c = pick(rng, 0, rows - 1), pick(rng, 0, cols - 1)
        partner = cols - 1 - c
        color = int(after[r, c])
        if c != partner and before[r, partner] != 0 and color not in lost:
            before[r, c] = 0
            lost[color] = r, c
    if not lost or (len(lost) > 2 and one_paste_suffices(before, after)):
        return None
    return GeneratedPair(before, after, tuple(point(color, *cell) for color, cell in lost.items()))


@pair_family("Wrong cells are removed from bands of one color each.", transpose="pair")
def denoise(rng: np.random.Generator, rows: int, cols: int) -> GeneratedPair | None:
    """Sample a pair in which noise (cells with a wrong color) is removed from single-color bands.

    Solution: one fill per band.

    No shorter solution exists: the color of every band becomes more frequent, so one or two bands need one
    operation each (by the color-growth bound of `least_operations`). Three bands could only be restored by
    two operations if these were a copy (or cut) and a paste. Pairs for which a copy and a paste suffice are
    not used, and a cut would leave empty cells, which the output does not have.
    """
    count = pick(rng, 1, min(3, rows - 1))
    *colors, noise = palette(rng, count + 1)
    cuts = sorted((rng.permutation(rows - 1)[: count - 1] + 1).tolist())
    after = np.zeros((rows, cols), np.int8)
    before = after.copy()
    solution = []
    for color, top, bottom in zip(colors, [0, *cuts], [*cuts, rows], strict=True):
        after[top:bottom] = color
        before[top:bottom] = color
        cells = (bottom - top) * cols
        wrong = (rng.random(pick(rng, 1, max(1, cells // 6))) * cells).astype(int)
        before[top + wrong // cols, wrong % cols] = noise
        solution.append(fill(color, Rect(top, 0, bottom - 1, cols - 1)))
    if count > 2 and one_paste_suffices(before, after):
        return None
    return GeneratedPair(before, after, tuple(solution))

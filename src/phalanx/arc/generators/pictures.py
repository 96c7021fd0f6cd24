"""Families that repair a picture with no empty cells: complete_symmetry, denoise.

Turning pictures is in `turning`.
"""

import numpy as np

from phalanx.arc.generators.bounds import one_paste_suffices
from phalanx.arc.generators.draft import Box, Draft, fill, point, transposed
from phalanx.arc.generators.family import PairMaker
from phalanx.arc.generators.placement import chance, palette, pick, picture


def complete_symmetry(rng: np.random.Generator, height: int, width: int) -> PairMaker:
    """A picture that is its own mirror image has lost one to three cells; one fill a cell.

    Shortest: the lost cells have different colours, so up to two need an operation each by colour growth.
    Three in two operations could only be copy (or cut) and paste: pairs where copying works are not drawn,
    and after a cut an empty cell remains, while the output has none.
    """
    across = chance(rng, 0.5)
    small = min(height, width)
    most = 1 if small < 4 else 2 if small < 6 else 3

    def pair() -> Draft | None:
        draft = draw(width, height) if across else draw(height, width)
        return transposed(draft) if across and draft is not None else draft

    def draw(rows: int, cols: int) -> Draft | None:
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
        return Draft(before, after, tuple(point(color, *cell) for color, cell in lost.items()))

    return pair


def denoise(rng: np.random.Generator, height: int, width: int) -> PairMaker:
    """Bands of one colour each are sprinkled with cells of a colour that does not belong; one fill a band.

    Shortest: every band's colour becomes more frequent, so up to two bands need an operation each by colour
    growth. Three in two operations could only be copy (or cut) and paste: pairs where copying works are not
    drawn, and after a cut an empty cell remains, while the output has none.
    """

    def pair() -> Draft | None:
        across = chance(rng, 0.5)
        draft = draw(width, height) if across else draw(height, width)
        return transposed(draft) if across and draft is not None else draft

    def draw(rows: int, cols: int) -> Draft | None:
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
            solution.append(fill(color, Box(top, 0, bottom - 1, cols - 1)))
        if count > 2 and one_paste_suffices(before, after):
            return None
        return Draft(before, after, tuple(solution))

    return pair

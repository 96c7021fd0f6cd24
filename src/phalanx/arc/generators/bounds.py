"""Why solutions are shortest: lower bounds that hold for grids of any size.

The generators claim a length; these functions and the families' docstrings prove it. A solution is a
sequence of operations 0 to 33 on boxes, from the pair's input to its output; going over to another pair
does not count as solving this one.

**Colour growth.** Only fill and flood fill of colour c, and paste, make a colour c (other than 0) more
frequent: move, rotate and flip carry cells or lose them, resize adds only 0. One fill or flood fill serves
one colour. Copy or cut followed by p pastes multiplies a colour's count by at most 1 + p, for 1 + p
operations; so k operations without a fill of c multiply it by at most `GROWTH[k]`, the largest product of
whole numbers with sum k. Hence n operations, f of them fills and flood fills, need
`f >= |{c : after(c) > GROWTH[n - f] * before(c)}|`.

In particular m colours that are absent from the input need m operations; two colours that grow at all
need two.
"""

import numpy as np
from jaxtyping import Int8

from phalanx.arc.operations import NUM_COLORS

GROWTH = (1, 1, 2, 3, 4, 6, 9, 12, 18, 27)
"""The largest factor by which k copies and pastes can multiply a colour's count."""


def least_operations(before: Int8[np.ndarray, "r1 c1"], after: Int8[np.ndarray, "r2 c2"]) -> int:
    """A number of operations below which no solution exists, by colour growth and change of size.

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
    """Whether the bound leaves room for so many fills, copies and pastes."""
    for fills in range(operations + 1):
        factor = GROWTH[operations - fills]
        if sum(has[c] > factor * had[c] for c in range(1, NUM_COLORS)) <= fills:
            return True
    return False


def one_paste_suffices(before: Int8[np.ndarray, "rows cols"], after: Int8[np.ndarray, "rows cols"]) -> bool:
    """Whether copying one box and pasting it elsewhere makes the output.

    The pasted box covers every changed cell, and cut down to their bounding box it still works; so it is
    enough to compare that bounding box of the output with every box of its size in the input.
    """
    rows, cols = np.nonzero(before != after)
    if not len(rows):
        return True
    wanted = after[rows.min() : rows.max() + 1, cols.min() : cols.max() + 1]
    offered = np.lib.stride_tricks.sliding_window_view(before, wanted.shape)
    return bool((offered == wanted).all(axis=(2, 3)).any())

"""Views of an ARC input: for each cell of the answer, what other places of the input show there.

Symmetries, tilings, scalings, halves, rays and components are all cheap to compute and hard to learn by
convolutions. The network that reads them is in `arc_answers`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int8, Int32

from phalanx.arc.operations import NUM_COLORS

Grid = Int8[Array, "rows columns"]

NUM_VIEWS = 27
"""Grids that `views_of` stacks."""
NUM_FLAGS = 8
"""Marks that `flags_of` stacks."""
NUM_SIZES = 22 + 30
"""Candidates that `sizes_of` gives for each side."""
_SPREADS = 24
"""Steps by which a component is spread: longer snakes fall into parts."""


class InputSummary(NamedTuple):
    """What is known of an input as a whole."""

    height: Int32[Array, ""]
    width: Int32[Array, ""]
    counts: Int32[Array, " colors"]
    """Cells of each color."""
    ranks: Int32[Array, " colors"]
    """Each color's place when colors are sorted by their cells, the most frequent first."""
    by_rank: Int32[Array, " colors"]
    """The color of each place."""
    box: tuple[Array, Array, Array, Array]
    """Top, left, bottom and right of what is not background."""


def summarize_input(grid: Grid) -> InputSummary:
    """Of an input with -1 outside its area; the background is its most frequent color."""
    inside = grid >= 0
    colors = jnp.arange(NUM_COLORS, dtype=jnp.int8)
    counts = jnp.sum(grid[None] == colors[:, None, None], axis=(1, 2))
    by_rank = jnp.argsort(-counts, stable=True)
    ranks = jnp.argsort(by_rank)
    drawn = inside & (grid != by_rank[0])
    rows, columns = drawn.any(axis=1), drawn.any(axis=0)
    box = (
        jnp.argmax(rows),
        jnp.argmax(columns),
        rows.shape[0] - 1 - jnp.argmax(rows[::-1]),
        columns.shape[0] - 1 - jnp.argmax(columns[::-1]),
    )
    height, width = inside.any(axis=1).sum(), inside.any(axis=0).sum()
    return InputSummary(
        height.astype(jnp.int32),
        width.astype(jnp.int32),
        counts.astype(jnp.int32),
        ranks.astype(jnp.int32),
        by_rank.astype(jnp.int32),
        box,
    )


def views_of(
    grid: Grid, facts: InputSummary, rows: Array, columns: Array
) -> Int8[Array, "views rows columns"]:
    """What each view shows at each cell of an answer of `rows` by `columns`; -1 where it shows nothing."""
    r, c = jnp.meshgrid(*(jnp.arange(side) for side in grid.shape), indexing="ij")
    h, w, (top, left, bottom, right) = facts.height, facts.width, facts.box

    def at(row: Array, column: Array) -> Grid:
        there = (row >= 0) & (row < h) & (column >= 0) & (column < w)
        index = jnp.where(there, row, 0) * grid.shape[1] + jnp.where(there, column, 0)
        return jnp.where(there, grid.reshape(-1)[index], jnp.int8(-1))

    def mirrored(place: Array, side: Array) -> Array:
        place = place % (2 * side)
        return jnp.where(place < side, place, 2 * side - 1 - place)

    places = [
        (r, c),
        (r, w - 1 - c),
        (h - 1 - r, c),
        (h - 1 - r, w - 1 - c),
        (c, r),
        (h - 1 - c, w - 1 - r),
        (h - 1 - c, r),
        (c, w - 1 - r),
        (r % h, c % w),
        (mirrored(r, h), mirrored(c, w)),
        (r * h // rows, c * w // columns),
        (r + top, c + left),
        (r + top, right - c),
        (bottom - r, c + left),
        (r + h - rows, c + w - columns),
        (r, c + columns),
        (r, c + columns + 1),
        (r + rows, c),
        (r + rows + 1, c),
        (top + bottom - r, c),
        (r, left + right - c),
    ]
    shown = [at(*place) for place in places]
    constant = [jnp.broadcast_to(facts.by_rank[place].astype(jnp.int8), grid.shape) for place in (0, 1)]
    return jnp.stack([*shown, *_rays(grid, facts), *constant])


def _rays(grid: Grid, facts: InputSummary) -> list[Grid]:
    """The nearest cell that is not background to the left, right, above and below; -1 where there is none."""
    drawn = (grid >= 0) & (grid != facts.by_rank[0])
    rays = []
    for axis in (1, 0):
        for reverse in (False, True):
            place = jax.lax.broadcasted_iota(jnp.int32, grid.shape, axis)
            nothing = grid.shape[axis] if reverse else -1
            scan = jax.lax.cummin if reverse else jax.lax.cummax
            last = scan(jnp.where(drawn, place, nothing), axis=axis, reverse=reverse)
            found = jnp.take_along_axis(grid, jnp.clip(last, 0, grid.shape[axis] - 1), axis=axis)
            rays.append(jnp.where(last == nothing, jnp.int8(-1), found))
    return rays


def flags_of(grid: Grid, facts: InputSummary) -> Bool[Array, "flags rows columns"]:
    """Marks of cells: enclosed background, and how large the component of a drawn cell is among all."""
    inside = grid >= 0
    drawn = inside & (grid != facts.by_rank[0])
    # Everything around the canvas is open, as is background that touches it.
    open_to = jnp.pad(~inside, 1, constant_values=True)
    passable = jnp.pad(~drawn, 1, constant_values=True)
    # Loops that stay loops: unrolled, XLA takes minutes to compile them.
    open_to = jax.lax.fori_loop(0, _SPREADS, lambda _, there: passable & _spread(there), open_to)
    enclosed = inside & ~drawn & ~open_to[1:-1, 1:-1]
    flags = [enclosed]
    for mask, same in ((drawn, False), (drawn, True)):
        sizes = _component_sizes(grid, mask, same)
        largest, smallest = jnp.max(sizes), jnp.min(jnp.where(mask, sizes, 10_000))
        flags += [mask & (sizes == largest), mask & (sizes == smallest), mask & (sizes == 1)]
    return jnp.stack([*flags, inside])


def _component_sizes(
    grid: Grid, mask: Bool[Array, "rows columns"], same_color: bool
) -> Int32[Array, "rows columns"]:
    """Cells of the component, of one color or of any, that each cell of a mask is part of."""
    rows, columns = grid.shape
    steps = [(down, across) for down in (-1, 0, 1) for across in (-1, 0, 1) if down or across]
    joined = jnp.stack([mask & (_shifted(grid, *step, -1) == grid) if same_color else mask for step in steps])

    def spread(_: Array, labels: Array) -> Array:
        near = jnp.stack([_shifted(labels, *step, 0) for step in steps])
        return jnp.maximum(labels, jnp.max(jnp.where(joined, near, 0), axis=0))

    first = jnp.where(mask, 1 + jnp.arange(rows * columns).reshape(rows, columns), 0)
    labels = jax.lax.fori_loop(0, _SPREADS, spread, first)
    counts = jnp.zeros(rows * columns + 1, jnp.int32).at[labels.reshape(-1)].add(1)
    return jnp.where(mask, counts[labels], 0)


def _shifted(grid: Array, down: int, across: int, outside: int | bool) -> Array:
    padded = jnp.pad(grid, 1, constant_values=outside)
    return padded[1 + down : 1 + down + grid.shape[0], 1 + across : 1 + across + grid.shape[1]]


def _spread(there: Bool[Array, "rows columns"]) -> Bool[Array, "rows columns"]:
    """A mask and all cells beside it."""
    near = [_shifted(there, *step, False) for step in ((-1, 0), (1, 0), (0, -1), (0, 1))]
    return there | jnp.stack(near).any(axis=0)


def sizes_of(facts: InputSummary) -> Int32[Array, "2 sizes"]:
    """Candidates for an answer's height and width: simple functions of the input, and every constant."""
    present = jnp.sum(facts.counts > 0)
    top, left, bottom, right = facts.box
    box = (bottom - top + 1, right - left + 1)
    sides = (facts.height, facts.width)
    candidates = []
    for axis in (0, 1):
        side, other, own = sides[axis], sides[1 - axis], box[axis]
        some = [side, other, 2 * side, 3 * side, 4 * side, side // 2, side // 3, side // 4]
        some += [(side - 1) // 2, (side - 2) // 3, side * side, 2 * side - 1, 2 * side + 1]
        some += [side + 2, side - 2, own, box[1 - axis], own - 2, own // 2, present, present - 1]
        some += [side * (present - 1)]
        candidates.append(jnp.stack([*some, *jnp.arange(1, 31)]))
    return jnp.stack(candidates).astype(jnp.int32)


def histogram_of(facts: InputSummary) -> Float[Array, " numbers"]:
    """Shares of the colors by rank, which of them are there, and the input's size."""
    sorted_counts = facts.counts[facts.by_rank]
    shares = sorted_counts / jnp.maximum(1, jnp.sum(sorted_counts))
    size = jnp.stack([facts.height, facts.width]) / 30
    return jnp.concatenate([shares, (sorted_counts > 0).astype(jnp.float32), size])

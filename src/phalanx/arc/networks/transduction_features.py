"""Hand-crafted features of an input grid, which help to predict the color of each output cell.

Most features are views: transformed copies of the input, such as flipped, tiled, scaled or shifted copies.
Other features describe connected components. All features are fast to compute but hard to learn with
convolutions.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int8, Int32

from phalanx.arc.operations import NUM_COLORS

Grid = Int8[Array, "rows columns"]
"""Colors of a grid on a canvas, -1 outside the grid."""
Mask = Bool[Array, "rows columns"]

NUM_VIEWS = 27
"""Number of views that `views_of` computes."""
NUM_FLAGS = 8
"""Number of masks that `flags_of` computes."""
NUM_SIZES = 22 + 30
"""Number of candidate heights that `sizes_of` returns, and of candidate widths: 22 functions of the input,
and the constants 1 to 30."""
_SPREADS = 24
"""Number of propagation steps in the computation of connected components and enclosed cells. A component in
which two cells are more than this number of steps apart may be counted as several components."""


class InputSummary(NamedTuple):
    """Global features of an input grid."""

    height: Int32[Array, ""]
    """Number of rows in the input."""
    width: Int32[Array, ""]
    """Number of columns in the input."""
    counts: Int32[Array, " colors"]
    """Number of cells of each color."""
    ranks: Int32[Array, " colors"]
    """Rank of each color by frequency. The most frequent color has rank 0."""
    by_rank: Int32[Array, " colors"]
    """Color of each rank, starting with the most frequent color."""
    box: tuple[Array, Array, Array, Array]
    """Top, left, bottom and right of the bounding box of all cells that do not have the background color."""


def summarize_input(grid: Grid) -> InputSummary:
    """Compute the global features of an input grid. The background is the most frequent color.

    Args:
        grid: Input grid, -1 outside the grid.
    """
    inside = grid >= 0
    colors = jnp.arange(NUM_COLORS, dtype=jnp.int8)
    counts = jnp.sum(grid[None] == colors[:, None, None], axis=(1, 2))
    by_rank = jnp.argsort(-counts, stable=True)
    ranks = jnp.argsort(by_rank)
    drawn = inside & (grid != by_rank[0])
    rows, columns = drawn.any(axis=1), drawn.any(axis=0)
    top, left = jnp.argmax(rows), jnp.argmax(columns)
    bottom, right = (side.shape[0] - 1 - jnp.argmax(side[::-1]) for side in (rows, columns))
    height, width = inside.any(axis=1).sum(), inside.any(axis=0).sum()
    summary = InputSummary(height, width, counts, ranks, by_rank, (top, left, bottom, right))
    return jax.tree.map(lambda leaf: leaf.astype(jnp.int32), summary)


def views_of(
    grid: Grid, summary: InputSummary, rows: Array, columns: Array
) -> Int8[Array, "views rows columns"]:
    """Compute the views of an input grid. For each cell of the output, a view contains the color of one input
    cell, or -1 if there is no corresponding input cell.

    Args:
        grid: Input grid, -1 outside the grid.
        summary: Global features of the input.
        rows: Height of the output.
        columns: Width of the output.
    """
    r, c = jnp.meshgrid(*(jnp.arange(side) for side in grid.shape), indexing="ij")
    h, w, (top, left, bottom, right) = summary.height, summary.width, summary.box

    def at(row: Array, column: Array) -> Grid:
        valid = (row >= 0) & (row < h) & (column >= 0) & (column < w)
        index = jnp.where(valid, row, 0) * grid.shape[1] + jnp.where(valid, column, 0)
        return jnp.where(valid, grid.reshape(-1)[index], jnp.int8(-1))

    def mirror(index: Array, side: Array) -> Array:
        index = index % (2 * side)
        return jnp.where(index < side, index, 2 * side - 1 - index)

    flipped = [(r, c), (r, w - 1 - c), (h - 1 - r, c), (h - 1 - r, w - 1 - c)]
    transposed = [(c, r), (h - 1 - c, w - 1 - r), (h - 1 - c, r), (c, w - 1 - r)]
    tiled = [(r % h, c % w), (mirror(r, h), mirror(c, w)), (r * h // rows, c * w // columns)]
    cropped = [(r + top, c + left), (r + top, right - c), (bottom - r, c + left)]
    shifted = [(r + h - rows, c + w - columns), (r, c + columns), (r, c + columns + 1)]
    shifted += [(r + rows, c), (r + rows + 1, c)]
    mirrored = [(top + bottom - r, c), (r, left + right - c)]
    positions = [*flipped, *transposed, *tiled, *cropped, *shifted, *mirrored]
    shown = [at(*position) for position in positions]
    constant = [jnp.broadcast_to(summary.by_rank[rank].astype(jnp.int8), grid.shape) for rank in (0, 1)]
    return jnp.stack([*shown, *_rays(grid, summary), *constant])


def _rays(grid: Grid, summary: InputSummary) -> list[Grid]:
    """Compute four views, one for each of the directions left, right, up and down.

    Each cell of a view contains the color of the nearest non-background cell in the view's direction, or -1
    if there is none. The search starts at the cell itself.
    """
    drawn = (grid >= 0) & (grid != summary.by_rank[0])
    rays = []
    for axis in (1, 0):
        for reverse in (False, True):
            index = jax.lax.broadcasted_iota(jnp.int32, grid.shape, axis)
            nothing = grid.shape[axis] if reverse else -1
            scan = jax.lax.cummin if reverse else jax.lax.cummax
            last = scan(jnp.where(drawn, index, nothing), axis=axis, reverse=reverse)
            found = jnp.take_along_axis(grid, jnp.clip(last, 0, grid.shape[axis] - 1), axis=axis)
            rays.append(jnp.where(last == nothing, jnp.int8(-1), found))
    return rays


def flags_of(grid: Grid, summary: InputSummary) -> Bool[Array, "flags rows columns"]:
    """Compute eight masks of input cells.

    Mask 0 contains the background cells that are enclosed by other cells. Masks 1 to 3 are based on the
    connected components of all cells that are not background: mask 1 contains the cells of the largest
    components, mask 2 those of the smallest components, and mask 3 those of components with a single cell.
    Masks 4 to 6 are defined in the same way, except that only cells of the same color are connected. Mask 7
    contains all cells of the grid.
    """
    inside = grid >= 0
    drawn = inside & (grid != summary.by_rank[0])
    # Cells outside the canvas are open, and so is background that is connected to them.
    open_to = jnp.pad(~inside, 1, constant_values=True)
    passable = jnp.pad(~drawn, 1, constant_values=True)
    # A loop, because XLA takes minutes to compile unrolled steps.
    open_to = jax.lax.fori_loop(0, _SPREADS, lambda _, mask: passable & _spread(mask), open_to)
    enclosed = inside & ~drawn & ~open_to[1:-1, 1:-1]
    flags = [enclosed]
    for same_color in (False, True):
        sizes = _component_sizes(grid, drawn, same_color)
        largest, smallest = jnp.max(sizes), jnp.min(jnp.where(drawn, sizes, 10_000))
        flags += [drawn & (sizes == size) for size in (largest, smallest, 1)]
    return jnp.stack([*flags, inside])


def _component_sizes(grid: Grid, mask: Mask, same_color: bool) -> Int32[Array, "rows columns"]:
    """Compute the size of the 8-connected component to which each cell of a mask belongs. Other cells get 0.

    Args:
        grid: The grid.
        mask: Mask of the cells that form the components.
        same_color: Connect only cells of the same color.
    """
    rows, columns = grid.shape
    steps = [(down, across) for down in (-1, 0, 1) for across in (-1, 0, 1) if down or across]
    joined = jnp.stack([mask & (_shift(grid, *step, -1) == grid) if same_color else mask for step in steps])

    def spread(_: Array, labels: Array) -> Array:
        near = jnp.stack([_shift(labels, *step, 0) for step in steps])
        return jnp.maximum(labels, jnp.max(jnp.where(joined, near, 0), axis=0))

    first = jnp.where(mask, 1 + jnp.arange(rows * columns).reshape(rows, columns), 0)
    labels = jax.lax.fori_loop(0, _SPREADS, spread, first)
    counts = jnp.zeros(rows * columns + 1, jnp.int32).at[labels.reshape(-1)].add(1)
    return jnp.where(mask, counts[labels], 0)


def _shift(grid: Array, down: int, across: int, outside: int | bool) -> Array:
    padded = jnp.pad(grid, 1, constant_values=outside)
    return padded[1 + down : 1 + down + grid.shape[0], 1 + across : 1 + across + grid.shape[1]]


def _spread(mask: Mask) -> Mask:
    """Return a mask of the cells in `mask` and their 4-connected neighbors."""
    near = [_shift(mask, *step, False) for step in ((-1, 0), (1, 0), (0, -1), (0, 1))]
    return mask | jnp.stack(near).any(axis=0)


def sizes_of(summary: InputSummary) -> Int32[Array, "2 sizes"]:
    """Return candidates for the height and for the width of the output: simple functions of the input's size,
    bounding box and number of colors, and the constants 1 to 30."""
    present = jnp.sum(summary.counts > 0)
    top, left, bottom, right = summary.box
    box = (bottom - top + 1, right - left + 1)
    sides = (summary.height, summary.width)
    candidates = []
    for axis in (0, 1):
        side, other, own = sides[axis], sides[1 - axis], box[axis]
        some = [side, other, 2 * side, 3 * side, 4 * side, side // 2, side // 3, side // 4]
        some += [(side - 1) // 2, (side - 2) // 3, side * side, 2 * side - 1, 2 * side + 1]
        some += [side + 2, side - 2, own, box[1 - axis], own - 2, own // 2, present, present - 1]
        some += [side * (present - 1)]
        candidates.append(jnp.stack([*some, *jnp.arange(1, 31)]))
    return jnp.stack(candidates).astype(jnp.int32)


def histogram_of(summary: InputSummary) -> Float[Array, " numbers"]:
    """Return the global features of an input as one vector.

    The vector contains the fraction of cells of each color, then 1 for each color that occurs and 0 for the
    others, and then the height and the width divided by 30. Colors are sorted by rank, starting with the most
    frequent color.
    """
    sorted_counts = summary.counts[summary.by_rank]
    shares = sorted_counts / jnp.maximum(1, jnp.sum(sorted_counts))
    size = jnp.stack([summary.height, summary.width]) / 30
    return jnp.concatenate([shares, (sorted_counts > 0).astype(jnp.float32), size])

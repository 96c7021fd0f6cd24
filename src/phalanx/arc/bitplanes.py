"""Conversion between grids of colors and bit-planes.

A grid is stored as four bit-planes, which have one uint32 per row. In plane k, bit c of row r is bit k of the
color of the cell in row r and column c.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Int8, UInt32

NUM_PLANES = 4
"""Number of bit-planes per grid. Four bits are enough for ten colors."""

Rows = UInt32[Array, "*batch rows"]
"""A mask of cells as one uint32 per row, whose bit c is set if the cell in column c belongs to the mask."""
Cells = Int8[Array, "*batch rows columns"]
"""Colors of grids on a canvas, -1 outside the grids."""
Side = Int[Array, "*batch"]
"""Height or width of grids."""


def pack_grid(grid: np.ndarray, rows: int) -> np.ndarray:
    """Convert a grid to bit-planes, padded with zeros to `rows` rows.

    >>> pack_grid(np.array([[1, 0, 3]]), rows=2).tolist()
    [[5, 0], [4, 0], [0, 0], [0, 0]]
    """
    height, width = grid.shape
    bits = np.zeros((NUM_PLANES, rows, 32), np.uint8)
    bits[:, :height, :width] = grid >> np.arange(NUM_PLANES)[:, None, None] & 1
    return np.packbits(bits, axis=2, bitorder="little").view("<u4")[:, :, 0]


def trim(grid: object) -> np.ndarray:
    """Remove the -1 padding below and to the right of a grid.

    >>> trim([[1, 2, -1], [-1, -1, -1]]).tolist()
    [[1, 2]]
    """
    cells = np.asarray(grid)
    if cells.ndim != 2 or cells.dtype.kind != "i":
        return cells
    inside = cells >= 0
    return cells[: inside.any(axis=1).sum(), : inside.any(axis=0).sum()]


def low_bits(count: Int[Array, "*batch"]) -> UInt32[Array, "*batch"]:
    """Return integers whose lowest `count` bits are set. Counts may be 0 to 31."""
    return (jnp.uint32(1) << count.astype(jnp.uint32)) - 1


# With `inline=True`, each of these functions is a single program when called outside `jit`, and part of the
# caller's program when called inside.
@partial(jax.jit, static_argnums=2, inline=True)
def area_bits(height: Side, width: Side, rows: int) -> Rows:
    """Return a mask of the cells in the first `height` rows and `width` columns, as one uint32 per row."""
    return jnp.where(jnp.arange(rows) < height[..., None], low_bits(width)[..., None], jnp.uint32(0))


@partial(jax.jit, inline=True)
def pack_mask(mask: Bool[Array, "*batch rows columns"]) -> Rows:
    """Convert a mask to one uint32 per row."""
    weights = jnp.uint32(1) << jnp.arange(mask.shape[-1], dtype=jnp.uint32)
    return jnp.sum(jnp.where(mask, weights, jnp.uint32(0)), axis=-1, dtype=jnp.uint32)


@partial(jax.jit, static_argnums=1, inline=True)
def unpack_mask(bits: Rows, columns: int) -> Bool[Array, "*batch rows columns"]:
    """Convert one uint32 per row to a mask with the given number of columns."""
    return (bits[..., None] >> jnp.arange(columns, dtype=jnp.uint32)) & 1 != 0


@partial(jax.jit, static_argnums=2, inline=True)
def unpack_cells(planes: UInt32[Array, "*batch 4 rows"], inside: Rows, columns: int) -> Cells:
    """Convert bit-planes to colors.

    Args:
        planes: Bit-planes of the grids.
        inside: Mask of the cells that belong to the grids, as one uint32 per row. The other cells become -1.
        columns: Number of columns in the result.
    """
    cells = sum(_bytes_of_bits(planes[..., k, :], columns) << k for k in range(NUM_PLANES))
    cells = cells | _bytes_of_bits(~inside, columns) * jnp.uint32(0xFF)
    split = jax.lax.bitcast_convert_type(cells, jnp.int8)
    return split.reshape(*split.shape[:-2], 4 * split.shape[-2])[..., :columns]


def _bytes_of_bits(bits: Rows, columns: int) -> UInt32[Array, "*batch rows quads"]:
    """Convert each bit to a byte with the value 0 or 1. The bytes are returned in groups of four, as uint32.
    A single multiplication spreads four bits over the four bytes."""
    shifts = 4 * jnp.arange(-(-columns // 4), dtype=jnp.uint32)
    nibbles = (bits[..., None] >> shifts) & 0xF
    return (nibbles * jnp.uint32(0x00204081)) & jnp.uint32(0x01010101)


def fit_rows(rows_of_bits: UInt32[Array, "*any have"], rows: int) -> UInt32[Array, "*any rows"]:
    """Pad the last axis with zeros or truncate it, so that it has `rows` entries. This is needed because the
    arrays of a task buffer have only as many rows as its tallest grid."""
    missing = max(rows - rows_of_bits.shape[-1], 0)
    return jnp.pad(rows_of_bits[..., :rows], [(0, 0)] * (rows_of_bits.ndim - 1) + [(0, missing)])

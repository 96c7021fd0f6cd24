"""Bit-planes: a grid as four planes of row words, and the way back to cells.

Bit c of row word r in plane k is bit k of the color at (r, c). Operations on planes are in the engines.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Int8, UInt32

NUM_PLANES = 4


def pack_grid(grid: np.ndarray, rows: int) -> np.ndarray:
    """The planes of a small grid, padded with zeros to `rows` rows.

    >>> pack_grid(np.array([[1, 0, 3]]), rows=2).tolist()
    [[5, 0], [4, 0], [0, 0], [0, 0]]
    """
    height, width = grid.shape
    weights = np.uint32(1) << np.arange(width, dtype=np.uint32)
    bits = (grid[None].astype(np.uint32) >> np.arange(NUM_PLANES, dtype=np.uint32)[:, None, None]) & 1
    planes = np.zeros((NUM_PLANES, rows), np.uint32)
    planes[:, :height] = (bits * weights).sum(axis=2, dtype=np.uint32)
    return planes


def trim(grid: object) -> np.ndarray:
    """A grid without the cells of -1 that stand outside its area where it is shown on a canvas.

    >>> area_of([[1, 2, -1], [-1, -1, -1]]).tolist()
    [[1, 2]]
    """
    cells = np.asarray(grid)
    if cells.ndim != 2 or cells.dtype.kind != "i":
        return cells
    inside = cells >= 0
    return cells[: inside.any(axis=1).sum(), : inside.any(axis=0).sum()]


def low_bits(count: Int[Array, "*batch"]) -> UInt32[Array, "*batch"]:
    """A word whose lowest `count` bits are set, for counts of 0 to 31."""
    return (jnp.uint32(1) << count.astype(jnp.uint32)) - 1


# Each is compiled as one where the caller compiles nothing, and else is part of the caller's program.
@partial(jax.jit, static_argnums=2, inline=True)
def area_bits(
    height: Int[Array, "*batch"], width: Int[Array, "*batch"], rows: int
) -> UInt32[Array, "*batch rows"]:
    """The first `height` rows and `width` columns as row words."""
    return jnp.where(jnp.arange(rows) < height[..., None], low_bits(width)[..., None], jnp.uint32(0))


@partial(jax.jit, inline=True)
def pack_mask(mask: Bool[Array, "*batch rows columns"]) -> UInt32[Array, "*batch rows"]:
    """Row words of a mask."""
    weights = jnp.uint32(1) << jnp.arange(mask.shape[-1], dtype=jnp.uint32)
    return jnp.sum(jnp.where(mask, weights, jnp.uint32(0)), axis=-1, dtype=jnp.uint32)


@partial(jax.jit, static_argnums=1, inline=True)
def unpack_mask(words: UInt32[Array, "*batch rows"], columns: int) -> Bool[Array, "*batch rows columns"]:
    """The mask that row words stand for."""
    return (words[..., None] >> jnp.arange(columns, dtype=jnp.uint32)) & 1 != 0


@partial(jax.jit, static_argnums=2, inline=True)
def unpack_cells(
    planes: UInt32[Array, "*batch 4 rows"], inside: UInt32[Array, "*batch rows"], columns: int
) -> Int8[Array, "*batch rows columns"]:
    """The colors that planes stand for; -1 where not inside."""
    cells = sum(_bytes_of_bits(planes[..., k, :], columns) << k for k in range(NUM_PLANES))
    cells = cells | _bytes_of_bits(~inside, columns) * jnp.uint32(0xFF)
    split = jax.lax.bitcast_convert_type(cells, jnp.int8)
    return split.reshape(*split.shape[:-2], 4 * split.shape[-2])[..., :columns]


def _bytes_of_bits(words: UInt32[Array, "*batch rows"], columns: int) -> UInt32[Array, "*batch rows quads"]:
    """Each bit as a byte of 0 or 1, four to a word: a product copies a nibble to where it is wanted."""
    shifts = 4 * jnp.arange(-(-columns // 4), dtype=jnp.uint32)
    nibbles = (words[..., None] >> shifts) & 0xF
    return (nibbles * jnp.uint32(0x00204081)) & jnp.uint32(0x01010101)


def fit_rows(words: UInt32[Array, "*any have"], rows: int) -> UInt32[Array, "*any rows"]:
    """Pad or cut the last axis to `rows`; a task buffer has as many rows as its tallest grid."""
    missing = rows - words.shape[-1]
    if missing <= 0:
        return words[..., :rows]
    return jnp.pad(words, [(0, 0)] * (words.ndim - 1) + [(0, missing)])

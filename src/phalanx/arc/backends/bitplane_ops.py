"""Operations on bit-planes in XLA: bounding boxes, symmetries, shifts and flood fill.

The last axis is the batch, so that one vector instruction processes many environments.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int32, UInt32

from phalanx.arc.bitplanes import low_bits

Bits = UInt32[Array, "*planes rows batch"]
Mask = UInt32[Array, "rows batch"]
SquarePlanes = UInt32[Array, "planes side batch"]
ZERO = np.uint32(0)


class BoundingBox(NamedTuple):
    """First and last row and column of the bounding box of each mask in a batch. They are undefined if
    `empty` is True."""

    top: Int32[Array, " batch"]
    bottom: Int32[Array, " batch"]
    left: Int32[Array, " batch"]
    right: Int32[Array, " batch"]
    empty: Bool[Array, " batch"]


def rows_below(limit: Int32[Array, " batch"], rows: int) -> Bool[Array, "rows batch"]:
    """Return a mask of the rows whose index is below `limit`."""
    return jnp.arange(rows, dtype=jnp.int32)[:, None] < limit


def area(height: Int32[Array, " batch"], width: Int32[Array, " batch"], rows: int) -> Bits:
    """Return the mask of the cells in the first `height` rows and `width` columns, as one uint32 per row."""
    return jnp.where(rows_below(height, rows), low_bits(width), ZERO)


def bounding_box(mask: Mask) -> BoundingBox:
    """Compute the bounding box of each mask."""
    rows = mask.shape[0]
    index = jnp.arange(rows, dtype=jnp.int32)[:, None]
    used = mask != 0
    top = jnp.min(jnp.where(used, index, rows), axis=0)
    bottom = jnp.max(jnp.where(used, index, -1), axis=0)
    columns = jax.lax.reduce(mask, ZERO, jax.lax.bitwise_or, (0,))
    left = jax.lax.population_count((columns & (~columns + 1)) - 1).astype(jnp.int32)
    right = 31 - jax.lax.clz(columns).astype(jnp.int32)
    return BoundingBox(top, bottom, left & 31, right, columns == 0)


def reverse_columns(bits: Bits, side: int) -> Bits:
    """Reverse the first `side` columns: bit c becomes bit side - 1 - c."""
    for shift, mask in ((1, 0x55555555), (2, 0x33333333), (4, 0x0F0F0F0F), (8, 0x00FF00FF)):
        low = jnp.uint32(mask)
        bits = ((bits >> shift) & low) | ((bits & low) << shift)
    return ((bits >> 16) | (bits << 16)) >> (32 - side)


def transpose(bits: SquarePlanes) -> SquarePlanes:
    """Transpose each plane by exchanging blocks of decreasing size."""
    planes, side, batch = bits.shape
    block = side // 2
    while block:
        low = sum(((1 << block) - 1) << start for start in range(0, side, 2 * block))
        halves = bits.reshape(planes, side // (2 * block), 2, block, batch)
        upper, lower = halves[:, :, 0], halves[:, :, 1]
        swap = ((upper >> block) ^ lower) & jnp.uint32(low)
        bits = jnp.stack([upper ^ (swap << block), lower ^ swap], axis=2).reshape(planes, side, batch)
        block //= 2
    return bits


def roll(bits: SquarePlanes, down: Int32[Array, " batch"], right: Int32[Array, " batch"]) -> SquarePlanes:
    """Cyclically shift the planes of each environment by `down` rows and `right` columns."""
    side = bits.shape[1]
    source = (jnp.arange(side, dtype=jnp.int32)[:, None] - down) & (side - 1)
    bits = jnp.take_along_axis(bits, source[None], axis=1)
    right = (right & (side - 1)).astype(jnp.uint32)
    # A shift by 32 gives 0 in XLA, so `side` may be 32.
    rolled = (bits << right) | (bits >> (side - right))
    return rolled & jnp.uint32((1 << side) - 1)


def count_cells(mask: Mask) -> Int32[Array, " batch"]:
    """Count the set cells of each mask."""
    return jnp.sum(jax.lax.population_count(mask).astype(jnp.int32), axis=0)


def flood(open_cells: Mask, seed: Mask) -> Mask:
    """Flood-fill from the seed cells of each environment through the 4-connected open cells.

    The rows are swept down and then up, until no region in the batch grows. Most regions need two or three
    sweeps. A winding region needs one sweep per bend.
    """

    def sweep(region: Bits, upwards: bool) -> Bits:
        def row(before: Array, at: tuple[Array, Array]) -> tuple[Array, Array]:
            run, reached = at
            grown = _filled_run(run, (reached | before) & run)
            return grown, grown

        return jax.lax.scan(row, jnp.zeros_like(seed[0]), (open_cells, region), reverse=upwards)[1]

    def grow(carry: tuple[Bits, Array]) -> tuple[Bits, Array]:
        region, _ = carry
        grown = sweep(sweep(region, upwards=False), upwards=True)
        return grown, jnp.any(grown != region)

    return jax.lax.while_loop(lambda carry: carry[1], grow, (seed, jnp.any(seed != 0)))[0]


def _filled_run(run: UInt32[Array, " batch"], seed: UInt32[Array, " batch"]) -> UInt32[Array, " batch"]:
    """Return the runs of consecutive set bits in `run` that contain at least one set bit of `seed`, a subset
    of `run`. The seed is spread to higher bits by the carry of an addition, and to lower bits by repeated
    doubling."""
    filled = (run & ~(run + seed)) | seed
    for step in (1, 2, 4, 8, 16):
        filled = filled | (run & (filled >> step))
        run = run & (run >> step)
    return filled

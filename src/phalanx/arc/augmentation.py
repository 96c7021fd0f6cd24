"""Augmentation: tasks turned, mirrored and recolored by a key, traced, so that a new draw compiles nothing.

What the drawn tasks are used for is the learners' part: `ArcEnvironment.with_tasks` takes the arrays.
"""

import dataclasses
from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int32, UInt32

from phalanx.arc.bitplanes import NUM_PLANES, fit_rows
from phalanx.arc.operations import NUM_COLORS
from phalanx.arc.task_buffer import TaskArrays, TaskBuffer
from phalanx.arc.tasks import ArcTask, GridPair
from phalanx.core.environment import Key

NUM_SYMMETRIES = 8
"""Bit 0 exchanges rows and columns; then bit 1 mirrors left to right and bit 2 top to bottom."""
_WORD = 32
_TRANSPOSE = 1


@partial(jax.jit, static_argnames=("symmetries", "colors", "keep_black"))
def augment(
    arrays: TaskArrays, key: Key, *, symmetries: bool = True, colors: bool = True, keep_black: bool = True
) -> TaskArrays:
    """Each task under a symmetry and a permutation of colors of its own, the same for all its pairs.

    Turning grids may make them taller, so the arrays must have rows for the widest of them: `from_tasks`
    takes `num_rows`. Whether the tasks still fit a canvas that is not square is the caller's concern.

    Args:
        arrays: the tasks.
        key: draws the symmetries and the permutations.
        symmetries: whether grids are turned and mirrored.
        colors: whether colors are exchanged.
        keep_black: whether color 0, which is the background of most tasks, stays what it is.
    """
    count = arrays.table.shape[-2]
    symmetry_key, color_key = jax.random.split(key)
    drawn = jax.random.randint(symmetry_key, (count,), 0, NUM_SYMMETRIES if symmetries else 1)
    fixed = (NUM_COLORS if not colors else 1) if keep_black or not colors else 0
    order = jnp.argsort(jax.random.uniform(color_key, (count, NUM_COLORS - fixed)), axis=-1) + fixed
    same = jnp.broadcast_to(jnp.arange(fixed), (count, fixed))
    return transform_tasks(arrays, drawn, jnp.concatenate([same, order], axis=-1).astype(jnp.int32))


def transform_tasks(
    arrays: TaskArrays, symmetries: Int32[Array, " tasks"], permutations: Int32[Array, "tasks 10"]
) -> TaskArrays:
    """Each task under a given symmetry (0 to 7, by the bits of `NUM_SYMMETRIES`) and permutation of colors.

    A permutation says for each color which one takes its place.
    """
    num_pairs, rows = arrays.pairs.shape[0], arrays.pairs.shape[-1]
    owner = _owners(arrays, num_pairs)
    symmetry, permutation = symmetries[owner], permutations[owner]
    # [pairs, 2]: of input and of output.
    sizes = arrays.sizes.reshape(num_pairs, 2, 2)
    turned = (symmetry & _TRANSPOSE > 0)[:, None]
    after = jnp.where(turned[..., None], sizes[..., ::-1], sizes)
    inside = _area(sizes)[..., None, :]
    planes = _recolored(fit_rows(arrays.pairs, _WORD), inside, permutation)
    planes = jnp.where(turned[..., None, None], _transposed(planes), planes)
    planes = jnp.where((symmetry & 2 > 0)[:, None, None, None], _mirrored(planes, after[..., 1]), planes)
    planes = jnp.where((symmetry & 4 > 0)[:, None, None, None], _upended(planes, after[..., 0]), planes)
    return dataclasses.replace(arrays, pairs=planes[..., :rows], sizes=after.reshape(num_pairs, 4))


def augment_tasks(tasks: Sequence[ArcTask], key: Key, **settings: bool) -> list[ArcTask]:
    """The same on the host, for whoever needs grids: tasks under a drawn symmetry and permutation each.

    Families and solutions are left out, because they may not hold for what comes of it.
    """
    room = max(max(task.max_shape) for task in tasks)
    arrays = jax.device_get(augment(TaskBuffer.from_tasks(tasks, num_rows=room).arrays, key, **settings))
    columns, bits = np.arange(_WORD, dtype=np.uint32), np.arange(NUM_PLANES)[:, None, None]
    cells = ((arrays.pairs[..., None] >> columns & 1) << bits).sum(axis=2).astype(np.int8)

    def pair(place: int) -> GridPair:
        (h, w), (rows, width) = arrays.sizes[place].reshape(2, 2)
        return GridPair(cells[place, 0, :h, :w], cells[place, 1, :rows, :width] if rows else None)

    made = []
    for task, (first, demos, tests) in zip(tasks, arrays.table.tolist(), strict=True):
        pairs = tuple(pair(place) for place in range(first, first + demos + tests))
        made.append(ArcTask(task.id, pairs[:demos], pairs[demos:]))
    return made


def _owners(arrays: TaskArrays, num_pairs: int) -> Int32[Array, " pairs"]:
    """The task of each pair; the last one's behind all pairs."""
    behind = arrays.table[:, 0] + arrays.table[:, 1] + arrays.table[:, 2]
    there = jnp.arange(arrays.table.shape[0]) < arrays.num_tasks
    ends = jnp.where(there, behind, num_pairs)
    owner = jnp.searchsorted(ends, jnp.arange(num_pairs), side="right")
    return jnp.minimum(owner, arrays.table.shape[0] - 1).astype(jnp.int32)


def _area(sizes: Int32[Array, "pairs 2 2"]) -> UInt32[Array, "pairs 2 32"]:
    words = (jnp.uint32(1) << sizes[..., 1].astype(jnp.uint32)) - 1
    return jnp.where(jnp.arange(_WORD) < sizes[..., :1], words[..., None], jnp.uint32(0))


def _recolored(
    planes: UInt32[Array, "pairs 2 4 32"],
    inside: UInt32[Array, "pairs 2 1 32"],
    permutation: Int32[Array, "pairs 10"],
) -> UInt32[Array, "pairs 2 4 32"]:
    """The cells of each color are a product of planes; they go to the planes of the color in its place."""
    result = jnp.zeros_like(planes)
    bits = np.arange(NUM_PLANES)
    for color in range(NUM_COLORS):
        here = inside[..., 0, :]
        for bit in range(NUM_PLANES):
            plane = planes[..., bit, :]
            here = here & (plane if color >> bit & 1 else ~plane)
        wanted: Bool[Array, "pairs 4"] = permutation[:, color, None] >> bits & 1 > 0
        result = result | jnp.where(wanted[:, None, :, None], here[..., None, :], jnp.uint32(0))
    return result


def _transposed(planes: UInt32[Array, "*any 32"]) -> UInt32[Array, "*any 32"]:
    """Rows and columns of a 32x32 bit matrix exchanged, by halves: 16x16 blocks first, single bits last."""
    mask = jnp.uint32(0x0000FFFF)
    width = 16
    while width:
        blocks = planes.reshape(*planes.shape[:-1], _WORD // (2 * width), 2, width)
        low, high = blocks[..., 0, :], blocks[..., 1, :]
        swap = ((low >> width) ^ high) & mask
        low, high = low ^ (swap << width), high ^ swap
        planes = jnp.stack([low, high], axis=-2).reshape(planes.shape)
        width //= 2
        mask = mask ^ (mask << width) if width else mask
    return planes


def _mirrored(
    planes: UInt32[Array, "pairs 2 4 32"], widths: Int32[Array, "pairs 2"]
) -> UInt32[Array, "pairs 2 4 32"]:
    """Left to right: all 32 bits reversed, and moved back by what lies beyond the width."""
    for mask, shift in ((0x55555555, 1), (0x33333333, 2), (0x0F0F0F0F, 4), (0x00FF00FF, 8), (0x0000FFFF, 16)):
        planes = (planes >> shift & jnp.uint32(mask)) | (planes & jnp.uint32(mask)) << shift
    return planes >> (_WORD - widths).astype(jnp.uint32)[..., None, None].clip(0, _WORD - 1)


def _upended(
    planes: UInt32[Array, "pairs 2 4 32"], heights: Int32[Array, "pairs 2"]
) -> UInt32[Array, "pairs 2 4 32"]:
    """Top to bottom: row r comes from row height - 1 - r."""
    rows = heights[..., None] - 1 - jnp.arange(_WORD)
    found = jnp.take_along_axis(planes, jnp.clip(rows, 0, _WORD - 1)[..., None, :], axis=-1)
    return jnp.where((rows >= 0)[..., None, :], found, jnp.uint32(0))

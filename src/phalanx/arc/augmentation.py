"""Random symmetries and color permutations of tasks, computed inside compiled programs."""

import dataclasses
from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int32, UInt32

from phalanx.arc.backends.bitplane_ops import reverse_columns, transpose
from phalanx.arc.bitplanes import NUM_PLANES, area_bits, fit_rows
from phalanx.arc.operations import NUM_COLORS
from phalanx.arc.task_buffer import TaskArrays, TaskBuffer
from phalanx.arc.tasks import ArcTask, GridPair
from phalanx.core.environment import Key
from phalanx.core.vector import select_rows

NUM_SYMMETRIES = 8
"""Number of symmetries of a square. The three bits of a symmetry's index determine which transformations are
applied: bit 0 first transposes the grid, bit 1 then flips it horizontally, and bit 2 then flips it
vertically."""
_WORD = 32
"""Number of rows and columns of a bit matrix, whose rows are uint32 numbers."""

Planes = UInt32[Array, "pairs 2 4 32"]
"""Bit-planes of the input and output of each pair. Each is a 32x32 bit matrix with one uint32 per row."""
Sides = Int32[Array, "pairs 2"]
"""Height or width of the input and output of each pair."""


@partial(jax.jit, static_argnames="keep_black")
def augment(arrays: TaskArrays, key: Key, *, keep_black: bool = True) -> TaskArrays:
    """Apply a random symmetry and a random color permutation to each task. All pairs of a task are
    transformed in the same way.

    Transposing exchanges the height and the width of a grid, so the arrays must have at least as many rows as
    the widest grid has columns; see the `num_rows` argument of `TaskBuffer.from_tasks`. If the canvas is not
    square, the result may not fit on it.

    Args:
        arrays: The tasks.
        key: Random key.
        keep_black: Do not change color 0, which is the background of most tasks.
    """
    count = arrays.table.shape[-2]
    symmetry_key, color_key = jax.random.split(key)
    symmetries = jax.random.randint(symmetry_key, (count,), 0, NUM_SYMMETRIES)
    fixed = int(keep_black)
    colors = jnp.argsort(jax.random.uniform(color_key, (count, NUM_COLORS - fixed)), axis=-1) + fixed
    return transform_tasks(arrays, symmetries, jnp.pad(colors, [(0, 0), (fixed, 0)]).astype(jnp.int32))


def transform_tasks(
    arrays: TaskArrays, symmetries: Int32[Array, " tasks"], permutations: Int32[Array, "tasks 10"]
) -> TaskArrays:
    """Apply a given symmetry and a given color permutation to each task.

    Args:
        arrays: The tasks.
        symmetries: Index of each task's symmetry, 0 to 7; see `NUM_SYMMETRIES`.
        permutations: For each task, a permutation of the colors. Entry c is the color that replaces color c.
    """
    num_pairs, rows = arrays.pairs.shape[0], arrays.pairs.shape[-1]
    owner = _owners(arrays, num_pairs)
    symmetry, permutation = symmetries[owner], permutations[owner]
    # [pairs, 2, 2]: height and width of the input and the output.
    sizes = arrays.sizes.reshape(num_pairs, 2, 2)
    after = select_rows(symmetry & 1 > 0, sizes[..., ::-1], sizes)
    inside = area_bits(sizes[..., 0], sizes[..., 1], _WORD)
    planes = _permute_colors(fit_rows(arrays.pairs, _WORD), inside, permutation)
    # `transpose` expects the batch as the last axis, after the rows.
    transposed = transpose(planes.reshape(1, -1, _WORD).swapaxes(1, 2)).swapaxes(1, 2)
    planes = select_rows(symmetry & 1 > 0, transposed.reshape(planes.shape), planes)
    planes = select_rows(symmetry & 2 > 0, _flip_columns(planes, after[..., 1]), planes)
    planes = select_rows(symmetry & 4 > 0, _flip_rows(planes, after[..., 0]), planes)
    return dataclasses.replace(arrays, pairs=planes[..., :rows], sizes=after.reshape(num_pairs, 4))


def augment_tasks(tasks: Sequence[ArcTask], key: Key, *, keep_black: bool = True) -> list[ArcTask]:
    """Apply `augment` to a list of tasks, and return new tasks.

    The new tasks have no families and no solutions, because the families and solutions of the original tasks
    may not be valid for them.

    Args:
        tasks: The tasks.
        key: Random key.
        keep_black: Do not change color 0.
    """
    num_rows = max(max(task.max_shape) for task in tasks)
    buffer = TaskBuffer.from_tasks(tasks, num_rows=num_rows)
    arrays = jax.device_get(augment(buffer.arrays, key, keep_black=keep_black))
    columns, bits = np.arange(_WORD, dtype=np.uint32), np.arange(NUM_PLANES)[:, None, None]
    cells = ((arrays.pairs[..., None] >> columns & 1) << bits).sum(axis=2).astype(np.int8)

    def pair(index: int) -> GridPair:
        (h, w), (rows, width) = arrays.sizes[index].reshape(2, 2)
        return GridPair(cells[index, 0, :h, :w], cells[index, 1, :rows, :width] if rows else None)

    augmented = []
    for task, (first, demos, tests) in zip(tasks, arrays.table.tolist(), strict=True):
        pairs = tuple(pair(index) for index in range(first, first + demos + tests))
        augmented.append(ArcTask(task.id, pairs[:demos], pairs[demos:]))
    return augmented


def _owners(arrays: TaskArrays, num_pairs: int) -> Int32[Array, " pairs"]:
    """Return the index of the task to which each pair belongs. Padding pairs are assigned to the last
    task."""
    last = arrays.table[:, 0] + arrays.table[:, 1] + arrays.table[:, 2]
    exists = jnp.arange(arrays.table.shape[0]) < arrays.num_tasks
    ends = jnp.where(exists, last, num_pairs)
    owner = jnp.searchsorted(ends, jnp.arange(num_pairs), side="right")
    return jnp.minimum(owner, arrays.table.shape[0] - 1).astype(jnp.int32)


def _permute_colors(
    planes: Planes, inside: UInt32[Array, "pairs 2 32"], permutation: Int32[Array, "pairs 10"]
) -> Planes:
    """Replace the colors of all cells in the `inside` mask: color c becomes `permutation[:, c]`. Other cells
    become 0."""
    result = jnp.zeros_like(planes)
    bits = np.arange(NUM_PLANES)
    for color in range(NUM_COLORS):
        here = inside
        for bit in range(NUM_PLANES):
            plane = planes[..., bit, :]
            here = here & (plane if color >> bit & 1 else ~plane)
        wanted: Bool[Array, "pairs 4"] = permutation[:, color, None] >> bits & 1 > 0
        result = result | jnp.where(wanted[:, None, :, None], here[..., None, :], jnp.uint32(0))
    return result


def _flip_columns(planes: Planes, widths: Sides) -> Planes:
    """Flip horizontally by reversing the 32 bits of each row and shifting out the unused columns."""
    return reverse_columns(planes, _WORD) >> (_WORD - widths).astype(jnp.uint32)[..., None, None]


def _flip_rows(planes: Planes, heights: Sides) -> Planes:
    """Flip vertically, so that row r becomes row height - 1 - r."""
    rows = heights[..., None] - 1 - jnp.arange(_WORD)
    found = jnp.take_along_axis(planes, jnp.clip(rows, 0, _WORD - 1)[..., None, :], axis=-1)
    return jnp.where((rows >= 0)[..., None, :], found, jnp.uint32(0))

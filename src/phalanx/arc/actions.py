"""Actions: an operation and the cells it names, as a point, a box or a mask.

Whether an operation is allowed depends on the config and is checked by the engines.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Int32
from numpy.typing import ArrayLike

from phalanx.arc.config import ArcConfig
from phalanx.arc.operations import NUM_OPERATIONS
from phalanx.core.environment import Key
from phalanx.core.spaces import Box, Composite, Discrete, Space

_INT32 = np.iinfo(np.int32)


def check_integers(value: ArrayLike, where: str = "an action") -> Int32[Array, "*batch"]:
    """Whole numbers as int32; fractions are refused, not cut, and what is too large stays too large."""
    array = value if isinstance(value, jax.Array) else np.asarray(value)
    if array.dtype == jnp.int32:
        return jnp.asarray(array)
    if not jnp.issubdtype(array.dtype, jnp.integer):
        raise TypeError(f"{where} is made of whole numbers, got {array.dtype}; round them yourself")
    if array.dtype.itemsize >= 4:
        # Beyond int32 lie no operation and no cell, where a plain cast would wrap round.
        array = array.clip(0 if array.dtype.kind == "u" else _INT32.min, _INT32.max)
    return jnp.asarray(array, jnp.int32)


def cell_mask(value: ArrayLike) -> Bool[Array, "*batch rows columns"]:
    """Cells as booleans, from booleans or whole numbers; fractions are refused."""
    array = value if isinstance(value, jax.Array) else np.asarray(value)
    if array.dtype != bool and not jnp.issubdtype(array.dtype, jnp.integer):
        raise TypeError(f"a selection is made of booleans, got {array.dtype}")
    return jnp.asarray(array, bool)


def _known(operation: Int[Array, "*batch"]) -> Bool[Array, "*batch"]:
    return (operation >= 0) & (operation < NUM_OPERATIONS)


def _within(value: Int[Array, "*batch"], side: int) -> Bool[Array, "*batch"]:
    return (value >= 0) & (value < side)


class PointAction(eqx.Module):
    """An operation on one cell, or a batch of them."""

    operation: Int32[Array, "*batch"] = eqx.field(converter=check_integers)
    """0 to 41; see `phalanx.arc.operations`."""
    row: Int32[Array, "*batch"] = eqx.field(converter=check_integers)
    """Counted from the top."""
    col: Int32[Array, "*batch"] = eqx.field(converter=check_integers)
    """Counted from the left."""

    def to_selection_mask(self, grid_shape: tuple[int, int]) -> Bool[Array, "*batch rows columns"]:
        """The cell as a mask; empty where it lies outside the canvas."""
        return BboxAction(self.operation, self.row, self.col, self.row, self.col).to_selection_mask(
            grid_shape
        )

    def validate(self, grid_shape: tuple[int, int]) -> Bool[Array, "*batch"]:
        """Whether the operation is known and the cell lies on the canvas."""
        rows, columns = grid_shape
        return _known(self.operation) & _within(self.row, rows) & _within(self.col, columns)

    def __jax_array__(self) -> Int32[Array, "*batch 3"]:
        return jnp.stack([self.operation, self.row, self.col], axis=-1)


class BboxAction(eqx.Module):
    """An operation on a box of cells, or a batch of them; corners are included and come in any order."""

    operation: Int32[Array, "*batch"] = eqx.field(converter=check_integers)
    """0 to 41; see `phalanx.arc.operations`."""
    r1: Int32[Array, "*batch"] = eqx.field(converter=check_integers)
    """One corner's row."""
    c1: Int32[Array, "*batch"] = eqx.field(converter=check_integers)
    """One corner's column."""
    r2: Int32[Array, "*batch"] = eqx.field(converter=check_integers)
    """The other corner's row."""
    c2: Int32[Array, "*batch"] = eqx.field(converter=check_integers)
    """The other corner's column."""

    def to_selection_mask(self, grid_shape: tuple[int, int]) -> Bool[Array, "*batch rows columns"]:
        """The box as a mask, as far as it lies on the canvas."""
        r1, r2 = jnp.minimum(self.r1, self.r2), jnp.maximum(self.r1, self.r2)
        c1, c2 = jnp.minimum(self.c1, self.c2), jnp.maximum(self.c1, self.c2)
        rows, columns = jnp.arange(grid_shape[0]), jnp.arange(grid_shape[1])
        in_rows = (rows >= r1[..., None]) & (rows <= r2[..., None])
        in_columns = (columns >= c1[..., None]) & (columns <= c2[..., None])
        return in_rows[..., :, None] & in_columns[..., None, :]

    def validate(self, grid_shape: tuple[int, int]) -> Bool[Array, "*batch"]:
        """Whether the operation is known and both corners lie on the canvas."""
        rows, columns = grid_shape
        in_rows = _within(self.r1, rows) & _within(self.r2, rows)
        return _known(self.operation) & in_rows & _within(self.c1, columns) & _within(self.c2, columns)

    def __jax_array__(self) -> Int32[Array, "*batch 5"]:
        return jnp.stack([self.operation, self.r1, self.c1, self.r2, self.c2], axis=-1)


class MaskAction(eqx.Module):
    """An operation on any set of cells, or a batch of them."""

    operation: Int32[Array, "*batch"] = eqx.field(converter=check_integers)
    """0 to 41; see `phalanx.arc.operations`."""
    selection: Bool[Array, "*batch rows columns"] = eqx.field(converter=cell_mask)
    """The cells, on the whole canvas."""

    def to_selection_mask(self, grid_shape: tuple[int, int]) -> Bool[Array, "*batch rows columns"]:
        """The mask itself; its shape must be the canvas's."""
        if self.selection.shape[-2:] != tuple(grid_shape):
            raise ValueError(f"a mask of {self.selection.shape[-2:]} does not cover a canvas of {grid_shape}")
        return self.selection

    def validate(self, grid_shape: tuple[int, int]) -> Bool[Array, "*batch"]:
        """Whether the operation is known; a mask cannot leave the canvas."""
        self.to_selection_mask(grid_shape)
        return _known(self.operation)

    def __jax_array__(self) -> Int32[Array, "*batch cells"]:
        cells = self.selection.reshape(*self.operation.shape, -1).astype(jnp.int32)
        return jnp.concatenate([self.operation[..., None], cells], axis=-1)


Action = PointAction | BboxAction | MaskAction


def create_point_action(operation: ArrayLike, row: ArrayLike, col: ArrayLike) -> PointAction:
    """A point action from plain numbers or arrays."""
    return PointAction(operation, row, col)  # type: ignore[arg-type]


def create_bbox_action(
    operation: ArrayLike, r1: ArrayLike, c1: ArrayLike, r2: ArrayLike, c2: ArrayLike
) -> BboxAction:
    """A box action from plain numbers or arrays."""
    return BboxAction(operation, r1, c1, r2, c2)  # type: ignore[arg-type]


def create_mask_action(operation: ArrayLike, selection: ArrayLike) -> MaskAction:
    """A mask action from plain numbers and a boolean array."""
    return MaskAction(operation, selection)  # type: ignore[arg-type]


def check_bounds_jax(action: Action, grid_shape: tuple[int, ...]) -> Bool[Array, "*batch"]:
    """Whether the cells that an action names lie on the canvas (the last two axes of a grid's shape)."""
    known = eqx.tree_at(lambda a: a.operation, action, jnp.zeros_like(action.operation))
    return known.validate((grid_shape[-2], grid_shape[-1]))


def random_action(
    key: Key,
    config: ArcConfig,
    operations: tuple[int, ...],
    height: Int32[Array, ""],
    width: Int32[Array, ""],
) -> Action:
    """One of the operations on random cells of an area."""
    from_key, row_key, column_key = jax.random.split(key, 3)
    operation = jnp.asarray(operations)[jax.random.randint(from_key, (), 0, len(operations))]
    rows = jax.random.randint(row_key, (2,), 0, height)
    columns = jax.random.randint(column_key, (2,), 0, width)
    box = BboxAction(operation, rows[0], columns[0], rows[1], columns[1])
    match config.action.selection_format:
        case "point":
            return PointAction(operation, box.r1, box.c1)
        case "bbox":
            return box
        case "mask":
            return MaskAction(operation, box.to_selection_mask(config.grid_shape))


def action_space(config: ArcConfig) -> Space:
    """The space of the config's action format."""
    rows, columns = config.grid_shape
    operation = Discrete(NUM_OPERATIONS)
    row, column = Discrete(rows), Discrete(columns)
    match config.action.selection_format:
        case "point":
            return Composite.of(PointAction, {"operation": operation, "row": row, "col": column})
        case "bbox":
            corners = {"r1": row, "c1": column, "r2": row, "c2": column}
            return Composite.of(BboxAction, {"operation": operation, **corners})
        case "mask":
            cells = Box(0, 1, (rows, columns), np.bool_)
            return Composite.of(MaskAction, {"operation": operation, "selection": cells})

"""Actions: an operation and the cells it names, as a point, a box or a mask.

Whether an operation is allowed depends on the config and is checked in `environment`.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Int32
from numpy.typing import ArrayLike

from phalanx.arc.operations import NUM_OPERATIONS


def _int32(value: ArrayLike) -> Int32[Array, "*batch"]:
    return jnp.asarray(value, jnp.int32)


def _known(operation: Int[Array, "*batch"]) -> Bool[Array, "*batch"]:
    return (operation >= 0) & (operation < NUM_OPERATIONS)


def _within(value: Int[Array, "*batch"], side: int) -> Bool[Array, "*batch"]:
    return (value >= 0) & (value < side)


class PointAction(eqx.Module):
    """An operation on one cell, or a batch of them."""

    operation: Int32[Array, "*batch"] = eqx.field(converter=_int32)
    """0 to 41; see `phalanx.arc.operations`."""
    row: Int32[Array, "*batch"] = eqx.field(converter=_int32)
    """Counted from the top."""
    col: Int32[Array, "*batch"] = eqx.field(converter=_int32)
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

    operation: Int32[Array, "*batch"] = eqx.field(converter=_int32)
    """0 to 41; see `phalanx.arc.operations`."""
    r1: Int32[Array, "*batch"] = eqx.field(converter=_int32)
    """One corner's row."""
    c1: Int32[Array, "*batch"] = eqx.field(converter=_int32)
    """One corner's column."""
    r2: Int32[Array, "*batch"] = eqx.field(converter=_int32)
    """The other corner's row."""
    c2: Int32[Array, "*batch"] = eqx.field(converter=_int32)
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

    operation: Int32[Array, "*batch"] = eqx.field(converter=_int32)
    """0 to 41; see `phalanx.arc.operations`."""
    selection: Bool[Array, "*batch rows columns"] = eqx.field(converter=lambda v: jnp.asarray(v, bool))
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

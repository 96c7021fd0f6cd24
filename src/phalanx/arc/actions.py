"""Actions of the ARC environment. An action is an operation and the selected cells, given as a point, a
bounding box or a mask."""

import abc
import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Int32
from numpy.typing import ArrayLike

from phalanx.arc.config import ArcConfig
from phalanx.arc.operations import NUM_OPERATIONS
from phalanx.arc.state import ArcState
from phalanx.core.environment import Key
from phalanx.core.spaces import Box, Composite, Discrete, Space

_INT32 = np.iinfo(np.int32)


def check_integers(value: ArrayLike, where: str = "an action") -> Int32[Array, "*batch"]:
    """Check that values are integers, and convert them to int32. Values outside the range of int32 are
    clipped.

    Args:
        value: Integers.
        where: Description of the object that contains the integers, for the error message.

    Raises:
        TypeError: If the values are not integers.
    """
    array = value if isinstance(value, jax.Array) else np.asarray(value)
    if array.dtype == jnp.int32:
        return jnp.asarray(array)
    if not jnp.issubdtype(array.dtype, jnp.integer):
        raise TypeError(f"{where} consists of integers, got {array.dtype}; round the values first")
    if array.dtype.itemsize >= 4:
        # No operation or cell is outside the range of int32, and a cast would wrap around.
        array = array.clip(0 if array.dtype.kind == "u" else _INT32.min, _INT32.max)
    return jnp.asarray(array, jnp.int32)


def cell_mask(value: ArrayLike) -> Bool[Array, "*batch rows columns"]:
    """Convert booleans or integers to a boolean mask, in which nonzero integers are True. Raises `TypeError`
    for floats."""
    array = value if isinstance(value, jax.Array) else np.asarray(value)
    if array.dtype != bool and not jnp.issubdtype(array.dtype, jnp.integer):
        raise TypeError(f"a selection consists of booleans, got {array.dtype}")
    return jnp.asarray(array, bool)


def _is_within(value: Int[Array, "*batch"], limit: int) -> Bool[Array, "*batch"]:
    return (value >= 0) & (value < limit)


class _BoxAction(eqx.Module):
    """Base class for actions on a rectangle of cells, which is given by two opposite corners."""

    operation: Int32[Array, "*batch"] = eqx.field(converter=check_integers)
    """Id of the operation, 0 to 41."""

    @property
    @abc.abstractmethod
    def corners(self) -> tuple[Array, Array, Array, Array]:
        """Row and column of one corner, and row and column of the opposite corner."""

    def to_selection_mask(self, grid_shape: tuple[int, int]) -> Bool[Array, "*batch rows columns"]:
        """Convert the selected cells to a mask of the canvas. Cells outside the canvas are dropped."""
        r1, c1, r2, c2 = (corner[..., None] for corner in self.corners)
        rows, columns = (jnp.arange(side) for side in grid_shape)
        in_rows = (rows >= jnp.minimum(r1, r2)) & (rows <= jnp.maximum(r1, r2))
        in_columns = (columns >= jnp.minimum(c1, c2)) & (columns <= jnp.maximum(c1, c2))
        return in_rows[..., :, None] & in_columns[..., None, :]

    def validate(self, grid_shape: tuple[int, int]) -> Bool[Array, "*batch"]:
        """Return whether the operation exists and all selected cells are on the canvas."""
        valid = _is_within(self.operation, NUM_OPERATIONS)
        for corner, side in zip(self.corners, (*grid_shape, *grid_shape), strict=True):
            valid &= _is_within(corner, side)
        return valid

    # `jnp.stack` calls this if it gets a list of actions.
    def __jax_array__(self) -> Int32[Array, "*batch fields"]:
        return jnp.stack(jax.tree.leaves(self), axis=-1)


class PointAction(_BoxAction):
    """An operation on one cell, or a batch of such actions."""

    row: Int32[Array, "*batch"] = eqx.field(converter=check_integers)
    """Row of the cell, counted from 0 at the top."""
    col: Int32[Array, "*batch"] = eqx.field(converter=check_integers)
    """Column of the cell, counted from 0 at the left."""

    @property
    def corners(self) -> tuple[Array, Array, Array, Array]:
        return self.row, self.col, self.row, self.col


class BboxAction(_BoxAction):
    """An operation on a bounding box, or a batch of such actions. The box includes both corners, which may be
    given in any order."""

    r1: Int32[Array, "*batch"] = eqx.field(converter=check_integers)
    """Row of one corner."""
    c1: Int32[Array, "*batch"] = eqx.field(converter=check_integers)
    """Column of one corner."""
    r2: Int32[Array, "*batch"] = eqx.field(converter=check_integers)
    """Row of the opposite corner."""
    c2: Int32[Array, "*batch"] = eqx.field(converter=check_integers)
    """Column of the opposite corner."""

    @property
    def corners(self) -> tuple[Array, Array, Array, Array]:
        return self.r1, self.c1, self.r2, self.c2


class MaskAction(eqx.Module):
    """An operation on an arbitrary set of cells, or a batch of such actions."""

    operation: Int32[Array, "*batch"] = eqx.field(converter=check_integers)
    """Id of the operation, 0 to 41."""
    selection: Bool[Array, "*batch rows columns"] = eqx.field(converter=cell_mask)
    """Mask of the selected cells of the canvas."""

    def to_selection_mask(self, grid_shape: tuple[int, int]) -> Bool[Array, "*batch rows columns"]:
        """Return the mask of the selected cells.

        Raises `ValueError` if the mask does not have the shape of the canvas.
        """
        if self.selection.shape[-2:] != tuple(grid_shape):
            raise ValueError(f"the mask has shape {self.selection.shape[-2:]}, the canvas {grid_shape}")
        return self.selection

    def validate(self, grid_shape: tuple[int, int]) -> Bool[Array, "*batch"]:
        """Return whether the operation exists. Raises `ValueError` if the mask does not have the shape of the
        canvas."""
        self.to_selection_mask(grid_shape)
        return _is_within(self.operation, NUM_OPERATIONS)

    def __jax_array__(self) -> Int32[Array, "*batch cells"]:
        cells = self.selection.reshape(*self.operation.shape, -1).astype(jnp.int32)
        return jnp.concatenate([self.operation[..., None], cells], axis=-1)


Action = PointAction | BboxAction | MaskAction
"""An action in any of the three selection formats: point, bounding box or mask."""


def create_point_action(operation: ArrayLike, row: ArrayLike, col: ArrayLike) -> PointAction:
    """Create a `PointAction` from numbers or arrays."""
    return PointAction(operation, row, col)  # type: ignore[arg-type]


def create_bbox_action(
    operation: ArrayLike, r1: ArrayLike, c1: ArrayLike, r2: ArrayLike, c2: ArrayLike
) -> BboxAction:
    """Create a `BboxAction` from numbers or arrays."""
    return BboxAction(operation, r1, c1, r2, c2)  # type: ignore[arg-type]


def create_mask_action(operation: ArrayLike, selection: ArrayLike) -> MaskAction:
    """Create a `MaskAction` from an operation id, or an array of ids, and a boolean mask."""
    return MaskAction(operation, selection)  # type: ignore[arg-type]


def check_bounds(action: Action, grid_shape: tuple[int, ...]) -> Bool[Array, "*batch"]:
    """Return whether the selected cells are on the canvas. The operation is not checked.

    Args:
        action: One action, or a batch.
        grid_shape: Shape whose last two entries are the height and the width of the canvas.
    """
    valid = eqx.tree_at(lambda a: a.operation, action, jnp.zeros_like(action.operation))
    return valid.validate((grid_shape[-2], grid_shape[-1]))


def random_action(
    key: Key, config: ArcConfig, operations: Sequence[int], height: Int32[Array, ""], width: Int32[Array, ""]
) -> Action:
    """Sample a uniformly random action in the config's selection format. The two corners of a box are sampled
    independently. A mask contains the cells of a box that is sampled in the same way.

    Args:
        key: Random key.
        config: Settings of the environment.
        operations: Ids of the operations to sample from.
        height: Number of rows. Cells are sampled from the first `height` rows of the canvas.
        width: Number of columns. Cells are sampled from the first `width` columns of the canvas.
    """
    operation_key, row_key, column_key = jax.random.split(key, 3)
    operation = jnp.asarray(operations)[jax.random.randint(operation_key, (), 0, len(operations))]
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
    """Return the space of actions in the config's selection format."""
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


class KernelAction(NamedTuple):
    """An action in the format that both backends take. For points and boxes, `r1`, `c1`, `r2` and `c2` are
    two opposite corners, and `mask` is empty (0x0). For mask actions, `mask` contains the selected cells, and
    the corners are ignored."""

    operation: Int32[Array, "*batch"]
    r1: Int32[Array, "*batch"]
    c1: Int32[Array, "*batch"]
    r2: Int32[Array, "*batch"]
    c2: Int32[Array, "*batch"]
    mask: Bool[Array, "*batch rows columns"]


def encode_action(action: Action, batch: tuple[int, ...], grid_shape: tuple[int, int]) -> KernelAction:
    """Convert actions in any selection format to a `KernelAction`. A point becomes a 1x1 box.

    Args:
        action: One action, or a batch.
        batch: Expected batch shape, which is empty for a single action.
        grid_shape: Height and width of the canvas.
    """
    name = type(action).__name__
    if not isinstance(action, Action):
        raise TypeError(f"expected a PointAction, BboxAction or MaskAction, got {name}")
    for field in dataclasses.fields(action):
        shape = jnp.shape(getattr(action, field.name))
        expected = (*batch, *grid_shape) if field.name == "selection" else batch
        if shape != expected:
            states = f"a batch of shape {batch}" if batch else "a single state"
            raise ValueError(f"{name}.{field.name} has shape {shape}, expected {expected} for {states}")
    # Constructors convert to int32, but `jax.tree.map` may have changed the fields since.
    operation = check_integers(action.operation, name)
    if isinstance(action, MaskAction):
        return KernelAction(*(operation,) * 5, cell_mask(action.selection))
    r1, c1, r2, c2 = (check_integers(corner, name) for corner in action.corners)
    return KernelAction(operation, r1, c1, r2, c2, jnp.zeros((*batch, 0, 0), bool))


def legal_operations(state: ArcState, config: ArcConfig) -> Bool[Array, "*batch 42"]:
    """Return a boolean mask of the operations that the config allows, broadcast to the batch shape of the
    state."""
    return jnp.broadcast_to(jnp.asarray(config.action.operation_mask), (*state.batch_shape, NUM_OPERATIONS))


def validate_action(action: Action, state: ArcState, config: ArcConfig) -> Bool[Array, "*batch"]:
    """Return whether an action is valid: its operation is allowed and the selected cells are on the
    canvas."""
    legal = legal_operations(state, config)
    operation = jnp.clip(action.operation, 0, NUM_OPERATIONS - 1)
    return action.validate(config.grid_shape) & jnp.take_along_axis(legal, operation[..., None], -1)[..., 0]

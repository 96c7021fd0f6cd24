"""What both engines take and give: packed states, action fields, outcomes, and the legal operations.

Shapes and dtypes are checked here, before either engine sees them; the engines are `native` and `xla`.
"""

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float32, Int8, Int32, UInt32

from phalanx.arc.actions import Action, BboxAction, MaskAction, PointAction, cell_mask, check_integers
from phalanx.arc.config import ArcConfig
from phalanx.arc.operations import NUM_OPERATIONS
from phalanx.arc.state import NUM_BOARDS, NUM_REGISTERS


class Packed(NamedTuple):
    """A state's leaves."""

    boards: UInt32[Array, "*batch 10 rows"]
    registers: Int32[Array, "*batch 8"]
    similarity: Float32[Array, "*batch"]


class KernelAction(NamedTuple):
    """An action's fields in one form: a box, or a mask, with the other left empty."""

    operation: Int32[Array, "*batch"]
    r1: Int32[Array, "*batch"]
    c1: Int32[Array, "*batch"]
    r2: Int32[Array, "*batch"]
    c2: Int32[Array, "*batch"]
    mask: Bool[Array, "*batch rows columns"]


class Outcome(NamedTuple):
    """What a transition tells besides the new state."""

    observation: Int8[Array, "*batch rows columns"]
    reward: Float32[Array, "*batch"]
    improvement: Float32[Array, "*batch"]
    operation_type: Int32[Array, "*batch"]
    step_count: Int32[Array, "*batch"]
    done: Bool[Array, "*batch"]
    terminated: Bool[Array, "*batch"]
    truncated: Bool[Array, "*batch"]
    solved: Bool[Array, "*batch"]


def encode_action(action: Action, batch: tuple[int, ...], grid_shape: tuple[int, int]) -> KernelAction:
    """An action of any format, one for each state of a batch; a box with equal corners is a point."""
    operation = action.operation
    nothing = jnp.zeros((*jnp.shape(operation), 0, 0), bool)
    if isinstance(action, PointAction):
        fields = KernelAction(operation, action.row, action.col, action.row, action.col, nothing)
    elif isinstance(action, BboxAction):
        fields = KernelAction(operation, action.r1, action.c1, action.r2, action.c2, nothing)
    elif isinstance(action, MaskAction):
        fields = KernelAction(*(operation,) * 5, action.to_selection_mask(grid_shape))
    else:
        raise TypeError(f"expected a PointAction, BboxAction or MaskAction, got {type(action).__name__}")
    name = type(action).__name__
    for field in dataclasses.fields(action):
        value = getattr(action, field.name)
        wanted = (*batch, *grid_shape) if field.name == "selection" else batch
        if jnp.shape(value) != wanted:
            raise ValueError(
                f"{name}.{field.name} has shape {jnp.shape(value)}, but the states are {_counted(batch)}: "
                f"it must have shape {wanted}"
            )
    # Fields are made to be int32, but a `tree.map` may have changed them since.
    operation, r1, c1, r2, c2 = (check_integers(value, name) for value in fields[:5])
    return KernelAction(operation, r1, c1, r2, c2, cell_mask(fields.mask))


def blank_states(batch: tuple[int, ...], rows: int) -> Packed:
    """Leaves of zeros, to be written over."""
    return Packed(
        jnp.zeros((*batch, NUM_BOARDS, rows), jnp.uint32),
        jnp.zeros((*batch, NUM_REGISTERS), jnp.int32),
        jnp.zeros(batch, jnp.float32),
    )


def check_packed(packed: Packed, grid_shape: tuple[int, int], batch: tuple[int, ...]) -> None:
    """A state's leaves must have the shapes and dtypes that the kernels read."""
    shapes = ((*batch, NUM_BOARDS, grid_shape[0]), (*batch, NUM_REGISTERS), batch)
    for name, leaf, shape, dtype in zip(
        Packed._fields, packed, shapes, (jnp.uint32, jnp.int32, jnp.float32), strict=True
    ):
        if jnp.shape(leaf) != shape or jnp.result_type(leaf) != dtype:
            raise ValueError(
                f"a state's {name} must be {jnp.dtype(dtype).name} of shape {shape} on a canvas of "
                f"{grid_shape[0]}x{grid_shape[1]}, got {jnp.result_type(leaf)} of shape {jnp.shape(leaf)}"
            )


def _counted(batch: tuple[int, ...]) -> str:
    return f"a batch of shape {batch}" if batch else "a single one"


def allowed_bits(config: ArcConfig) -> int:
    """The legal operations as the bits of one integer."""
    allowed = config.action.allowed_operations
    return sum(1 << operation for operation in (range(NUM_OPERATIONS) if allowed is None else allowed))

"""What both engines take and give: packed states, action fields, outcomes, and the legal operations.

The engines themselves are `native_engine` and `xla_engine`.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float32, Int8, Int32, UInt32

from phalanx.arc.actions import Action, BboxAction, MaskAction, PointAction
from phalanx.arc.config import ArcConfig
from phalanx.arc.operations import NUM_OPERATIONS

TaskArrays = tuple[UInt32[Array, "pairs 2 4 tallest"], Int32[Array, "pairs 4"], Int32[Array, "tasks 3"]]
"""A task buffer's pairs, sizes and table."""


class Packed(NamedTuple):
    """A state's leaves."""

    boards: UInt32[Array, "*batch 10 rows"]
    registers: Int32[Array, "*batch 8"]
    similarity: Float32[Array, "*batch"]


class Fields(NamedTuple):
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


def fields_of(action: Action, grid_shape: tuple[int, int]) -> Fields:
    """An action of any format; a box with equal corners is a point."""
    operation = action.operation
    nothing = jnp.zeros((*operation.shape, 0, 0), bool)
    if isinstance(action, PointAction):
        return Fields(operation, action.row, action.col, action.row, action.col, nothing)
    if isinstance(action, BboxAction):
        return Fields(operation, action.r1, action.c1, action.r2, action.c2, nothing)
    if isinstance(action, MaskAction):
        selection = action.to_selection_mask(grid_shape)
        return Fields(operation, operation, operation, operation, operation, selection)
    raise TypeError(f"expected a PointAction, BboxAction or MaskAction, got {type(action).__name__}")


def allowed_bits(config: ArcConfig) -> int:
    """The legal operations as the bits of one integer."""
    allowed = config.action.allowed_operations
    return sum(1 << operation for operation in (range(NUM_OPERATIONS) if allowed is None else allowed))

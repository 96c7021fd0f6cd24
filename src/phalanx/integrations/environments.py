"""What every adapter asks of an environment: how many choices its mask has, what a step told, a blank batch.

Each adapter steps its batch by itself, as its library wants it. Nothing here knows a domain.
"""

import dataclasses
import operator
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree

from phalanx.core.environment import Environment, TransitionInfo

OBSERVATION, MASK = "observation", "action_mask"
"""Keys of an observation that is no record, and of the mask of legal actions."""


def mask_size(environment: Environment) -> int | None:
    """How many entries the mask of legal actions has; None where every action is always legal."""
    legal = jax.eval_shape(
        lambda key: environment.legal_actions(environment.reset(key)[0]),
        jax.ShapeDtypeStruct((2,), jnp.uint32),
    )
    return None if legal is None else legal.shape[-1]


def legal_rows(environment: Environment, states: PyTree) -> Bool[Array, "batch actions"] | None:
    """The mask of each state of a batch; None where there is no mask."""
    return jax.vmap(environment.legal_actions)(states)


def info_fields(info: TransitionInfo) -> dict[str, Any]:
    """What a step told besides, as arrays by name; what an environment has no word on is left out."""
    if not dataclasses.is_dataclass(info):
        raise TypeError(f"an environment's info must be a dataclass or module, got {type(info).__name__}")
    told = {field.name: getattr(info, field.name) for field in dataclasses.fields(info)}
    return {name: jnp.asarray(value) for name, value in told.items() if value is not None}


def blank_batch(environment: Environment, size: int) -> tuple[PyTree, PyTree]:
    """States and observations that have not begun; from them the first reset compiles as later ones do."""
    keys = jax.ShapeDtypeStruct((size, 2), jnp.uint32)
    begun = jax.eval_shape(environment.batch_reset, keys)
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), begun)


def whole_number(value: Any, name: str) -> int:
    """How many environments there are to be, or an error in words."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be a whole number, got {value!r}") from None
    if number < 1:
        raise ValueError(f"{name} must be at least 1, got {number}")
    return number

"""What adapters ask of a batch of environments: how many, which actions are legal, what to start from.

Each adapter steps its batch by itself, as its library wants it.
"""

import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, PyTree

from phalanx.core.environment import Environment
from phalanx.core.spaces import Record

OBSERVATION, MASK = "observation", "action_mask"
"""Keys of an observation that is no record, and of the mask of legal actions."""


def has_own_mask(environment: Environment) -> bool:
    """Whether an observation holds the mask of legal actions itself."""
    space = environment.observation_space
    return isinstance(space, Record) and any(name == MASK for name, _ in space.fields)


def legal_operations(environment: Environment) -> Bool[np.ndarray, " operations"] | None:
    """The operations that an ARC environment allows; None for others, which have none."""
    from phalanx.arc.environment import ArcEnvironment, legal_ids
    from phalanx.arc.operations import NUM_OPERATIONS

    if not isinstance(environment, ArcEnvironment):
        return None
    return np.isin(np.arange(NUM_OPERATIONS), legal_ids(environment.config))


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

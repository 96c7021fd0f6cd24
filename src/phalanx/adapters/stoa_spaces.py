"""Phalanx's spaces as Stoa's, and observations and actions as Stoa's wrappers know them.

Stepping is in `stoa`.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree
from stoa import (
    ArraySpace,
    BoundedArraySpace,
    DictSpace,
    DiscreteSpace,
    MultiDiscreteSpace,
    Space as StoaSpace,
)

from phalanx.core.spaces import Box, Discrete, Record, Space


class WholeNumbersSpace(BoundedArraySpace):
    """Arrays of whole numbers or truth values.

    Stoa's own space of bounds never draws the largest, and has infinite ones unless told otherwise, which no
    whole number is.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: Any,
        minimum: int | float | None = None,
        maximum: int | float | None = None,
        name: str = "",
    ) -> None:
        least, most = (0, 1) if np.dtype(dtype) == np.bool_ else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        low, high = least if minimum is None else minimum, most if maximum is None else maximum
        super().__init__(shape, dtype, low, high, name)

    def sample(self, rng_key: Any) -> Array:
        if self.dtype == jnp.bool_:
            return jax.random.bernoulli(rng_key, shape=self.shape)
        low, high = int(self.minimum), int(self.maximum)
        return jax.random.randint(rng_key, self.shape, low, high + 1).astype(self.dtype)


def space_of(space: Space, name: str = "") -> StoaSpace:
    """A space of Stoa; a record is a dictionary of its fields."""
    match space:
        case Record(fields=fields):
            return DictSpace({field: space_of(inner, field) for field, inner in fields}, name)
        case Discrete(n=n):
            return DiscreteSpace(n, jnp.int32, name)
        case Box(low=low, high=high, shape=shape, dtype=dtype):
            if math.isinf(low) and math.isinf(high):
                return ArraySpace(shape, dtype, name)
            whole = np.issubdtype(dtype, np.integer) or np.dtype(dtype) == np.bool_
            kind = WholeNumbersSpace if whole else BoundedArraySpace
            return kind(shape, dtype, low, high, name)
    raise TypeError(f"{type(space).__name__} has no Stoa space; there are some for Box, Discrete and Record")


def action_space_of(space: Space) -> StoaSpace:
    """The same for actions, where a record of whole numbers is one vector."""
    if isinstance(space, Record) and _is_vector(space):
        sizes = [field.n for _, field in space.fields if isinstance(field, Discrete)]
        return MultiDiscreteSpace(sizes, jnp.int32, "action")
    return space_of(space, "action")


def observed(space: Space, value: PyTree) -> PyTree:
    """A member of a space, with dictionaries for records."""
    if isinstance(space, Record):
        return {name: observed(field, getattr(value, name)) for name, field in space.fields}
    return value


def action_of(space: Space, action: PyTree) -> PyTree:
    """The environment's own action, from what `action_space_of` describes or from such an action itself."""
    if not isinstance(space, Record) or isinstance(action, space.build):
        return action
    names = [name for name, _ in space.fields]
    if isinstance(action, dict):
        if action.keys() != set(names):
            raise KeyError(f"an action has the fields {', '.join(names)}; got {', '.join(action) or 'none'}")
        return space.build(**{name: action_of(field, action[name]) for name, field in space.fields})
    if not _is_vector(space):
        raise TypeError(f"an action must be a dictionary of {', '.join(names)}, got {type(action).__name__}")
    vector = jnp.asarray(action)
    if vector.shape != (len(names),):
        raise ValueError(
            f"an action is the {len(names)} numbers {', '.join(names)}; got the shape {vector.shape}"
        )
    return space.build(**{name: vector[place] for place, name in enumerate(names)})


def _is_vector(space: Record) -> bool:
    return all(isinstance(field, Discrete) for _, field in space.fields)

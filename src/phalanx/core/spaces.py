"""Spaces: the shape, type and bounds of actions and observations, and how to draw from them.

Converting them to another library's spaces belongs to `phalanx.integrations`.
"""

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree


class Space(abc.ABC):
    """A set of values that can be drawn from and tested for membership."""

    @abc.abstractmethod
    def sample(self, key: Any) -> PyTree:
        """A uniform draw."""

    @abc.abstractmethod
    def contains(self, value: PyTree) -> bool:
        """Whether a single, unbatched value is a member."""


@dataclasses.dataclass(frozen=True)
class Discrete(Space):
    """The integers from 0 to n - 1."""

    n: int

    def sample(self, key: Any) -> Array:
        return jax.random.randint(key, (), 0, self.n, dtype=jnp.int32)

    def contains(self, value: PyTree) -> bool:
        array = np.asarray(value)
        return array.shape == () and np.issubdtype(array.dtype, np.integer) and 0 <= int(array) < self.n


@dataclasses.dataclass(frozen=True)
class Box(Space):
    """Arrays of one shape and type, every cell from low to high, both included."""

    low: int | float
    high: int | float
    shape: tuple[int, ...]
    dtype: Any = np.float32

    def sample(self, key: Any) -> Array:
        if np.dtype(self.dtype) == np.bool_:
            return jax.random.bernoulli(key, shape=self.shape)
        if np.issubdtype(self.dtype, np.integer):
            drawn = jax.random.randint(key, self.shape, int(self.low), int(self.high) + 1)
            return drawn.astype(self.dtype)
        return jax.random.uniform(key, self.shape, self.dtype, self.low, self.high)

    def contains(self, value: PyTree) -> bool:
        array = np.asarray(value)
        if array.shape != self.shape or array.dtype != np.dtype(self.dtype):
            return False
        return bool(np.all(array >= self.low) and np.all(array <= self.high))


@dataclasses.dataclass(frozen=True)
class Composite(Space):
    """A value of type `build` with one field for each named space."""

    build: Any
    fields: tuple[tuple[str, Space], ...]

    @classmethod
    def of(cls, build: Any, fields: Mapping[str, Space]) -> "Composite":
        return cls(build, tuple(fields.items()))

    def sample(self, key: Any) -> PyTree:
        keys = jax.random.split(key, len(self.fields))
        return self.build(
            **{name: space.sample(k) for (name, space), k in zip(self.fields, keys, strict=True)}
        )

    def contains(self, value: PyTree) -> bool:
        if not isinstance(value, self.build):
            return False
        return all(space.contains(getattr(value, name)) for name, space in self.fields)


def masked_size(space: Space) -> int | None:
    """How many values a mask of legal actions is over: of the action itself, or of a record's first field.

    None where neither is one whole number.
    """
    first = space.fields[0][1] if isinstance(space, Composite) and space.fields else space
    return first.n if isinstance(first, Discrete) else None


def masked_choice(space: Space, action: PyTree) -> Any:
    """What a mask of legal actions is asked about: the action itself, or a record's first field."""
    return getattr(action, space.fields[0][0]) if isinstance(space, Composite) else action


def replace_choice(space: Space, action: PyTree, choice: Any) -> PyTree:
    """An action with another choice in place of its own."""
    if not isinstance(space, Composite):
        return choice
    (first, _), *others = space.fields
    return space.build(**{first: choice}, **{name: getattr(action, name) for name, _ in others})


def check_integer_dtypes(space: Space, value: PyTree, name: str = "action") -> None:
    """Raise `TypeError` where a field of whole numbers or truth values is given as floats, single or batched.

    They would be cut to other numbers than were meant. Types are known to a trace: this costs nothing later.
    An action of another kind than the space's is the environment's to judge.
    """
    match space:
        case Composite(build=build, fields=fields):
            for field, inner in fields if isinstance(value, build) else ():
                check_integer_dtypes(inner, getattr(value, field), f"{name}.{field}")
        case Box(dtype=dtype) if np.issubdtype(dtype, np.inexact):
            pass
        case _:
            given = np.result_type(value) if isinstance(value, int | float) else jnp.asarray(value).dtype
            if jnp.issubdtype(given, jnp.inexact):
                raise TypeError(f"{name} must be whole numbers, got {given}; round them yourself")

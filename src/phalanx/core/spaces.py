"""Spaces: the shape, type and bounds of actions and observations, and how to draw from them.

Converting them to another library's spaces belongs to `phalanx.adapters`.
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
class Record(Space):
    """A value of type `build` with one field for each named space."""

    build: Any
    fields: tuple[tuple[str, Space], ...]

    @classmethod
    def of(cls, build: Any, fields: Mapping[str, Space]) -> "Record":
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

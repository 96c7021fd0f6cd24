"""Spaces, which describe the shape, dtype and bounds of actions and observations."""

import abc
import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PyTree


class Space(abc.ABC):
    """A set of values that supports sampling and membership tests."""

    @abc.abstractmethod
    def sample(self, key: Any) -> PyTree:
        """Sample a value uniformly at random."""

    @abc.abstractmethod
    def contains(self, value: PyTree) -> bool:
        """Return whether a single, unbatched value is a member of the space."""


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
    """Arrays with a fixed shape and dtype, whose elements are from `low` to `high`, inclusive."""

    low: int | float
    high: int | float
    shape: tuple[int, ...]
    dtype: Any = np.float32

    def sample(self, key: Any) -> Array:
        if np.dtype(self.dtype) == np.bool_:
            return jax.random.bernoulli(key, shape=self.shape)
        if np.issubdtype(self.dtype, np.integer):
            sampled = jax.random.randint(key, self.shape, int(self.low), int(self.high) + 1)
            return sampled.astype(self.dtype)
        return jax.random.uniform(key, self.shape, self.dtype, self.low, self.high)

    def contains(self, value: PyTree) -> bool:
        return find_mismatch(self, value, "value") is None


@dataclasses.dataclass(frozen=True)
class Composite(Space):
    """Space of dictionaries or of instances of a class, such as a dataclass, in which each field has its own
    space.

    Args:
        constructor: `dict` or the class, which is called with the fields as keyword arguments.
        fields: Name and space of each field, in order.
    """

    constructor: Any
    fields: tuple[tuple[str, Space], ...]

    @classmethod
    def of(cls, constructor: Any, fields: Mapping[str, Space]) -> "Composite":
        """Create a space from a mapping of field names to spaces."""
        return cls(constructor, tuple(fields.items()))

    def sample(self, key: Any) -> PyTree:
        keys = jax.random.split(key, len(self.fields))
        return self.constructor(
            **{name: space.sample(k) for (name, space), k in zip(self.fields, keys, strict=True)}
        )

    def contains(self, value: PyTree) -> bool:
        return find_mismatch(self, value, "value") is None


def get_field(value: PyTree, name: str) -> Any:
    """Return a field of a value of a `Composite`, which is a dictionary or has attributes."""
    return value[name] if isinstance(value, Mapping) else getattr(value, name)


def find_mismatch(space: Space, value: PyTree, name: str) -> str | None:
    """Explain why a single, unbatched value is not a member of a space. Return None if it is a member.

    Args:
        space: The space.
        value: The value.
        name: Name of the value. Field names are appended to it.

    >>> find_mismatch(Box(0, 1, (2,), np.float32), np.zeros(2, np.int32), "observation.offset")
    'observation.offset must have dtype float32, got int32'
    """
    if isinstance(space, Composite):
        if not isinstance(value, space.constructor):
            return f"{name} must be of type {space.constructor.__name__}, got {type(value).__name__}"
        names = {field for field, _ in space.fields}
        if isinstance(value, Mapping) and set(value) != names:
            return f"{name} must have the keys {', '.join(sorted(names))}, got {', '.join(sorted(value))}"
        fields = (
            find_mismatch(inner, get_field(value, field), f"{name}.{field}") for field, inner in space.fields
        )
        return next((reason for reason in fields if reason is not None), None)
    array = np.asarray(value)
    if isinstance(space, Box):
        if array.shape != space.shape:
            return f"{name} must have shape {space.shape}, got {array.shape}"
        if array.dtype != np.dtype(space.dtype):
            return f"{name} must have dtype {np.dtype(space.dtype).name}, got {array.dtype.name}"
        if np.all(array >= space.low) and np.all(array <= space.high):
            return None
        return (
            f"{name} must be from {space.low} to {space.high}, got values from {array.min()} to {array.max()}"
        )
    if space.contains(value):
        return None
    return f"{name} is not in {space}: {array.dtype.name}{list(array.shape)} {array}"


def discrete_sizes(space: Space) -> list[int] | None:
    """Return the size `n` of each field of a `Composite` whose fields are all `Discrete`.

    For any other space, return None.
    """
    if not isinstance(space, Composite):
        return None
    sizes = [field.n for _, field in space.fields if isinstance(field, Discrete)]
    return sizes if len(sizes) == len(space.fields) else None


def convert_value(function: Callable[[Any, Any], Any], space: Space, value: PyTree) -> Any:
    """Apply a conversion function to a value of a space.

    A value of a `Composite` becomes a dictionary from field names to converted fields.

    Args:
        function: Function `function(space, value)` that converts a value of any space except a `Composite`.
        space: Space of the value.
        value: Single or batched value.
    """
    if isinstance(space, Composite):
        return {name: convert_value(function, field, get_field(value, name)) for name, field in space.fields}
    return function(space, value)


def masked_size(space: Space) -> int | None:
    """Return the length of a mask of legal actions, or None if actions in this space cannot be masked.

    The mask applies to the action itself or, in a `Composite` space, to the first field of the action.
    Actions can be masked only if the space of the action or of this field is `Discrete`.
    """
    first = space.fields[0][1] if isinstance(space, Composite) and space.fields else space
    return first.n if isinstance(first, Discrete) else None


def masked_choice(space: Space, action: PyTree) -> Any:
    """Return the part of an action that the mask of legal actions applies to.

    This is the action itself or, in a `Composite` space, its first field.
    """
    return get_field(action, space.fields[0][0]) if isinstance(space, Composite) else action


def replace_choice(space: Space, action: PyTree, choice: Any) -> PyTree:
    """Return a copy of an action in which `choice` replaces the part that `masked_choice` returns."""
    if not isinstance(space, Composite):
        return choice
    (first, _), *others = space.fields
    return space.constructor(**{first: choice}, **{name: get_field(action, name) for name, _ in others})


def sample_legal(space: Space, key: Any, mask: Bool[Array, " choices"] | None) -> PyTree:
    """Sample an action uniformly at random, among the choices for which `mask` is True if there is a mask."""
    if mask is None:
        return space.sample(key)
    key, choice_key = jax.random.split(key)
    log_probs = jnp.where(mask, 0.0, -jnp.inf)
    choice = jax.random.categorical(choice_key, log_probs).astype(jnp.int32)
    return replace_choice(space, space.sample(key), choice)


def is_in_range(space: Space, action: PyTree) -> Bool[Array, ""]:
    """Return whether the `Discrete` parts of an action are in range. The action may be traced."""
    match space:
        case Composite(fields=fields):
            inside = (is_in_range(inner, get_field(action, name)) for name, inner in fields)
            return functools.reduce(jnp.logical_and, inside, jnp.bool_(True))
        case Discrete(n=n):
            return (jnp.asarray(action) >= 0) & (jnp.asarray(action) < n)
        case _:
            return jnp.bool_(True)


def clip_to_bounds(space: Space, action: PyTree) -> PyTree:
    """Clip the parts of an action that belong to a `Box` of floats to its bounds."""
    match space:
        case Composite(constructor=constructor, fields=fields):
            return constructor(
                **{name: clip_to_bounds(inner, get_field(action, name)) for name, inner in fields}
            )
        case Box(low=low, high=high, dtype=dtype) if np.issubdtype(dtype, np.inexact):
            return jnp.clip(jnp.asarray(action, dtype), low, high)
        case _:
            return action


def check_integer_dtypes(space: Space, value: PyTree, name: str = "action") -> None:
    """Raise `TypeError` if part of a value is floating-point where the space requires integers or booleans.

    Only dtypes are checked, so this also works for traced values. Values that are not instances of a
    `Composite` space's class are not checked. The environment has to reject such values itself.

    Args:
        space: Space of the value.
        value: Single or batched value.
        name: Name of the value in the error message.
    """
    match space:
        case Composite(constructor=constructor, fields=fields):
            for field, inner in fields if isinstance(value, constructor) else ():
                check_integer_dtypes(inner, get_field(value, field), f"{name}.{field}")
        case Box(dtype=dtype) if np.issubdtype(dtype, np.inexact):
            pass
        case _:
            dtype = np.result_type(value) if isinstance(value, int | float) else jnp.asarray(value).dtype
            if jnp.issubdtype(dtype, jnp.inexact):
                raise TypeError(f"{name} must be integers, got {dtype}; round them first")


def check_fields(space: Composite, values: Any, name: str) -> None:
    """Raise `TypeError` unless `values` is a mapping with all fields of the space.

    `name` is the name of the mapping in the error message.
    """
    names = [field for field, _ in space.fields]
    found = list(values.keys()) if hasattr(values, "keys") else type(values).__name__
    if isinstance(found, str) or not set(found).issuperset(names):
        raise TypeError(f"{name} must be a dictionary with the keys {', '.join(names)}, got {found}")

"""Conversion of spaces to Gymnasium spaces, and of their values to NumPy arrays and back."""

import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Float32, PyTree

from phalanx.core.spaces import (
    Box,
    Composite,
    Discrete,
    Space,
    check_fields,
    check_integer_dtypes,
    convert_value,
    discrete_sizes,
)


def convert_space(space: Space) -> spaces.Space:
    """Convert a space to a Gymnasium space.

    The values of a scalar `Box` become arrays of shape `(1,)`, so that networks can concatenate them.
    """
    match space:
        case Composite(fields=fields):
            return spaces.Dict({name: convert_space(field) for name, field in fields})
        case Discrete(n=n):
            return spaces.Discrete(n)
        case Box(low=low, high=high, shape=shape, dtype=dtype):
            if np.dtype(dtype) == np.bool_:
                return spaces.MultiBinary(shape or (1,))
            return spaces.Box(low, high, shape or (1,), dtype)
    raise TypeError(
        f"{type(space).__name__} cannot be converted to a Gymnasium space; Box, Discrete and Composite can"
    )


def convert_action_space(space: Space) -> spaces.Space:
    """Convert an action space to a Gymnasium space. A `Composite` of integers becomes `MultiDiscrete`."""
    if (sizes := discrete_sizes(space)) is not None:
        return spaces.MultiDiscrete(sizes)
    return convert_space(space)


def flat_space(space: Space) -> spaces.Box:
    """Return the space of a float32 vector that contains all fields of a space in order."""
    lows, highs = [np.empty(0, np.float32)], [np.empty(0, np.float32)]
    for leaf, _ in _leaves(space):
        low, high = (0, leaf.n - 1) if isinstance(leaf, Discrete) else (leaf.low, leaf.high)
        width = 1 if isinstance(leaf, Discrete) else math.prod(leaf.shape)
        lows.append(np.full(width, low, np.float32))
        highs.append(np.full(width, high, np.float32))
    if not any(len(part) for part in lows):
        raise ValueError("an empty observation cannot be flattened; see config.observation")
    return spaces.Box(np.concatenate(lows), np.concatenate(highs), dtype=np.float32)


def to_arrays(space: Space, value: PyTree) -> Any:
    """Copy a batch of values of a space to NumPy arrays. A value of a `Composite` becomes a dictionary."""
    return convert_value(_to_array, space, value)


def _to_array(space: Any, value: Any) -> np.ndarray:
    if isinstance(space, Discrete):
        return np.array(value, np.int64)
    array = np.array(value, np.int8 if np.dtype(space.dtype) == np.bool_ else space.dtype)
    return array if space.shape else array[:, None]


def to_flat_arrays(space: Space, value: PyTree) -> Float32[np.ndarray, "batch width"]:
    """Copy a batch of values of a space to an array with one row per value, in the order of `flat_space`."""
    parts = [np.asarray(part).reshape(len(part), -1) for _, part in _leaves(space, value)]
    return np.concatenate(parts, axis=1, dtype=np.float32, casting="unsafe")


def check_actions(space: Space, actions: Any, num_envs: int, name: str = "actions") -> Any:
    """Validate actions from the user, and convert them to arrays for `build_actions`.

    `name` is the name of the actions in error messages.
    """
    if (sizes := discrete_sizes(space)) is not None:
        return _check_integers(actions, (num_envs, len(sizes)), np.array(sizes), name)
    match space:
        case Composite(fields=fields):
            check_fields(space, actions, name)
            return {
                field: check_actions(inner, actions[field], num_envs, f"{name}[{field!r}]")
                for field, inner in fields
            }
        case Discrete(n=n):
            return _check_integers(actions, (num_envs,), np.int64(n), name)
        case Box(shape=shape, dtype=dtype):
            array = _check_shape(actions, (num_envs, *(shape or (1,))), name)
            check_integer_dtypes(space, array, name)
            return array.astype(dtype).reshape(num_envs, *shape)
    raise TypeError(f"{type(space).__name__} is not supported as an action space")


def build_actions(space: Space, arrays: Any) -> PyTree:
    """Create a batch of the environment's actions from the arrays that `check_actions` returns.

    This function can be traced by JAX.
    """
    if discrete_sizes(space) is not None:
        assert isinstance(space, Composite)
        return space.constructor(**{name: arrays[:, i] for i, (name, _) in enumerate(space.fields)})
    if isinstance(space, Composite):
        fields = {name: build_actions(field, arrays[name]) for name, field in space.fields}
        return space.constructor(**fields)
    return jnp.asarray(arrays)


def take_row(arrays: Any, index: int) -> Any:
    """Return row `index` of every array of a batch, as views."""
    return jax.tree.map(lambda array: array[index], arrays)


def _check_integers(values: Any, shape: tuple[int, ...], sizes: Any, name: str) -> np.ndarray:
    array = _check_shape(values, shape, name)
    if not np.issubdtype(array.dtype, np.integer):
        raise TypeError(f"{name} must be integers, got {array.dtype}")
    # A number that does not fit into 32 bits must not wrap around to a legal one.
    return np.clip(array.astype(np.int64), -1, sizes).astype(np.int32)


def _check_shape(values: Any, shape: tuple[int, ...], name: str) -> np.ndarray:
    array = np.asarray(values)
    if array.shape != shape:
        raise ValueError(f"{name} must have the shape {shape}, got {array.shape}")
    return array


def _leaves(space: Space, value: PyTree = None) -> Iterator[tuple[Any, Any]]:
    """Iterate over all non-composite spaces in a space, each with the corresponding part of `value`."""
    if isinstance(space, Composite):
        for name, field in space.fields:
            yield from _leaves(field, getattr(value, name, None))
    else:
        yield space, value

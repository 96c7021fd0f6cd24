"""Phalanx's spaces as Gymnasium's, and batches of their members as NumPy arrays and back.

Stepping is in `stepping` and `environments`.
"""

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Float32, PyTree

from phalanx.core.spaces import Box, Composite, Discrete, Space, check_integer_dtypes

Arrays = dict[str, Any]
"""Arrays by name; a dictionary within holds the fields of a nested record."""


def space_of(space: Space) -> spaces.Space:
    """A Gymnasium space; scalars are arrays of one, so that networks can lay them end to end."""
    match space:
        case Composite(fields=fields):
            return spaces.Dict({name: space_of(field) for name, field in fields})
        case Discrete(n=n):
            return spaces.Discrete(n)
        case Box(low=low, high=high, shape=shape, dtype=dtype):
            if np.dtype(dtype) == np.bool_:
                return spaces.MultiBinary(shape or (1,))
            return spaces.Box(low, high, shape or (1,), dtype)
    raise TypeError(
        f"{type(space).__name__} has no Gymnasium space; there are some for Box, Discrete and Record"
    )


def action_space_of(space: Space) -> spaces.Space:
    """The same for actions, where a record of whole numbers is one vector: `MultiDiscrete`."""
    if (sizes := column_sizes(space)) is not None:
        return spaces.MultiDiscrete(sizes)
    return space_of(space)


def column_sizes(space: Space) -> list[int] | None:
    """How many values each number of a record of whole numbers has; None for other spaces."""
    if not isinstance(space, Composite):
        return None
    numbers = [field.n for _, field in space.fields if isinstance(field, Discrete)]
    return numbers if len(numbers) == len(space.fields) else None


def flat_space_of(space: Space) -> spaces.Box:
    """One vector of float32 for all of a space, in the order of its fields."""
    lows, highs = [np.empty(0, np.float32)], [np.empty(0, np.float32)]
    for leaf in _leaves(space):
        low, high = (0, leaf.n - 1) if isinstance(leaf, Discrete) else (leaf.low, leaf.high)
        lows.append(np.full(_width(leaf), low, np.float32))
        highs.append(np.full(_width(leaf), high, np.float32))
    if not any(len(part) for part in lows):
        raise ValueError("an observation of nothing cannot be a vector; see config.observation")
    return spaces.Box(np.concatenate(lows), np.concatenate(highs), dtype=np.float32)


def arrays_of(space: Space, value: PyTree) -> Any:
    """A batch of a space's members as arrays of their own: writing into them does not reach JAX."""
    match space:
        case Composite(fields=fields):
            return {name: arrays_of(field, getattr(value, name)) for name, field in fields}
        case Discrete():
            return np.array(value, np.int64)
        case Box(shape=shape, dtype=dtype):
            made = np.array(value, np.int8 if np.dtype(dtype) == np.bool_ else dtype)
            return made if shape else made[:, None]
    raise TypeError(f"{type(space).__name__} has no arrays")


def flat_arrays_of(space: Space, value: PyTree) -> Float32[np.ndarray, "batch width"]:
    """A batch of a space's members as the rows of `flat_space_of`."""
    parts = list(_values(space, value))
    widths = [_width(leaf) for leaf in _leaves(space)]
    made = np.empty((len(parts[0]), sum(widths)), np.float32)
    begin = 0
    for part, width in zip(parts, widths, strict=True):
        made[:, begin : begin + width] = np.asarray(part).reshape(len(made), width)
        begin += width
    return made


def given_actions(space: Space, actions: Any, count: int, name: str = "actions") -> Any:
    """A user's actions for a batch, checked, as arrays that `built_actions` takes."""
    if (sizes := column_sizes(space)) is not None:
        return _whole_numbers(actions, (count, len(sizes)), np.array(sizes), name)
    match space:
        case Composite(fields=fields):
            if not isinstance(actions, Mapping):
                names = ", ".join(field for field, _ in fields)
                raise TypeError(
                    f"{name} must be a dictionary with the keys {names}, got {type(actions).__name__}"
                )
            if missing := [field for field, _ in fields if field not in actions]:
                there = ", ".join(map(str, actions)) or "none"
                raise KeyError(f"{name} have no key {missing[0]!r}; they have {there}")
            return {
                field: given_actions(inner, actions[field], count, f"{name}[{field!r}]")
                for field, inner in fields
            }
        case Discrete(n=n):
            return _whole_numbers(actions, (count,), np.int64(n), name)
        case Box(shape=shape, dtype=dtype):
            array = _shaped(actions, (count, *(shape or (1,))), name)
            check_integer_dtypes(space, array, name)
            return array.astype(dtype).reshape(count, *shape)
    raise TypeError(f"{type(space).__name__} has no actions")


def built_actions(space: Space, given: Any) -> PyTree:
    """The actions that an environment takes, of `given_actions`; used under `jit`."""
    if column_sizes(space) is not None:
        assert isinstance(space, Composite)
        return space.build(**{name: given[:, i] for i, (name, _) in enumerate(space.fields)})
    if isinstance(space, Composite):
        return space.build(**{name: built_actions(field, given[name]) for name, field in space.fields})
    return jnp.asarray(given)


def row_of(arrays: Any, index: int) -> Any:
    """One environment's part of arrays of a batch; views of them."""
    if isinstance(arrays, Mapping):
        return {name: row_of(array, index) for name, array in arrays.items()}
    return arrays[index]


def _whole_numbers(values: Any, shape: tuple[int, ...], sizes: Any, name: str) -> np.ndarray:
    array = _shaped(values, shape, name)
    if not np.issubdtype(array.dtype, np.integer):
        raise TypeError(f"{name} must be whole numbers, got {array.dtype}")
    # What does not fit 32 bits must not come back as a legal number.
    return np.clip(array.astype(np.int64), -1, sizes).astype(np.int32)


def _shaped(values: Any, shape: tuple[int, ...], name: str) -> np.ndarray:
    array = np.asarray(values)
    if array.shape != shape:
        raise ValueError(f"{name} must have the shape {shape}, got {array.shape}")
    return array


@functools.lru_cache(maxsize=64)
def _width(leaf: Any) -> int:
    return 1 if isinstance(leaf, Discrete) else int(np.prod(leaf.shape))


def _leaves(space: Space) -> Iterator[Any]:
    if isinstance(space, Composite):
        for _, field in space.fields:
            yield from _leaves(field)
    else:
        yield space


def _values(space: Space, value: PyTree) -> Iterator[Any]:
    if isinstance(space, Composite):
        for name, field in space.fields:
            yield from _values(field, getattr(value, name))
    else:
        yield value

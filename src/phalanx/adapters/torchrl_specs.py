"""Phalanx's spaces as TorchRL specs, and their values as tensordict entries and back.

Copying single arrays is in `torch_arrays`, stepping in `torchrl`.
"""

import math
from typing import Any

import numpy as np
import torch
from jaxtyping import PyTree
from tensordict import TensorDictBase
from torchrl.data import Bounded, Categorical, Composite, TensorSpec, Unbounded

from phalanx.adapters.torch_arrays import to_jax, to_torch, torch_dtype
from phalanx.core.spaces import Box, Discrete, Record, Space

Entries = dict[str, Any]
"""Tensors by name; a dictionary within holds the entries of a nested record."""


def spec_of(space: Space, batch_size: torch.Size, device: torch.device | None) -> TensorSpec:
    """The spec of a batch of a space's members: a composite for a record, else one leaf."""
    match space:
        case Record(fields=fields):
            leaves = {name: spec_of(field, batch_size, device) for name, field in fields}
            return Composite(leaves, shape=batch_size, device=device)
        case Discrete(n=n):
            return Categorical(n, shape=batch_size, dtype=torch.int64, device=device)
        case Box(low=low, high=high, shape=shape, dtype=dtype):
            whole = torch.Size((*batch_size, *shape))
            kind = torch_dtype(dtype)
            if kind == torch.bool:
                return Categorical(2, shape=whole, dtype=torch.bool, device=device)
            if math.isinf(low) and math.isinf(high):
                return Unbounded(shape=whole, dtype=kind, device=device)
            return Bounded(low, high, shape=whole, dtype=kind, device=device)
    raise TypeError(
        f"{type(space).__name__} has no TorchRL spec; there are some for Box, Discrete and Record"
    )


def named_spec(space: Space, name: str, batch_size: torch.Size, device: torch.device | None) -> Composite:
    """A record's fields each under their name, anything else under `name`."""
    spec = spec_of(space, batch_size, device)
    if isinstance(spec, Composite):
        return spec
    return Composite({name: spec}, shape=batch_size, device=device)


def entries_of(space: Space, value: PyTree, device: torch.device | None) -> Entries | torch.Tensor:
    """A batch of a space's members as tensors of their own."""
    match space:
        case Record(fields=fields):
            return {name: entries_of(field, getattr(value, name), device) for name, field in fields}
        case Discrete():
            return to_torch(value, torch.int64, device)
        case _:
            return to_torch(value, torch_dtype(space.dtype), device)  # type: ignore[attr-defined]


def named_entries(space: Space, name: str, value: PyTree, device: torch.device | None) -> Entries:
    """`entries_of` under the keys of `named_spec`."""
    entries = entries_of(space, value, device)
    return entries if isinstance(entries, dict) else {name: entries}


def value_of(space: Space, entry: Any, batch_size: torch.Size, name: str) -> PyTree:
    """The batch of a space's members that an entry holds, as JAX arrays of their own; `name` is its key."""
    if isinstance(space, Record):
        if not isinstance(entry, TensorDictBase):
            names = ", ".join(field for field, _ in space.fields)
            raise TypeError(f"{name!r} must hold the entries {names}; got {type(entry).__name__}")
        there = list(entry.keys())
        if missing := [field for field, _ in space.fields if field not in there]:
            raise KeyError(f"{name!r} has no entry {missing[0]!r}; it has {', '.join(there) or 'none'}")
        fields = {
            field: value_of(inner, entry.get(field), batch_size, f"{name}, {field}")
            for field, inner in space.fields
        }
        return space.build(**fields)
    shape: tuple[int, ...] = () if isinstance(space, Discrete) else space.shape  # type: ignore[attr-defined]
    expected = (*batch_size, *shape)
    if tuple(entry.shape) != expected:
        raise ValueError(f"{name!r} must have the shape {expected}, got {tuple(entry.shape)}")
    if isinstance(space, Discrete):
        if entry.is_floating_point():
            raise TypeError(f"{name!r} must be whole numbers, got {entry.dtype}")
        # What does not fit 32 bits must not come back as a legal number.
        return to_jax(entry.to(torch.int64).clamp(-1, space.n), np.int32)
    return to_jax(entry, space.dtype)  # type: ignore[attr-defined]

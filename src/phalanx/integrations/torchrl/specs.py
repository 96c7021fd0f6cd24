"""Phalanx's spaces as TorchRL specs, their values as tensordict entries, and arrays across the border.

Arrays cross by DLPack with a copy each way. Stepping is in `environment`.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jaxtyping import PyTree
from tensordict import TensorDictBase
from torchrl.data import Bounded, Categorical, Composite, TensorSpec, Unbounded

from phalanx.core.spaces import Box, Composite as CompositeSpace, Discrete, Space

Entries = dict[str, Any]
"""Tensors by name; a dictionary within holds the entries of a nested record."""


_TORCH_DTYPES = {
    "bool": torch.bool,
    "int8": torch.int8,
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
    "uint8": torch.uint8,
    # Torch has the other unsigned types in name only: most of its functions refuse them.
    "uint16": torch.int32,
    "uint32": torch.int64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}


def torch_dtype(dtype: Any) -> torch.dtype:
    """The type of tensor that can hold an array's every value."""
    name = np.dtype(dtype).name
    if name not in _TORCH_DTYPES:
        raise TypeError(f"no torch type holds {name}; there are some for {', '.join(_TORCH_DTYPES)}")
    return _TORCH_DTYPES[name]


def to_torch(array: jax.Array, dtype: torch.dtype, device: torch.device | None = None) -> torch.Tensor:
    """A tensor of its own with an array's values; writing into it does not reach JAX."""
    # JAX takes its arrays for immutable and shares their memory freely, so a view would be a way in.
    view = torch.from_dlpack(array)
    return view.to(device=device, dtype=dtype, copy=True)


def to_jax(tensor: torch.Tensor, dtype: Any) -> jax.Array:
    """An array of its own with a tensor's values; writing into the tensor later does not reach JAX."""
    # Copied by torch: `from_dlpack(copy=True)` still shares the memory of an aligned tensor on the CPU.
    own = tensor.detach().to(dtype=torch_dtype(dtype), copy=True, memory_format=torch.contiguous_format)
    return jnp.from_dlpack(own).astype(dtype)


def spec_of(space: Space, batch_size: torch.Size, device: torch.device | None) -> TensorSpec:
    """The spec of a batch of a space's members: a composite for a record, else one leaf."""
    match space:
        case CompositeSpace(fields=fields):
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
        case CompositeSpace(fields=fields):
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
    if isinstance(space, CompositeSpace):
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
    dtype = np.int32 if isinstance(space, Discrete) else space.dtype  # type: ignore[attr-defined]
    if entry.is_floating_point() and not np.issubdtype(dtype, np.inexact):
        raise TypeError(f"{name!r} must be whole numbers, got {entry.dtype}")
    if isinstance(space, Discrete):
        # What does not fit 32 bits must not come back as a legal number.
        entry = entry.to(torch.int64).clamp(-1, space.n)
    return to_jax(entry, dtype)

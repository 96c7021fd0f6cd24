"""The boundary between JAX arrays and torch tensors: DLPack, and a copy each way.

What the arrays mean, and under which keys they go, is in `torchrl_specs`.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

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

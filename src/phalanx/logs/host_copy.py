"""A pytree brought to the host as one buffer.

Which arrays are worth bringing is decided in `batch_summary`.
"""

import math
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree, UInt8

_WORDS = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint64}


def pack_bytes(tree: PyTree) -> UInt8[Array, " bytes"]:
    """Every leaf's bytes one after another, inside a compiled function.

    A dozen small arrays would be a dozen transfers, each with an accelerator's full latency.
    """
    parts = [_bytes_of(jnp.asarray(leaf)) for leaf in jax.tree.leaves(tree)]
    return jnp.concatenate(parts) if parts else jnp.zeros((0,), jnp.uint8)


def unpack_bytes(buffer: UInt8[np.ndarray, " bytes"], like: PyTree) -> PyTree:
    """The pytree again, as NumPy arrays; `like` has the shapes and types (see `jax.eval_shape`)."""
    leaves, structure = jax.tree.flatten(like)
    arrays, start = [], 0
    for leaf in leaves:
        dtype = np.dtype(leaf.dtype)
        end = start + math.prod(leaf.shape) * dtype.itemsize
        arrays.append(_numbers(buffer[start:end], dtype).reshape(leaf.shape))
        start = end
    return jax.tree.unflatten(structure, arrays)


def _numbers(data: UInt8[np.ndarray, " bytes"], dtype: np.dtype) -> np.ndarray:
    # Turned round on the host where the highest byte comes first in memory.
    ordered = data if sys.byteorder == "little" else data.reshape(-1, dtype.itemsize)[:, ::-1]
    return np.frombuffer(ordered.tobytes(), dtype)


def _bytes_of(leaf: Array) -> UInt8[Array, " bytes"]:
    """A leaf's bytes, the lowest of each number first.

    By shifts: a bitcast to a narrower type, straight after a maximum over some thousand values, crashes the
    process on the CPU (jaxlib 0.10.2); bitcasts that keep the width do not.
    """
    if leaf.dtype == jnp.bool_:
        return leaf.astype(jnp.uint8).ravel()
    words = jax.lax.bitcast_convert_type(leaf, _WORDS[leaf.dtype.itemsize]).ravel()
    shifts = jnp.arange(0, 8 * leaf.dtype.itemsize, 8, dtype=words.dtype)
    return (words[:, None] >> shifts).astype(jnp.uint8).ravel()

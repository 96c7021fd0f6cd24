"""Dense, convolution, normalization and attention layers for small inputs on the CPU.

The last axis of all inputs contains the features. Layers, including convolutions, are implemented as large
matrix products. Inside a compiled loop on the CPU, XLA's own convolution is ten times slower (measured on 5x5
grids with 32 features).
"""

import functools
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from phalanx.nn.distributions import Key

_SMALL_GRID = 36
"""A convolution of a grid with at most this many cells is computed as one dense matrix product."""


class Dense(eqx.Module):
    """Linear layer with bias, applied to the last axis.

    Args:
        inputs: Number of input features.
        outputs: Number of output features.
        key: Key for the initial weights.
        scale: Factor by which the initial weights are multiplied. Their standard deviation is
            `scale / sqrt(inputs)`.
    """

    weight: Float[Array, "inputs outputs"]
    bias: Float[Array, " outputs"]

    def __init__(self, inputs: int, outputs: int, *, key: Key, scale: float = 1.0) -> None:
        self.weight = scale * jax.random.normal(key, (inputs, outputs)) / math.sqrt(inputs)
        self.bias = jnp.zeros(outputs)

    def __call__(self, x: Float[Array, "*axes inputs"]) -> Float[Array, "*axes outputs"]:
        return x @ self.weight + self.bias


class Conv3x3(eqx.Module):
    """3x3 convolution of arrays of shape `[rows, columns, features]`, with zero padding and without bias."""

    weight: Float[Array, "window inputs outputs"]
    """One matrix for each of the nine cells of the 3x3 window, row by row."""

    def __init__(self, inputs: int, outputs: int, *, key: Key) -> None:
        self.weight = jax.random.normal(key, (9, inputs, outputs)) / math.sqrt(9 * inputs)

    def __call__(self, x: Float[Array, "rows columns inputs"]) -> Float[Array, "rows columns outputs"]:
        rows, columns, _ = x.shape
        if rows * columns <= _SMALL_GRID:
            return self._as_matmul(x)
        padded = jnp.pad(x, ((1, 1), (1, 1), (0, 0)))
        windows = [padded[i : i + rows, j : j + columns] for i in range(3) for j in range(3)]
        return jnp.concatenate(windows, axis=-1) @ self.weight.reshape(-1, self.weight.shape[-1])

    def _as_matmul(self, x: Float[Array, "rows columns inputs"]) -> Float[Array, "rows columns outputs"]:
        """Compute the convolution as one product with a matrix that maps all input cells to all output cells.

        This requires more arithmetic than multiplying the 3x3 windows by the weights, but does not copy the
        windows. On 4x4 and 5x5 grids with 8 to 12 features, it is five to nine times faster.
        """
        rows, columns, inputs = x.shape
        outputs = self.weight.shape[-1]
        matrix = jnp.einsum("kpq,kio->piqo", _neighbors(rows, columns), self.weight)
        matrix = matrix.reshape(rows * columns * inputs, rows * columns * outputs)
        return (x.reshape(-1) @ matrix).reshape(rows, columns, outputs)


@functools.lru_cache(maxsize=32)
def _neighbors(rows: int, columns: int) -> Float[np.ndarray, "window cells cells"]:
    """Return an array whose entry `[k, p, q]` is 1 if cell `p` is neighbor `k` of cell `q`, and 0 otherwise.

    The nine cells of a 3x3 window, including its center, are numbered row by row.
    """
    offsets = (1, 0, -1)
    near = [np.kron(np.eye(rows, k=down), np.eye(columns, k=right)) for down in offsets for right in offsets]
    return np.stack(near).astype(np.float32)


class LayerNorm(eqx.Module):
    """Layer normalization over the last axis, with a learned scale and shift."""

    scale: Float[Array, " width"]
    shift: Float[Array, " width"]

    def __init__(self, width: int) -> None:
        self.scale, self.shift = jnp.ones(width), jnp.zeros(width)

    def __call__(self, x: Float[Array, "*axes width"]) -> Float[Array, "*axes width"]:
        centered = x - jnp.mean(x, axis=-1, keepdims=True)
        deviation = jnp.sqrt(jnp.mean(jnp.square(centered), axis=-1, keepdims=True) + 1e-6)
        return centered / deviation * self.scale + self.shift


Items = Float[Array, "items width"]
"""One feature vector per item in a set or sequence."""


class Attention(eqx.Module):
    """Multi-head self-attention over a set of items, without position embeddings."""

    qkv: Dense
    out: Dense
    heads: int = eqx.field(static=True)

    def __init__(self, width: int, heads: int, *, key: Key) -> None:
        keys = jax.random.split(key)
        self.qkv = Dense(width, 3 * width, key=keys[0])
        self.out = Dense(width, width, key=keys[1])
        self.heads = heads

    def __call__(self, items: Items, mask: Bool[Array, "items items"]) -> Items:
        """Compute self-attention.

        Args:
            items: Features of each item.
            mask: Item `i` attends to item `j` if `mask[i, j]` is True. At least one entry per row of the mask
                must be True.
        """
        count, width = items.shape
        qkv = self.qkv(items).reshape(count, 3, self.heads, width // self.heads)
        queries, keys, values = jnp.moveaxis(qkv, 1, 0)
        scores = jnp.einsum("qhd,khd->hqk", queries, keys) / math.sqrt(width // self.heads)
        weights = jax.nn.softmax(jnp.where(mask, scores, -1e30), axis=-1)
        return self.out(jnp.einsum("hqk,khd->qhd", weights, values).reshape(count, width))


def pool(
    features: Float[Array, "rows columns width"], inside: Bool[Array, "rows columns"]
) -> Float[Array, " pooled"]:
    """Concatenate the mean and the maximum of each feature over the cells for which `inside` is True.

    The result is zero if `inside` is False everywhere.
    """
    mask = inside[..., None]
    mean = jnp.sum(jnp.where(mask, features, 0.0), axis=(0, 1)) / jnp.maximum(inside.sum(), 1)
    maximum = jnp.max(jnp.where(mask, features, -1e9), axis=(0, 1))
    return jnp.concatenate([mean, jnp.where(inside.any(), maximum, 0.0)])

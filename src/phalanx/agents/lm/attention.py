"""Attention within the segments of packed rows: softmax over the earlier tokens of a token's own segment.

The model around it is in `model`; attention to a cache, while writing, is in `generation`.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

from phalanx.tokens import create_segment_attention_mask

_BLOCK, _BLOCKS = 128, 8
"""A row is taken in blocks of so many tokens, or of more so that there are at most so many."""


def attention(
    queries: Float[Array, "*rows tokens heads size"],
    keys: Float[Array, "*rows tokens heads size"],
    values: Float[Array, "*rows tokens heads size"],
    segments: Int32[Array, "*rows tokens"],
) -> Float[Array, "*rows tokens heads size"]:
    """Of each token to itself and to earlier tokens of its segment; padding, segment 0, sees itself.

    No token sees a later one, so a row is taken in blocks, each with what is before its end; the weights,
    most of what a long row takes, are made again for the gradient rather than kept.
    """
    mask = create_segment_attention_mask(segments, causal=True, padding_sees_itself=True)
    tokens = queries.shape[-3]
    size = max(_BLOCK, -(-tokens // _BLOCKS))
    if tokens <= size:
        return attention_block(queries, keys, values, mask)
    remade = jax.checkpoint(attention_block)
    return jnp.concatenate(
        [
            remade(
                queries[..., start:end, :, :],
                keys[..., :end, :, :],
                values[..., :end, :, :],
                mask[..., start:end, :end],
            )
            for start in range(0, tokens, size)
            for end in [min(start + size, tokens)]
        ],
        axis=-3,
    )


def attention_block(queries: Array, keys: Array, values: Array, mask: Array) -> Array:
    """Softmax attention of each query to the keys that the mask gives it."""
    scores = jnp.einsum("...qhd,...khd->...hqk", queries, keys).astype(jnp.float32)
    scores = jnp.where(mask[..., None, :, :], scores / math.sqrt(queries.shape[-1]), -1e30)
    weights = jax.nn.softmax(scores, axis=-1).astype(values.dtype)
    return jnp.einsum("...hqk,...khd->...qhd", weights, values)

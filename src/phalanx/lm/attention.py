"""Causal self-attention within the segments of packed rows, with rotary position embeddings.

A packed row contains the tokens of several samples, which are its segments. On the CPU, `packed_attention`
calls a native kernel for the forward and the backward pass. On other devices, it uses XLA.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

from phalanx.core.backends import dispatch, ffi_call, resolve_backend, vmappable_kernel
from phalanx.data.attention_masks import create_segment_attention_mask
from phalanx.native import Backend

_QUERY_BLOCK_SIZE, _MAX_QUERY_BLOCKS = 128, 8
"""The XLA backend processes queries in blocks of 128 tokens. For rows of more than 8 such blocks, it uses 8
larger blocks."""


class RotaryAngles(NamedTuple):
    """Cosine and sine of the rotation angle of each pair of features, for each token."""

    cos: Float[Array, "*rows tokens half"]
    sin: Float[Array, "*rows tokens half"]


def rotary_angles(position_ids: Int32[Array, "*rows tokens"], head_dim: int, theta: float) -> RotaryAngles:
    """Compute cosines and sines for rotary position embeddings (Su et al., 2021, arXiv:2104.09864).

    The angle of feature pair `i` is the position multiplied by `theta ** (-2 * i / head_dim)`.
    """
    half = head_dim // 2
    angles = position_ids[..., None] * theta ** -(jnp.arange(half) / half)
    return RotaryAngles(jnp.cos(angles), jnp.sin(angles))


def apply_rotary(
    x: Float[Array, "*rows tokens heads head_dim"], angles: RotaryAngles
) -> Float[Array, "*rows tokens heads head_dim"]:
    """Rotate queries or keys. Feature `i` is paired with feature `i + head_dim / 2`, as in Llama."""
    first, second = jnp.split(x, 2, axis=-1)
    cos, sin = (part[..., None, :].astype(x.dtype) for part in angles)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def packed_attention(
    qkv: Float[Array, "*rows tokens 3 heads head_dim"],
    angles: RotaryAngles,
    segment_ids: Int32[Array, "*rows tokens"],
    backend: Backend = "auto",
) -> Float[Array, "*rows tokens heads head_dim"]:
    """Rotate queries and keys, then attend from each token to itself and to earlier tokens of its segment.

    Padding tokens (segment 0) attend only to themselves. Attention weights are not stored for the backward
    pass, except by the XLA backend for rows of at most 128 tokens. The native backend computes in float32 for
    any input type, and skips pairs of tokens in different segments.

    Args:
        qkv: Queries, keys and values before rotation.
        angles: Rotation angles of the tokens.
        segment_ids: Segment of each token. Segments are numbered from 1 in each row, and 0 is padding.
        backend: `native`, `xla`, or `auto`, which selects the native kernel on the CPU if it is available,
            and XLA otherwise.

    Returns:
        The output of each attention head for each token.
    """

    def native(qkv: Array, angles: RotaryAngles, segment_ids: Array) -> Array:
        return _native_attention(qkv.astype(jnp.float32), angles, segment_ids).astype(qkv.dtype)

    return dispatch(resolve_backend(backend), native, _xla_attention, qkv, angles, segment_ids)


# Native backend


@jax.custom_vjp
def _native_attention(qkv: Array, angles: RotaryAngles, segment_ids: Array) -> Array:
    return _forward(qkv, *angles, segment_ids)[0]


def _native_attention_fwd(qkv: Array, angles: RotaryAngles, segment_ids: Array) -> tuple[Array, Any]:
    output, logsumexp = _forward(qkv, *angles, segment_ids)
    return output, (qkv, *angles, segment_ids, output, logsumexp)


def _native_attention_bwd(residuals: Any, cotangent: Array) -> tuple[Array, None, None]:
    return _backward(*residuals, cotangent), None, None


_native_attention.defvjp(_native_attention_fwd, _native_attention_bwd)


def _batch_shape(qkv: Array, *rest: Array) -> tuple[int, ...]:
    return qkv.shape[:-4]


def _forward_rows(qkv: Array, *rest: Array) -> tuple[Array, Array]:
    """Compute attention.

    Args:
        qkv: Queries, keys and values before rotation.
        rest: Cosines and sines of the rotation angles, and the segment ids.

    Returns:
        The output, and the logsumexp of each query's attention scores, which the backward pass needs.
    """
    _, tokens, _, heads, head_dim = qkv.shape
    results = (
        jax.ShapeDtypeStruct((tokens, heads, head_dim), jnp.float32),
        jax.ShapeDtypeStruct((heads, tokens), jnp.float32),
    )
    output, logsumexp = ffi_call("phalanx_lm_attention_forward", results, (), (qkv, *rest))
    return output, logsumexp


def _backward_rows(qkv: Array, *rest: Array) -> Array:
    """Compute the gradient with respect to `qkv`.

    Args:
        qkv: Queries, keys and values before rotation.
        rest: The other inputs of `_forward_rows`, its results, and the cotangent of the output.
    """
    result = jax.ShapeDtypeStruct(qkv.shape[1:], jnp.float32)
    [gradient] = ffi_call("phalanx_lm_attention_backward", [result], (), (qkv, *rest))
    return gradient


_forward = vmappable_kernel(_forward_rows, _batch_shape)
_backward = vmappable_kernel(_backward_rows, _batch_shape)


# XLA backend


def _xla_attention(qkv: Array, angles: RotaryAngles, segment_ids: Array) -> Array:
    """Compute attention in blocks of queries. A block needs only the keys up to its own last token.

    If there is more than one block, the attention weights are recomputed in the backward pass, because they
    would use most of the memory.
    """
    queries, keys, values = (qkv[..., part, :, :] for part in range(3))
    queries, keys = apply_rotary(queries, angles), apply_rotary(keys, angles)
    mask = create_segment_attention_mask(segment_ids, causal=True, padding_sees_itself=True)
    *batch_shape, tokens, heads, head_dim = queries.shape
    # `dot_product_attention` takes exactly one batch axis.
    rows = math.prod(batch_shape)
    queries, keys, values = (x.reshape(rows, tokens, heads, head_dim) for x in (queries, keys, values))
    mask = mask.reshape(rows, 1, tokens, tokens)
    block_size = max(_QUERY_BLOCK_SIZE, -(-tokens // _MAX_QUERY_BLOCKS))
    if tokens <= block_size:
        output = jax.nn.dot_product_attention(queries, keys, values, mask=mask)
    else:
        attend = jax.checkpoint(jax.nn.dot_product_attention)
        output = jnp.concatenate(
            [
                attend(queries[:, start:end], keys[:, :end], values[:, :end], mask=mask[..., start:end, :end])
                for start in range(0, tokens, block_size)
                for end in [min(start + block_size, tokens)]
            ],
            axis=1,
        )
    return output.reshape(*batch_shape, tokens, heads, head_dim)

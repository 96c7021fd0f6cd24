"""Attention within the segments of packed rows: softmax over the earlier tokens of a token's own segment.

One native call on the CPU, XLA's elsewhere. The model around it is in `model`, attention to a
cache in `generation`.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

from phalanx.core.backends import Backend, dispatch, keep_batch_sharding, resolve_backend, vmappable_kernel
from phalanx.data.packed_batch import create_segment_attention_mask

_BLOCK, _BLOCKS = 128, 8
"""A row is taken in blocks of so many tokens, or of more so that there are at most so many."""


class RotaryAngles(NamedTuple):
    """How far rotary positions turn each pair of numbers of a token's queries and keys."""

    cosine: Float[Array, "*rows tokens half"]
    sine: Float[Array, "*rows tokens half"]


def rotary_angles(positions: Int32[Array, "*rows tokens"], size: int, base: float) -> RotaryAngles:
    """Of heads of a size: each pair turns with the position, at a speed of its own."""
    half = size // 2
    turned = positions[..., None] * base ** -(jnp.arange(half) / half)
    return RotaryAngles(jnp.cos(turned), jnp.sin(turned))


def apply_rotary(
    x: Float[Array, "*rows tokens heads size"], angles: RotaryAngles
) -> Float[Array, "*rows tokens heads size"]:
    """Rotary positions."""
    first, second = jnp.split(x, 2, axis=-1)
    cosine, sine = (angle[..., None, :].astype(x.dtype) for angle in angles)
    return jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)


def packed_attention(
    qkv: Float[Array, "*rows tokens 3 heads size"],
    angles: RotaryAngles,
    segments: Int32[Array, "*rows tokens"],
    engine: Backend = "auto",
) -> Float[Array, "*rows tokens heads size"]:
    """What `attention` gives, for queries, keys and values side by side that positions have not rotated yet.

    The native engine computes in float32, whatever the type of what it is given, and nothing between
    segments; memory is that of the result, for weights are made again for the gradient.
    """

    def native(qkv: Array, angles: RotaryAngles, segments: Array) -> Array:
        return _native(qkv.astype(jnp.float32), angles, segments).astype(qkv.dtype)

    return dispatch(resolve_backend(engine), native, _xla, qkv, angles, segments)


def _xla(qkv: Array, angles: RotaryAngles, segments: Array) -> Array:
    queries, keys, values = (qkv[..., part, :, :] for part in range(3))
    return attention(apply_rotary(queries, angles), apply_rotary(keys, angles), values, segments)


@jax.custom_vjp
def _native(qkv: Array, angles: RotaryAngles, segments: Array) -> Array:
    return _forward((), qkv, *angles, segments)[0]


def _native_forward(qkv: Array, angles: RotaryAngles, segments: Array) -> tuple[Array, Any]:
    attended, logs = _forward((), qkv, *angles, segments)
    return attended, (qkv, *angles, segments, attended, logs)


def _native_backward(kept: Any, cotangent: Array) -> tuple[Array, None, None]:
    return _backward((), *kept, cotangent), None, None


_native.defvjp(_native_forward, _native_backward)


def _rows(qkv: Array, *rest: Array) -> tuple[int, ...]:
    return qkv.shape[:-4]


def _flat_forward(shared: tuple[()], qkv: Array, *rest: Array) -> tuple[Array, Array]:
    """What is attended to, and for the gradient the logarithm of each token's sum."""

    def call(qkv: Array, *rest: Array) -> tuple[Array, Array]:
        rows, tokens, _, heads, size = qkv.shape
        results = (
            jax.ShapeDtypeStruct((rows, tokens, heads, size), jnp.float32),
            jax.ShapeDtypeStruct((rows, heads, tokens), jnp.float32),
        )
        attended, log_sums = jax.ffi.ffi_call("phalanx_attention_forward", results)(qkv, *rest)
        return attended, log_sums

    return keep_batch_sharding(call, (), (qkv, *rest))


def _flat_backward(shared: tuple[()], qkv: Array, *rest: Array) -> Array:
    def call(qkv: Array, *rest: Array) -> Array:
        result = jax.ShapeDtypeStruct(qkv.shape, jnp.float32)
        return jax.ffi.ffi_call("phalanx_attention_backward", result)(qkv, *rest)

    return keep_batch_sharding(call, (), (qkv, *rest))


_forward = vmappable_kernel(_flat_forward, _rows, ())
_backward = vmappable_kernel(_flat_backward, _rows, ())


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

"""How a batch goes on after its prompts: one native call on the CPU, XLA's loop over a cache elsewhere.

What is asked for and what comes back is in `generation`.
"""

import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int32

from phalanx.core.backends import Backend, dispatch, resolve_backend
from phalanx.core.environment import Key
from phalanx.lm.attention import apply_rotary, packed_attention, rotary_angles
from phalanx.lm.model import LanguageModel

_PLACES = 16
"""The native cache is in panels of so many places."""
_NEVER = -1e30


class GenerationRequest(NamedTuple):
    """What a batch is to write."""

    prompts: Int32[Array, "batch padded"]
    """At the ends of their rows, so that all rows write their next token at one place of the cache."""
    starts: Int32[Array, " batch"]
    """Where they begin."""
    temperature: Float[Array, ""]
    top_p: Float[Array, ""]
    key: Key
    stop_token: Int32[Array, ""]
    choices: Int32[Array, "batch choices new"] | None
    """Padded by -1, which is no token."""


class GenerationArrays(NamedTuple):
    """What a batch wrote."""

    tokens: Int32[Array, "batch room"]
    log_probs: Float[Array, "batch room"]
    lengths: Int32[Array, " batch"]
    ended: Bool[Array, " batch"]


class KVCache(NamedTuple):
    """The keys and values of one block, by place in the row."""

    keys: Float[Array, "batch heads size places"]
    values: Float[Array, "batch heads places size"]


@eqx.filter_jit
def write(
    model: LanguageModel,
    request: GenerationRequest,
    max_new_tokens: int,
    top_k: int,
    nucleus: bool,
    engine: Backend = "auto",
) -> GenerationArrays:
    """Until every row has ended or has `max_new_tokens`.

    The native engine is for models that compute in float32; XLA serves bfloat16 on the CPU too.
    """
    arrays, static = eqx.partition(model, eqx.is_array)

    def native(arrays: LanguageModel, request: GenerationRequest) -> GenerationArrays:
        return _native(eqx.combine(arrays, static), request, max_new_tokens, top_k)

    def xla(arrays: LanguageModel, request: GenerationRequest) -> GenerationArrays:
        return _xla(eqx.combine(arrays, static), request, max_new_tokens, top_k, nucleus)

    which = resolve_backend(engine) if model.config.compute == "float32" else "xla"
    return dispatch(which, native, xla, arrays, request)


def _native(
    model: LanguageModel, request: GenerationRequest, max_new_tokens: int, top_k: int
) -> GenerationArrays:
    """A thread computes as many rows together as it has places for; one that ends leaves its to the next."""
    config, blocks = model.config, model.blocks
    batch, padded = request.prompts.shape
    places = -(-(padded + max_new_tokens) // _PLACES) * _PLACES
    angles = rotary_angles(jnp.arange(places), config.width // config.heads, config.rotary_base)
    results = (
        jax.ShapeDtypeStruct((batch, max_new_tokens), jnp.int32),
        jax.ShapeDtypeStruct((batch, max_new_tokens), jnp.float32),
        jax.ShapeDtypeStruct((batch,), jnp.int32),
        jax.ShapeDtypeStruct((batch,), bool),
    )
    choices = request.choices
    call = jax.ffi.ffi_call("phalanx_lm_write", results)
    written = call(
        model.embedding,
        model.head,
        model.norm.scale,
        *(norm.scale for norm in blocks.norms),
        *(
            part
            for layer in (blocks.qkv, blocks.out, blocks.gate, blocks.down)
            for part in (layer.weight, layer.bias)
        ),
        *angles,
        request.prompts,
        request.starts,
        jax.vmap(lambda new: _uniform(request.key, new, batch), out_axes=1)(jnp.arange(max_new_tokens)),
        request.temperature,
        request.top_p,
        request.stop_token,
        jnp.zeros((batch, 0, max_new_tokens), jnp.int32) if choices is None else choices,
        heads=config.heads,
        top_k=top_k,
        epsilon=np.float32(config.norm_epsilon),
    )
    return GenerationArrays(*written)


def _uniform(key: Key, new: Int32[Array, ""], batch: int) -> Float[Array, " batch"]:
    """What the tokens at one place are drawn by."""
    return jax.random.uniform(jax.random.fold_in(key, new), (batch,))


class _Writing(NamedTuple):
    """How far a batch is."""

    new: Int32[Array, ""]
    """Tokens written so far."""
    caches: list[KVCache]
    logits: Float[Array, "batch vocabulary"]
    alive: Bool[Array, "batch choices"] | None
    """Choices that begin with what was written."""
    tokens: Int32[Array, "batch room"]
    log_probs: Float[Array, "batch room"]
    lengths: Int32[Array, " batch"]
    ended: Bool[Array, " batch"]


def _xla(
    model: LanguageModel, request: GenerationRequest, max_new_tokens: int, top_k: int, nucleus: bool
) -> GenerationArrays:
    starts, temperature, choices = request.starts, request.temperature, request.choices
    batch, padded = request.prompts.shape
    caches, logits = prefill(model, request.prompts, starts, max_new_tokens)
    layers = model.layers()
    begun = _Writing(
        jnp.int32(0),
        caches,
        logits,
        None if choices is None else choices[:, :, 0] >= 0,
        jnp.zeros((batch, max_new_tokens), jnp.int32),
        jnp.zeros((batch, max_new_tokens)),
        jnp.zeros(batch, jnp.int32),
        jnp.zeros(batch, bool),
    )

    def write(at: _Writing) -> _Writing:
        logs = jax.nn.log_softmax(at.logits / jnp.where(temperature > 0, temperature, 1.0))
        allowed = logs
        alive, following = at.alive, None
        if choices is not None and at.alive is not None:
            following = jax.lax.dynamic_index_in_dim(choices, at.new, 2, keepdims=False)
            known = jax.nn.one_hot(following, logs.shape[-1], dtype=bool) & at.alive[..., None]
            # A row that has ended has no choice left, and what it would write is not looked at.
            allowed = jnp.where(known.any(axis=1) | at.ended[:, None], logs, _NEVER)
        chosen = _choose(
            allowed,
            temperature,
            top_k,
            request.top_p if nucleus else None,
            _uniform(request.key, at.new, batch),
        )
        if following is not None and at.alive is not None:
            alive = at.alive & (following == chosen[:, None])
        counted = logs if following is None else jax.nn.log_softmax(allowed)
        log_prob = jnp.take_along_axis(counted, chosen[:, None], axis=1)[:, 0]
        place = (jnp.int32(0), at.new)
        caches, logits = decode_step(model, layers, at.caches, chosen, padded + at.new, starts)
        return _Writing(
            at.new + 1,
            caches,
            logits,
            alive,
            jax.lax.dynamic_update_slice(at.tokens, chosen[:, None], place),
            jax.lax.dynamic_update_slice(at.log_probs, log_prob[:, None], place),
            at.lengths + ~at.ended,
            at.ended | (chosen == request.stop_token),
        )

    done = jax.lax.while_loop(lambda at: (at.new < max_new_tokens) & ~at.ended.all(), write, begun)
    return GenerationArrays(done.tokens, done.log_probs, done.lengths, done.ended)


def prefill(
    model: LanguageModel, prompts: Int32[Array, "batch padded"], starts: Int32[Array, " batch"], room: int
) -> tuple[list[KVCache], Float[Array, "batch vocabulary"]]:
    """Caches after prompts, which begin at `starts`, with room for more; and the logits that follow."""
    places = jnp.arange(prompts.shape[1], dtype=jnp.int32)
    positions = jnp.maximum(places - starts[:, None], 0)
    segments = (places >= starts[:, None]).astype(jnp.int32)
    angles = rotary_angles(positions, model.config.width // model.config.heads, model.config.rotary_base)
    x, caches = model.embed(prompts), []
    for block in model.layers():
        qkv = block.unrotated_qkv(x)
        x = block.forward(x, packed_attention(qkv, angles, segments))
        keys, values = apply_rotary(qkv[..., 1, :, :], angles), qkv[..., 2, :, :]
        caches.append(
            KVCache(
                jnp.pad(jnp.transpose(keys, (0, 2, 3, 1)), ((0, 0), (0, 0), (0, 0), (0, room))),
                jnp.pad(jnp.transpose(values, (0, 2, 1, 3)), ((0, 0), (0, 0), (0, room), (0, 0))),
            )
        )
    return caches, model.unembed(x[:, -1])


def decode_step(
    model: LanguageModel,
    layers: list,
    caches: list[KVCache],
    tokens: Int32[Array, " batch"],
    place: Int32[Array, ""],
    starts: Int32[Array, " batch"],
) -> tuple[list[KVCache], Float[Array, "batch vocabulary"]]:
    """The caches with one token more in each row, written at `place`, and the logits that follow."""
    places = jnp.arange(caches[0].keys.shape[-1])
    seen = (places >= starts[:, None]) & (places <= place)
    x, written = model.embed(tokens)[:, None], []
    for block, cache in zip(layers, caches, strict=True):
        queries, keys, values = block.project_qkv(x, (place - starts)[:, None])
        cache = KVCache(
            jax.lax.dynamic_update_slice_in_dim(cache.keys, jnp.transpose(keys, (0, 2, 3, 1)), place, 3),
            jax.lax.dynamic_update_slice_in_dim(cache.values, jnp.transpose(values, (0, 2, 1, 3)), place, 2),
        )
        scores = jnp.einsum("bhd,bhdp->bhp", queries[:, 0], cache.keys).astype(jnp.float32)
        scores = jnp.where(seen[:, None], scores / math.sqrt(queries.shape[-1]), _NEVER)
        weights = jax.nn.softmax(scores, axis=-1).astype(values.dtype)
        x = block.forward(x, jnp.einsum("bhp,bhpd->bhd", weights, cache.values)[:, None])
        written.append(cache)
    return written, model.unembed(x[:, 0])


def _choose(
    logs: Float[Array, "batch vocabulary"],
    temperature: Float[Array, ""],
    top_k: int,
    top_p: Float[Array, ""] | None,
    uniform: Float[Array, " batch"],
) -> Int32[Array, " batch"]:
    """The likeliest token at temperature 0, else one drawn; `logs` are at the temperature already."""
    drawn_from = logs
    if top_k and top_k < logs.shape[-1]:
        least = jax.lax.top_k(drawn_from, top_k)[0][:, -1:]
        drawn_from = jnp.where(drawn_from < least, _NEVER, drawn_from)
    if top_p is not None:
        ordered = jax.lax.top_k(drawn_from, drawn_from.shape[-1])[0]
        shares = jax.nn.softmax(ordered)
        # The likeliest token always stays; the one that passes the share is the last.
        kept = jnp.cumsum(shares, axis=-1) - shares < top_p
        least = jnp.min(jnp.where(kept, ordered, jnp.inf), axis=-1, keepdims=True)
        drawn_from = jnp.where(drawn_from < least, _NEVER, drawn_from)
    # The cumulated share that a uniform number falls into; one number serves all tokens.
    shares = jax.nn.softmax(drawn_from)
    cumulated = jnp.cumsum(shares, axis=-1)
    wanted = uniform[:, None] * cumulated[:, -1:]
    drawn = jnp.argmax((cumulated > wanted) & (shares > 0), axis=-1)
    return jnp.where(temperature > 0, drawn, jnp.argmax(logs, axis=-1)).astype(jnp.int32)

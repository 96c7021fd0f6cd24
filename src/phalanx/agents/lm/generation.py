"""Writing with a language model: batches of prompts, a key-value cache, sampling, stop tokens, legal moves.

Prompts stand at the end of their rows, so that all rows write their next token at one place of the cache.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int32
from pydantic import Field

from phalanx.agents.lm.attention import attention
from phalanx.agents.lm.model import LanguageModel
from phalanx.core.config import Config
from phalanx.core.environment import Key

_STEP = 32
"""Prompts are padded to a multiple of this, so that few lengths are compiled."""
_NEVER = -1e30


class SamplingConfig(Config):
    """How tokens are chosen."""

    temperature: float = Field(default=1.0, ge=0)
    """What logits are divided by; 0 takes the likeliest token."""
    top_k: int = Field(default=0, ge=0)
    """Only so many of the likeliest tokens are drawn from; 0 for all."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Only the likeliest tokens that have this probability together are drawn from."""


class Generated(NamedTuple):
    """What was written after each prompt."""

    tokens: list[list[int]]
    """Up to and with the token that ended it, where one did."""
    log_probs: list[list[float]]
    """Of each token among all tokens, or among those that go on with a choice where there are choices, by the
    model at the temperature (at 1, where it is 0); what top-k and top-p left out is counted in."""
    ended: Bool[np.ndarray, " batch"]
    """Whether a stop token came before the room was used up."""


class KeyValueCache(NamedTuple):
    """The keys and values of one block, by place in the row."""

    keys: Float[Array, "batch heads size places"]
    values: Float[Array, "batch heads places size"]


def generate_batch(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    *,
    sampling: SamplingConfig = SamplingConfig(temperature=0.0),  # noqa: B008 - frozen
    key: Key | None = None,
    stop_token: int | None = None,
    choices: Sequence[Sequence[Sequence[int]]] | None = None,
    padded_prompt: int = 0,
) -> Generated:
    """What the model writes after each prompt: greedily at temperature 0, else drawn with the key.

    A text ends with the `stop_token` or after `max_new_tokens`. `choices` are the only texts that each row
    may write, such as its legal moves with the stop token behind; they need a stop token, and must be at
    most `max_new_tokens` long. Rows are padded to `padded_prompt` tokens at least, to share a compilation.
    """
    _check(model, prompts, max_new_tokens, sampling, key)
    longest = max(max(map(len, prompts)), padded_prompt)
    width = -(-longest // _STEP) * _STEP
    padded = np.zeros((len(prompts), width), np.int32)
    for row, prompt in zip(padded, prompts, strict=True):
        row[width - len(prompt) :] = prompt
    starts = np.array([width - len(prompt) for prompt in prompts], np.int32)
    written, log_probs, lengths, ended = map(
        np.asarray,
        _generate(
            model,
            jnp.asarray(padded),
            jnp.asarray(starts),
            max_new_tokens,
            sampling.top_k,
            sampling.top_p < 1,
            jnp.float32(sampling.temperature),
            jnp.float32(sampling.top_p),
            jax.random.key(0) if key is None else key,
            jnp.int32(-1 if stop_token is None else stop_token),
            None if choices is None else jnp.asarray(_choices(choices, max_new_tokens, stop_token)),
        ),
    )
    return Generated(
        [row[:length].tolist() for row, length in zip(written, lengths, strict=True)],
        [row[:length].tolist() for row, length in zip(log_probs, lengths, strict=True)],
        ended,
    )


def generate(
    model: LanguageModel,
    prompt: Sequence[int],
    max_new_tokens: int,
    *,
    temperature: float = 0.0,
    key: Key | None = None,
    stop_token: int | None = None,
) -> list[int]:
    """What the model writes after one prompt, without the `stop_token`; `generate_batch` writes many."""
    sampling = SamplingConfig.model_construct(temperature=temperature)
    said = generate_batch(model, [prompt], max_new_tokens, sampling=sampling, key=key, stop_token=stop_token)
    return said.tokens[0][:-1] if said.ended[0] else said.tokens[0]


def _check(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    sampling: SamplingConfig,
    key: Key | None,
) -> None:
    if not prompts or not all(map(len, prompts)):
        raise ValueError("the prompt is empty; give the model one token at least")
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens must be at least 1, got {max_new_tokens}")
    if sampling.temperature < 0:
        raise ValueError(f"temperature must not be negative, got {sampling.temperature}")
    if sampling.temperature > 0 and key is None:
        raise ValueError("drawing at a temperature needs a key")
    for token in (max(map(max, prompts)), min(map(min, prompts))):
        if not 0 <= token < model.config.vocab_size:
            raise ValueError(
                f"the prompt has token {token}, the model knows 0 to {model.config.vocab_size - 1}"
            )


def _choices(
    choices: Sequence[Sequence[Sequence[int]]], max_new_tokens: int, stop_token: int | None
) -> Int32[np.ndarray, "batch choices new"]:
    """Padded by -1, which is no token."""
    if stop_token is None:
        raise ValueError("choices need a stop token, or nobody knows where one ends")
    # Rounded up, so that few shapes are compiled.
    most = -(-max(map(len, choices)) // _STEP) * _STEP
    table = np.full((len(choices), most, max_new_tokens), -1, np.int32)
    for row, texts in enumerate(choices):
        if not texts:
            raise ValueError(f"row {row} has no text to choose")
        for place, text in enumerate(texts):
            if len(text) > max_new_tokens or text[-1] != stop_token:
                raise ValueError(
                    f"choice {place} of row {row} must end with the stop token in {max_new_tokens}"
                )
            table[row, place, : len(text)] = text
    return table


class _Writing(NamedTuple):
    """How far a batch is."""

    new: Int32[Array, ""]
    """Tokens written so far."""
    caches: list[KeyValueCache]
    logits: Float[Array, "batch vocabulary"]
    alive: Bool[Array, "batch choices"] | None
    """Choices that begin with what was written."""
    tokens: Int32[Array, "batch room"]
    log_probs: Float[Array, "batch room"]
    lengths: Int32[Array, " batch"]
    ended: Bool[Array, " batch"]


@eqx.filter_jit
def _generate(
    model: LanguageModel,
    prompts: Int32[Array, "batch padded"],
    starts: Int32[Array, " batch"],
    max_new_tokens: int,
    top_k: int,
    nucleus: bool,
    temperature: Float[Array, ""],
    top_p: Float[Array, ""],
    key: Key,
    stop_token: Int32[Array, ""],
    choices: Int32[Array, "batch choices new"] | None,
) -> tuple[Array, Array, Array, Array]:
    batch, padded = prompts.shape
    caches, logits = prefill(model, prompts, starts, max_new_tokens)
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
            allowed, temperature, top_k, top_p if nucleus else None, jax.random.fold_in(key, at.new)
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
            at.ended | (chosen == stop_token),
        )

    done = jax.lax.while_loop(lambda at: (at.new < max_new_tokens) & ~at.ended.all(), write, begun)
    return done.tokens, done.log_probs, done.lengths, done.ended


def prefill(
    model: LanguageModel, prompts: Int32[Array, "batch padded"], starts: Int32[Array, " batch"], room: int
) -> tuple[list[KeyValueCache], Float[Array, "batch vocabulary"]]:
    """Caches after prompts, which begin at `starts`, with room for more; and the logits that follow."""
    places = jnp.arange(prompts.shape[1], dtype=jnp.int32)
    positions = jnp.maximum(places - starts[:, None], 0)
    segments = (places >= starts[:, None]).astype(jnp.int32)
    x, caches = model.embed(prompts), []
    for block in model.layers():
        queries, keys, values = block.project_qkv(x, positions)
        x = block.forward(x, attention(queries, keys, values, segments))
        caches.append(
            KeyValueCache(
                jnp.pad(jnp.transpose(keys, (0, 2, 3, 1)), ((0, 0), (0, 0), (0, 0), (0, room))),
                jnp.pad(jnp.transpose(values, (0, 2, 1, 3)), ((0, 0), (0, 0), (0, room), (0, 0))),
            )
        )
    return caches, model.unembed(x[:, -1])


def decode_step(
    model: LanguageModel,
    layers: list,
    caches: list[KeyValueCache],
    tokens: Int32[Array, " batch"],
    place: Int32[Array, ""],
    starts: Int32[Array, " batch"],
) -> tuple[list[KeyValueCache], Float[Array, "batch vocabulary"]]:
    """The caches with one token more in each row, written at `place`, and the logits that follow."""
    places = jnp.arange(caches[0].keys.shape[-1])
    seen = (places >= starts[:, None]) & (places <= place)
    x, written = model.embed(tokens)[:, None], []
    for block, cache in zip(layers, caches, strict=True):
        queries, keys, values = block.project_qkv(x, (place - starts)[:, None])
        cache = KeyValueCache(
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
    key: Key,
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
    uniform = jax.random.uniform(key, (logs.shape[0], 1)) * cumulated[:, -1:]
    drawn = jnp.argmax((cumulated > uniform) & (shares > 0), axis=-1)
    return jnp.where(temperature > 0, drawn, jnp.argmax(logs, axis=-1)).astype(jnp.int32)

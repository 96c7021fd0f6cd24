"""A small decoder-only transformer over packed rows: tokens see earlier tokens of their own segment only.

The loss is in `update`, the training in `training`.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int32
from pydantic import Field, model_validator

from phalanx.agents.networks.distributions import sample_by_uniform
from phalanx.agents.networks.layers import Dense
from phalanx.core.config import Config
from phalanx.core.environment import Key
from phalanx.tokens import create_segment_attention_mask

_ONE_HOT_VOCABULARY = 1024
"""Tokens up to which the embedding is a product: the gradient of a gather is a scatter, slow on the CPU."""
_ATTENTION_BLOCK, _ATTENTION_BLOCKS = 128, 8
"""Attention takes a row in blocks of so many tokens, or of more so that there are at most so many."""
_UNROLLED = 4
"""Blocks that are compiled one after the other; more of them are a loop, in which XLA's CPU is slower."""


class LanguageModelConfig(Config):
    """The size of a language model."""

    vocab_size: int = Field(default=258, ge=2)
    """Tokens that there are; 258 are the bytes, padding and the end of a text."""
    width: int = Field(default=128, ge=4)
    """Numbers that describe a token."""
    depth: int = Field(default=3, ge=1)
    """Blocks."""
    heads: int = Field(default=4, ge=1)
    """Attention heads."""
    hidden: int = Field(default=256, ge=4)
    """Width of a block's inner layer."""
    rotary_base: float = Field(default=10_000.0, gt=1)
    """The slowest wave of the rotary positions turns once in about 6 times as many tokens."""

    @model_validator(mode="after")
    def _even_heads(self) -> "LanguageModelConfig":
        if self.width % (2 * self.heads):
            raise ValueError(
                f"width must be a multiple of twice the heads, for rotary positions rotate pairs of numbers; "
                f"got width {self.width} and {self.heads} heads"
            )
        return self


class RMSNorm(eqx.Module):
    """Root mean square 1 on the last axis, then a learned scale."""

    scale: Float[Array, " width"]

    def __init__(self, width: int) -> None:
        self.scale = jnp.ones(width)

    def __call__(self, x: Float[Array, "*axes width"]) -> Float[Array, "*axes width"]:
        return x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + 1e-6) * self.scale


class Block(eqx.Module):
    """Attention, then a gated layer for each token; both add to what comes in."""

    norms: tuple[RMSNorm, RMSNorm]
    qkv: Dense
    out: Dense
    gate: Dense
    down: Dense
    heads: int = eqx.field(static=True)
    rotary_base: float = eqx.field(static=True)

    def __init__(self, config: LanguageModelConfig, *, key: Key) -> None:
        keys = jax.random.split(key, 4)
        width, hidden = config.width, config.hidden
        self.norms = (RMSNorm(width), RMSNorm(width))
        self.qkv = Dense(width, 3 * width, key=keys[0])
        # What is added grows with the number of blocks; so that the sum does not, each starts smaller.
        small = 1 / math.sqrt(2 * config.depth)
        self.out = Dense(width, width, key=keys[1], scale=small)
        self.gate = Dense(width, 2 * hidden, key=keys[2])
        self.down = Dense(hidden, width, key=keys[3], scale=small)
        self.heads, self.rotary_base = config.heads, config.rotary_base

    def project_qkv(
        self, x: Float[Array, "tokens width"], positions: Int32[Array, " tokens"]
    ) -> tuple[Float[Array, "tokens heads size"], ...]:
        """Queries, keys and values; the first two are rotated by their positions."""
        tokens, width = x.shape
        parts = self.qkv(self.norms[0](x)).reshape(tokens, 3, self.heads, width // self.heads)
        queries, keys = (rotary(parts[:, i], positions, self.rotary_base) for i in (0, 1))
        return queries, keys, parts[:, 2]

    def forward(
        self,
        x: Float[Array, "tokens width"],
        queries: Float[Array, "tokens heads size"],
        keys: Float[Array, "seen heads size"],
        values: Float[Array, "seen heads size"],
        mask: Bool[Array, "tokens seen"],
    ) -> Float[Array, "tokens width"]:
        """The block's output; the mask says which keys each token attends to."""
        x = x + self.out(attention(queries, keys, values, mask).reshape(x.shape))
        gate, through = jnp.split(self.gate(self.norms[1](x)), 2, axis=-1)
        return x + self.down(jax.nn.silu(gate) * through)


class LanguageModel(eqx.Module):
    """Logits of the next token, for every token of a row."""

    embedding: Float[Array, "vocabulary width"]
    head: Float[Array, "vocabulary width"]
    blocks: Block
    """All blocks: the arrays' first axis is the depth, so that they compile as one."""
    norm: RMSNorm
    config: LanguageModelConfig = eqx.field(static=True)

    def __init__(self, config: LanguageModelConfig, *, key: Key) -> None:
        keys = jax.random.split(key, 3)
        self.config = config
        shape = (config.vocab_size, config.width)
        self.embedding = jax.random.normal(keys[0], shape)
        self.blocks = eqx.filter_vmap(lambda k: Block(config, key=k))(jax.random.split(keys[1], config.depth))
        self.norm = RMSNorm(config.width)
        # Not the embedding again, which would make a new model sure that every token comes twice; and small,
        # so that it begins at guessing.
        self.head = jax.random.normal(keys[2], shape) / config.width

    def __call__(
        self,
        tokens: Int32[Array, " length"],
        segments: Int32[Array, " length"],
        positions: Int32[Array, " length"],
    ) -> Float[Array, "length vocabulary"]:
        """Of a packed row: segments are numbered from 1, padding is segment 0, positions start in each."""
        mask = create_segment_attention_mask(segments, causal=True, padding_sees_itself=True)
        arrays, static = eqx.partition(self.blocks, eqx.is_array)

        def step(x: Array, block_arrays: Block) -> tuple[Array, None]:
            block = eqx.combine(block_arrays, static)
            return block.forward(x, *block.project_qkv(x, positions), mask), None

        x, _ = jax.lax.scan(step, self.embed(tokens), arrays, unroll=_UNROLLED)
        return self.unembed(x)

    def embed(self, tokens: Int32[Array, " length"]) -> Float[Array, "length width"]:
        """Tokens as vectors."""
        if self.config.vocab_size > _ONE_HOT_VOCABULARY:
            return self.embedding[tokens]
        return jax.nn.one_hot(tokens, self.config.vocab_size) @ self.embedding

    def unembed(self, x: Float[Array, "length width"]) -> Float[Array, "length vocabulary"]:
        """The last block's output as logits."""
        return self.norm(x) @ self.head.T


def attention(
    queries: Float[Array, "tokens heads size"],
    keys: Float[Array, "seen heads size"],
    values: Float[Array, "seen heads size"],
    mask: Bool[Array, "tokens seen"],
) -> Float[Array, "tokens heads size"]:
    """Softmax attention, each token to the keys that the mask gives it.

    In a whole row no token sees a later one: it is taken in blocks, each with what is before its end, and the
    weights, most of what a long row takes, are made again for the gradient rather than kept.
    """
    tokens = queries.shape[0]
    if tokens != keys.shape[0]:
        return _attention_block(queries, keys, values, mask)
    size = max(_ATTENTION_BLOCK, -(-tokens // _ATTENTION_BLOCKS))
    return jnp.concatenate(
        [
            _attention_block(queries[start:end], keys[:end], values[:end], mask[start:end, :end])
            for start in range(0, tokens, size)
            for end in [min(start + size, tokens)]
        ]
    )


@jax.checkpoint
def _attention_block(queries: Array, keys: Array, values: Array, mask: Array) -> Array:
    scores = jnp.einsum("qhd,khd->hqk", queries, keys) / math.sqrt(queries.shape[-1])
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e30), axis=-1)
    return jnp.einsum("hqk,khd->qhd", weights, values)


def rotary(
    x: Float[Array, "tokens heads size"], positions: Int32[Array, " tokens"], base: float
) -> Float[Array, "tokens heads size"]:
    """Rotary positions: pairs of numbers rotate with the position, each pair at a speed of its own."""
    half = x.shape[-1] // 2
    speeds = base ** -(jnp.arange(half) / half)
    angles = positions[:, None, None] * speeds
    first, second = x[..., :half], x[..., half:]
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


_STEP = 64
"""Prompts are padded to a multiple of this, so that few lengths are compiled."""


class KeyValueCache(NamedTuple):
    """The keys and values of each block so far, by position."""

    keys: Float[Array, "depth length heads size"]
    values: Float[Array, "depth length heads size"]


def generate(
    model: LanguageModel,
    prompt: Sequence[int],
    max_new_tokens: int,
    *,
    temperature: float = 0.0,
    key: Key | None = None,
    stop_token: int | None = None,
) -> list[int]:
    """What the model writes after a prompt: greedily at temperature 0, else drawn with the key.

    It ends after `max_new_tokens`, or before a `stop_token`.
    """
    if not len(prompt):
        raise ValueError("the prompt is empty; give the model one token at least")
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens must be at least 1, got {max_new_tokens}")
    if temperature < 0:
        raise ValueError(f"temperature must not be negative, got {temperature}")
    if temperature > 0 and key is None:
        raise ValueError("drawing at a temperature needs a key")
    tokens = np.asarray(prompt, np.int32)
    if tokens.min() < 0 or tokens.max() >= model.config.vocab_size:
        raise ValueError(
            f"the prompt has token {tokens.max()}, the model knows 0 to {model.config.vocab_size - 1}"
        )
    padded = np.zeros(-(-len(tokens) // _STEP) * _STEP, np.int32)
    padded[: len(tokens)] = tokens
    written = _generate(
        model,
        jnp.asarray(padded),
        jnp.int32(len(tokens)),
        max_new_tokens,
        jnp.float32(temperature),
        jax.random.key(0) if key is None else key,
        jnp.int32(-1 if stop_token is None else stop_token),
    )
    result = np.asarray(written).tolist()
    return result[: result.index(-1)] if -1 in result else result


@eqx.filter_jit
def _generate(
    model: LanguageModel,
    prompt: Int32[Array, " padded"],
    length: Int32[Array, ""],
    max_new_tokens: int,
    temperature: Float[Array, ""],
    key: Key,
    stop_token: Int32[Array, ""],
) -> Int32[Array, " new"]:
    cache, logits = prefill(model, prompt, length, max_new_tokens)

    def write(
        carry: tuple[KeyValueCache, Array, Array, Array], key: Key
    ) -> tuple[tuple[KeyValueCache, Array, Array, Array], Array]:
        cache, logits, position, ended = carry
        chosen = _choose(logits, temperature, key)
        ended = ended | (chosen == stop_token)
        cache, logits = decode_step(model, cache, chosen, position)
        return (cache, logits, position + 1, ended), jnp.where(ended, -1, chosen)

    carry = (cache, logits, length, jnp.bool_(False))
    return jax.lax.scan(write, carry, jax.random.split(key, max_new_tokens))[1]


def prefill(
    model: LanguageModel, prompt: Int32[Array, " padded"], length: Int32[Array, ""], room: int
) -> tuple[KeyValueCache, Float[Array, " vocabulary"]]:
    """The cache after a prompt, with room for more tokens, and the logits of the token that follows it."""
    positions = jnp.arange(prompt.shape[0], dtype=jnp.int32)
    mask = (positions[:, None] >= positions[None]) & (positions < length)[None] | jnp.eye(
        prompt.shape[0], dtype=bool
    )
    arrays, static = eqx.partition(model.blocks, eqx.is_array)

    def step(x: Array, block_arrays: Block) -> tuple[Array, tuple[Array, Array]]:
        block = eqx.combine(block_arrays, static)
        queries, keys, values = block.project_qkv(x, positions)
        return block.forward(x, queries, keys, values, mask), (keys, values)

    x, (keys, values) = jax.lax.scan(step, model.embed(prompt), arrays)
    space = ((0, 0), (0, room), (0, 0), (0, 0))
    return KeyValueCache(jnp.pad(keys, space), jnp.pad(values, space)), model.unembed(x)[length - 1]


def decode_step(
    model: LanguageModel, cache: KeyValueCache, token: Int32[Array, ""], position: Int32[Array, ""]
) -> tuple[KeyValueCache, Float[Array, " vocabulary"]]:
    """The cache with one token more, which stands at `position`, and the logits of the next."""
    mask = (jnp.arange(cache.keys.shape[1]) <= position)[None]
    arrays, static = eqx.partition(model.blocks, eqx.is_array)

    def step(x: Array, layer: tuple[Block, Array, Array]) -> tuple[Array, tuple[Array, Array]]:
        block_arrays, keys, values = layer
        block = eqx.combine(block_arrays, static)
        queries, key, value = block.project_qkv(x, position[None])
        keys = jax.lax.dynamic_update_slice_in_dim(keys, key, position, 0)
        values = jax.lax.dynamic_update_slice_in_dim(values, value, position, 0)
        return block.forward(x, queries, keys, values, mask), (keys, values)

    x, (keys, values) = jax.lax.scan(step, model.embed(token[None]), (arrays, *cache))
    return KeyValueCache(keys, values), model.unembed(x)[0]


def _choose(logits: Float[Array, " vocabulary"], temperature: Float[Array, ""], key: Key) -> Int32[Array, ""]:
    greedy = jnp.argmax(logits).astype(jnp.int32)
    scaled = jax.nn.log_softmax(logits / jnp.maximum(temperature, 1e-6))
    return jnp.where(temperature > 0, sample_by_uniform(jax.random.uniform(key), scaled), greedy)

"""Text from a language model, token by token, with a cache of what it has already looked at.

The model itself is in `language_model`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int32

from phalanx.agents.distributions import draw
from phalanx.agents.language_model import Block, LanguageModel
from phalanx.core.environment import Key

_STEP = 64
"""Prompts are padded to a multiple of this, so that few lengths are compiled."""


class KeyValueCache(NamedTuple):
    """What each block has looked at so far, by position."""

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
    cache, logits = read_prompt(model, prompt, length, max_new_tokens)

    def write(
        carry: tuple[KeyValueCache, Array, Array, Array], key: Key
    ) -> tuple[tuple[KeyValueCache, Array, Array, Array], Array]:
        cache, logits, position, ended = carry
        chosen = _choose(logits, temperature, key)
        ended = ended | (chosen == stop_token)
        cache, logits = read_token(model, cache, chosen, position)
        return (cache, logits, position + 1, ended), jnp.where(ended, -1, chosen)

    carry = (cache, logits, length, jnp.bool_(False))
    return jax.lax.scan(write, carry, jax.random.split(key, max_new_tokens))[1]


def read_prompt(
    model: LanguageModel, prompt: Int32[Array, " padded"], length: Int32[Array, ""], room: int
) -> tuple[KeyValueCache, Float[Array, " vocabulary"]]:
    """The cache after a prompt, with room for more tokens, and the logits of the token that follows it."""
    positions = jnp.arange(prompt.shape[0], dtype=jnp.int32)
    seen = (positions[:, None] >= positions[None]) & (positions < length)[None] | jnp.eye(
        prompt.shape[0], dtype=bool
    )
    arrays, static = eqx.partition(model.blocks, eqx.is_array)

    def step(x: Array, block_arrays: Block) -> tuple[Array, tuple[Array, Array]]:
        block = eqx.combine(block_arrays, static)
        queries, keys, values = block.look(x, positions)
        return block.think(x, queries, keys, values, seen), (keys, values)

    x, (keys, values) = jax.lax.scan(step, model.embed(prompt), arrays)
    space = ((0, 0), (0, room), (0, 0), (0, 0))
    return KeyValueCache(jnp.pad(keys, space), jnp.pad(values, space)), model.read_out(x)[length - 1]


def read_token(
    model: LanguageModel, cache: KeyValueCache, token: Int32[Array, ""], position: Int32[Array, ""]
) -> tuple[KeyValueCache, Float[Array, " vocabulary"]]:
    """The cache with one token more, which stands at `position`, and the logits of the next."""
    seen = (jnp.arange(cache.keys.shape[1]) <= position)[None]
    arrays, static = eqx.partition(model.blocks, eqx.is_array)

    def step(x: Array, layer: tuple[Block, Array, Array]) -> tuple[Array, tuple[Array, Array]]:
        block_arrays, keys, values = layer
        block = eqx.combine(block_arrays, static)
        queries, key, value = block.look(x, position[None])
        keys = jax.lax.dynamic_update_slice_in_dim(keys, key, position, 0)
        values = jax.lax.dynamic_update_slice_in_dim(values, value, position, 0)
        return block.think(x, queries, keys, values, seen), (keys, values)

    x, (keys, values) = jax.lax.scan(step, model.embed(token[None]), (arrays, *cache))
    return KeyValueCache(keys, values), model.read_out(x)[0]


def _choose(logits: Float[Array, " vocabulary"], temperature: Float[Array, ""], key: Key) -> Int32[Array, ""]:
    greedy = jnp.argmax(logits).astype(jnp.int32)
    scaled = jax.nn.log_softmax(logits / jnp.maximum(temperature, 1e-6))
    return jnp.where(temperature > 0, draw(jax.random.uniform(key), scaled), greedy)

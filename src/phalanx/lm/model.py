"""A small decoder-only transformer over packed rows: tokens see earlier tokens of their own segment only.

How tokens attend to one another is in `attention`, writing in `generation`, the loss in `update`.
"""

import math
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32
from pydantic import Field, model_validator

from phalanx.config import Config
from phalanx.core.environment import Key
from phalanx.lm.attention import apply_rotary, packed_attention, rotary_angles
from phalanx.nn.layers import Dense

_ONE_HOT_VOCABULARY = 1024
"""Tokens up to which the embedding is a product: the gradient of a gather is a scatter, slow on the CPU."""
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

    norm_epsilon: float = Field(default=1e-6, gt=0)
    """What norms add to the mean square before its root."""
    compute: Literal["float32", "bfloat16"] = "float32"
    """What blocks compute in; weights are kept, and losses computed, in float32 either way."""

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
    epsilon: float = eqx.field(static=True)

    def __init__(self, width: int, epsilon: float = 1e-6) -> None:
        self.scale, self.epsilon = jnp.ones(width), epsilon

    def __call__(self, x: Float[Array, "*axes width"]) -> Float[Array, "*axes width"]:
        squares = jnp.mean(jnp.square(x.astype(jnp.float32)), axis=-1, keepdims=True)
        return x * jax.lax.rsqrt(squares + self.epsilon).astype(x.dtype) * self.scale


class TransformerBlock(eqx.Module):
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
        self.norms = (RMSNorm(width, config.norm_epsilon), RMSNorm(width, config.norm_epsilon))
        self.qkv = Dense(width, 3 * width, key=keys[0])
        # What is added grows with the number of blocks; so that the sum does not, each starts smaller.
        small = 1 / math.sqrt(2 * config.depth)
        self.out = Dense(width, width, key=keys[1], scale=small)
        self.gate = Dense(width, 2 * hidden, key=keys[2])
        self.down = Dense(hidden, width, key=keys[3], scale=small)
        self.heads, self.rotary_base = config.heads, config.rotary_base

    def project_qkv(
        self, x: Float[Array, "*rows tokens width"], positions: Int32[Array, "*rows tokens"]
    ) -> tuple[Float[Array, "*rows tokens heads size"], ...]:
        """Queries, keys and values; the first two are rotated by their positions."""
        parts = self.unrotated_qkv(x)
        queries, keys = (rotary(parts[..., i, :, :], positions, self.rotary_base) for i in (0, 1))
        return queries, keys, parts[..., 2, :, :]

    def unrotated_qkv(self, x: Float[Array, "*axes width"]) -> Float[Array, "*axes 3 heads size"]:
        """Queries, keys and values side by side, before positions rotate them."""
        *axes, width = x.shape
        return self.qkv(self.norms[0](x)).reshape(*axes, 3, self.heads, width // self.heads)

    def forward(
        self, x: Float[Array, "*axes width"], attended: Float[Array, "*attended heads size"]
    ) -> Float[Array, "*axes width"]:
        """The block's output, from its input and what its tokens attended to, in the same order."""
        x = x + self.out(attended.reshape(x.shape))
        gate, through = jnp.split(self.gate(self.norms[1](x)), 2, axis=-1)
        return x + self.down(jax.nn.silu(gate) * through)


class LanguageModel(eqx.Module):
    """Logits of the next token, for every token of a row."""

    embedding: Float[Array, "vocabulary width"]
    head: Float[Array, "vocabulary width"]
    blocks: TransformerBlock
    """All blocks: the arrays' first axis is the depth, so that they compile as one."""
    norm: RMSNorm
    config: LanguageModelConfig = eqx.field(static=True)

    def __init__(self, config: LanguageModelConfig, *, key: Key) -> None:
        keys = jax.random.split(key, 3)
        self.config = config
        shape = (config.vocab_size, config.width)
        self.embedding = jax.random.normal(keys[0], shape)
        self.blocks = eqx.filter_vmap(lambda k: TransformerBlock(config, key=k))(
            jax.random.split(keys[1], config.depth)
        )
        self.norm = RMSNorm(config.width, config.norm_epsilon)
        # Not the embedding again, which would make a new model sure that every token comes twice; and small,
        # so that it begins at guessing.
        self.head = jax.random.normal(keys[2], shape) / config.width

    def __call__(
        self,
        tokens: Int32[Array, "*rows length"],
        segments: Int32[Array, "*rows length"],
        positions: Int32[Array, "*rows length"],
    ) -> Float[Array, "*rows length vocabulary"]:
        """Of packed rows: segments are numbered from 1, padding is segment 0, positions start in each."""
        arrays, static = self._computed()
        angles = rotary_angles(positions, self.config.width // self.config.heads, self.config.rotary_base)

        # All tokens are rows of one matrix: for a batch of them XLA's CPU transposes what gradients need.
        def step(x: Float[Array, "all width"], block_arrays: TransformerBlock) -> tuple[Array, None]:
            block = eqx.combine(block_arrays, static)
            qkv = block.unrotated_qkv(x)
            attended = packed_attention(qkv.reshape(*tokens.shape, *qkv.shape[1:]), angles, segments)
            return block.forward(x, attended), None

        x, _ = jax.lax.scan(step, self.embed(tokens.reshape(-1)), arrays, unroll=_UNROLLED)
        return self.unembed(x).reshape(*tokens.shape, -1)

    def layers(self) -> list[TransformerBlock]:
        """The blocks one by one."""
        arrays, static = self._computed()
        return [
            eqx.combine(jax.tree.map(lambda leaf, n=n: leaf[n], arrays), static)
            for n in range(self.config.depth)
        ]

    def _computed(self) -> tuple[TransformerBlock, TransformerBlock]:
        """The blocks' arrays in the type that they compute in, and the rest of them."""
        arrays, static = eqx.partition(self.blocks, eqx.is_array)
        return jax.tree.map(lambda leaf: leaf.astype(self.config.compute), arrays), static

    def embed(self, tokens: Int32[Array, "*axes"]) -> Float[Array, "*axes width"]:
        """Tokens as vectors."""
        if self.config.vocab_size > _ONE_HOT_VOCABULARY:
            return self.embedding[tokens].astype(self.config.compute)
        table = self.embedding.astype(self.config.compute)
        return jax.nn.one_hot(tokens, self.config.vocab_size, dtype=table.dtype) @ table

    def unembed(self, x: Float[Array, "*axes width"]) -> Float[Array, "*axes vocabulary"]:
        """The last block's output as logits."""
        return self.norm(x.astype(jnp.float32)) @ self.head.T


def rotary(
    x: Float[Array, "*rows tokens heads size"], positions: Int32[Array, "*rows tokens"], base: float
) -> Float[Array, "*rows tokens heads size"]:
    """Rotary positions: pairs of numbers rotate with the position, each pair at a speed of its own."""
    return apply_rotary(x, rotary_angles(positions, x.shape[-1], base))

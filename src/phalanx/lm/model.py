"""Decoder-only transformer language model over packed rows.

The architecture is that of Llama (RMSNorm, rotary embeddings, gated SiLU MLP) with biases and without tied
embeddings. A packed row contains several samples, which are its segments. A token attends only to itself and
to earlier tokens of its own segment.
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
from phalanx.lm.attention import RotaryAngles, packed_attention, rotary_angles
from phalanx.nn.layers import Dense

_MAX_ONE_HOT_VOCAB_SIZE = 1024
"""Largest vocabulary for which token embeddings are computed as a matrix product instead of a gather. The
gradient of a gather is a scatter, which is slow on the CPU."""
_UNROLL = 4
"""Number of blocks per iteration of the compiled loop over blocks. XLA is faster on the CPU if the loop body
is longer."""


class LanguageModelConfig(Config):
    """Architecture of a language model."""

    vocab_size: int = Field(default=258, ge=2)
    """Number of token ids. The default fits the `bytes` tokenizer, which has 256 bytes, a padding token and
    an end-of-text token."""
    d_model: int = Field(default=128, ge=4)
    """Size of the vector that represents a token. Must be a multiple of `2 * num_heads`."""
    num_layers: int = Field(default=3, ge=1)
    """Number of transformer blocks."""
    num_heads: int = Field(default=4, ge=1)
    """Number of attention heads."""
    d_ff: int = Field(default=256, ge=4)
    """Size of the hidden layer of each block's MLP."""
    rope_theta: float = Field(default=10_000.0, gt=1)
    """Base of the rotary position embedding. Increase it for sequences of many thousands of tokens."""
    norm_eps: float = Field(default=1e-6, gt=0)
    """Constant that RMSNorm adds to the mean square to avoid division by zero."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Data type of computations in transformer blocks. Parameters, logits and losses are always float32."""

    @property
    def head_dim(self) -> int:
        """Number of features per attention head."""
        return self.d_model // self.num_heads

    @model_validator(mode="after")
    def _check_head_dim(self) -> "LanguageModelConfig":
        if self.d_model % (2 * self.num_heads):
            raise ValueError(
                f"d_model must be a multiple of 2 * num_heads, because rotary embeddings rotate pairs of "
                f"features; got d_model={self.d_model} and num_heads={self.num_heads}"
            )
        return self

    def check_vocab_size(self, num_tokens: int) -> None:
        """Raise ValueError if the vocabulary is smaller than the number of token ids in the data."""
        # Compiled code would not raise: a gather returns NaN for unknown ids.
        if num_tokens > self.vocab_size:
            raise ValueError(
                f"there are tokens up to {num_tokens - 1}, but model.vocab_size is {self.vocab_size}; set "
                f"model.vocab_size={num_tokens}"
            )


class RMSNorm(eqx.Module):
    """Root mean square normalization over the last axis, with a learned scale."""

    scale: Float[Array, " features"]
    eps: float = eqx.field(static=True)

    def __init__(self, features: int, eps: float = 1e-6) -> None:
        self.scale, self.eps = jnp.ones(features), eps

    def __call__(self, x: Float[Array, "*axes features"]) -> Float[Array, "*axes features"]:
        mean_square = jnp.mean(jnp.square(x.astype(jnp.float32)), axis=-1, keepdims=True)
        return x * jax.lax.rsqrt(mean_square + self.eps).astype(x.dtype) * self.scale


class TransformerBlock(eqx.Module):
    """Pre-norm transformer block: attention, then a gated MLP, each with a residual connection.

    The caller computes attention between its calls to `project_qkv` and `finish`, because training attends
    within packed rows, whereas generation attends to a key-value cache.
    """

    attention_norm: RMSNorm
    mlp_norm: RMSNorm
    qkv_proj: Dense
    o_proj: Dense
    gate_up_proj: Dense
    down_proj: Dense
    num_heads: int = eqx.field(static=True)

    def __init__(self, config: LanguageModelConfig, *, key: Key) -> None:
        keys = jax.random.split(key, 4)
        d_model, d_ff = config.d_model, config.d_ff
        self.attention_norm = RMSNorm(d_model, config.norm_eps)
        self.mlp_norm = RMSNorm(d_model, config.norm_eps)
        self.qkv_proj = Dense(d_model, 3 * d_model, key=keys[0])
        # Residual branches start smaller in deeper models, as in GPT-2, so that the sum does not grow.
        residual_scale = 1 / math.sqrt(2 * config.num_layers)
        self.o_proj = Dense(d_model, d_model, key=keys[1], scale=residual_scale)
        self.gate_up_proj = Dense(d_model, 2 * d_ff, key=keys[2])
        self.down_proj = Dense(d_ff, d_model, key=keys[3], scale=residual_scale)
        self.num_heads = config.num_heads

    def project_qkv(self, x: Float[Array, "*axes d_model"]) -> Float[Array, "*axes 3 heads head_dim"]:
        """Compute queries, keys and values, in this order. Rotary position embeddings are not applied yet."""
        *axes, d_model = x.shape
        qkv = self.qkv_proj(self.attention_norm(x))
        return qkv.reshape(*axes, 3, self.num_heads, d_model // self.num_heads)

    def finish(
        self, x: Float[Array, "*axes d_model"], attended: Float[Array, "*attended heads head_dim"]
    ) -> Float[Array, "*axes d_model"]:
        """Compute the block's output from its input and the output of attention."""
        x = x + self.o_proj(attended.reshape(x.shape))
        gate, up = jnp.split(self.gate_up_proj(self.mlp_norm(x)), 2, axis=-1)
        return x + self.down_proj(jax.nn.silu(gate) * up)


class LanguageModel(eqx.Module):
    """Decoder-only transformer that predicts, for every token of a packed row, the token that follows it."""

    embedding: Float[Array, "vocab d_model"]
    head: Float[Array, "vocab d_model"]
    blocks: TransformerBlock
    """All blocks as one module whose arrays have a leading layer axis, so that the code of a block is
    compiled once for all layers."""
    norm: RMSNorm
    config: LanguageModelConfig = eqx.field(static=True)

    def __init__(self, config: LanguageModelConfig, *, key: Key) -> None:
        keys = jax.random.split(key, 3)
        self.config = config
        shape = (config.vocab_size, config.d_model)
        self.embedding = jax.random.normal(keys[0], shape)
        self.blocks = eqx.filter_vmap(lambda k: TransformerBlock(config, key=k))(
            jax.random.split(keys[1], config.num_layers)
        )
        self.norm = RMSNorm(config.d_model, config.norm_eps)
        # Not tied to the embedding, because a new model would then predict that every token repeats. The
        # small scale makes initial predictions nearly uniform.
        self.head = jax.random.normal(keys[2], shape) / config.d_model

    def __call__(
        self,
        input_ids: Int32[Array, "*rows tokens"],
        segment_ids: Int32[Array, "*rows tokens"],
        position_ids: Int32[Array, "*rows tokens"],
    ) -> Float[Array, "*rows tokens vocab"]:
        """Compute, for each token, the logits of the token that follows it.

        Args:
            input_ids: Token ids of packed rows.
            segment_ids: Index of the segment of each token. Segments are numbered from 1 in each row, and 0
                is padding.
            position_ids: Position of each token in its segment, counted from 0.
        """
        arrays, static = self._cast_blocks()
        angles = self.rotary_angles(position_ids)

        # All tokens are rows of one matrix: with a batch axis, XLA's CPU backend would transpose the
        # operands of the gradients.
        def apply_block(x: Float[Array, "all d_model"], block_arrays: TransformerBlock) -> tuple[Array, None]:
            block = eqx.combine(block_arrays, static)
            qkv = block.project_qkv(x)
            attended = packed_attention(qkv.reshape(*input_ids.shape, *qkv.shape[1:]), angles, segment_ids)
            return block.finish(x, attended), None

        x, _ = jax.lax.scan(apply_block, self.embed(input_ids.reshape(-1)), arrays, unroll=_UNROLL)
        return self.logits(x).reshape(*input_ids.shape, -1)

    def embed(self, input_ids: Int32[Array, "*axes"]) -> Float[Array, "*axes d_model"]:
        """Look up token embeddings."""
        if self.config.vocab_size > _MAX_ONE_HOT_VOCAB_SIZE:
            return self.embedding[input_ids].astype(self.config.dtype)
        table = self.embedding.astype(self.config.dtype)
        return jax.nn.one_hot(input_ids, self.config.vocab_size, dtype=table.dtype) @ table

    def logits(self, x: Float[Array, "*axes d_model"]) -> Float[Array, "*axes vocab"]:
        """Compute logits from the output of the last block."""
        return self.norm(x.astype(jnp.float32)) @ self.head.T

    def rotary_angles(self, position_ids: Int32[Array, "*axes"]) -> RotaryAngles:
        """Compute the angles by which rotary embeddings rotate queries and keys at the given positions."""
        return rotary_angles(position_ids, self.config.head_dim, self.config.rope_theta)

    def unstack_blocks(self) -> list[TransformerBlock]:
        """Return a list of the blocks, with their parameters in `config.dtype`."""
        arrays, static = self._cast_blocks()
        return [
            eqx.combine(jax.tree.map(lambda leaf, n=n: leaf[n], arrays), static)
            for n in range(self.config.num_layers)
        ]

    def _cast_blocks(self) -> tuple[TransformerBlock, TransformerBlock]:
        """Partition the blocks into their arrays, cast to `config.dtype`, and their static parts."""
        arrays, static = eqx.partition(self.blocks, eqx.is_array)
        return jax.tree.map(lambda leaf: leaf.astype(self.config.dtype), arrays), static


def model_structure(config: LanguageModelConfig) -> LanguageModel:
    """Return a model in which all arrays are None.

    `eqx.combine(params, structure)` is a complete model, where `params` is a model that contains only arrays.
    """
    model = eqx.filter_eval_shape(lambda key: LanguageModel(config, key=key), jax.random.key(0))
    structure: LanguageModel = eqx.filter(
        model, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct), inverse=True
    )
    return structure


def token_logps(
    logits: Float[Array, "*axes vocab"], token_ids: Int32[Array, "*axes"]
) -> Float[Array, "*axes"]:
    """Compute the log-probability of the token at each position, given the logits at the same position."""
    # A comparison instead of a gather, because the gradient of a gather is a scatter, which is slow on the
    # CPU.
    is_token = token_ids[..., None] == jnp.arange(logits.shape[-1])
    return jnp.sum(jnp.where(is_token, logits, 0.0), axis=-1) - jax.nn.logsumexp(logits, axis=-1)

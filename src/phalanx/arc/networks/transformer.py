"""Transformer policy network."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from phalanx.arc.action_distribution import ArcLogits
from phalanx.arc.config import ArcConfig
from phalanx.arc.networks import ArcNetworkConfig
from phalanx.arc.networks.stem_and_heads import AbstractArcNetwork, Heads, Observation, Stem, grids_of
from phalanx.core.environment import Key
from phalanx.nn.layers import Attention, Dense, Items, LayerNorm

_FREQUENCIES = 5
"""Number of frequencies in the position encoding. The wavelengths are 2, 4, ..., 32 patches, so all positions
in a 30x30 grid have different encodings."""


class _Block(eqx.Module):
    """A pre-norm transformer block."""

    attention: Attention
    layers: tuple[Dense, Dense]
    norms: tuple[LayerNorm, LayerNorm]

    def __init__(self, width: int, heads: int, *, key: Key) -> None:
        keys = jax.random.split(key, 3)
        self.attention = Attention(width, heads, key=keys[0])
        self.layers = (Dense(width, 2 * width, key=keys[1]), Dense(2 * width, width, key=keys[2]))
        self.norms = (LayerNorm(width), LayerNorm(width))

    def __call__(self, items: Items, mask: Bool[Array, "items items"]) -> Items:
        items = items + self.attention(self.norms[0](items), mask)
        return items + self.layers[1](jax.nn.gelu(self.layers[0](self.norms[1](items))))


class ArcTransformer(AbstractArcNetwork):
    """Transformer policy network. Its tokens are the patches of the grid, with sinusoidal encodings of their
    rows and columns."""

    stem: Stem
    position: Dense
    blocks: tuple[_Block, ...]
    heads: Heads

    def __init__(self, config: ArcNetworkConfig, arc: ArcConfig, *, key: Key) -> None:
        if config.hidden_dim % config.num_heads:
            raise ValueError(
                "network.hidden_dim must be a multiple of network.num_heads, "
                f"got {config.hidden_dim} and {config.num_heads}"
            )
        keys = jax.random.split(key, 3 + config.num_layers)
        self.ids = arc.action.operations
        self.stem = Stem(config, arc, key=keys[0])
        self.position = Dense(4 * _FREQUENCIES, config.hidden_dim, key=keys[1])
        self.heads = Heads(config, arc, key=keys[2])
        self.blocks = tuple(_Block(config.hidden_dim, config.num_heads, key=k) for k in keys[3:])

    def logits(self, observation: Observation) -> tuple[ArcLogits, Float[Array, ""]]:
        features, inside = self.stem(observation)
        shape = features.shape
        items = (features + self.position(_sinusoids(shape[0], shape[1]))).reshape(-1, shape[2])
        # Patches outside the grid attend to themselves, so that no row of the mask is empty.
        mask = inside.reshape(1, -1) | jnp.eye(len(items), dtype=bool)
        for block in self.blocks:
            items = block(items, mask)
        return self.heads(items.reshape(shape), inside, grids_of(observation)[0])


def _sinusoids(rows: int, columns: int) -> Float[Array, "rows columns waves"]:
    lengths = 2.0 ** np.arange(1, 1 + _FREQUENCIES)

    def along(count: int) -> np.ndarray:
        angles = 2 * math.pi * np.arange(count)[:, None] / lengths
        return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)

    shape = (rows, columns, 2 * _FREQUENCIES)
    waves = along(rows)[:, None], along(columns)[None]
    return jnp.concatenate([np.broadcast_to(wave, shape) for wave in waves], axis=-1)

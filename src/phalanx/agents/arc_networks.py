"""Networks that read ARC grids: a convolutional one and a transformer, for any size of canvas.

Their first and last layers are in `arc_layers`.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from phalanx.agents.arc_distributions import ArcLogits
from phalanx.agents.arc_layers import NUM_PLACES, ArcNetworkConfig, Heads, Observation, Stem, grids_of
from phalanx.agents.arc_planes import ArcPlaneNetwork
from phalanx.agents.layers import Attention, Convolution, Dense, LayerNorm, pooled
from phalanx.arc.config import ArcConfig
from phalanx.core.environment import Key

_FREQUENCIES = 5
"""Waves of 2, 4, ... 32 cells tell the rows of the largest grid apart."""


class ArcConvNetwork(eqx.Module):
    """Residual 3x3 convolutions; each block also adds what the whole grid has in common."""

    stem: Stem
    convolutions: tuple[Convolution, ...]
    contexts: tuple[Dense, ...]
    heads: Heads

    def __init__(self, config: ArcNetworkConfig, arc: ArcConfig, *, key: Key) -> None:
        keys = jax.random.split(key, 2 + config.depth)
        width = config.width
        self.stem = Stem(config, arc, key=keys[0])
        self.heads = Heads(config, arc, key=keys[1])
        blocks = [jax.random.split(block_key) for block_key in keys[2:]]
        self.convolutions = tuple(Convolution(width, width, key=k[0]) for k in blocks)
        self.contexts = tuple(Dense(2 * width, width, key=k[1]) for k in blocks)

    def __call__(self, observation: Observation) -> tuple[ArcLogits, Float[Array, ""]]:
        """Logits and value of one observation."""
        features, inside = self.stem(observation)
        for convolution, context in zip(self.convolutions, self.contexts, strict=True):
            features = features + jax.nn.relu(convolution(features) + context(pooled(features, inside)))
        return self.heads(features, inside, grids_of(observation)[0])


class _Block(eqx.Module):
    """Attention between the patches of the grid, then a layer for each."""

    attention: Attention
    layers: tuple[Dense, Dense]
    norms: tuple[LayerNorm, LayerNorm]

    def __init__(self, width: int, heads: int, *, key: Key) -> None:
        keys = jax.random.split(key, 3)
        self.attention = Attention(width, heads, key=keys[0])
        self.layers = (Dense(width, 2 * width, key=keys[1]), Dense(2 * width, width, key=keys[2]))
        self.norms = (LayerNorm(width), LayerNorm(width))

    def __call__(
        self, items: Float[Array, "items width"], seen: Bool[Array, "items items"]
    ) -> Float[Array, "items width"]:
        items = items + self.attention(self.norms[0](items), seen)
        return items + self.layers[1](jax.nn.gelu(self.layers[0](self.norms[1](items))))


class ArcTransformer(eqx.Module):
    """A transformer over the patches of the grid, which know their rows and columns by waves."""

    stem: Stem
    position: Dense
    blocks: tuple[_Block, ...]
    heads: Heads

    def __init__(self, config: ArcNetworkConfig, arc: ArcConfig, *, key: Key) -> None:
        if config.width % config.heads:
            raise ValueError(
                f"network.width must be a multiple of network.heads, got {config.width} and {config.heads}"
            )
        keys = jax.random.split(key, 3 + config.depth)
        self.stem = Stem(config, arc, key=keys[0])
        self.position = Dense(4 * _FREQUENCIES, config.width, key=keys[1])
        self.heads = Heads(config, arc, key=keys[2])
        self.blocks = tuple(_Block(config.width, config.heads, key=k) for k in keys[3:])

    def __call__(self, observation: Observation) -> tuple[ArcLogits, Float[Array, ""]]:
        """Logits and value of one observation."""
        features, inside = self.stem(observation)
        shape = features.shape
        items = (features + self.position(_waves(shape[0], shape[1]))).reshape(-1, shape[2])
        # Patches without a cell are seen by none but themselves, so that every item sees something.
        seen = inside.reshape(1, -1) | jnp.eye(len(items), dtype=bool)
        for block in self.blocks:
            items = block(items, seen)
        return self.heads(items.reshape(shape), inside, grids_of(observation)[0])


ArcNetwork = ArcPlaneNetwork | ArcConvNetwork | ArcTransformer


def create_arc_network(config: ArcNetworkConfig, arc: ArcConfig, key: Key) -> ArcNetwork:
    """The network that a config describes, for the observations and actions of an environment's config."""
    if arc.action.selection_format not in NUM_PLACES:
        raise ValueError(
            f"policies choose points and boxes; action.selection_format is {arc.action.selection_format!r}, "
            "set it to point or bbox"
        )
    if not arc.observation.working_grid:
        raise ValueError("a policy must see the working grid: set observation.working_grid=true")
    match config.kind:
        case "planes":
            return ArcPlaneNetwork(config, arc, key=key)
        case "conv":
            return ArcConvNetwork(config, arc, key=key)
        case "transformer":
            return ArcTransformer(config, arc, key=key)


def _waves(rows: int, columns: int) -> Float[Array, "rows columns waves"]:
    """Sines and cosines of a patch's row and column."""
    lengths = 2.0 ** np.arange(1, 1 + _FREQUENCIES)

    def along(count: int) -> np.ndarray:
        angles = 2 * math.pi * np.arange(count)[:, None] / lengths
        return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)

    shape = (rows, columns, 2 * _FREQUENCIES)
    return jnp.concatenate(
        [np.broadcast_to(along(rows)[:, None], shape), np.broadcast_to(along(columns)[None], shape)], axis=-1
    )

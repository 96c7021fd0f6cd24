"""Convolutional policy network."""

import jax
from jaxtyping import Array, Float

from phalanx.arc.action_distribution import ArcLogits
from phalanx.arc.config import ArcConfig
from phalanx.arc.networks import ArcNetworkConfig
from phalanx.arc.networks.stem_and_heads import AbstractArcNetwork, Heads, Observation, Stem, grids_of
from phalanx.core.environment import Key
from phalanx.nn.layers import Conv3x3, Dense, pool


class ArcConvNetwork(AbstractArcNetwork):
    """Policy network with residual 3x3 convolutions. Each block also adds features that are pooled over the
    entire grid."""

    stem: Stem
    convolutions: tuple[Conv3x3, ...]
    contexts: tuple[Dense, ...]
    heads: Heads

    def __init__(self, config: ArcNetworkConfig, arc: ArcConfig, *, key: Key) -> None:
        keys = jax.random.split(key, 2 + config.num_layers)
        self.ids, width = arc.action.operations, config.hidden_dim
        self.stem = Stem(config, arc, key=keys[0])
        self.heads = Heads(config, arc, key=keys[1])
        blocks = [jax.random.split(block_key) for block_key in keys[2:]]
        self.convolutions = tuple(Conv3x3(width, width, key=k[0]) for k in blocks)
        self.contexts = tuple(Dense(2 * width, width, key=k[1]) for k in blocks)

    def logits(self, observation: Observation) -> tuple[ArcLogits, Float[Array, ""]]:
        features, inside = self.stem(observation)
        for convolution, context in zip(self.convolutions, self.contexts, strict=True):
            features = features + jax.nn.relu(convolution(features) + context(pool(features, inside)))
        return self.heads(features, inside, grids_of(observation)[0])

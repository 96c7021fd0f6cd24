"""Networks for ARC: convolutions over color planes, plain convolutions, and a transformer over patches.

Their first and last layers are in `arc_layers`; what is drawn from their logits is in `arc_distributions`.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from phalanx.arc.action_distribution import ArcDistribution, ArcLogits, CellLogits, joint_operation_logits
from phalanx.arc.config import ArcConfig
from phalanx.arc.networks.planes_trunk import WIDTHS, TrunkParams, trunk
from phalanx.arc.networks.stem_and_heads import (
    NUM_PLACES,
    ArcNetworkConfig,
    Heads,
    Observation,
    Stem,
    grids_of,
)
from phalanx.arc.operations import NUM_COLORS, Operation
from phalanx.core.backends import is_cpu_only, register_ffi_targets
from phalanx.core.environment import Key
from phalanx.native import is_native_available
from phalanx.nn.layers import Attention, Conv3x3, Dense, LayerNorm, pool

_MARKS = 4
"""What a plane is told of a cell: its own color, black, another color, outside the grid."""

Planes = Float[Array, "colors rows columns width"]


class ColorEquivariantBlock(eqx.Module):
    """What is around a cell, what all colors have there, and what the plane has anywhere."""

    convolution: Conv3x3
    across: Dense
    context: Dense

    def __init__(self, width: int, *, key: Key) -> None:
        keys = jax.random.split(key, 3)
        self.convolution = Conv3x3(width, width, key=keys[0])
        self.across = Dense(2 * width, width, key=keys[1])
        self.context = Dense(2 * width, width, key=keys[2])

    def __call__(self, planes: Planes, inside: Bool[Array, "rows columns"]) -> Planes:
        around = jax.vmap(self.convolution)(planes)
        across = self.across(_over_colors(planes))
        context = self.context(jax.vmap(pool, (0, None))(planes, inside))
        return planes + jax.nn.relu(around + across + context[:, None, None])


class ColorEquivariantNetwork(eqx.Module):
    """Residual 3x3 convolutions that treat all colors alike: a plane of features for each, shared weights.

    What it learns of one color it knows of the others, so that it needs a fraction of the experience. Colors
    can still differ (black is empty, gray is a wall in many tasks) by a vector that each plane has of its
    own.
    """

    stem: Dense
    colors: Float[Array, "colors width"]
    blocks: tuple[ColorEquivariantBlock, ...]
    paint: Dense
    """From a plane's cell to the logits of filling and of flood filling with the plane's color."""
    others: Dense | None
    """From all planes of a cell to the logits of the operations without a color; None without such ones."""
    operations: Dense
    """From the whole grid to the logits of filling, flood filling and each operation without a color."""
    hidden: Dense
    value: Dense
    ids: tuple[int, ...] = eqx.field(static=True)
    num_places: int = eqx.field(static=True)
    native: bool = eqx.field(static=True)
    """Whether the trunk is computed by the compiled kernels."""

    def __init__(self, config: ArcNetworkConfig, arc: ArcConfig, *, key: Key) -> None:
        if config.patch_size != 1 or config.selection_head != "cells" or arc.observation.num_demonstrations:
            raise ValueError(
                "network.kind=color_equivariant needs patch_size=1, selection_head=cells and no "
                "demonstrations; choose kind=conv"
            )
        keys = jax.random.split(key, 6 + config.num_layers)
        see, width = arc.observation, config.hidden_dim
        grids = 1 + see.input_grid + see.target_grid + see.clipboard + see.selected
        self.ids, self.num_places = arc.action.operations, NUM_PLACES[arc.action.selection_format]
        others = len(self.ids) - len(self._painting)
        self.stem = Dense(grids * _MARKS, width, key=keys[0])
        self.colors = jnp.zeros((NUM_COLORS, width))
        self.paint = Dense(width, 2 * self.num_places, key=keys[1], scale=0.01)
        self.others = Dense(2 * width, others * self.num_places, key=keys[2], scale=0.01) if others else None
        self.operations = Dense(2 * width, 2 + others, key=keys[3], scale=0.01)
        self.hidden = Dense(2 * width, 4 * width, key=keys[4])
        self.value = Dense(4 * width, 1, key=keys[5], scale=0.1)
        self.blocks = tuple(ColorEquivariantBlock(width, key=k) for k in keys[6:])
        self.native = width in WIDTHS and is_native_available() and is_cpu_only()
        if self.native:
            register_ffi_targets()

    def __call__(self, observation: Observation) -> tuple[ArcDistribution, Float[Array, ""]]:
        logits, value = self.logits(observation)
        return ArcDistribution.from_logits(logits, self.ids, observation), value

    def logits(self, observation: Observation) -> tuple[ArcLogits, Float[Array, ""]]:
        """Compute the logits of the action distribution and the value of one observation."""
        grids = grids_of(observation)
        inside = grids[0] >= 0
        planes = self._trunk(grids, inside)
        places = tuple(CellLogits(cells) for cells in self._cells(planes))
        summary = pool(_over_colors(planes)[..., : planes.shape[-1]], inside)
        operations = self._whole_grid(summary) + joint_operation_logits(places[0], self.ids, inside)
        return ArcLogits(operations, places), self.value(jax.nn.relu(self.hidden(summary)))[0]

    def _trunk(self, grids: list[Array], inside: Bool[Array, "rows columns"]) -> Planes:
        """Stem and blocks: natively where there are kernels for it, on the same numbers by XLA elsewhere."""
        if not self.native:
            planes = self.stem(_marks(grids)) + self.colors[:, None, None]
            for block in self.blocks:
                planes = block(planes, inside)
            return planes
        blocks = jax.tree.map(lambda *leaves: jnp.stack(leaves), *self.blocks)
        weights = TrunkParams(
            self.stem.weight,
            self.stem.bias,
            self.colors,
            blocks.convolution.weight,
            blocks.across.weight,
            blocks.across.bias,
            blocks.context.weight,
            blocks.context.bias,
        )
        return trunk(jnp.stack(grids), weights)

    @property
    def _painting(self) -> tuple[int, ...]:
        """The operations that have a color; their ids are the smallest and come first."""
        return tuple(operation for operation in self.ids if operation <= Operation.FLOOD_FILL_9)

    def _whole_grid(self, summary: Float[Array, " pooled"]) -> Float[Array, " operations"]:
        """One logit for filling with whatever color and one for flood filling: colors are told by cells."""
        logits = self.operations(summary)
        fills = sum(operation <= Operation.FILL_9 for operation in self._painting)
        floods = len(self._painting) - fills
        return jnp.concatenate([jnp.repeat(logits[0], fills), jnp.repeat(logits[1], floods), logits[2:]])

    def _cells(self, planes: Planes) -> Float[Array, "places operations rows columns"]:
        rows, columns = planes.shape[1:3]
        painted = self.paint(planes).reshape(NUM_COLORS, rows, columns, self.num_places, 2)
        # [places, fill or flood fill, colors]: the operations' own order.
        painted = painted.transpose(3, 4, 0, 1, 2).reshape(self.num_places, 2 * NUM_COLORS, rows, columns)
        painted = painted[:, jnp.asarray(self._painting, int)]
        if self.others is None:
            return painted
        others = self.others(_over_colors(planes)).reshape(rows, columns, self.num_places, -1)
        return jnp.concatenate([painted, others.transpose(2, 3, 0, 1)], axis=1)


def _over_colors(planes: Planes) -> Float[Array, "rows columns pooled"]:
    """The mean and the greatest over the colors."""
    return jnp.concatenate([jnp.mean(planes, axis=0), jnp.max(planes, axis=0)], axis=-1)


def _marks(grids: list[Array]) -> Float[Array, "colors rows columns marks"]:
    colors = jnp.arange(NUM_COLORS, dtype=jnp.int8)[:, None, None]
    marks = []
    for grid in grids:
        own, empty, outside = grid == colors, grid == 0, grid < 0
        other = ~own & ~empty & ~outside
        marks += [own, *(jnp.broadcast_to(mark, own.shape) for mark in (empty, other, outside))]
    return jnp.stack(marks, axis=-1).astype(jnp.float32)


_FREQUENCIES = 5
"""Waves of 2, 4, ... 32 cells tell the rows of the largest grid apart."""


class ArcConvNetwork(eqx.Module):
    """Residual 3x3 convolutions; each block also adds what the whole grid has in common."""

    stem: Stem
    convolutions: tuple[Conv3x3, ...]
    contexts: tuple[Dense, ...]
    heads: Heads

    def __init__(self, config: ArcNetworkConfig, arc: ArcConfig, *, key: Key) -> None:
        keys = jax.random.split(key, 2 + config.num_layers)
        width = config.hidden_dim
        self.stem = Stem(config, arc, key=keys[0])
        self.heads = Heads(config, arc, key=keys[1])
        blocks = [jax.random.split(block_key) for block_key in keys[2:]]
        self.convolutions = tuple(Conv3x3(width, width, key=k[0]) for k in blocks)
        self.contexts = tuple(Dense(2 * width, width, key=k[1]) for k in blocks)

    def __call__(self, observation: Observation) -> tuple[ArcDistribution, Float[Array, ""]]:
        logits, value = self.logits(observation)
        return ArcDistribution.from_logits(logits, self.heads.ids, observation), value

    def logits(self, observation: Observation) -> tuple[ArcLogits, Float[Array, ""]]:
        """Compute the logits of the action distribution and the value of one observation."""
        features, inside = self.stem(observation)
        for convolution, context in zip(self.convolutions, self.contexts, strict=True):
            features = features + jax.nn.relu(convolution(features) + context(pool(features, inside)))
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
        self, items: Float[Array, "items width"], mask: Bool[Array, "items items"]
    ) -> Float[Array, "items width"]:
        items = items + self.attention(self.norms[0](items), mask)
        return items + self.layers[1](jax.nn.gelu(self.layers[0](self.norms[1](items))))


class ArcTransformer(eqx.Module):
    """A transformer over the patches of the grid, which know their rows and columns by waves."""

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
        self.stem = Stem(config, arc, key=keys[0])
        self.position = Dense(4 * _FREQUENCIES, config.hidden_dim, key=keys[1])
        self.heads = Heads(config, arc, key=keys[2])
        self.blocks = tuple(_Block(config.hidden_dim, config.num_heads, key=k) for k in keys[3:])

    def __call__(self, observation: Observation) -> tuple[ArcDistribution, Float[Array, ""]]:
        logits, value = self.logits(observation)
        return ArcDistribution.from_logits(logits, self.heads.ids, observation), value

    def logits(self, observation: Observation) -> tuple[ArcLogits, Float[Array, ""]]:
        """Compute the logits of the action distribution and the value of one observation."""
        features, inside = self.stem(observation)
        shape = features.shape
        items = (features + self.position(_sinusoids(shape[0], shape[1]))).reshape(-1, shape[2])
        # Patches without a cell are seen by none but themselves, so that every item sees something.
        mask = inside.reshape(1, -1) | jnp.eye(len(items), dtype=bool)
        for block in self.blocks:
            items = block(items, mask)
        return self.heads(items.reshape(shape), inside, grids_of(observation)[0])


ArcNetwork = ColorEquivariantNetwork | ArcConvNetwork | ArcTransformer


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
        case "color_equivariant":
            return ColorEquivariantNetwork(config, arc, key=key)
        case "conv":
            return ArcConvNetwork(config, arc, key=key)
        case "transformer":
            return ArcTransformer(config, arc, key=key)


def _sinusoids(rows: int, columns: int) -> Float[Array, "rows columns waves"]:
    """Sines and cosines of a patch's row and column."""
    lengths = 2.0 ** np.arange(1, 1 + _FREQUENCIES)

    def along(count: int) -> np.ndarray:
        angles = 2 * math.pi * np.arange(count)[:, None] / lengths
        return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)

    shape = (rows, columns, 2 * _FREQUENCIES)
    return jnp.concatenate(
        [np.broadcast_to(along(rows)[:, None], shape), np.broadcast_to(along(columns)[None], shape)], axis=-1
    )

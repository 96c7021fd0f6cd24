"""A convolutional network that treats all colours alike: a plane of features for each, one set of weights.

What it learns of one colour it knows of the others, so that it needs a fraction of the experience. Colours
can still differ (black is empty, grey is a wall in many tasks) by a vector that each plane has of its own.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from phalanx.agents.arc_distributions import ArcLogits, CellLogits, joint_logits
from phalanx.agents.arc_layers import NUM_PLACES, ArcNetworkConfig, Observation, grids_of
from phalanx.agents.layers import Convolution, Dense, pooled
from phalanx.arc.config import ArcConfig
from phalanx.arc.environment import legal_ids
from phalanx.arc.operations import NUM_COLORS, Operation
from phalanx.core.environment import Key

_MARKS = 4
"""What a plane is told of a cell: its own colour, black, another colour, outside the grid."""

Planes = Float[Array, "colors rows columns width"]


class _Block(eqx.Module):
    """What is around a cell, what all colours have there, and what the plane has anywhere."""

    convolution: Convolution
    across: Dense
    context: Dense

    def __init__(self, width: int, *, key: Key) -> None:
        keys = jax.random.split(key, 3)
        self.convolution = Convolution(width, width, key=keys[0])
        self.across = Dense(2 * width, width, key=keys[1])
        self.context = Dense(2 * width, width, key=keys[2])

    def __call__(self, planes: Planes, inside: Bool[Array, "rows columns"]) -> Planes:
        around = jax.vmap(self.convolution)(planes)
        across = self.across(_over_colors(planes))
        context = self.context(jax.vmap(pooled, (0, None))(planes, inside))
        return planes + jax.nn.relu(around + across + context[:, None, None])


class ArcPlaneNetwork(eqx.Module):
    """Residual 3x3 convolutions of colour planes."""

    stem: Dense
    colors: Float[Array, "colors width"]
    blocks: tuple[_Block, ...]
    paint: Dense
    """From a plane's cell to the logits of filling and of flood filling with the plane's colour."""
    others: Dense | None
    """From all planes of a cell to the logits of the operations without a colour; None without such ones."""
    operations: Dense
    """From the whole grid to the logits of filling, flood filling and each operation without a colour."""
    hidden: Dense
    value: Dense
    ids: tuple[int, ...] = eqx.field(static=True)
    num_places: int = eqx.field(static=True)

    def __init__(self, config: ArcNetworkConfig, arc: ArcConfig, *, key: Key) -> None:
        if config.patch != 1 or config.places != "cells" or arc.observation.demonstrations:
            raise ValueError(
                "network.kind=planes takes patch=1, places=cells and no demonstrations; choose kind=conv"
            )
        keys = jax.random.split(key, 6 + config.depth)
        see, width = arc.observation, config.width
        grids = 1 + see.input_grid + see.target_grid + see.clipboard + see.selected
        self.ids, self.num_places = legal_ids(arc), NUM_PLACES[arc.action.selection_format]
        others = len(self.ids) - len(self._painting)
        self.stem = Dense(grids * _MARKS, width, key=keys[0])
        self.colors = jnp.zeros((NUM_COLORS, width))
        self.paint = Dense(width, 2 * self.num_places, key=keys[1], scale=0.01)
        self.others = Dense(2 * width, others * self.num_places, key=keys[2], scale=0.01) if others else None
        self.operations = Dense(2 * width, 2 + others, key=keys[3], scale=0.01)
        self.hidden = Dense(2 * width, 4 * width, key=keys[4])
        self.value = Dense(4 * width, 1, key=keys[5], scale=0.1)
        self.blocks = tuple(_Block(width, key=k) for k in keys[6:])

    def __call__(self, observation: Observation) -> tuple[ArcLogits, Float[Array, ""]]:
        """Logits and value of one observation."""
        grids = grids_of(observation)
        inside = grids[0] >= 0
        planes = self.stem(_marks(grids)) + self.colors[:, None, None]
        for block in self.blocks:
            planes = block(planes, inside)
        places = tuple(CellLogits(cells) for cells in self._cells(planes))
        gist = pooled(_over_colors(planes)[..., : planes.shape[-1]], inside)
        operations = self._whole_grid(gist) + joint_logits(places[0], self.ids, inside)
        return ArcLogits(operations, places), self.value(jax.nn.relu(self.hidden(gist)))[0]

    @property
    def _painting(self) -> tuple[int, ...]:
        """The operations that have a colour; their ids are the smallest and come first."""
        return tuple(operation for operation in self.ids if operation <= Operation.FLOOD_FILL_9)

    def _whole_grid(self, gist: Float[Array, " pooled"]) -> Float[Array, " operations"]:
        """One logit for filling with whatever colour and one for flood filling: colours are told by cells."""
        logits = self.operations(gist)
        fills = sum(operation <= Operation.FILL_9 for operation in self._painting)
        floods = len(self._painting) - fills
        return jnp.concatenate([jnp.repeat(logits[0], fills), jnp.repeat(logits[1], floods), logits[2:]])

    def _cells(self, planes: Planes) -> Float[Array, "places operations rows columns"]:
        rows, columns = planes.shape[1:3]
        painted = self.paint(planes).reshape(NUM_COLORS, rows, columns, self.num_places, 2)
        # [places, fill or flood fill, colours]: the operations' own order.
        painted = painted.transpose(3, 4, 0, 1, 2).reshape(self.num_places, 2 * NUM_COLORS, rows, columns)
        painted = painted[:, jnp.asarray(self._painting, int)]
        if self.others is None:
            return painted
        others = self.others(_over_colors(planes)).reshape(rows, columns, self.num_places, -1)
        return jnp.concatenate([painted, others.transpose(2, 3, 0, 1)], axis=1)


def _over_colors(planes: Planes) -> Float[Array, "rows columns pooled"]:
    """The mean and the greatest over the colours."""
    return jnp.concatenate([jnp.mean(planes, axis=0), jnp.max(planes, axis=0)], axis=-1)


def _marks(grids: list[Array]) -> Float[Array, "colors rows columns marks"]:
    colors = jnp.arange(NUM_COLORS, dtype=jnp.int8)[:, None, None]
    marks = []
    for grid in grids:
        own, empty, outside = grid == colors, grid == 0, grid < 0
        other = ~own & ~empty & ~outside
        marks += [own, *(jnp.broadcast_to(mark, own.shape) for mark in (empty, other, outside))]
    return jnp.stack(marks, axis=-1).astype(jnp.float32)

"""First and last layers of the ARC policy networks: grid embeddings, and heads for operations, cells and the
value."""

import abc
import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int8, Shaped

from phalanx.arc.action_distribution import (
    ArcDistribution,
    ArcLogits,
    AxisLogits,
    CellLogits,
    SelectionLogits,
    category_groups,
    joint_operation_logits,
)
from phalanx.arc.config import ArcConfig
from phalanx.arc.networks import ArcNetworkConfig
from phalanx.arc.observation import ArcObservation, Observation
from phalanx.arc.operations import NUM_COLORS
from phalanx.core.environment import Key
from phalanx.nn.layers import Conv3x3, Dense, pool

Features = Float[Array, "down across width"]
"""One vector per patch of cells. The first two axes are the row and the column of the patch."""
Inside = Bool[Array, "down across"]
"""Mask of the patches that contain a cell of the working grid."""
NUM_SELECTED_CELLS = {"point": 1, "bbox": 2}
"""Number of cells for which a network computes selection logits, by selection format: the point itself, or
two opposite corners of the box."""
_COLOR_BITS = 4


class AbstractArcNetwork(eqx.Module):
    """Base class for ARC policy networks."""

    ids: tuple[int, ...] = eqx.field(static=True)
    """Ids of the operations that the config allows, in the order of the operation logits."""

    @abc.abstractmethod
    def logits(self, observation: Observation) -> tuple[ArcLogits, Float[Array, ""]]:
        """Compute the action logits and the value for one observation."""

    def __call__(self, observation: Observation) -> tuple[ArcDistribution, Float[Array, ""]]:
        logits, value = self.logits(observation)
        return ArcDistribution.from_logits(logits, self.ids, observation), value


def grids_of(observation: Observation) -> list[Int8[Array, "rows columns"]]:
    """Return the grids in an observation, without the demonstrations. The first grid is the working grid. The
    input, the target, the clipboard and the selection follow if the observation contains them. The selection
    is converted to a grid of zeros and ones."""
    if not isinstance(observation, ArcObservation):
        return [observation]
    present = [observation.input_grid, observation.target_grid, observation.clipboard, observation.selected]
    return [observation.working_grid, *(grid.astype(jnp.int8) for grid in present if grid is not None)]


class GridEmbedding(eqx.Module):
    """Embeds each patch of cells as the sum of the learned vectors of its cells. The vector of a cell depends
    on its color, on its position in the patch, and on which grid it belongs to (working grid, input, ...)."""

    tables: Float[Array, "inputs width"]
    """Learned vectors, one for each combination of a grid, a position in the patch and a color (or a bit of
    the color's number; see `bits`)."""
    patch: int = eqx.field(static=True)
    """Side length of a patch, in cells."""
    bits: bool = eqx.field(static=True)
    """Learn one vector per bit of a color's number instead of one vector per color."""

    def __init__(self, grids: int, config: ArcNetworkConfig, *, key: Key) -> None:
        self.patch, self.bits = config.patch_size, config.color_encoding == "bits"
        seen = 1 + (_COLOR_BITS if self.bits else NUM_COLORS)
        cells = grids * self.patch**2
        self.tables = jax.random.normal(key, (seen * cells, config.hidden_dim)) / math.sqrt(cells)

    def __call__(self, grids: list[Int8[Array, "rows columns"]]) -> Float[Array, "down across width"]:
        # A product with one-hot vectors: the gradient of a gather is a scatter, which is slow on the CPU.
        cells = jnp.concatenate([patches(grid, self.patch, -1) for grid in grids], -1)
        if self.bits:
            planes = [cells >= 0, *((cells >= 0) & (cells >> bit & 1 == 1) for bit in range(_COLOR_BITS))]
            seen = jnp.concatenate(planes, -1)
        else:
            seen = cells[..., None] == jnp.arange(-1, NUM_COLORS, dtype=jnp.int8)
        return seen.reshape(*cells.shape[:2], -1).astype(jnp.float32) @ self.tables


class DemonstrationEncoder(eqx.Module):
    """Encodes the demonstrations of a task as a single vector. The features of each demonstration are pooled
    over its cells, averaged over the demonstrations, and passed through a linear layer."""

    embedding: GridEmbedding
    convolution: Conv3x3
    out: Dense

    def __init__(self, config: ArcNetworkConfig, *, key: Key) -> None:
        keys = jax.random.split(key, 3)
        width = config.hidden_dim
        self.embedding = GridEmbedding(2, config, key=keys[0])
        self.convolution = Conv3x3(width, width, key=keys[1])
        self.out = Dense(2 * width, width, key=keys[2])

    def __call__(self, demonstrations: Int8[Array, "shown 2 rows columns"]) -> Float[Array, " width"]:
        present = jnp.any(demonstrations >= 0, axis=(1, 2, 3))
        encoded = jnp.where(present[:, None], jax.vmap(self._one)(demonstrations), 0.0)
        return self.out(jnp.sum(encoded, axis=0) / jnp.maximum(present.sum(), 1))

    def _one(self, pair: Int8[Array, "2 rows columns"]) -> Float[Array, " pooled"]:
        features = jax.nn.relu(self.convolution(self.embedding([pair[0], pair[1]])))
        inside = patches(jnp.any(pair >= 0, axis=0), self.embedding.patch, False).any(axis=-1)
        return pool(features, inside)


class Stem(eqx.Module):
    """First layers of a policy network, which compute one vector per patch of the canvas from all grids in
    the observation, including the demonstrations."""

    embedding: GridEmbedding
    demonstrations: DemonstrationEncoder | None

    def __init__(self, config: ArcNetworkConfig, arc: ArcConfig, *, key: Key) -> None:
        keys = jax.random.split(key)
        see = arc.observation
        grids = 1 + see.input_grid + see.target_grid + see.clipboard + see.selected
        self.embedding = GridEmbedding(grids, config, key=keys[0])
        self.demonstrations = DemonstrationEncoder(config, key=keys[1]) if see.num_demonstrations else None

    def __call__(self, observation: Observation) -> tuple[Features, Inside]:
        """Compute the patch vectors for one observation.

        Returns:
            One vector per patch, and the mask of the patches that contain a cell of the working grid.
        """
        grids = grids_of(observation)
        features = self.embedding(grids)
        inside = patches(grids[0] >= 0, self.embedding.patch, False).any(axis=-1)
        if self.demonstrations is not None:
            if not isinstance(observation, ArcObservation) or observation.demonstrations is None:
                raise ValueError("this network expects demonstrations, but the observation has none")
            features = features + self.demonstrations(observation.demonstrations)
        return features, inside


class Heads(eqx.Module):
    """Last layers of a policy network, which compute logits over operations and cells, and the value, from
    one vector per patch."""

    operations: Dense
    selections: tuple[tuple[Dense, ...], ...]
    """For each selected cell (a point, or a corner of a box), the layers that compute its logits: one layer
    for cells, or one for rows and one for columns."""
    hidden: Dense
    value: Dense
    patch: int = eqx.field(static=True)
    """Side length of a patch, in cells."""
    ids: tuple[int, ...] = eqx.field(static=True)
    """Ids of the operations that the config allows."""
    groups: tuple[int, ...] | None = eqx.field(static=True)
    """For each operation in `ids`, the index of its group. The operations in a group share their selection
    logits. None if each operation has its own logits."""

    def __init__(self, config: ArcNetworkConfig, arc: ArcConfig, *, key: Key) -> None:
        keys = jax.random.split(key, 5)
        width, self.patch, self.ids = config.hidden_dim, config.patch_size, arc.action.operations
        self.groups = category_groups(self.ids) if config.selection_head == "category_axes" else None
        # Small initial weights, so that the initial policy is nearly uniform.
        self.operations = Dense(2 * width, len(self.ids), key=keys[0], scale=0.01)
        self.hidden = Dense(2 * width, 2 * width, key=keys[1])
        self.value = Dense(2 * width, 1, key=keys[2], scale=0.1)
        layers, power = (1, 2) if config.selection_head == "cells" else (2, 1)
        outputs = self._num_groups * self.patch**power
        self.selections = tuple(
            tuple(Dense(width, outputs, key=k, scale=0.01) for k in jax.random.split(selection_key, layers))
            for selection_key in keys[3 : 3 + NUM_SELECTED_CELLS[arc.action.selection_format]]
        )

    def __call__(
        self, features: Features, inside: Inside, working: Int8[Array, "rows columns"]
    ) -> tuple[ArcLogits, Float[Array, ""]]:
        """Compute the action logits and the value for one observation.

        Args:
            features: One vector per patch.
            inside: Mask of the patches that contain a cell of the working grid.
            working: Working grid.
        """
        summary = pool(features, inside)
        operations = self.operations(summary)
        canvas = working.shape
        selections = tuple(self._selection_logits(part, features, inside, canvas) for part in self.selections)
        if isinstance(selections[0], CellLogits):
            operations = operations + joint_operation_logits(selections[0], self.ids, working >= 0)
        value = self.value(jax.nn.relu(self.hidden(summary)))
        return ArcLogits(operations, selections, self.groups), value[0]

    @property
    def _num_groups(self) -> int:
        return len(self.ids if self.groups is None else set(self.groups))

    def _selection_logits(
        self, layers: tuple[Dense, ...], features: Features, inside: Inside, canvas: tuple[int, ...]
    ) -> SelectionLogits:
        patch, groups = self.patch, self._num_groups
        if len(layers) == 1:
            down, across, _ = features.shape
            cells = layers[0](features).reshape(down, across, groups, patch, patch)
            cells = cells.transpose(2, 0, 3, 1, 4).reshape(groups, down * patch, across * patch)
            return CellLogits(cells[:, : canvas[0], : canvas[1]])
        by_axis = []
        for axis, layer in enumerate(layers):
            logits = layer(_max_along(features, inside, 1 - axis)).reshape(-1, groups, patch)
            by_axis.append(logits.transpose(1, 0, 2).reshape(groups, -1)[:, : canvas[axis]])
        return AxisLogits(*by_axis)


def _max_along(features: Features, inside: Inside, axis: int) -> Float[Array, "sides width"]:
    """Compute the maximum of each feature over every row or column of patches. Patches outside the working
    grid are ignored, except in rows or columns that are entirely outside the working grid.

    Args:
        features: One vector per patch.
        inside: Mask of the patches that contain a cell of the working grid.
        axis: Axis over which the maximum is taken.
    """
    present = inside | ~inside.any(axis=axis, keepdims=True)
    return jnp.max(jnp.where(present[..., None], features, -1e9), axis=axis)


def patches(
    grid: Shaped[Array, "rows columns"], patch: int, outside: int | bool
) -> Shaped[Array, "down across cells"]:
    """Divide a grid into square patches and return the cells of each patch, row by row.

    Args:
        grid: The grid.
        patch: Side of a patch.
        outside: Value with which the grid is padded to a multiple of `patch`.
    """
    grid = jnp.pad(grid, [(0, -side % patch) for side in grid.shape], constant_values=outside)
    rows, columns = (side // patch for side in grid.shape)
    return grid.reshape(rows, patch, columns, patch).swapaxes(1, 2).reshape(rows, columns, patch**2)

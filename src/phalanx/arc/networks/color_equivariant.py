"""Color-equivariant policy network. Its stem and residual blocks run in XLA or in C++ kernels.

The forward kernel computes the stem and all blocks, and the backward kernel computes their gradients. Both
process eight examples at a time.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jaxtyping import Array, Bool, Float, Int8

from phalanx.arc.action_distribution import ArcDistribution, ArcLogits, CellLogits, joint_operation_logits
from phalanx.arc.config import ArcConfig
from phalanx.arc.networks import ArcNetworkConfig
from phalanx.arc.networks.stem_and_heads import NUM_SELECTED_CELLS, AbstractArcNetwork, Observation, grids_of
from phalanx.arc.operations import NUM_COLORS, Operation
from phalanx.core.backends import is_cpu_only, register_ffi_targets
from phalanx.core.environment import Key
from phalanx.core.vector import broadcast_unbatched
from phalanx.native import Backend, is_native_available
from phalanx.nn.layers import Conv3x3, Dense, pool

WIDTHS = (8, 12, 16, 24, 32)
"""Values of `hidden_dim` for which the C++ kernels are compiled."""
_LANES = 8
"""Number of examples that the C++ kernels process at a time."""

Grids = Int8[Array, "*batch grids rows columns"]
BatchedPlanes = Float[Array, "*batch colors rows columns width"]


class TrunkParams(NamedTuple):
    """Parameters of the trunk, which consists of the stem and the residual blocks. The leading axis of the
    block parameters is the index of the block."""

    stem: Float[Array, "marks width"]
    stem_bias: Float[Array, " width"]
    colors: Float[Array, "colors width"]
    """Learned vector of each color, which is added to the stem's features."""
    convolution: Float[Array, "depth window width width"]
    """Weights of the 3x3 convolutions."""
    across: Float[Array, "depth pooled width"]
    """Weights of the layers whose input is pooled over all colors."""
    across_bias: Float[Array, "depth width"]
    context: Float[Array, "depth pooled width"]
    """Weights of the layers whose input is pooled over all cells."""
    context_bias: Float[Array, "depth width"]


_MARKS = 4
"""Number of binary input features per cell and grid. In the plane of a color, they indicate whether the cell
has this color, is black, has any other color, or is outside the grid."""

Planes = Float[Array, "colors rows columns width"]
Mask = Bool[Array, "rows columns"]


class ColorEquivariantBlock(eqx.Module):
    """A residual block. Its output is the sum of its input and the ReLU of three terms: a 3x3 convolution of
    each color's plane, features pooled over all colors, and features pooled over all cells."""

    convolution: Conv3x3
    across: Dense
    context: Dense

    def __init__(self, width: int, *, key: Key) -> None:
        keys = jax.random.split(key, 3)
        self.convolution = Conv3x3(width, width, key=keys[0])
        self.across = Dense(2 * width, width, key=keys[1])
        self.context = Dense(2 * width, width, key=keys[2])

    def __call__(self, planes: Planes, inside: Mask) -> Planes:
        around = jax.vmap(self.convolution)(planes)
        across = self.across(_over_colors(planes))
        context = self.context(jax.vmap(pool, (0, None))(planes, inside))
        return planes + jax.nn.relu(around + across + context[:, None, None])


class ColorEquivariantNetwork(AbstractArcNetwork):
    """Policy network with one plane of features per color. It consists of residual 3x3 convolutions whose
    weights are shared by all colors.

    What the network learns about one color applies to all colors, so it needs far less training data than a
    network without shared weights. A learned vector per color allows colors to have different roles. For
    example, black is usually the background, and gray is often a wall.
    """

    stem: Dense
    colors: Float[Array, "colors width"]
    blocks: tuple[ColorEquivariantBlock, ...]
    paint: Dense
    """Layer that is applied to the plane of each color. It computes the logits for filling and flood-filling
    a cell with this color."""
    others: Dense | None
    """Layer that computes, for each allowed operation other than fill and flood fill, the logits for
    selecting a cell. None if there are no such operations."""
    operations: Dense
    """Layer that computes one logit for all fills, one for all flood fills, and one for each other operation,
    from features that are pooled over the grid."""
    hidden: Dense
    value: Dense
    num_selected: int = eqx.field(static=True)
    """Number of cells that define a selection: 1 for a point, 2 (the corners) for a box. Separate logits are
    computed for each of them."""
    # The machine determines the backend, so networks with different backends are the same network.
    backend: Backend = eqx.field(static=True, compare=False)
    """Implementation of the stem and the residual blocks: `native` (the C++ kernels) or `xla`."""

    def __init__(self, config: ArcNetworkConfig, arc: ArcConfig, *, key: Key) -> None:
        if config.patch_size != 1 or config.selection_head != "cells" or arc.observation.num_demonstrations:
            raise ValueError(
                "network.kind=color_equivariant needs patch_size=1, selection_head=cells and no "
                "demonstrations; choose kind=conv"
            )
        keys = jax.random.split(key, 6 + config.num_layers)
        see, width = arc.observation, config.hidden_dim
        grids = 1 + see.input_grid + see.target_grid + see.clipboard + see.selected
        self.ids, self.num_selected = arc.action.operations, NUM_SELECTED_CELLS[arc.action.selection_format]
        others = len(self.ids) - len(self._painting)
        self.stem = Dense(grids * _MARKS, width, key=keys[0])
        self.colors = jnp.zeros((NUM_COLORS, width))
        self.paint = Dense(width, 2 * self.num_selected, key=keys[1], scale=0.01)
        outputs = others * self.num_selected
        self.others = Dense(2 * width, outputs, key=keys[2], scale=0.01) if others else None
        self.operations = Dense(2 * width, 2 + others, key=keys[3], scale=0.01)
        self.hidden = Dense(2 * width, 4 * width, key=keys[4])
        self.value = Dense(4 * width, 1, key=keys[5], scale=0.1)
        self.blocks = tuple(ColorEquivariantBlock(width, key=k) for k in keys[6:])
        native = width in WIDTHS and is_native_available() and is_cpu_only()
        self.backend = "native" if native else "xla"
        if native:
            register_ffi_targets()

    def logits(self, observation: Observation) -> tuple[ArcLogits, Float[Array, ""]]:
        grids = grids_of(observation)
        inside = grids[0] >= 0
        if self.backend == "native":
            return self._heads(trunk(jnp.stack(grids), self._trunk_params()), inside)
        planes = self.stem(_marks(grids)) + self.colors[:, None, None]
        for block in self.blocks:
            planes = block(planes, inside)
        return self._heads(planes, inside)

    def batch(self, observations: Observation) -> tuple[ArcDistribution, Float[Array, " batch"]]:
        """Compute the action distributions and values for a batch of observations.

        The result equals that of `jax.vmap` over the network, but gradients with respect to the parameters
        are faster to compute. The native backend directly computes the gradient summed over the batch, while
        `vmap` computes one gradient per example.
        """
        if self.backend == "xla":
            return jax.vmap(self)(observations)
        grids = jax.vmap(lambda seen: jnp.stack(grids_of(seen)))(observations)
        planes = trunk(grids, self._trunk_params())

        def finish(planes: Planes, observation: Observation) -> tuple[ArcDistribution, Float[Array, ""]]:
            logits, value = self._heads(planes, grids_of(observation)[0] >= 0)
            return ArcDistribution.from_logits(logits, self.ids, observation), value

        return jax.vmap(finish)(planes, observations)

    def _heads(self, planes: Planes, inside: Mask) -> tuple[ArcLogits, Float[Array, ""]]:
        selections = tuple(CellLogits(cells) for cells in self._cells(planes))
        summary = pool(_over_colors(planes)[..., : planes.shape[-1]], inside)
        operations = self._operation_logits(summary) + joint_operation_logits(selections[0], self.ids, inside)
        return ArcLogits(operations, selections), self.value(jax.nn.relu(self.hidden(summary)))[0]

    def _trunk_params(self) -> TrunkParams:
        blocks = jax.tree.map(lambda *leaves: jnp.stack(leaves), *self.blocks)
        # The fields of `TrunkParams` are in the same order as these leaves.
        return TrunkParams(*jax.tree.leaves((self.stem, self.colors, blocks)))

    @property
    def _painting(self) -> tuple[int, ...]:
        """Ids of the fills and flood fills. They are the smallest ids, so they come first in `ids`."""
        return tuple(operation for operation in self.ids if operation <= Operation.FLOOD_FILL_9)

    def _operation_logits(self, summary: Float[Array, " pooled"]) -> Float[Array, " operations"]:
        # One logit for filling and one for flood filling, whatever the color: the cell logits determine the
        # color.
        logits = self.operations(summary)
        fills = sum(operation <= Operation.FILL_9 for operation in self._painting)
        floods = len(self._painting) - fills
        return jnp.concatenate([jnp.repeat(logits[0], fills), jnp.repeat(logits[1], floods), logits[2:]])

    def _cells(self, planes: Planes) -> Float[Array, "selections operations rows columns"]:
        rows, columns = planes.shape[1:3]
        painted = self.paint(planes).reshape(NUM_COLORS, rows, columns, self.num_selected, 2)
        # [selections, fill or flood fill, colors] is the order of the operations.
        painted = painted.transpose(3, 4, 0, 1, 2).reshape(self.num_selected, 2 * NUM_COLORS, rows, columns)
        painted = painted[:, jnp.asarray(self._painting, int)]
        if self.others is None:
            return painted
        others = self.others(_over_colors(planes)).reshape(rows, columns, self.num_selected, -1)
        return jnp.concatenate([painted, others.transpose(2, 3, 0, 1)], axis=1)


def _over_colors(planes: Planes) -> Float[Array, "rows columns pooled"]:
    return jnp.concatenate([jnp.mean(planes, axis=0), jnp.max(planes, axis=0)], axis=-1)


def _marks(grids: list[Array]) -> Float[Array, "colors rows columns marks"]:
    colors = jnp.arange(NUM_COLORS, dtype=jnp.int8)[:, None, None]
    marks = []
    for grid in grids:
        own, empty, outside = grid == colors, grid == 0, grid < 0
        other = ~own & ~empty & ~outside
        marks += [own, *(jnp.broadcast_to(mark, own.shape) for mark in (empty, other, outside))]
    return jnp.stack(marks, axis=-1).astype(jnp.float32)


@jax.custom_vjp
def trunk(grids: Grids, weights: TrunkParams) -> BatchedPlanes:
    """Compute the stem and the blocks with the C++ kernels, for one example or a batch of any shape.

    Args:
        grids: Grids of colors, -1 outside the grid.
        weights: Parameters.

    Returns:
        One plane of features per color.
    """
    return _forward(grids, weights)[0]


def _trunk_forward(grids: Grids, weights: TrunkParams) -> tuple[BatchedPlanes, Any]:
    planes, features, active = _forward_saving(grids, weights)
    return planes, (grids, weights, features, active)


def _trunk_backward(residuals: Any, cotangent: BatchedPlanes) -> tuple[None, TrunkParams]:
    return None, TrunkParams(*_backward(*residuals, cotangent))


trunk.defvjp(_trunk_forward, _trunk_backward)


def _one_call(function: Callable) -> Callable:
    """Wrap a forward pass so that `vmap` over the grids calls the kernel only once. If `vmap` also maps over
    the parameters, the kernel is called once per mapped example.

    `function` takes the grids and the parameters. It returns the planes, which have the same batch axes as
    the grids. The planes may be followed by residuals for the backward pass, which belong to the entire batch
    and are not mapped by `vmap`.
    """
    run = custom_vmap(function)

    @run.def_vmap
    def _(axis_size: int, in_batched: Any, grids: Any, weights: Any) -> tuple[Any, Any]:
        grids = broadcast_unbatched(grids, in_batched[0], axis_size)
        if any(jax.tree.leaves(in_batched[1])):
            weights = broadcast_unbatched(weights, in_batched[1], axis_size)
            results = jax.lax.map(lambda one: run(*one), (grids, weights))
            return results, jax.tree.map(lambda _: True, results)
        results = run(grids, weights)
        return results, tuple(number == 0 for number in range(len(results)))

    return run


def _run_forward(grids: Grids, weights: TrunkParams, *, with_residuals: bool) -> tuple[Array, ...]:
    """Return the planes and, if `with_residuals` is true, the residuals for the backward pass: the features
    of every layer, and masks of the active ReLUs with one bit per example."""
    flat, depth = grids.reshape(-1, *grids.shape[-3:]), weights.convolution.shape[0]
    shape = (NUM_COLORS, *grids.shape[-2:], weights.convolution.shape[-1])
    units, layer = -(-len(flat) // _LANES), math.prod(shape)
    results = [jax.ShapeDtypeStruct((len(flat), *shape), jnp.float32)]
    target = "phalanx_arc_color_equivariant_forward"
    if with_residuals:
        target += "_with_residuals"
        results.append(jax.ShapeDtypeStruct((units, depth + 1, layer, _LANES), jnp.float32))
        results.append(jax.ShapeDtypeStruct((units, depth, layer), jnp.uint8))
    planes, *residuals = jax.ffi.ffi_call(target, results)(flat, *weights)
    return planes.reshape(*grids.shape[:-3], *shape), *residuals


_forward = _one_call(functools.partial(_run_forward, with_residuals=False))
_forward_saving = _one_call(functools.partial(_run_forward, with_residuals=True))


@custom_vmap
def _backward(
    grids: Grids, weights: TrunkParams, features: Array, active: Array, cotangent: BatchedPlanes
) -> tuple[Array, ...]:
    """Compute the gradients of the parameters. They are summed over the batch in a fixed order."""
    results = tuple(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in weights)
    flat, cotangents = grids.reshape(-1, *grids.shape[-3:]), cotangent.reshape(-1, *cotangent.shape[-4:])
    call = jax.ffi.ffi_call("phalanx_arc_color_equivariant_backward", results)
    return tuple(call(flat, *weights, features, active, cotangents))


@_backward.def_vmap
def _(axis_size: int, in_batched: Any, *args: Any) -> tuple[Any, Any]:
    # The gradient of each mapped example is a sum over that example only, so there is one call per example.
    operands = broadcast_unbatched(args, tuple(in_batched), axis_size)

    def one_example(operands: Any) -> tuple[Array, ...]:
        grids, weights, features, active, cotangent = operands
        if not in_batched[2]:
            # The forward pass was one call for all examples, whose residuals cannot be separated.
            _, features, active = _forward_saving(grids, weights)
        return _backward(grids, weights, features, active, cotangent)

    if not in_batched[2]:
        # Unused, so they are not copied for each example.
        operands = (*operands[:2], *(jnp.zeros(axis_size) for _ in range(2)), operands[4])
    results = jax.lax.map(one_example, operands)
    return results, jax.tree.map(lambda _: True, results)

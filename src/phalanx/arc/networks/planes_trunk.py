"""The trunk of the network of color planes as one native call, with its gradient; its XLA twin is in `arc`.

Stem, residual blocks and their backward pass are computed together, eight samples at a time, by `src/native`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap
from jaxtyping import Array, Float, Int8

from phalanx.arc.operations import NUM_COLORS
from phalanx.core.vector import broadcast_unbatched

WIDTHS = (8, 12, 16, 24, 32)
"""Widths that the kernels are compiled for."""
_LANES = 8

Grids = Int8[Array, "*batch grids rows columns"]
Planes = Float[Array, "*batch colors rows columns width"]


class TrunkParams(NamedTuple):
    """Every array of a trunk, blocks stacked first."""

    stem: Float[Array, "marks width"]
    stem_bias: Float[Array, " width"]
    colors: Float[Array, "colors width"]
    convolution: Float[Array, "depth window width width"]
    across: Float[Array, "depth pooled width"]
    across_bias: Float[Array, "depth width"]
    context: Float[Array, "depth pooled width"]
    context_bias: Float[Array, "depth width"]


@jax.custom_vjp
def trunk(grids: Grids, weights: TrunkParams) -> Planes:
    """The features of every color's plane, of one sample or any batch, from grids of colors (-1 outside)."""
    return _forward(grids, weights)[0]


def _trunk_forward(grids: Grids, weights: TrunkParams) -> tuple[Planes, Any]:
    planes, features, active = _forward_saving(grids, weights)
    return planes, (grids, weights, features, active)


def _trunk_backward(kept: Any, cotangent: Planes) -> tuple[None, TrunkParams]:
    return None, TrunkParams(*_backward(*kept, cotangent))


trunk.defvjp(_trunk_forward, _trunk_backward)


def _sizes(grids: Grids, weights: TrunkParams) -> tuple[tuple[int, ...], int, int, int, int]:
    """Batch shape, samples, depth, cells and width."""
    batch, (rows, columns) = grids.shape[:-3], grids.shape[-2:]
    depth, width = weights.convolution.shape[0], weights.convolution.shape[-1]
    return batch, int(np.prod(batch, dtype=np.int64)), depth, rows * columns, width


def _flat(grids: Grids) -> Int8[Array, "samples grids rows columns"]:
    return grids.reshape(-1, *grids.shape[-3:])


def _one_call(samples: tuple[int, ...], per_sample: tuple[int, ...]) -> Callable[[Callable], Callable]:
    """Keeps a function of any batch one call under `vmap`.

    `samples` are the arguments, and `per_sample` the results, that have the batch's axes; the weights are the
    second argument. The other results belong to the batch as a whole: what the backward pass needs, and sums
    of gradients. Where the weights are mapped too, calls are made one after the other.
    """

    def wrap(function: Callable) -> Callable:
        run = custom_vmap(function)

        @run.def_vmap
        def _(axis_size: int, in_batched: Any, *args: Any) -> tuple[Any, Any]:
            def spread(value: Any, batched: Any) -> Any:
                return broadcast_unbatched(value, batched, axis_size)

            if any(jax.tree.leaves(in_batched[1])):
                everything = tuple(map(spread, args, in_batched))
                results = jax.lax.map(lambda one: run(*one), everything)
                return results, jax.tree.map(lambda _: True, results)
            mine = [
                spread(a, b) if n in samples else a
                for n, (a, b) in enumerate(zip(args, in_batched, strict=True))
            ]
            results = run(*mine)
            return results, tuple(number in per_sample for number in range(len(results)))

        return run

    return wrap


@_one_call(samples=(0,), per_sample=(0,))
def _forward(grids: Grids, weights: TrunkParams) -> tuple[Planes]:
    batch, samples, _, _, width = _sizes(grids, weights)
    shape = (NUM_COLORS, *grids.shape[-2:], width)
    result = jax.ShapeDtypeStruct((samples, *shape), jnp.float32)
    planes = jax.ffi.ffi_call("phalanx_arc_color_equivariant_forward", result)(_flat(grids), *weights)
    return (planes.reshape(*batch, *shape),)


@_one_call(samples=(0,), per_sample=(0,))
def _forward_saving(grids: Grids, weights: TrunkParams) -> tuple[Planes, Array, Array]:
    """The planes, and for the backward pass every layer's features and which units fired."""
    batch, samples, depth, cells, width = _sizes(grids, weights)
    shape = (NUM_COLORS, *grids.shape[-2:], width)
    units = -(-samples // _LANES)
    layer = NUM_COLORS * cells * width
    results = (
        jax.ShapeDtypeStruct((samples, *shape), jnp.float32),
        jax.ShapeDtypeStruct((units, depth + 1, layer, _LANES), jnp.float32),
        jax.ShapeDtypeStruct((units, depth, layer), jnp.uint8),
    )
    planes, features, active = jax.ffi.ffi_call(
        "phalanx_arc_color_equivariant_forward_with_residuals", results
    )(_flat(grids), *weights)
    return planes.reshape(*batch, *shape), features, active


@_one_call(samples=(0, 4), per_sample=())
def _backward(
    grids: Grids, weights: TrunkParams, features: Array, active: Array, cotangent: Planes
) -> tuple[Array, ...]:
    """The weights' gradients, summed over the batch in an order that is always the same."""
    results = tuple(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in weights)
    flat = cotangent.reshape(-1, *cotangent.shape[-4:])
    return tuple(
        jax.ffi.ffi_call("phalanx_arc_color_equivariant_backward", results)(
            _flat(grids), *weights, features, active, flat
        )
    )

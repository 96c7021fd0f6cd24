"""A function of a few rows of a large batch, without computing it for all of them.

For what is dear and rarely wanted, such as drawing keys for the environments that have just ended; what is
cheap is faster computed for all and chosen with `jnp.where`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree

_CHUNK = 16
"""Rows computed at a time, if nothing else is said: of a thousand environments about ten end in a step."""

RowFunction = Callable[[Any], Any]


def map_where(
    function: RowFunction, mask: Bool[Array, " batch"], rows: PyTree, defaults: PyTree, chunk: int = _CHUNK
) -> PyTree:
    """`vmap(function)(rows)` where the mask says so, and `defaults` elsewhere.

    On the CPU the cost grows with the number of rows that the mask names, `chunk` of them at a time; an
    accelerator computes all rows at once, which it does in no time, where a loop would make it wait.
    """
    if mask.shape[0] <= 4 * chunk:
        return _all_rows(function, mask, rows, defaults)
    sparse, dense = partial(_named_rows, function, chunk), partial(_all_rows, function)
    return jax.lax.platform_dependent(mask, rows, defaults, cpu=sparse, default=dense)


def _all_rows(function: RowFunction, mask: Bool[Array, " batch"], rows: PyTree, defaults: PyTree) -> PyTree:
    def choose(new: Array, old: Array) -> Array:
        return jnp.where(mask.reshape(mask.shape + (1,) * (new.ndim - 1)), new, old)

    return jax.tree.map(choose, jax.vmap(function)(rows), defaults)


def _named_rows(
    function: RowFunction, chunk: int, mask: Bool[Array, " batch"], rows: PyTree, defaults: PyTree
) -> PyTree:
    batch = mask.shape[0]
    rank = jnp.cumsum(mask, dtype=jnp.int32)
    # The named rows' indices, in order and without gaps; `batch`, which is dropped below, fills the rest.
    order = jnp.full((batch + chunk,), batch, jnp.int32)
    places = jnp.where(mask, rank - 1, batch + chunk)
    order = order.at[places].set(jnp.arange(batch, dtype=jnp.int32), mode="drop")

    def one_chunk(carry: tuple[Array, PyTree]) -> tuple[Array, PyTree]:
        start, results = carry
        here = jax.lax.dynamic_slice(order, (start,), (chunk,))
        new = jax.vmap(function)(jax.tree.map(lambda leaf: leaf.at[here].get(mode="clip"), rows))
        results = jax.tree.map(lambda leaf, value: leaf.at[here].set(value, mode="drop"), results, new)
        return start + chunk, results

    return jax.lax.while_loop(lambda carry: carry[0] < rank[-1], one_chunk, (jnp.int32(0), defaults))[1]

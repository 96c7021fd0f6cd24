"""Scores of successors, at the cost of those that there are: padding is ten times as many.

How a successor is embedded is in `proof_embeddings`; the policy is in `proof_networks`.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jaxtyping import Array, Float, Int32, PyTree

from phalanx.agents.proof_embeddings import AtomRows, Composition, StateEmbedding, Tables

_CHUNK = 256
"""Successors embedded at a time."""


def successor_scores(
    embedding: StateEmbedding,
    wanted: Float[Array, " width"],
    successors: Int32[Array, "states atoms 3"],
    count: Int32[Array, ""],
) -> Float[Array, " states"]:
    """The product of `wanted` with the vector of each of the first `count` successors; 0 for the others.

    Under `vmap` the successors of the whole batch are put in one row without gaps and embedded a chunk at a
    time, in the gradient too, so that both cost what the real ones cost.
    """
    arrays, structure = eqx.partition(embedding, eqx.is_array)
    scores = _scores_of_batch(structure)

    @custom_vmap
    def one(arrays: PyTree, wanted: Array, successors: Array, count: Array) -> Array:
        return scores(arrays, wanted[None], successors[None], count[None])[0]

    @one.def_vmap
    def _(
        size: int, batched: Any, arrays: PyTree, wanted: Array, successors: Array, count: Array
    ) -> tuple[Array, bool]:
        def spread(leaf: Array, has_axis: bool) -> Array:
            return leaf if has_axis else jnp.broadcast_to(leaf, (size, *leaf.shape))

        rows = [spread(*pair) for pair in zip((wanted, successors, count), batched[1:], strict=True)]
        if not any(jax.tree.leaves(batched[0])):
            return scores(arrays, *rows), True
        # Several networks at once, as when several seeds look at something together.
        alone = [row[:, None] for row in rows]
        axes = jax.tree.map(lambda has_axis: 0 if has_axis else None, batched[0])
        return jax.vmap(scores, (axes, 0, 0, 0))(arrays, *alone)[:, 0], True

    return one(arrays, wanted, successors, count)


BatchScores = Callable[[PyTree, Array, Array, Array], Array]


def _scores_of_batch(structure: Any) -> BatchScores:
    """From a network's arrays, [batch, width], [batch, states, atoms, 3] and [batch] to [batch, states]."""

    def forward(arrays: PyTree, wanted: Array, successors: Array, counts: Array) -> Array:
        embedding = eqx.combine(arrays, structure)

        def one_chunk(start: Array, scores: Array) -> Array:
            owner, place, there = _chunk_of(start, counts)
            goals = successors.at[owner, place].get(mode="clip")
            found = _score(embedding.composition, embedding.tables.look_up(goals), wanted[owner], goals)
            # What is behind the last successor is dropped.
            return scores.at[jnp.where(there, owner, len(counts)), place].set(found, mode="drop")

        return _chunks(counts, one_chunk, jnp.zeros(successors.shape[:2], wanted.dtype))

    def backward(kept: tuple[PyTree, Array, Array, Array], slopes: Array) -> tuple[PyTree, Array, None, None]:
        arrays, wanted, successors, counts = kept
        embedding = eqx.combine(arrays, structure)
        tables, composition = embedding.tables, embedding.composition
        weights, shape = eqx.partition(composition, eqx.is_array)

        def one_chunk(start: Array, sums: tuple[Tables, PyTree, Array]) -> tuple[Tables, PyTree, Array]:
            owner, place, there = _chunk_of(start, counts)
            goals = jnp.where(there[:, None, None], successors.at[owner, place].get(mode="clip"), 0)

            def score(weights: PyTree, rows: AtomRows, wanted: Array) -> Array:
                return _score(eqx.combine(weights, shape), rows, wanted, goals)

            slope = jnp.where(there, slopes[owner, place], 0.0)
            _, pull = jax.vjp(score, weights, tables.look_up(goals), wanted[owner])
            by_weights, by_rows, by_wanted = pull(slope)
            table_sums, weight_sums, wanted_sums = sums
            return (
                table_sums.add_rows(goals, by_rows),
                jax.tree.map(jnp.add, weight_sums, by_weights),
                wanted_sums.at[owner].add(by_wanted),
            )

        nothing = jax.tree.map(jnp.zeros_like, (tables, weights, wanted))
        table_slopes, weight_slopes, wanted_slopes = _chunks(counts, one_chunk, nothing)
        whole = eqx.tree_at(
            lambda e: (e.tables, e.composition),
            arrays,
            (table_slopes, weight_slopes),
            is_leaf=lambda _: False,
        )
        return whole, wanted_slopes, None, None

    scores = jax.custom_vjp(forward)
    scores.defvjp(lambda *inputs: (forward(*inputs), inputs), backward)
    return scores


def _score(
    composition: Composition,
    rows: AtomRows,
    wanted: Float[Array, "chunk width"],
    goals: Int32[Array, "chunk atoms 3"],
) -> Float[Array, " chunk"]:
    return jnp.sum(composition(rows, goals) * wanted, axis=-1)


def _chunk_of(start: Int32[Array, ""], counts: Int32[Array, " batch"]) -> tuple[Array, Array, Array]:
    """Whose successors the next ones are, which of theirs, and whether there are still any."""
    ends = jnp.cumsum(counts)
    number = start + jnp.arange(_CHUNK, dtype=jnp.int32)
    owner = jnp.searchsorted(ends, number, side="right").astype(jnp.int32)
    there = owner < len(counts)
    owner = jnp.minimum(owner, len(counts) - 1)
    return owner, number - (ends - counts)[owner], there


def _chunks(counts: Int32[Array, " batch"], one_chunk: Callable[[Array, Any], Any], start: Any) -> Any:
    total = jnp.sum(counts)

    def step(carry: tuple[Array, Any]) -> tuple[Array, Any]:
        return carry[0] + _CHUNK, one_chunk(*carry)

    return jax.lax.while_loop(lambda carry: carry[0] < total, step, (jnp.int32(0), start))[1]

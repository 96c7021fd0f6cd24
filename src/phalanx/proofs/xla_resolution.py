"""The XLA engine of resolution: fixed-shape arithmetic over a flat batch, for any device that XLA serves.

Its twin for the CPU is `native_resolution`; how candidates are made is in `xla_candidates`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int32

from phalanx.core import native
from phalanx.proofs import xla_candidates as xc
from phalanx.proofs.nodes import Asked, Node, Rules
from phalanx.proofs.program import ProgramArrays

_WIDTH = 16
"""Candidates of a goal that one round looks at; most goals have few."""
_ROWS = 64
"""Goals that one round looks at on a CPU; an accelerator looks at all that are unfinished."""


OPEN, NEXT, FOUND, TOO_LONG = range(4)
"""Columns of a search's progress: whether candidates are left, the next of them, successors found (one more
than fits included), candidates that were too long."""


class _Search(NamedTuple):
    """How far the search of each row has come; few arrays, as each costs a gather and a scatter a round."""

    progress: Int32[Array, "batch 4"]
    places: Int32[Array, "batch places cells_and_two"]
    """Visited states, then successors; behind the cells of each the two words of its hash."""


class _Walk(NamedTuple):
    """Where each row stands while states without a choice are passed."""

    goals: Int32[Array, "batch atoms 3"]
    visited: Int32[Array, "batch memory atoms 3"]
    visited_count: Int32[Array, " batch"]
    skipped: Int32[Array, " batch"]
    search: _Search


def expand(rules: Rules, restart: bool, arrays: ProgramArrays, asked: Asked, node: Node) -> Node:
    """The expanded nodes of a flat batch."""
    program, memory = rules.program, node.visited.shape[1]
    batch, num_states = node.successors.shape[:2]
    budget = num_states - int(rules.end_proof_action)

    def is_end(predicate: Array) -> Array:
        return (predicate == program.true_index) | (predicate == program.false_index)

    terminal = is_end(node.goals[:, 0, 0])
    begins = asked.where & restart
    visited = jnp.where(begins[:, None, None, None], 0, node.visited)
    visited_count = jnp.where(begins, 0, node.visited_count)

    def explore(rows: Bool[Array, " batch"], walk: _Walk) -> _Walk:
        visited, count = walk.visited, walk.visited_count
        if rules.memory_pruning:
            place = jnp.where(rows, count, memory)
            visited = visited.at[jnp.arange(batch), place].set(walk.goals, mode="drop")
            count = jnp.where(rows, jnp.minimum(count + 1, memory), count)
        search = _search(rules, arrays, asked, rows, walk.goals, visited, count, budget, walk.search)
        return _Walk(walk.goals, visited, count, walk.skipped, search)

    def has_no_choice(walk: _Walk) -> Bool[Array, " batch"]:
        single = (walk.search.progress[:, FOUND] == 1) & ~is_end(walk.search.places[:, memory, 0])
        return active & single & (walk.skipped < rules.unary_limit)

    def onward(walk: _Walk) -> _Walk:
        rows = has_no_choice(walk)
        only = walk.search.places[:, memory, :-2].reshape(node.goals.shape)
        goals = jnp.where(rows[:, None, None], only, walk.goals)
        return explore(rows, walk._replace(goals=goals, skipped=walk.skipped + rows))

    active = asked.where & ~terminal
    blank = _Search(
        jnp.zeros((batch, 4), jnp.int32),
        jnp.zeros((batch, memory + budget + 1, node.goals[0].size + 2), jnp.int32),
    )
    walk = _Walk(node.goals, visited, visited_count, jnp.zeros(batch, jnp.int32), blank)
    walk = explore(active, walk)
    if rules.unary_limit:
        walk = jax.lax.while_loop(lambda walk: jnp.any(has_no_choice(walk)), onward, walk)
    return _finished(rules, asked, node, terminal, budget, walk)


def _finished(
    rules: Rules, asked: Asked, node: Node, terminal: Bool[Array, " batch"], budget: int, walk: _Walk
) -> Node:
    """The nodes with end actions and False where they belong; ends as their own successors."""
    search, program = walk.search, rules.program
    memory, num_states = node.visited.shape[1], node.successors.shape[1]
    found = search.progress[:, FOUND]
    count = jnp.minimum(found, budget)
    place = jnp.arange(num_states)
    successors = search.places[:, memory : memory + num_states, :-2]
    successors = jnp.where((place < count[:, None])[..., None], successors, 0)
    mark = jnp.where(count == 0, program.false_index, program.end_index)
    marked = (place == count[:, None]) & ((count == 0) | rules.end_proof_action)[:, None]
    firsts = jnp.where(marked, mark[:, None], successors[..., 0])
    itself = (place == 0) & terminal[:, None]
    successors = successors.at[..., 0].set(jnp.where(itself, node.goals[:, :1, 0], firsts))
    successors = jnp.where(terminal[:, None, None] & ~itself[..., None], 0, successors)
    count = jnp.where(count == 0, 1, count + int(rules.end_proof_action))
    new = Node(
        goals=walk.goals,
        successors=successors.reshape(node.successors.shape),
        successor_count=jnp.where(terminal, 1, count),
        visited=walk.visited,
        visited_count=walk.visited_count,
        overflow=~terminal & (found > budget),
        too_long=search.progress[:, TOO_LONG],
        skipped=walk.skipped,
    )

    def choose(new: Array, old: Array) -> Array:
        return jnp.where(asked.where.reshape(-1, *(1,) * (new.ndim - 1)), new, old)

    return jax.tree.map(choose, new, node)


def _search(
    rules: Rules,
    arrays: ProgramArrays,
    asked: Asked,
    rows: Bool[Array, " batch"],
    goals: Int32[Array, "batch atoms 3"],
    visited: Int32[Array, "batch memory atoms 3"],
    visited_count: Int32[Array, " batch"],
    budget: int,
    before: _Search,
) -> _Search:
    """All candidates of some rows, a round at a time, until one more is found than fits."""
    batch, memory = visited.shape[:2]
    sources = xc.sources_of(rules.program, arrays, asked, goals)
    width = min(batch, _ROWS) if native.only_cpu() else batch
    zero = jnp.zeros(batch, jnp.int32)
    begun = jnp.stack([(rows & (sources.total > 0)).astype(jnp.int32), zero, zero, zero], axis=1)
    begun = begun.at[:, TOO_LONG].set(before.progress[:, TOO_LONG])
    old = visited.reshape(batch, memory, before.places.shape[2] - 2)
    start = _Search(
        progress=jnp.where(rows[:, None], begun, before.progress),
        places=before.places.at[:, :memory].set(jnp.concatenate([old, xc.hash_rows(old)], axis=-1)),
    )
    told = (goals, asked.query, asked.excluded, *sources, visited_count)
    flat = jnp.concatenate([leaf.reshape(batch, -1).astype(jnp.int32) for leaf in told], axis=1)

    def one_round(search: _Search) -> _Search:
        here = _first_rows(search.progress[:, OPEN] != 0, width)
        taken = jnp.minimum(here, batch - 1)
        alive = (here < batch)[:, None]
        columns = [
            part.reshape(width, *leaf.shape[1:])
            for part, leaf in zip(
                jnp.split(flat[taken], np.cumsum([leaf[0].size for leaf in told])[:-1], axis=1),
                told,
                strict=True,
            )
        ]
        goal_rows, query, excluded, *source, remembered = columns
        progress = search.progress[taken]
        number = progress[:, NEXT, None] + jnp.arange(_WIDTH, dtype=jnp.int32)
        made, fits, exists = xc.candidates(
            rules.program, arrays, goal_rows, query, excluded != 0, xc.Sources(*source), number
        )
        fits, exists = fits & alive, exists & alive
        made = jnp.concatenate([made, xc.hash_rows(made)], axis=-1)
        found = progress[:, FOUND]
        fresh = fits & ~_repeated(search.places[taken], made, fits, found, remembered, memory)
        rank = found[:, None] + jnp.cumsum(fresh, axis=1, dtype=jnp.int32)
        long = jnp.sum(exists & ~fits & (rank <= budget), axis=1, dtype=jnp.int32)
        place = jnp.where(fresh & (rank <= budget + 1), memory + rank - 1, memory + budget + 1)
        found = jnp.minimum(rank[:, -1], budget + 1)
        following = progress[:, NEXT] + _WIDTH
        left = (following < source[-1]) & (found <= budget)
        progress = jnp.stack([left.astype(jnp.int32), following, found, progress[:, TOO_LONG] + long], axis=1)
        return _Search(
            progress=search.progress.at[here].set(progress, mode="drop"),
            places=search.places.at[here[:, None], place].set(made, mode="drop"),
        )

    return jax.lax.while_loop(lambda search: jnp.any(search.progress[:, OPEN] != 0), one_round, start)


def _repeated(
    places: Int32[Array, "rows places cells_and_two"],
    made: Int32[Array, "rows width cells_and_two"],
    fits: Bool[Array, "rows width"],
    found: Int32[Array, " rows"],
    visited_count: Int32[Array, " rows"],
    memory: int,
) -> Bool[Array, "rows width"]:
    """Which candidates equal a visited state, a successor, or an earlier candidate of the round."""
    place = jnp.arange(places.shape[1])
    known = place < visited_count[:, None]
    known |= (place >= memory) & (place < memory + found[:, None])
    everyone = jnp.concatenate([places, made], axis=1)
    earlier = jnp.tri(_WIDTH, k=-1, dtype=bool) & fits[:, None]
    known = jnp.broadcast_to(known[:, None], (*fits.shape, known.shape[-1]))
    alike = jnp.concatenate([known, earlier], axis=-1)
    for word in (-2, -1):
        alike &= made[..., None, word] == everyone[:, None, :, word]
    # Equal hashes name the one place to compare with.
    first = jnp.argmax(alike, axis=-1)
    same = jnp.all(jnp.take_along_axis(everyone, first[..., None], axis=1) == made, axis=-1)
    return jnp.any(alike, axis=-1) & same


def _first_rows(mask: Bool[Array, " batch"], count: int) -> Int32[Array, " rows"]:
    """The indices of the first `count` rows that the mask names, then the batch's size."""
    batch = mask.shape[0]
    index = jnp.arange(batch, dtype=jnp.int32)
    if count == batch:
        return jnp.where(mask, index, batch)
    rank = jnp.cumsum(mask, dtype=jnp.int32) - 1
    place = jnp.where(mask & (rank < count), rank, count)
    return jnp.full(count, batch, jnp.int32).at[place].set(index, mode="drop")

"""Search for proofs that a policy guides: a beam for each query, all queries of a batch in one compiled loop.

Proofs that a policy finds by playing one action after another are in `evaluation`; ranking by what a search
finds is in `ranking`.
"""

from typing import Any, NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float32, Int32
from pydantic import Field

from phalanx.config import Config
from phalanx.core.backends import resolve_backend
from phalanx.core.device_memory import batch_size_for_memory, retry_with_smaller_batches
from phalanx.kg.kge.embedding import KGE
from phalanx.nn.distributions import masked_log_softmax
from phalanx.proofs.backends import resolution
from phalanx.proofs.config import ProofConfig
from phalanx.proofs.embedding_action import KGELeafScorer, closer_of, is_kge_action, remaining
from phalanx.proofs.program import Program
from phalanx.proofs.state import ExpandRequest, ResolutionSettings, SearchNode, empty_nodes

_BLOCK = 8
"""Successors of one state that are scored together: few enough that little of a block stays empty."""
_BLOCKS_AT_ONCE = 128
"""Blocks that the network sees together: enough to keep its products busy."""
_MOST_AT_ONCE = 256
"""Queries in the loop at once: more of them would leave the processor's cache."""
_QUERIES_IN_A_CALL = 1 << 15
"""Queries that the compiled loop takes; fewer are filled up to these, so that it is compiled once."""


@runtime_checkable
class ProofPolicy(Protocol):
    """A policy whose logits come from embeddings of the state and of its successors, each by itself."""

    def embed_states(self, goals: Int32[Array, "*n atoms atom"]) -> Float[Array, "*n width"]:
        """An embedding of each goal list; the end action's is that of its mark."""

    def score(
        self, state: Float[Array, " width"], successors: Float[Array, "states width"]
    ) -> Float[Array, " states"]:
        """The logits of a state's successors; each depends on its own embedding and the state's alone."""


class UniformPolicy(eqx.Module):
    """All actions alike: a search by it finds short proofs along which there is little choice."""

    def embed_states(self, goals: Int32[Array, "*n atoms atom"]) -> Float32[Array, "*n 1"]:
        return jnp.zeros((*goals.shape[:-2], 1), jnp.float32)

    def score(
        self, state: Float32[Array, "1"], successors: Float32[Array, "states 1"]
    ) -> Float32[Array, " states"]:
        return successors[:, 0]


class BeamSearchConfig(Config):
    """How far and wide a search looks."""

    width: int = Field(default=16, ge=1)
    """States of a query that are kept after each step, the most probable ones; 1 is the greedy policy."""
    max_depth: int = Field(default=6, ge=1)
    """Steps of the longest proof that is looked for."""
    patience: int = Field(default=0, ge=0)
    """Steps to go on after the first proof of a query, for one that is longer but more probable."""


class SearchResult(NamedTuple):
    """What a search came to, for each query."""

    proved: Bool[Array, " queries"]
    log_prob: Float32[Array, " queries"]
    """The logarithm of the policy's probability of the best proof found; minus infinity without one."""
    length: Int32[Array, " queries"]
    """Steps of that proof; -1 without one."""
    overflow: Bool[Array, " queries"]
    """Whether a state had more successors than fit, so that some were never looked at."""
    expansions: Int32[Array, " queries"]
    """States whose successors were looked at."""


class _Lanes(NamedTuple):
    """The searches that are under way; `width` nodes each, one after another."""

    node: SearchNode
    log_prob: Float32[Array, "lanes width"]
    """Of the way to each node; minus infinity where there is none."""
    candidate: Int32[Array, " lanes"]
    """The number of the query that is being proved; -1 for a lane that is out of work."""
    depth: Int32[Array, " lanes"]
    waited: Int32[Array, " lanes"]
    """Steps since the first proof."""
    found: SearchResult
    """So far."""


class _Loop(NamedTuple):
    lanes: _Lanes
    next: Int32[Array, ""]
    """The first query that no lane has begun."""
    results: SearchResult


def beam_search(
    config: ProofConfig,
    program: Program,
    policy: ProofPolicy,
    queries: Int32[np.ndarray, "queries atom"],
    search: BeamSearchConfig | None = None,
    *,
    kge: KGE | None = None,
    batch_size: int | None = None,
) -> SearchResult:
    """Search for a proof of each query, which may not serve as a fact in it; the arrays are NumPy's.

    A proof's probability is that of an agent in the environment of this config that takes just these
    actions; giving up and failing are possible actions, but no part of a proof. After each step the most
    probable states are kept, equal ones once. A query is done when it is proved (and `patience` steps have
    passed), when no state is left that could come to a better proof, or at `max_depth`; then its place in
    the batch goes to the next query. `batch_size` queries are under way at a time, by default as many as
    memory allows; neither it nor the order of the queries matters to what is found, but for rounding. With
    `kge`, goals may be closed by that embedding, as in the environment; `log_prob` then has the logarithms of
    the probabilities in it, the policy's and the embedding's.
    """
    search = BeamSearchConfig() if search is None else search
    engine = resolve_backend(config.engine)
    # The memory of visited states must reach as far as this search does, not as far as an episode.
    config = config.model_copy(update={"engine": engine, "max_depth": search.max_depth})
    closer = closer_of(config, program, kge)
    if batch_size is None:
        batch_size = batch_size_for_memory(
            bytes_per_query(config, search, program.arity), max_batch_size=_MOST_AT_ONCE
        )
        batch_size = min(batch_size, 1 << max(len(queries) - 1, 0).bit_length())
    parts, start = [], 0
    while start < len(queries):
        some = queries[start : start + _QUERIES_IN_A_CALL]
        padded = np.ones((_QUERIES_IN_A_CALL, queries.shape[1]), np.int32)
        padded[: len(some)] = some

        def run(lanes: int, padded: np.ndarray = padded, count: int = len(some)) -> SearchResult:
            some = jax.device_put(padded), jnp.int32(count)
            found = _search(config, program, closer, search, lanes, policy, *some)
            return jax.tree.map(lambda leaf: leaf[:count], jax.device_get(found))

        found, batch_size = retry_with_smaller_batches(run, batch_size)
        parts.append(found)
        start += len(some)
    if not parts:
        return jax.device_get(_nothing_found(0))
    joined: list[Any] = [np.concatenate(leaves) for leaves in zip(*parts, strict=True)]
    result = SearchResult(*joined)
    if np.isnan(result.log_prob).any():
        row = int(np.flatnonzero(np.isnan(result.log_prob))[0])
        raise ValueError(
            f"the policy gave logits that are no numbers in the search for {queries[row].tolist()}"
        )
    return result


def bytes_per_query(config: ProofConfig, search: BeamSearchConfig, arity: int = 2) -> int:
    """About the memory that one query takes while it is searched."""
    atoms = 4 * (1 + arity) * config.padding_atoms
    # Successors and visited states are held twice where they are moved; logits, marks and values once each.
    return search.width * (
        2 * config.padding_states * atoms + 3 * 4 * config.padding_states + 2 * (config.memory + 1) * atoms
    )


def _nothing_found(count: int) -> SearchResult:
    return SearchResult(
        proved=jnp.zeros(count, bool),
        log_prob=jnp.full(count, -jnp.inf, jnp.float32),
        length=jnp.full(count, -1, jnp.int32),
        overflow=jnp.zeros(count, bool),
        expansions=jnp.zeros(count, jnp.int32),
    )


@eqx.filter_jit
def _search(
    config: ProofConfig,
    program: Program,
    closer: KGELeafScorer | None,
    search: BeamSearchConfig,
    num_lanes: int,
    policy: ProofPolicy,
    queries: Int32[Array, "queries atom"],
    count: Int32[Array, ""],
) -> SearchResult:
    """Of the first `count` queries."""
    rules, width = ResolutionSettings.of(config, program), search.width
    expand = resolution.expand if closer is None else closer.expand

    def step(loop: _Loop) -> _Loop:
        lanes = loop.lanes
        query = queries[jnp.maximum(lanes.candidate, 0)]
        open_ = lanes.log_prob > -jnp.inf
        asked = ExpandRequest(
            open_.reshape(-1), jnp.repeat(query, width, axis=0), jnp.ones(num_lanes * width, bool)
        )
        offered = expand(rules, asked, lanes.node, restart=False)
        # The policy sees the twin that an embedding would close; what is gone on with is what that leaves.
        node = offered
        if closer is not None:
            twins, rest = is_kge_action(program, offered.successors), remaining(program, offered.goals)
            left = jnp.where(twins[..., None, None], rest[:, None], offered.successors)
            node = offered._replace(successors=left)
        real = jnp.arange(config.padding_states) < node.successor_count[:, None]
        complete = jnp.any(real & (node.successors[:, :, 0, 0] == program.true_index), axis=1)
        complete = open_ & complete.reshape(open_.shape)
        found = lanes.found
        proved, waited = found.proved | jnp.any(complete, axis=1), lanes.waited + found.proved
        last = (lanes.depth + 1 >= search.max_depth) | (proved & (waited >= search.patience))
        # In a query's last step only complete proofs matter, so the network sees no other states.
        scored = complete | (open_ & ~last[:, None])
        log_probs, marks = _log_probs(policy, offered, scored.reshape(-1))
        if closer is not None:
            cost = closer.cost(jnp.any(twins, axis=1), offered.goals[:, 0])
            places = slice(0, config.padding_states)
            log_probs = log_probs.at[:, places].add(jnp.where(twins, cost[:, None], 0.0))
            marks = marks.at[:, places].set(jnp.where(twins, rest[:, :1, 0], marks[:, places]))
        log_probs = (log_probs + lanes.log_prob.reshape(-1, 1)).reshape(num_lanes, width, -1)
        marks = marks.reshape(log_probs.shape)

        # What is not a number counts as a proof here, so that it is not lost among the states left out.
        ends = (marks == program.true_index) | jnp.isnan(log_probs)
        proof = jnp.max(jnp.where(ends, log_probs, -jnp.inf), axis=(1, 2))
        better = proof > found.log_prob
        found = SearchResult(
            proved=proved,
            log_prob=jnp.maximum(found.log_prob, proof),
            length=jnp.where(better, lanes.depth + 1, found.length),
            overflow=found.overflow | jnp.any(open_ & node.overflow.reshape(open_.shape), axis=1),
            expansions=found.expansions + jnp.sum(open_, axis=1),
        )
        # A way that is no more probable than a proof cannot become it: a step never adds probability.
        hopeful = (marks <= program.num_predicates) & (log_probs > found.log_prob[:, None, None])
        hopeful &= ~last[:, None, None]
        node, log_prob = _best(node, jnp.where(hopeful, log_probs, -jnp.inf))
        after = _Lanes(node, log_prob, lanes.candidate, lanes.depth + 1, waited, found)
        over = (lanes.candidate >= 0) & (last | jnp.all(log_prob == -jnp.inf, axis=1))
        place = jnp.where(over, lanes.candidate, queries.shape[0])
        results = jax.tree.map(lambda all_, some: all_.at[place].set(some, mode="drop"), loop.results, found)
        return _refilled(_Loop(after, loop.next, results), over, queries, count)

    blank = _Lanes(
        empty_nodes(config, program, (num_lanes * width,)),
        jnp.full((num_lanes, width), -jnp.inf, jnp.float32),
        jnp.full(num_lanes, -1, jnp.int32),
        jnp.zeros(num_lanes, jnp.int32),
        jnp.zeros(num_lanes, jnp.int32),
        _nothing_found(num_lanes),
    )
    loop = _Loop(blank, jnp.int32(0), _nothing_found(queries.shape[0]))
    loop = _refilled(loop, jnp.ones(num_lanes, bool), queries, count)
    return jax.lax.while_loop(lambda loop: jnp.any(loop.lanes.candidate >= 0), step, loop).results


def _refilled(
    loop: _Loop, free: Bool[Array, " lanes"], queries: Int32[Array, "queries atom"], count: Int32[Array, ""]
) -> _Loop:
    """The free lanes with the next queries, as far as there are any."""
    lanes = loop.lanes
    num_lanes, width = lanes.log_prob.shape
    number = loop.next + jnp.cumsum(free, dtype=jnp.int32) - 1
    begins = free & (number < count)
    first = jnp.zeros((width,), bool).at[0].set(True)
    fresh = jnp.repeat(free, width)
    start = jnp.zeros_like(lanes.node.goals).reshape(num_lanes, width, *lanes.node.goals.shape[1:])
    start = start.at[:, 0, 0].set(queries[jnp.where(begins, number, 0)]).reshape(lanes.node.goals.shape)

    node = lanes.node._replace(
        goals=jnp.where(fresh[:, None, None], start, lanes.node.goals),
        visited=jnp.where(fresh[:, None, None, None], 0, lanes.node.visited),
        visited_count=jnp.where(fresh, 0, lanes.node.visited_count),
    )
    log_prob = jnp.where(begins[:, None] & first, jnp.float32(0), -jnp.inf)
    nothing = _nothing_found(num_lanes)
    after = _Lanes(
        node,
        jnp.where(free[:, None], log_prob, lanes.log_prob),
        jnp.where(begins, number, jnp.where(free, -1, lanes.candidate)),
        jnp.where(free, 0, lanes.depth),
        jnp.where(free, 0, lanes.waited),
        jax.tree.map(lambda new, old: jnp.where(free, new, old), nothing, lanes.found),
    )
    return _Loop(after, loop.next + jnp.sum(begins), loop.results)


def _log_probs(
    policy: ProofPolicy, node: SearchNode, where: Bool[Array, " nodes"]
) -> tuple[Float32[Array, "nodes places"], Int32[Array, "nodes places"]]:
    """Of each successor its log-probability and its first predicate; minus infinity and 0 where none is.

    The successors that there are, of which there are many fewer than places for them, are gathered in blocks
    of one state each, and the network sees some blocks at a time until none is left.
    """
    nodes, states, *atoms = node.successors.shape
    per_node = -(-states // _BLOCK)
    chunk = min(_BLOCKS_AT_ONCE, nodes * per_node)
    blocks = jnp.where(where, -(-node.successor_count // _BLOCK), 0)
    ends = jnp.cumsum(blocks)
    flat = node.successors.reshape(nodes * states, *atoms)

    def some(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        start, logits, marks = carry
        number = start + jnp.arange(chunk, dtype=jnp.int32)
        owner = jnp.searchsorted(ends, number, side="right", method="scan_unrolled").astype(jnp.int32)
        # Behind the last block is no owner; what is computed for it is dropped.
        at = jnp.minimum(owner, nodes - 1)
        block = number - (ends[at] - blocks[at])
        places = jnp.minimum(block[:, None] * _BLOCK + jnp.arange(_BLOCK, dtype=jnp.int32), states - 1)
        successors = flat[jnp.clip(at[:, None] * states + places, 0, nodes * states - 1)]
        embedded = policy.embed_states(jnp.concatenate([node.goals[at][:, None], successors], axis=1))
        scored = jax.vmap(policy.score)(embedded[:, 0], embedded[:, 1:]).astype(jnp.float32)
        logits = logits.at[owner, block].set(scored, mode="drop")
        marks = marks.at[owner, block].set(successors[:, :, 0, 0], mode="drop")
        return start + chunk, logits, marks

    shape = (nodes, per_node, _BLOCK)
    blank = (jnp.int32(0), jnp.zeros(shape, jnp.float32), jnp.zeros(shape, jnp.int32))
    _, logits, marks = jax.lax.while_loop(lambda carry: carry[0] < ends[-1], some, blank)
    real = where[:, None] & (jnp.arange(per_node * _BLOCK) < node.successor_count[:, None])
    log_probs = masked_log_softmax(logits.reshape(nodes, -1), real)
    return log_probs, jnp.where(real, marks.reshape(nodes, -1), 0)


class _Choice(NamedTuple):
    """The states that are kept, while they are being chosen."""

    values: Float32[Array, "lanes width places"]
    """Of what may still be chosen; minus infinity for the rest."""
    row_best: Float32[Array, "lanes width"]
    goals: Int32[Array, "lanes width cells"]
    parent: Int32[Array, "lanes width"]
    log_prob: Float32[Array, "lanes width"]
    kept: Int32[Array, " lanes"]


def _best(
    node: SearchNode, values: Float32[Array, "lanes width places"]
) -> tuple[SearchNode, Float32[Array, "lanes width"]]:
    """Nodes at the best different successors of each lane, best first, and their log-probabilities.

    One is taken at a time, from the node that has the best one left: only that node's successors are then
    looked through again, where sorting would look at all places many times.
    """
    lanes, width, _ = values.shape
    states = node.successors.shape[1]
    row = jnp.arange(lanes)
    flat = node.successors.reshape(lanes * width * states, -1)

    def more(choice: _Choice) -> Array:
        return jnp.any((choice.kept < width) & (jnp.max(choice.row_best, axis=1) > -jnp.inf))

    def take(choice: _Choice) -> _Choice:
        parent = jnp.argmax(choice.row_best, axis=1).astype(jnp.int32)
        mine = choice.values[row, parent]
        place = jnp.argmax(mine, axis=1).astype(jnp.int32)
        value = jnp.max(mine, axis=1)
        goals = flat[(row * width + parent) * states + jnp.minimum(place, states - 1)]
        chosen = jnp.arange(width) < choice.kept[:, None]
        seen = jnp.any(chosen & jnp.all(choice.goals == goals[:, None], axis=2), axis=1)
        taken = (value > -jnp.inf) & ~seen & (choice.kept < width)
        at = jnp.where(taken, choice.kept, width)
        rest = jnp.where(jnp.arange(mine.shape[1]) == place[:, None], -jnp.inf, mine)
        return _Choice(
            values=choice.values.at[row, parent, place].set(-jnp.inf),
            row_best=choice.row_best.at[row, parent].set(jnp.max(rest, axis=1)),
            goals=choice.goals.at[row, at].set(goals, mode="drop"),
            parent=choice.parent.at[row, at].set(parent, mode="drop"),
            log_prob=choice.log_prob.at[row, at].set(value, mode="drop"),
            kept=choice.kept + taken,
        )

    cells = node.goals[0].size
    start = _Choice(
        values,
        jnp.max(values, axis=2),
        jnp.zeros((lanes, width, cells), jnp.int32),
        jnp.zeros((lanes, width), jnp.int32),
        jnp.full((lanes, width), -jnp.inf, jnp.float32),
        jnp.zeros(lanes, jnp.int32),
    )
    choice = jax.lax.while_loop(more, take, start)
    parent = (row[:, None] * width + choice.parent).reshape(-1)
    moved = node._replace(
        goals=choice.goals.reshape(node.goals.shape),
        visited=node.visited[parent],
        visited_count=node.visited_count[parent],
    )
    return moved, choice.log_prob

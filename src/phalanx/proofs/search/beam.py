"""Beam search for proofs under a policy. The beams of a batch of queries run in one compiled loop."""

import functools
from collections.abc import Mapping
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
from phalanx.proofs import backends
from phalanx.proofs.config import ProofConfig
from phalanx.proofs.embedding_action import KGEAction, is_kge_action, remove_first_goal
from phalanx.proofs.program import Program
from phalanx.proofs.state import ExpandRequest, SearchNode

_BLOCK_SIZE = 8
"""Successors are scored in blocks of this size. All successors in a block have the same parent state. Blocks
are small, because the last block of each parent state is padded."""
_BLOCKS_PER_CALL = 128
"""Number of blocks that the network scores at a time. It is large enough for efficient matrix products."""
_MAX_ACTIVE_QUERIES = 256
"""Maximum number of queries that are processed at a time. More would not fit into the processor's cache."""
_QUERIES_PER_CALL = 1 << 15
"""Number of queries per call to the compiled loop. The last call is padded to avoid recompilation."""


@runtime_checkable
class ProofPolicy(Protocol):
    """Protocol for policies that compute logits from separate embeddings of a state and its successors."""

    def embed_states(self, goals: Int32[Array, "*n goals atom"]) -> Float[Array, "*n dim"]:
        """Return an embedding of each list of goals. The end action is embedded like any other successor."""

    def score(
        self, state: Float[Array, " dim"], successors: Float[Array, "actions dim"]
    ) -> Float[Array, " actions"]:
        """Return the logits of a state's successors.

        The logit of a successor must only depend on the embeddings of the state and of this successor.

        Args:
            state: Embedding of the state.
            successors: Embedding of each successor.
        """


class BeamSearchConfig(Config):
    """Settings for beam search."""

    beam_width: int = Field(default=16, ge=1)
    """Number of states that are kept for each query after each step. The most probable states are kept. With
    1, the search is greedy."""
    max_depth: int = Field(default=6, ge=1)
    """Maximum number of steps in a proof."""
    steps_after_first_proof: int = Field(default=0, ge=0)
    """Number of steps for which the search continues after the first proof of a query, in order to find a
    longer but more probable proof."""


class BestFirstTrace(NamedTuple):
    """The nodes that a best-first search expanded. The keys of both mappings are query indices."""

    paths: Mapping[int, list[np.ndarray]]
    """For each proved query, the goals of the expanded nodes on the path from the query to its proof."""
    dead_ends: Mapping[int, list[np.ndarray]]
    """For each query, the goals of the expanded nodes that are not on the path to its proof."""


class SearchResults(NamedTuple):
    """Results of a search for proofs of several queries."""

    proved: Bool[Array, " queries"] | np.ndarray
    """True for queries for which a proof was found."""
    log_prob: Any
    """Log-probability of the best proof of each query under the policy, or minus infinity if no proof was
    found. None if the search does not use a policy."""
    length: Int32[Array, " queries"] | np.ndarray
    """Number of steps in each query's best proof, or -1 if no proof was found."""
    overflow: Bool[Array, " queries"] | np.ndarray
    """True for queries whose search expanded a state with more than `max_actions` successors, so that some of
    them were dropped."""
    expansions: Int32[Array, " queries"] | np.ndarray
    """Number of states that were expanded in the search for a proof of each query."""
    trace: BestFirstTrace | None = None
    """The expanded nodes of a best-first search, or None for beam search."""

    def proofs_per_expansion(self) -> float:
        """Return the number of proofs divided by the number of expanded nodes, over all queries."""
        return float(np.sum(self.proved) / max(np.sum(self.expansions), 1))


class _Beams(NamedTuple):
    """State of the search loop: the active searches, and the results of all queries.

    A lane is a slot for the search of one query. It consists of `beam_width` consecutive nodes. When the
    search of a query ends, its lane is reused for the next query.
    """

    node: SearchNode
    log_prob: Float32[Array, "lanes width"]
    """Log-probability of the path to each node, or minus infinity for unused nodes."""
    query_index: Int32[Array, " lanes"]
    """Index of the lane's query, or -1 for an idle lane."""
    depth: Int32[Array, " lanes"]
    """Number of steps from the query to the nodes of the lane."""
    steps_since_proof: Int32[Array, " lanes"]
    """Number of steps since the first proof of the query was found."""
    next_query: Int32[Array, ""]
    """Index of the first query whose search has not started."""
    results: SearchResults
    """Results so far for all queries."""


def beam_search(
    config: ProofConfig,
    program: Program,
    policy: ProofPolicy,
    queries: Int32[np.ndarray, "queries atom"],
    search: BeamSearchConfig | None = None,
    *,
    kge: KGE | None = None,
    batch_size: int | None = None,
) -> SearchResults:
    """Use a policy to search for a proof of each query. A query is not used as a fact in its own proof.

    The probability of a proof is the product of the probabilities of its actions under the policy. After each
    step, the `beam_width` most probable distinct states are kept. The search for a query ends
    `steps_after_first_proof` steps after its first proof was found, or when no state can lead to a more
    probable proof, or after `max_depth` steps. Except for rounding, the result does not depend on
    `batch_size` or on the order of the queries.

    Args:
        config: Settings of the proof environment, which determine the successors of a state.
        program: Facts and rules.
        policy: The policy.
        queries: Ground atoms, encoded by a `ProofVocabulary`.
        search: Settings for the search. If None, the defaults are used.
        kge: An embedding that can close ground goals without a proof. The log-probabilities of these goals
            are added to `log_prob`. None means no embedding.
        batch_size: Number of queries that are processed at a time. Defaults to as many as fit into memory.

    Returns:
        The results as NumPy arrays.
    """
    search = BeamSearchConfig() if search is None else search
    backend = resolve_backend(config.backend)
    # The memory of visited states must cover the depth of this search, not the length of an episode.
    config = config.model_copy(update={"backend": backend, "max_episode_steps": search.max_depth})
    kge_action = KGEAction.create(kge, config, program)
    if batch_size is None:
        batch_size = batch_size_for_memory(
            bytes_per_query(config, search, program.arity), max_batch_size=_MAX_ACTIVE_QUERIES
        )
        batch_size = min(batch_size, 1 << max(len(queries) - 1, 0).bit_length())

    def run(some: np.ndarray, num_lanes: int) -> list[np.ndarray]:
        padding = ((0, _QUERIES_PER_CALL - len(some)), (0, 0))
        padded = np.pad(some.astype(np.int32), padding, constant_values=1)
        arguments = jax.device_put(padded), jnp.int32(len(some))
        found = jax.device_get(_search(config, program, kge_action, search, num_lanes, policy, *arguments))
        return [leaf[: len(some)] for leaf in found[:5]]

    parts = []
    for start in range(0, len(queries), _QUERIES_PER_CALL):
        some = queries[start : start + _QUERIES_PER_CALL]
        found, batch_size = retry_with_smaller_batches(functools.partial(run, some), batch_size)
        parts.append(found)
    if not parts:
        return jax.device_get(_empty_result(0))
    joined: list[Any] = [np.concatenate(leaves) for leaves in zip(*parts, strict=True)]
    result = SearchResults(*joined)
    if len(failed := np.flatnonzero(np.isnan(result.log_prob))):
        raise ValueError(f"the policy returned NaN logits in the search for {queries[failed[0]].tolist()}")
    return result


def bytes_per_query(config: ProofConfig, search: BeamSearchConfig, arity: int = 2) -> int:
    """Estimate how many bytes of memory the search for one query needs."""
    goals = 4 * (1 + arity) * config.max_goals
    # Successors and visited states are held twice while they are moved; logits, predicates and values once.
    return search.beam_width * (
        2 * config.max_actions * goals + 3 * 4 * config.max_actions + 2 * (config.memory_size + 1) * goals
    )


def _empty_result(count: int) -> SearchResults:
    return SearchResults(
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
    kge_action: KGEAction | None,
    search: BeamSearchConfig,
    num_lanes: int,
    policy: ProofPolicy,
    queries: Int32[Array, "queries atom"],
    count: Int32[Array, ""],
) -> SearchResults:
    """Search for proofs of the first `count` queries."""
    width = search.beam_width
    expand = backends.expand if kge_action is None else kge_action.expand

    def step(lanes: _Beams) -> _Beams:
        query = queries[jnp.maximum(lanes.query_index, 0)]
        is_open = lanes.log_prob > -jnp.inf
        request = ExpandRequest(
            is_open.reshape(-1), jnp.repeat(query, width, axis=0), jnp.ones(num_lanes * width, bool)
        )
        offered = expand(config, program, request, lanes.node, clear_visited=False)
        # The policy scores the successor with the `_kge` predicate; the search continues after its removal.
        node = offered
        if kge_action is not None:
            is_kge = is_kge_action(program, offered.successors)
            rest = remove_first_goal(program, offered.goals)
            successors = jnp.where(is_kge[..., None, None], rest[:, None], offered.successors)
            node = offered._replace(successors=successors)
        is_real = jnp.arange(config.max_actions) < node.num_actions[:, None]
        is_complete = jnp.any(is_real & (node.successors[:, :, 0, 0] == program.true_index), axis=1)
        is_complete = is_open & is_complete.reshape(is_open.shape)
        result = jax.tree.map(lambda leaf: leaf[jnp.maximum(lanes.query_index, 0)], lanes.results)
        proved = result.proved | jnp.any(is_complete, axis=1)
        steps_since_proof = lanes.steps_since_proof + result.proved
        is_last = (lanes.depth + 1 >= search.max_depth) | (
            proved & (steps_since_proof >= search.steps_after_first_proof)
        )
        # In the last step of a query, only complete proofs matter, so the network scores no other states.
        is_scored = is_complete | (is_open & ~is_last[:, None])
        log_probs, predicates = _log_probs(policy, offered, is_scored.reshape(-1))
        if kge_action is not None:
            kge_log_prob = kge_action.log_prob(jnp.any(is_kge, axis=1), offered.goals[:, 0])
            slots = slice(0, config.max_actions)
            log_probs = log_probs.at[:, slots].add(jnp.where(is_kge, kge_log_prob[:, None], 0.0))
            predicates = predicates.at[:, slots].set(jnp.where(is_kge, rest[:, :1, 0], predicates[:, slots]))
        log_probs = (log_probs + lanes.log_prob.reshape(-1, 1)).reshape(num_lanes, width, -1)
        predicates = predicates.reshape(log_probs.shape)

        # NaN counts as a proof here, so that it is not lost among the discarded states.
        is_end = (predicates == program.true_index) | jnp.isnan(log_probs)
        proof = jnp.max(jnp.where(is_end, log_probs, -jnp.inf), axis=(1, 2))
        is_better = proof > result.log_prob
        result = SearchResults(
            proved=proved,
            log_prob=jnp.maximum(result.log_prob, proof),
            length=jnp.where(is_better, lanes.depth + 1, result.length),
            overflow=result.overflow | jnp.any(is_open & node.overflow.reshape(is_open.shape), axis=1),
            expansions=result.expansions + jnp.sum(is_open, axis=1),
        )
        # A path that is less probable than a proof cannot lead to a better one: steps never add probability.
        is_promising = (predicates <= program.num_predicates) & (log_probs > result.log_prob[:, None, None])
        is_promising &= ~is_last[:, None, None]
        node, log_prob = _select_best(node, jnp.where(is_promising, log_probs, -jnp.inf))
        is_over = (lanes.query_index >= 0) & (is_last | jnp.all(log_prob == -jnp.inf, axis=1))
        row = jnp.where(lanes.query_index >= 0, lanes.query_index, queries.shape[0])
        results = jax.tree.map(
            lambda every, some: every.at[row].set(some, mode="drop"), lanes.results, result
        )
        after = lanes._replace(
            node=node,
            log_prob=log_prob,
            depth=lanes.depth + 1,
            steps_since_proof=steps_since_proof,
            results=results,
        )
        return _start_queries(after, is_over, queries, count)

    zero = jnp.zeros(num_lanes, jnp.int32)
    blank = _Beams(
        node=SearchNode.empty(config, program, (num_lanes * width,)),
        log_prob=jnp.full((num_lanes, width), -jnp.inf, jnp.float32),
        query_index=zero - 1,
        depth=zero,
        steps_since_proof=zero,
        next_query=jnp.int32(0),
        results=_empty_result(queries.shape[0]),
    )
    start = _start_queries(blank, jnp.ones(num_lanes, bool), queries, count)
    return jax.lax.while_loop(lambda lanes: jnp.any(lanes.query_index >= 0), step, start).results


def _start_queries(
    lanes: _Beams,
    is_free: Bool[Array, " lanes"],
    queries: Int32[Array, "queries atom"],
    count: Int32[Array, ""],
) -> _Beams:
    """Assign the next queries to free lanes."""
    num_lanes, width = lanes.log_prob.shape
    index = lanes.next_query + jnp.cumsum(is_free, dtype=jnp.int32) - 1
    starts = is_free & (index < count)
    is_first = jnp.arange(width) == 0
    is_new = jnp.repeat(is_free, width)
    goals = jnp.zeros_like(lanes.node.goals).reshape(num_lanes, width, *lanes.node.goals.shape[1:])
    goals = goals.at[:, 0, 0].set(queries[jnp.where(starts, index, 0)]).reshape(lanes.node.goals.shape)
    node = lanes.node._replace(
        goals=jnp.where(is_new[:, None, None], goals, lanes.node.goals),
        visited=jnp.where(is_new[:, None, None, None], 0, lanes.node.visited),
        num_visited=jnp.where(is_new, 0, lanes.node.num_visited),
    )
    log_prob = jnp.where(starts[:, None] & is_first, jnp.float32(0), -jnp.inf)
    return lanes._replace(
        node=node,
        log_prob=jnp.where(is_free[:, None], log_prob, lanes.log_prob),
        query_index=jnp.where(starts, index, jnp.where(is_free, -1, lanes.query_index)),
        depth=jnp.where(is_free, 0, lanes.depth),
        steps_since_proof=jnp.where(is_free, 0, lanes.steps_since_proof),
        next_query=lanes.next_query + jnp.sum(starts),
    )


def _log_probs(
    policy: ProofPolicy, node: SearchNode, where: Bool[Array, " nodes"]
) -> tuple[Float32[Array, "nodes slots"], Int32[Array, "nodes slots"]]:
    """Return the log-probability and the first predicate of each successor of the selected nodes.

    Each node has the same number of slots for successors. In empty slots, the log-probability is minus
    infinity and the predicate is 0. Because most slots are empty, the network does not score them all: the
    successors of each node are divided into blocks, and only blocks with at least one successor are scored,
    several at a time.

    Args:
        policy: The policy.
        node: Search nodes, stacked along the first axis of each array.
        where: Mask of the nodes whose successors are scored.
    """
    num_nodes, max_actions, *goal_shape = node.successors.shape
    blocks_per_node = -(-max_actions // _BLOCK_SIZE)
    chunk = min(_BLOCKS_PER_CALL, num_nodes * blocks_per_node)
    num_blocks = jnp.where(where, -(-node.num_actions // _BLOCK_SIZE), 0)
    ends = jnp.cumsum(num_blocks)
    flat = node.successors.reshape(num_nodes * max_actions, *goal_shape)

    def score_chunk(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        start, logits, predicates = carry
        number = start + jnp.arange(chunk, dtype=jnp.int32)
        owner = jnp.searchsorted(ends, number, side="right", method="scan_unrolled").astype(jnp.int32)
        # After the last block there is no owner; results for it are dropped.
        clipped = jnp.minimum(owner, num_nodes - 1)
        block = number - (ends[clipped] - num_blocks[clipped])
        slots = jnp.minimum(
            block[:, None] * _BLOCK_SIZE + jnp.arange(_BLOCK_SIZE, dtype=jnp.int32), max_actions - 1
        )
        rows = jnp.clip(clipped[:, None] * max_actions + slots, 0, num_nodes * max_actions - 1)
        successors = flat[rows]
        embedded = policy.embed_states(jnp.concatenate([node.goals[clipped][:, None], successors], axis=1))
        scored = jax.vmap(policy.score)(embedded[:, 0], embedded[:, 1:]).astype(jnp.float32)
        logits = logits.at[owner, block].set(scored, mode="drop")
        predicates = predicates.at[owner, block].set(successors[:, :, 0, 0], mode="drop")
        return start + chunk, logits, predicates

    shape = (num_nodes, blocks_per_node, _BLOCK_SIZE)
    blank = (jnp.int32(0), jnp.zeros(shape, jnp.float32), jnp.zeros(shape, jnp.int32))
    _, logits, predicates = jax.lax.while_loop(lambda carry: carry[0] < ends[-1], score_chunk, blank)
    is_real = where[:, None] & (jnp.arange(blocks_per_node * _BLOCK_SIZE) < node.num_actions[:, None])
    log_probs = masked_log_softmax(logits.reshape(num_nodes, -1), is_real)
    return log_probs, jnp.where(is_real, predicates.reshape(num_nodes, -1), 0)


class _Selection(NamedTuple):
    """State of the loop in `_select_best`: the successors selected so far and the remaining successors."""

    values: Float32[Array, "lanes width slots"]
    """Log-probability of each remaining successor; minus infinity in all other slots."""
    row_best: Float32[Array, "lanes width"]
    """Largest entry of `values` for each node."""
    goals: Int32[Array, "lanes width cells"]
    """Flattened goals of the selected successors."""
    parent: Int32[Array, "lanes width"]
    """For each selected successor, the index of its parent node in the lane."""
    log_prob: Float32[Array, "lanes width"]
    """Log-probability of each selected successor."""
    num_selected: Int32[Array, " lanes"]
    """Number of successors selected so far."""


def _select_best(
    node: SearchNode, values: Float32[Array, "lanes width slots"]
) -> tuple[SearchNode, Float32[Array, "lanes width"]]:
    """Select the most probable distinct successors of each lane.

    Each round selects the best remaining successor of each lane. Then only the siblings of this successor are
    scanned again. This is faster than sorting all slots, most of which are empty.

    Args:
        node: The current nodes.
        values: Log-probability of each successor. Successors with minus infinity are not selected.

    Returns:
        Nodes with the goals of the selected successors, most probable first, and their log-probabilities.
    """
    lanes, width, _ = values.shape
    states = node.successors.shape[1]
    row = jnp.arange(lanes)
    flat = node.successors.reshape(lanes * width * states, -1)

    def more(selection: _Selection) -> Array:
        return jnp.any((selection.num_selected < width) & (jnp.max(selection.row_best, axis=1) > -jnp.inf))

    def take(selection: _Selection) -> _Selection:
        parent = jnp.argmax(selection.row_best, axis=1).astype(jnp.int32)
        values = selection.values[row, parent]
        slot = jnp.argmax(values, axis=1).astype(jnp.int32)
        value = jnp.max(values, axis=1)
        goals = flat[(row * width + parent) * states + jnp.minimum(slot, states - 1)]
        chosen = jnp.arange(width) < selection.num_selected[:, None]
        seen = jnp.any(chosen & jnp.all(selection.goals == goals[:, None], axis=2), axis=1)
        taken = (value > -jnp.inf) & ~seen & (selection.num_selected < width)
        at = jnp.where(taken, selection.num_selected, width)
        rest = jnp.where(jnp.arange(values.shape[1]) == slot[:, None], -jnp.inf, values)
        return _Selection(
            values=selection.values.at[row, parent, slot].set(-jnp.inf),
            row_best=selection.row_best.at[row, parent].set(jnp.max(rest, axis=1)),
            goals=selection.goals.at[row, at].set(goals, mode="drop"),
            parent=selection.parent.at[row, at].set(parent, mode="drop"),
            log_prob=selection.log_prob.at[row, at].set(value, mode="drop"),
            num_selected=selection.num_selected + taken,
        )

    cells = node.goals[0].size
    start = _Selection(
        values,
        jnp.max(values, axis=2),
        jnp.zeros((lanes, width, cells), jnp.int32),
        jnp.zeros((lanes, width), jnp.int32),
        jnp.full((lanes, width), -jnp.inf, jnp.float32),
        jnp.zeros(lanes, jnp.int32),
    )
    selection = jax.lax.while_loop(more, take, start)
    parent = (row[:, None] * width + selection.parent).reshape(-1)
    moved = node._replace(
        goals=selection.goals.reshape(node.goals.shape),
        visited=node.visited[parent],
        num_visited=node.num_visited[parent],
    )
    return moved, selection.log_prob

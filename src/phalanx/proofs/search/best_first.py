"""Best-first search for proofs with a heuristic. The queries of a batch are expanded together."""

import heapq
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32, Int32, Int64
from pydantic import Field

from phalanx.config import Config
from phalanx.core.backends import resolve_backend
from phalanx.proofs import backends
from phalanx.proofs.config import ProofConfig
from phalanx.proofs.program import Program
from phalanx.proofs.search.beam import SearchResult, SearchTrace
from phalanx.proofs.state import ExpandRequest, SearchNode

Numbers = Array | np.ndarray


class BestFirstConfig(Config):
    """Settings of best-first search."""

    renamed_settings: ClassVar[dict[str, str]] = {"expansions": "max_expansions"}

    max_expansions: int = Field(default=100, ge=1)
    """Maximum number of nodes that are expanded for a query."""
    max_depth: int = Field(default=20, ge=1)
    """Maximum number of steps of a proof."""
    batch_size: int = Field(default=128, ge=1)
    """Number of queries that are searched at a time."""


class SuccessorBatch(NamedTuple):
    """The successors of some expanded nodes, grouped by node."""

    goals: Int32[np.ndarray, "successors goals atom"]
    """Goals of each successor."""
    owner: Int64[np.ndarray, " successors"]
    """Index of the expanded node that each successor belongs to, in ascending order."""
    parents: Int32[np.ndarray, "nodes goals atom"]
    """Goals of each expanded node."""
    queries: Int32[np.ndarray, "nodes atom"]
    """Query of each expanded node."""
    depth: Int64[np.ndarray, " nodes"]
    """Number of steps from the query to each expanded node."""


@runtime_checkable
class Heuristic(Protocol):
    """Protocol of a heuristic, which determines the order in which nodes are expanded.

    The next node is the one with the least sum of the path cost and the estimated remaining cost, as in A*.
    """

    def costs(
        self, batch: SuccessorBatch
    ) -> tuple[Float32[np.ndarray, " successors"], Float32[np.ndarray, " successors"]]:
        """Return the cost of the step to each successor, and the estimated cost from there to a proof."""


class _Frontier:
    """The search tree of one query."""

    def __init__(self, number: int, query: np.ndarray, max_goals: int) -> None:
        self.number, self.query = number, query
        start = np.zeros((max_goals, len(query)), np.int32)
        start[0] = query
        self.goals, self.parent, self.depth, self.cost = [start], [-1], [0], [0.0]
        self.heap: list[tuple[float, int]] = [(0.0, 0)]
        self.seen = {start.tobytes()}
        self.expanded: list[int] = []
        self.overflow = False

    def path_to(self, node: int) -> list[int]:
        path = [node]
        while self.parent[path[-1]] >= 0:
            path.append(self.parent[path[-1]])
        return path[::-1]


def best_first_search(
    config: ProofConfig,
    program: Program,
    heuristic: Heuristic,
    queries: Int32[np.ndarray, "queries atom"],
    search: BestFirstConfig | None = None,
) -> SearchResult:
    """Search for a proof of each query with a heuristic. A query is not used as a fact in its own proof.

    Nodes that differ only in the names of their variables are expanded once. Among nodes of equal cost, the
    oldest is expanded first.

    Args:
        config: Settings of the proof environment, which determine the successors of a state.
        program: Facts and rules.
        heuristic: Determines the order in which nodes are expanded.
        queries: Ground atoms, encoded by a `ProofVocabulary`.
        search: Settings of the search. None uses the defaults.

    Returns:
        The results, with a trace of the expanded nodes but without log-probabilities.
    """
    search = BestFirstConfig() if search is None else search
    config = expansion_config(config)
    waiting = iter(range(len(queries)))
    active: list[_Frontier] = []
    finished: dict[int, tuple[_Frontier, int]] = {}
    while True:
        while len(active) < search.batch_size and (number := next(waiting, None)) is not None:
            active.append(_Frontier(number, queries[number], config.max_goals))
        if not active:
            break
        nodes = [heapq.heappop(frontier.heap)[1] for frontier in active]
        remaining = []
        for frontier, node, is_proof in _expand_nodes(config, program, heuristic, active, nodes, search):
            frontier.expanded.append(node)
            if is_proof or not frontier.heap or len(frontier.expanded) >= search.max_expansions:
                finished[frontier.number] = frontier, node if is_proof else -1
            else:
                remaining.append(frontier)
        active = remaining
    return _collect_result(finished, len(queries))


def expansion_config(config: ProofConfig) -> ProofConfig:
    """Return the environment settings for a search.

    Visited states are not pruned, because the search keeps track of them itself, and there is no end action.
    """
    update = {"backend": resolve_backend(config.backend), "prune_visited": False, "end_proof_action": False}
    copied: ProofConfig = config.model_copy(update=update)
    return copied


def _expand_nodes(
    config: ProofConfig,
    program: Program,
    heuristic: Heuristic,
    frontiers: list[_Frontier],
    nodes: list[int],
    search: BestFirstConfig,
) -> list[tuple[_Frontier, int, bool]]:
    """Expand one node of each frontier and add its successors to the frontier.

    Returns, for each frontier, the frontier, the node, and whether True is among the successors of the node.
    """
    goals = np.stack([frontier.goals[node] for frontier, node in zip(frontiers, nodes, strict=True)])
    queries = np.stack([frontier.query for frontier in frontiers])
    successors, count, overflow = compute_successors(config, program, goals, queries, search.batch_size)
    is_real = np.arange(successors.shape[1]) < count[:, None]
    predicates = successors[:, :, 0, 0]
    is_proof = np.any(is_real & (predicates == program.true_index), axis=1)
    depth = np.array(
        [frontier.depth[node] for frontier, node in zip(frontiers, nodes, strict=True)], np.int64
    )
    continues = ~is_proof & (depth + 1 < search.max_depth)
    owner, index = np.nonzero(is_real & (predicates <= program.num_predicates) & continues[:, None])
    if len(owner):
        children = successors[owner, index]
        step_cost, cost_to_go = heuristic.costs(SuccessorBatch(children, owner, goals, queries, depth))
        for row, number in enumerate(owner.tolist()):
            frontier, node = frontiers[number], nodes[number]
            key = children[row].tobytes()
            if key in frontier.seen:
                continue
            frontier.seen.add(key)
            cost = frontier.cost[node] + float(step_cost[row])
            heapq.heappush(frontier.heap, (cost + float(cost_to_go[row]), len(frontier.goals)))
            frontier.goals.append(children[row])
            frontier.parent.append(node)
            frontier.depth.append(frontier.depth[node] + 1)
            frontier.cost.append(cost)
    for frontier, cut_off in zip(frontiers, overflow.tolist(), strict=True):
        frontier.overflow |= cut_off
    return list(zip(frontiers, nodes, is_proof.tolist(), strict=True))


def compute_successors(
    config: ProofConfig,
    program: Program,
    goals: Int32[np.ndarray, "nodes goals atom"],
    queries: Int32[np.ndarray, "nodes atom"],
    batch_size: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compute the successors of some states.

    Batches are padded to `batch_size`, so that the expansion is compiled once.

    Args:
        config: Settings of the proof environment.
        program: Facts and rules.
        goals: Goals of each state.
        queries: Query of each state, which is not used as a fact.
        batch_size: Number of states that are expanded at a time.

    Returns:
        The successors of each state, their number, and whether some were cut off.
    """
    parts = []
    for start in range(0, len(goals), batch_size):
        batch = slice(start, start + batch_size)
        count = len(goals[batch])
        padded_goals = np.zeros((batch_size, *goals.shape[1:]), np.int32)
        padded_queries = np.ones((batch_size, queries.shape[1]), np.int32)
        padded_goals[:count], padded_queries[:count] = goals[batch], queries[batch]
        found = _expand(config, program, padded_goals, padded_queries, np.arange(batch_size) < count)
        parts.append([np.asarray(leaf)[:count] for leaf in found])
    joined: list[Any] = [np.concatenate(leaves) for leaves in zip(*parts, strict=True)]
    return joined[0], joined[1], joined[2]


@eqx.filter_jit
def _expand(
    config: ProofConfig, program: Program, goals: Numbers, queries: Numbers, where: Numbers
) -> tuple[Array, Array, Array]:
    node = SearchNode.empty(config, program, where.shape)._replace(goals=jnp.asarray(goals))
    request = ExpandRequest(jnp.asarray(where), jnp.asarray(queries), jnp.ones(where.shape, bool))
    found = backends.expand(config, program, request, node, restart=True)
    return jax.lax.optimization_barrier((found.successors, found.num_actions, found.overflow))


def _collect_result(finished: Mapping[int, tuple[_Frontier, int]], count: int) -> SearchResult:
    paths, dead_ends = {}, {}
    proved, overflow = np.zeros(count, bool), np.zeros(count, bool)
    expansions, length = np.zeros(count, np.int64), np.full(count, -1, np.int64)
    for number, (frontier, last) in finished.items():
        path = frontier.path_to(last) if last >= 0 else []
        on_path = set(path)
        proved[number], overflow[number] = last >= 0, frontier.overflow
        expansions[number], length[number] = len(frontier.expanded), len(path) if last >= 0 else -1
        if last >= 0:
            paths[number] = [frontier.goals[node] for node in path]
        dead_ends[number] = [frontier.goals[node] for node in frontier.expanded if node not in on_path]
    return SearchResult(proved, None, length, overflow, expansions, SearchTrace(paths, dead_ends))

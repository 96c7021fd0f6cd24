"""Best-first search for proofs, guided by a heuristic. Searches for several queries run in parallel."""

import heapq
import itertools
from typing import NamedTuple, Protocol, runtime_checkable

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
from phalanx.proofs.search.beam import BestFirstTrace, SearchResults
from phalanx.proofs.state import ExpandRequest, SearchNode

Numbers = Array | np.ndarray


class BestFirstConfig(Config):
    """Settings for best-first search."""

    max_expansions: int = Field(default=100, ge=1)
    """Maximum number of nodes that are expanded for a query."""
    max_depth: int = Field(default=20, ge=1)
    """Maximum number of steps in a proof."""
    num_parallel_queries: int = Field(default=128, ge=1)
    """Number of queries that are processed in parallel. Each search expands one node at a time."""


class SuccessorBatch(NamedTuple):
    """The successors of a batch of expanded nodes, grouped by node."""

    goals: Int32[np.ndarray, "successors goals atom"]
    """Goals of each successor."""
    owner: Int64[np.ndarray, " successors"]
    """Index of the expanded node that each successor belongs to, in ascending order."""
    parents: Int32[np.ndarray, "nodes goals atom"]
    """Goals of each expanded node."""
    queries: Int32[np.ndarray, "nodes atom"]
    """For each expanded node, the query that the search tries to prove."""
    depth: Int64[np.ndarray, " nodes"]
    """Number of steps from the query to each expanded node."""


@runtime_checkable
class Heuristic(Protocol):
    """Protocol for heuristics, which determine the order in which nodes are expanded.

    As in A*, the next node is the one with the smallest sum of the cost of the path to the node and the
    estimated cost from the node to a proof.
    """

    def costs(
        self, batch: SuccessorBatch
    ) -> tuple[Float32[np.ndarray, " successors"], Float32[np.ndarray, " successors"]]:
        """Return the cost of the step to each successor, and the estimated cost from there to a proof."""


class _SearchTree:
    """The search tree of one query. Node 0 is the query."""

    def __init__(self, number: int, query: np.ndarray, max_goals: int) -> None:
        self.number, self.query = number, query
        start = np.zeros((max_goals, len(query)), np.int32)
        start[0] = query
        self.goals, self.parent, self.depth, self.cost = [start], [-1], [0], [0.0]
        self.heap: list[tuple[float, int]] = [(0.0, 0)]
        self.seen = {start.tobytes()}
        self.expanded: list[int] = []
        self.is_proved = self.overflow = False

    def add(self, goals: np.ndarray, parent: int, step_cost: float, cost_to_go: float) -> None:
        """Add a successor of the node `parent`, unless a node with the same goals is already in the tree."""
        if (key := goals.tobytes()) in self.seen:
            return
        self.seen.add(key)
        cost = self.cost[parent] + step_cost
        heapq.heappush(self.heap, (cost + cost_to_go, len(self.goals)))
        self.goals.append(goals)
        self.parent.append(parent)
        self.depth.append(self.depth[parent] + 1)
        self.cost.append(cost)

    def proof_path(self) -> list[int]:
        """Return the nodes of the proof, from the query to the last expanded node.

        The list is empty if no proof was found.
        """
        path, node = [], self.expanded[-1] if self.is_proved else -1
        while node >= 0:
            path.append(node)
            node = self.parent[node]
        return path[::-1]


def best_first_search(
    config: ProofConfig,
    program: Program,
    heuristic: Heuristic,
    queries: Int32[np.ndarray, "queries atom"],
    search: BestFirstConfig | None = None,
) -> SearchResults:
    """Use a heuristic to search for a proof of each query. A query is not used as a fact in its own proof.

    Nodes that differ only in the names of their variables are treated as the same node and expanded at most
    once. Among nodes with equal cost, the one that was found first is expanded first.

    Args:
        config: Settings of the proof environment, which determine the successors of a state.
        program: Facts and rules.
        heuristic: Determines the order in which nodes are expanded.
        queries: Ground atoms, encoded by a `ProofVocabulary`.
        search: Settings for the search. If None, the defaults are used.

    Returns:
        The results, with a trace of the expanded nodes but without log-probabilities.
    """
    search = BestFirstConfig() if search is None else search
    config = expansion_config(config)
    waiting = (_SearchTree(number, query, config.max_goals) for number, query in enumerate(queries))
    active: list[_SearchTree] = []
    finished: list[_SearchTree] = []
    while active := active + list(itertools.islice(waiting, search.num_parallel_queries - len(active))):
        _expand_best_nodes(config, program, heuristic, active, search)
        remaining: list[_SearchTree] = []
        for tree in active:
            is_over = tree.is_proved or not tree.heap or len(tree.expanded) >= search.max_expansions
            (finished if is_over else remaining).append(tree)
        active = remaining
    return _collect_result(finished)


def expansion_config(config: ProofConfig) -> ProofConfig:
    """Return environment settings for a search: without pruning of visited states and without an end action.

    The search keeps track of visited states itself.
    """
    update = {"backend": resolve_backend(config.backend), "prune_visited": False, "end_proof_action": False}
    return config.model_copy(update=update)


def _expand_best_nodes(
    config: ProofConfig,
    program: Program,
    heuristic: Heuristic,
    trees: list[_SearchTree],
    search: BestFirstConfig,
) -> None:
    """Expand the best node of each tree and add its successors to the tree."""
    nodes = [heapq.heappop(tree.heap)[1] for tree in trees]
    pairs = list(zip(trees, nodes, strict=True))
    goals = np.stack([tree.goals[node] for tree, node in pairs])
    depth = np.array([tree.depth[node] for tree, node in pairs], np.int64)
    queries = np.stack([tree.query for tree in trees])
    successors, count, overflow = compute_successors(
        config, program, goals, queries, search.num_parallel_queries
    )
    is_real = np.arange(successors.shape[1]) < count[:, None]
    predicates = successors[:, :, 0, 0]
    is_proof = np.any(is_real & (predicates == program.true_index), axis=1)
    for number, (tree, node) in enumerate(pairs):
        tree.expanded.append(node)
        tree.is_proved = bool(is_proof[number])
        tree.overflow |= bool(overflow[number])
    continues = ~is_proof & (depth + 1 < search.max_depth)
    owner, index = np.nonzero(is_real & (predicates <= program.num_predicates) & continues[:, None])
    if len(owner):
        children = successors[owner, index]
        step_cost, cost_to_go = heuristic.costs(SuccessorBatch(children, owner, goals, queries, depth))
        for row, number in enumerate(owner.tolist()):
            trees[number].add(children[row], nodes[number], float(step_cost[row]), float(cost_to_go[row]))


def compute_successors(
    config: ProofConfig,
    program: Program,
    goals: Int32[np.ndarray, "nodes goals atom"],
    queries: Int32[np.ndarray, "nodes atom"],
    batch_size: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compute the successors of the given states.

    Every batch is padded to `batch_size` to avoid recompilation.

    Args:
        config: Settings of the proof environment.
        program: Facts and rules.
        goals: Goals of each state.
        queries: Query of each state, which is not used as a fact.
        batch_size: Number of states that are expanded at a time.

    Returns:
        Three arrays: for each state, its successors, their number, and whether some of them were cut off
        because there were more than `max_actions`.
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
    successors, counts, overflow = map(np.concatenate, zip(*parts, strict=True))
    return successors, counts, overflow


@eqx.filter_jit
def _expand(
    config: ProofConfig, program: Program, goals: Numbers, queries: Numbers, where: Numbers
) -> tuple[Array, Array, Array]:
    node = SearchNode.empty(config, program, where.shape)._replace(goals=jnp.asarray(goals))
    request = ExpandRequest(jnp.asarray(where), jnp.asarray(queries), jnp.ones(where.shape, bool))
    found = backends.expand(config, program, request, node, clear_visited=True)
    return jax.lax.optimization_barrier((found.successors, found.num_actions, found.overflow))


def _collect_result(finished: list[_SearchTree]) -> SearchResults:
    """Combine the finished searches into one result, whose arrays are in the order of the queries.

    The dictionaries in the trace are in the order in which the searches ended.
    """
    paths, dead_ends = {}, {}
    for tree in finished:
        path = tree.proof_path()
        if path:
            paths[tree.number] = [tree.goals[node] for node in path]
        on_path = set(path)
        dead_ends[tree.number] = [tree.goals[node] for node in tree.expanded if node not in on_path]
    trees = sorted(finished, key=lambda tree: tree.number)
    return SearchResults(
        proved=np.array([tree.is_proved for tree in trees], bool),
        log_prob=None,
        length=np.array([len(paths.get(tree.number, ())) or -1 for tree in trees], np.int64),
        overflow=np.array([tree.overflow for tree in trees], bool),
        expansions=np.array([len(tree.expanded) for tree in trees], np.int64),
        trace=BestFirstTrace(paths, dead_ends),
    )

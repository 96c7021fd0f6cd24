"""Best-first search for proofs: a frontier for each query, one node of each expanded in every batch.

Which node is best is up to a guide: here are those that learn nothing; one that does is in `guide`. The beam
that ranks whole splits is in `beam`.
"""

import heapq
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float32, Int32, Int64
from pydantic import Field

from phalanx.config import Config
from phalanx.core.backends import resolve_backend
from phalanx.proofs.backends import resolution
from phalanx.proofs.config import ProofConfig
from phalanx.proofs.program import Program
from phalanx.proofs.state import ExpandRequest, ResolutionSettings, empty_nodes

Numbers = Array | np.ndarray


class BestFirstConfig(Config):
    """How much is looked at."""

    expansions: int = Field(default=100, ge=1)
    """Nodes of a query that are expanded at most."""
    max_depth: int = Field(default=20, ge=1)
    """Steps of the longest proof that is looked for."""
    batch_size: int = Field(default=128, ge=1)
    """Queries under way at a time."""


class SuccessorBatch(NamedTuple):
    """The successors of some expanded nodes, those of a node one after the other."""

    goals: Int32[np.ndarray, "successors atoms atom"]
    owner: Int64[np.ndarray, " successors"]
    """Which of the expanded nodes each one belongs to; ascending."""
    parents: Int32[np.ndarray, "nodes atoms atom"]
    queries: Int32[np.ndarray, "nodes atom"]
    depth: Int64[np.ndarray, " nodes"]
    """Steps from the query to each expanded node."""


@runtime_checkable
class Heuristic(Protocol):
    """What says which node comes next: that with the least cost of the way to it and of what lies ahead."""

    def rate(
        self, siblings: SuccessorBatch
    ) -> tuple[Float32[np.ndarray, " successors"], Float32[np.ndarray, " successors"]]:
        """The cost of the step to each successor, and an estimate of what a proof costs from there."""


class BreadthFirstHeuristic:
    """Short ways first, in the order of facts and rules."""

    def rate(self, siblings: SuccessorBatch) -> tuple[np.ndarray, np.ndarray]:
        ones = np.ones(len(siblings.goals), np.float32)
        return ones, np.zeros_like(ones)


class UniformHeuristic:
    """A policy to which all actions are alike: few choices on the way first, equal ones by a seed.

    Without the latter it would go by the order of the rules, in which mining has put the most certain first.
    """

    def __init__(self, seed: int = 0) -> None:
        self._random = np.random.default_rng(seed)

    def rate(self, siblings: SuccessorBatch) -> tuple[np.ndarray, np.ndarray]:
        count = np.bincount(siblings.owner, minlength=len(siblings.parents))
        cost = np.log(np.maximum(count, 1))[siblings.owner].astype(np.float32)
        return cost, 1e-3 * self._random.random(len(cost), np.float32)


class RandomHeuristic:
    """Any node of the frontier, by a seed."""

    def __init__(self, seed: int = 0) -> None:
        self._random = np.random.default_rng(seed)

    def rate(self, siblings: SuccessorBatch) -> tuple[np.ndarray, np.ndarray]:
        estimate = self._random.random(len(siblings.goals), np.float32)
        return np.zeros_like(estimate), estimate


class ConfidenceHeuristic:
    """The product of the rules' confidences first, then short ways; facts are certain."""

    def __init__(self, confidence: Callable[[SuccessorBatch], Float32[np.ndarray, " successors"]]) -> None:
        self._confidence = confidence

    def rate(self, siblings: SuccessorBatch) -> tuple[np.ndarray, np.ndarray]:
        cost = -np.log(np.maximum(self._confidence(siblings), 1e-6)) + 1e-4
        return cost.astype(np.float32), np.zeros(len(cost), np.float32)


class SearchTrace(NamedTuple):
    """What a search came to, for each query."""

    proved: Bool[np.ndarray, " queries"]
    expansions: Int64[np.ndarray, " queries"]
    """Nodes expanded, the one that the proof ends with included."""
    length: Int64[np.ndarray, " queries"]
    """Steps of the proof; -1 without one."""
    overflow: Bool[np.ndarray, " queries"]
    """Whether successors were cut because there were more than fit."""
    ways: Mapping[int, list[np.ndarray]]
    """Of each proved query, the goals that were expanded on the way, from the query on."""
    others: Mapping[int, list[np.ndarray]]
    """Of each query, expanded goals that lead to no proof that was found."""

    def proofs_per_expansion(self, budget: int | None = None) -> float:
        """Proofs found within so many expansions of each query, over the nodes expanded for them."""
        budget = int(self.expansions.max(initial=1)) if budget is None else budget
        found = self.proved & (self.expansions <= budget)
        return float(found.sum() / max(np.minimum(self.expansions, budget).sum(), 1))


class _Frontier:
    """One query's open nodes."""

    def __init__(self, number: int, query: np.ndarray, atoms: int) -> None:
        self.number, self.query = number, query
        start = np.zeros((atoms, len(query)), np.int32)
        start[0] = query
        self.goals, self.parent, self.depth, self.cost = [start], [-1], [0], [0.0]
        self.heap: list[tuple[float, int]] = [(0.0, 0)]
        self.seen = {start.tobytes()}
        self.expanded: list[int] = []
        self.overflow = False

    def way(self, node: int) -> list[int]:
        found = [node]
        while self.parent[found[-1]] >= 0:
            found.append(self.parent[found[-1]])
        return found[::-1]


def best_first_search(
    config: ProofConfig,
    program: Program,
    guide: Heuristic,
    queries: Int32[np.ndarray, "queries atom"],
    search: BestFirstConfig | None = None,
) -> SearchTrace:
    """Search for a proof of each query, which may not serve as a fact in it, by the guide's costs.

    A node is expanded once, whatever its variables are called; equal costs go by age. What an embedding or a
    network would say of a state costs no expansion.
    """
    search = BestFirstConfig() if search is None else search
    update = {"engine": resolve_backend(config.engine), "memory_pruning": False, "end_proof_action": False}
    config = config.model_copy(update=update)
    waiting = iter(range(len(queries)))
    lanes: list[_Frontier] = []
    done: dict[int, tuple[_Frontier, int]] = {}
    while True:
        while len(lanes) < search.batch_size and (number := next(waiting, None)) is not None:
            lanes.append(_Frontier(number, queries[number], config.padding_atoms))
        if not lanes:
            break
        chosen = [heapq.heappop(lane.heap)[1] for lane in lanes]
        going = []
        for lane, node, proof in _expanded(config, program, guide, lanes, chosen, search):
            lane.expanded.append(node)
            if proof or not lane.heap or len(lane.expanded) >= search.expansions:
                done[lane.number] = lane, node if proof else -1
            else:
                going.append(lane)
        lanes = going
    return _told(done, len(queries))


def _expanded(
    config: ProofConfig,
    program: Program,
    guide: Heuristic,
    lanes: list[_Frontier],
    chosen: list[int],
    search: BestFirstConfig,
) -> list[tuple[_Frontier, int, bool]]:
    """Each lane with the node that was expanded and whether it is one step from True; the rest is pushed."""
    goals = np.stack([lane.goals[node] for lane, node in zip(lanes, chosen, strict=True)])
    asked = np.stack([lane.query for lane in lanes])
    successors, count, overflow = successors_of(config, program, goals, asked, search.batch_size)
    real = np.arange(successors.shape[1]) < count[:, None]
    marks = successors[:, :, 0, 0]
    proofs = np.any(real & (marks == program.true_index), axis=1)
    depth = np.array([lane.depth[node] for lane, node in zip(lanes, chosen, strict=True)], np.int64)
    useful = ~proofs & (depth + 1 < search.max_depth)
    owner, place = np.nonzero(real & (marks <= program.num_predicates) & useful[:, None])
    if len(owner):
        children = successors[owner, place]
        cost, ahead = guide.rate(SuccessorBatch(children, owner, goals, asked, depth))
        for row, lane_number in enumerate(owner.tolist()):
            lane, node = lanes[lane_number], chosen[lane_number]
            key = children[row].tobytes()
            if key in lane.seen:
                continue
            lane.seen.add(key)
            total = lane.cost[node] + float(cost[row])
            heapq.heappush(lane.heap, (total + float(ahead[row]), len(lane.goals)))
            lane.goals.append(children[row])
            lane.parent.append(node)
            lane.depth.append(lane.depth[node] + 1)
            lane.cost.append(total)
    for lane, cut in zip(lanes, overflow.tolist(), strict=True):
        lane.overflow |= cut
    return list(zip(lanes, chosen, proofs.tolist(), strict=True))


def successors_of(
    config: ProofConfig,
    program: Program,
    goals: Int32[np.ndarray, "nodes atoms atom"],
    queries: Int32[np.ndarray, "nodes atom"],
    at_once: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The successors of some goals, how many there are, and whether some were cut; `at_once` are computed."""
    parts = []
    for begin in range(0, len(goals), at_once):
        some = slice(begin, begin + at_once)
        count = len(goals[some])
        padded = np.zeros((at_once, *goals.shape[1:]), np.int32)
        asked = np.ones((at_once, queries.shape[1]), np.int32)
        padded[:count], asked[:count] = goals[some], queries[some]
        found = _expand(config, program, padded, asked, np.arange(at_once) < count)
        parts.append([np.asarray(leaf)[:count] for leaf in found])
    joined: list[Any] = [np.concatenate(leaves) for leaves in zip(*parts, strict=True)]
    return joined[0], joined[1], joined[2]


@eqx.filter_jit
def _expand(
    config: ProofConfig, program: Program, goals: Numbers, queries: Numbers, where: Numbers
) -> tuple[Array, Array, Array]:
    node = empty_nodes(config, program, where.shape)._replace(goals=jnp.asarray(goals))
    asked = ExpandRequest(jnp.asarray(where), jnp.asarray(queries), jnp.ones(where.shape, bool))
    found = resolution.expand(ResolutionSettings.of(config, program), asked, node, restart=True)
    return jax.lax.optimization_barrier((found.successors, found.successor_count, found.overflow))


def _told(done: Mapping[int, tuple[_Frontier, int]], count: int) -> SearchTrace:
    ways, others = {}, {}
    proved, overflow = np.zeros(count, bool), np.zeros(count, bool)
    expansions, length = np.zeros(count, np.int64), np.full(count, -1, np.int64)
    for number, (lane, last) in done.items():
        on_the_way = lane.way(last) if last >= 0 else []
        kept = set(on_the_way)
        proved[number], overflow[number] = last >= 0, lane.overflow
        expansions[number], length[number] = len(lane.expanded), len(on_the_way) if last >= 0 else -1
        if last >= 0:
            ways[number] = [lane.goals[node] for node in on_the_way]
        others[number] = [lane.goals[node] for node in lane.expanded if node not in kept]
    return SearchTrace(proved, expansions, length, overflow, ways, others)

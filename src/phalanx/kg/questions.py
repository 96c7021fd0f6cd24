"""The questions of a whole split, both ways, and how their answers rank among all entities.

What scores the answers is in `rank` and `network`.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float32, Float64, Int32, Int64

from phalanx.kg.candidates import (
    SIDES,
    CandidateLists,
    RankCounts,
    RankMetrics,
    Ties,
    list_metrics,
    summarize,
)
from phalanx.kg.joins import KnownArguments, expanded
from phalanx.kg.knowledge_base import DataHandler
from phalanx.kg.rules.mining import graph_of
from phalanx.kg.time_limit import TimeLimit
from phalanx.kg.vocabulary import IndexManager

KGE_WEIGHTS = (0.0, 0.03, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0)
"""What an embedding may count for beside the rules; for each directed relation the best on validation."""
_PRIOR = 20.0
"""A relation's own questions count against so many of all relations when its weight is chosen."""
QUESTIONS_AT_ONCE = 256

Tables = Callable[[Int32[np.ndarray, "questions 2"]], Float32[np.ndarray, "questions entities"]]
"""The scores of all entities for (entity, directed relation) questions."""


@runtime_checkable
class EntityScorer(Protocol):
    """What scores all entities for an open side; `phalanx.kg.kge.KGE` does."""

    def score_tails(self, relations: Any, heads: Any) -> Any: ...
    def score_heads(self, relations: Any, tails: Any) -> Any: ...


@dataclasses.dataclass(frozen=True)
class RuleRankingResult:
    """How the queries of a split rank, filtered, among all entities."""

    split: str
    aggregation: str
    total: RankMetrics
    """Ties at random."""
    mean_ties: RankMetrics
    """The mean of the best and the worst rank where scores tie."""
    sides: Mapping[str, RankMetrics]
    rules: int
    """0 where there are none, as for a path network."""
    chosen: Mapping[str, Any]
    """What was chosen on validation."""

    def as_record(self) -> dict[str, Any]:
        """A line of a log."""
        return {
            "split": self.split,
            "aggregation": self.aggregation,
            "rules": self.rules,
            **self.total.as_record(),
            "mrr_mean_ties": self.mean_ties.mrr,
            "sides": {name: part.as_record() for name, part in self.sides.items()},
            "chosen": dict(self.chosen),
        }

    def describe(self) -> str:
        """A line on the whole, and one on each side."""
        by = f"{self.rules} rules, {self.aggregation}" if self.rules else f"a {self.aggregation}"
        head = f"{self.split}, {self.total.queries} queries by {by}"
        lines = [f"{head}: {self.total.describe()} (mean rank of ties: MRR {self.mean_ties.mrr:.3f})"]
        lines += [f"  {name}: {part.describe()}" for name, part in self.sides.items()]
        if self.chosen:
            lines.append(f"  chosen on validation: {', '.join(f'{k} {v}' for k, v in self.chosen.items())}")
        return "\n".join(lines)


class LinkPredictionQueries(NamedTuple):
    """The different (entity, directed relation) of a split, and the answers of each."""

    rows: Int32[np.ndarray, "questions 2"]
    begins: Int64[np.ndarray, " questions_and_one"]
    targets: Int32[np.ndarray, " lists"]
    order: Int64[np.ndarray, " lists"]
    """Which list each target is of: first the tails of all queries, then the heads."""


class SplitRanker:
    """The queries of a knowledge base as questions, and what is known of their answers."""

    def __init__(self, data: DataHandler, index: IndexManager, budget: TimeLimit | None = None) -> None:
        self.data, self.index = data.binary(), index
        self._budget = budget or TimeLimit()
        self._known = index.encode_atoms(tuple(self.data.known))
        self.graph = graph_of(index.encode_atoms(self.data.facts), index)

    def ranks_by_tables(
        self,
        split: str,
        tables: Tables,
        kge: EntityScorer | None = None,
        kge_weights: Sequence[float] = (0.0,),
    ) -> list[RankCounts]:
        """The ranks by scores and, for each weight, so many times an embedding's; first tails, then heads.

        An embedding's scores are taken from their mean over all entities, over their deviation.
        """
        asked = self.questions(split)
        shape = (len(kge_weights), len(asked.targets))
        above, level = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        for begin in range(0, len(asked.rows), QUESTIONS_AT_ONCE):
            rows = asked.rows[begin : begin + QUESTIONS_AT_ONCE]
            table = tables(rows)
            belief = None if kge is None else _standardized(kge, rows)
            first, last = asked.begins[begin], asked.begins[begin + len(rows)]
            place = np.repeat(np.arange(len(rows)), np.diff(asked.begins[begin : begin + len(rows) + 1]))
            targets = asked.targets[first:last]
            true = self._true(rows)
            for number, weight in enumerate(kge_weights):
                scores = table.copy() if belief is None else table + np.float32(weight) * belief
                own = scores[place, targets][:, None]
                scores[true] = -np.inf
                above[number, first:last] = (scores[place] > own).sum(axis=1)
                # The target is among the true ones, or it would be level with itself.
                level[number, first:last] = (scores[place] == own).sum(axis=1)
            self._budget.word(f"ranking {split}: {begin:,} of {len(asked.rows):,} questions")
        return [in_order(asked, *pair) for pair in zip(above, level, strict=True)]

    def _true(self, rows: np.ndarray) -> np.ndarray:
        """bool [questions entities]: the answers that are known."""
        mask = np.zeros((len(rows), self.index.num_constants), bool)
        for back in (0, 1):
            mine = np.flatnonzero(rows[:, 1] % 2 == back)
            triples = np.repeat(1 + rows[mine, :1], 3, axis=1)
            triples[:, 0] = 1 + rows[mine, 1] // 2
            known = KnownArguments(self._known, 2 - back)
            place, at = expanded(*known.ranges(triples.astype(np.int32)))
            mask[mine[place], known.arguments[at] - 1] = True
        return mask

    def questions(self, split: str) -> LinkPredictionQueries:
        triples = self.index.encode_atoms(self.data.queries(split)) - 1
        if not len(triples):
            raise ValueError(f"there is nothing to rank: {self.data.dataset} has no {split} queries")
        relation, head, tail = triples.T
        rows = np.concatenate([np.stack([head, 2 * relation], 1), np.stack([tail, 2 * relation + 1], 1)])
        unique, place = np.unique(rows, axis=0, return_inverse=True)
        order = np.argsort(place.reshape(-1), kind="stable")
        begins = np.searchsorted(place.reshape(-1)[order], np.arange(len(unique) + 1))
        targets = np.concatenate([tail, head])[order]
        return LinkPredictionQueries(np.ascontiguousarray(unique), begins.astype(np.int64), targets, order)

    def list_relations(self, split: str) -> Int64[np.ndarray, " lists"]:
        """What each list of `ranks` asks by: 2r for the tails of relation r, then 2r + 1 for the heads."""
        relation = 2 * (self.index.encode_atoms(self.data.queries(split))[:, 0].astype(np.int64) - 1)
        return np.concatenate([relation, relation + 1])

    def result(
        self,
        split: str,
        aggregation: str,
        ranks: RankCounts,
        chosen: Mapping[str, Any],
        rules: int,
        seed: int = 0,
    ) -> RuleRankingResult:
        """The metrics of ranks."""
        count = len(ranks.above) // 2
        lists = CandidateLists(
            triples=np.zeros((0, 3), np.int32),
            starts=np.zeros(1, np.int64),
            query=np.tile(np.arange(count), 2),
            side=np.repeat([1, 0], count),
            tie_draw=np.random.default_rng(seed).random(2 * count),
            num_queries=count,
        )

        def part(ties: Ties, mask: np.ndarray) -> RankMetrics:
            return summarize(lists, list_metrics(ranks, ties, lists.tie_draw), None, mask)

        every = np.ones(2 * count, bool)
        return RuleRankingResult(
            split,
            aggregation,
            part("random", every),
            part("mean", every),
            {SIDES[side]: part("random", lists.side == side) for side in (0, 1)},
            rules,
            chosen,
        )


class Ensemble(NamedTuple):
    """What was chosen on validation: a weight for each directed relation, and what they come to."""

    mrr: float
    weights: Float64[np.ndarray, " relations"]


def weighed(
    found: Sequence[RankCounts], relations: Int64[np.ndarray, " lists"], weights: Sequence[float], count: int
) -> Ensemble:
    """The best weight of each directed relation by the ranks of each weight, ties as they are on average."""
    nothing = np.zeros(len(relations))
    reciprocal = np.stack([list_metrics(ranks, "expected", nothing)[:, 0] for ranks in found])
    best = best_by_relation(reciprocal, relations, count)
    mrr = float(reciprocal[best[relations], np.arange(len(relations))].mean())
    return Ensemble(mrr, np.array(weights)[best])


def chosen_ranks(found: Sequence[RankCounts], which: Int64[np.ndarray, " lists"]) -> RankCounts:
    """Each list's ranks by the weight that was chosen for it."""
    return RankCounts(
        np.choose(which, [part.above for part in found]), np.choose(which, [part.level for part in found])
    )


def best_by_relation(
    reciprocal: Float64[np.ndarray, "weights lists"], relations: Int64[np.ndarray, " lists"], count: int
) -> Int64[np.ndarray, " relations"]:
    """For each directed relation the weight with the best mean; with few lists, that of all counts."""
    sums = np.stack([np.bincount(relations, weights=row, minlength=count) for row in reciprocal])
    sizes = np.bincount(relations, minlength=count)
    means = (sums + _PRIOR * reciprocal.mean(axis=1, keepdims=True)) / (sizes + _PRIOR)
    return means.argmax(axis=0)


def in_order(asked: LinkPredictionQueries, above: np.ndarray, level: np.ndarray) -> RankCounts:
    ordered = [np.empty_like(above), np.empty_like(level)]
    ordered[0][asked.order], ordered[1][asked.order] = above, level
    return RankCounts(*ordered)


def _standardized(kge: EntityScorer, rows: np.ndarray) -> np.ndarray:
    # Always as many, so that an embedding is compiled once.
    padded = np.zeros((QUESTIONS_AT_ONCE, 2), np.int32)
    padded[: len(rows)] = rows
    entities, relations = padded[:, 0] + 1, padded[:, 1] // 2 + 1
    tails = np.asarray(kge.score_tails(relations, entities))[: len(rows)]
    heads = np.asarray(kge.score_heads(relations, entities))[: len(rows)]
    scores = np.where(rows[:, 1:] % 2 == 0, tails, heads)
    deviation = scores.std(axis=1, keepdims=True)
    return (scores - scores.mean(axis=1, keepdims=True)) / np.maximum(deviation, 1e-9)

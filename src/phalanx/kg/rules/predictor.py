"""Ranking by rules: the queries of a whole split among all entities, heads and tails, at once.

Rules are mined in `miner`. Ranking by proofs of any depth is in `phalanx.kg`.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float64

from phalanx.kg.candidates import RankCounts
from phalanx.kg.knowledge_base import DataHandler
from phalanx.kg.questions import (
    KGE_WEIGHTS,
    QUESTIONS_AT_ONCE,
    EntityScorer,
    RuleRankingResult,
    SplitRanker,
    chosen_ranks,
    in_order,
    weighed,
)
from phalanx.kg.rules.mining import engine, graph_of
from phalanx.kg.rules.ruleset import RuleSet
from phalanx.kg.time_limit import TimeLimit

Aggregation = Literal["maximum", "noisy-or", "power", "learned"]
AGGREGATIONS: tuple[Aggregation, ...] = ("maximum", "noisy-or", "power", "learned")
BY_RELATION: Literal["by-relation"] = "by-relation"
WAYS: tuple[tuple[Aggregation, float], ...] = (
    ("maximum", 1.0),
    ("noisy-or", 1.0),
    ("power", 2.0),
    ("power", 3.0),
    ("power", 4.0),
    ("power", 6.0),
)
"""What `by-relation` has to choose from: an aggregation, and its power."""
POWER = 2.0
"""What `power` raises the terms of noisy-or to, unless told: the higher, the nearer to `maximum`."""
_FLOOR = 1e-3
"""The rules' score at which logarithms of it begin to count."""
_RELATIONS_AT_ONCE = 8


class Learning(NamedTuple):
    """How rule weights are learned: Adagrad on the softmax loss of the facts, from where noisy-or begins."""

    epochs: int
    rate: float
    decay: float
    """Pulls a weight back to where it began."""


LEARNINGS = (Learning(0, 0.0, 0.0), Learning(3, 0.02, 0.3), Learning(5, 0.05, 0.03), Learning(10, 0.05, 0.01))
"""The settings to choose from on validation; the first learns nothing."""


class RulePredictor(SplitRanker):
    """Applies rules to the queries of a knowledge base: the bodies hold by its training facts alone.

    `limit` is how many paths from one entity a body is followed along.
    """

    def __init__(
        self,
        rules: RuleSet,
        data: DataHandler,
        *,
        limit: int = 10_000,
        threads: int = 2,
        budget: TimeLimit | None = None,
    ) -> None:
        super().__init__(data, rules.index, budget)
        self.rules = rules
        self._known_graph = graph_of(self._known, self.index)
        levels = np.cumsum(np.diff(rules.confidence, prepend=rules.confidence[:1]) != 0).astype(np.int32)
        self.applier = engine().RulePredictor(self.graph, rules.rows, levels, limit, threads)

    def weights(
        self, aggregation: Aggregation, learning: Learning = LEARNINGS[0], power: float = POWER
    ) -> np.ndarray:
        """Two for each rule, for the questions after its tail and after its head."""
        if aggregation == "maximum":
            return np.repeat(self.rules.confidence, 2)
        # The logarithm of the chance that all are wrong; certain ones must stay finite.
        weights = np.repeat(-np.log1p(-np.minimum(self.rules.confidence, 1 - 1e-6)), 2)
        if aggregation == "power":
            weights **= power
        if aggregation == "learned" and learning.epochs:
            relations = np.arange(2 * self.index.num_predicates, dtype=np.int32)
            for begin in range(0, len(relations), _RELATIONS_AT_ONCE):
                some = relations[begin : begin + _RELATIONS_AT_ONCE]
                self.applier.fit_weights(weights, some, 20_000, 200, *learning, 0)
                self._budget.word(f"learning weights: relation {begin // 2 + 1} of {len(relations) // 2}")
        return weights

    def ranks(
        self, split: str, aggregation: Aggregation, weights: Float64[np.ndarray, " weights"]
    ) -> RankCounts:
        """Of each query's tail, then of each query's head."""
        asked = self.questions(split)
        above, level = np.zeros(len(asked.targets), np.int64), np.zeros(len(asked.targets), np.int64)
        how = "maximum" if aggregation == "maximum" else "sum"
        for begin in range(0, len(asked.rows), QUESTIONS_AT_ONCE):
            begins = asked.begins[begin : begin + QUESTIONS_AT_ONCE + 1]
            here = slice(begins[0], begins[-1])
            self.applier.count_ranks(
                self._known_graph,
                asked.rows[begin : begin + QUESTIONS_AT_ONCE],
                begins - begins[0],
                asked.targets[here],
                how,
                weights,
                above[here],
                level[here],
            )
            self._budget.word(f"ranking {split}: {begin:,} of {len(asked.rows):,} questions")
        return in_order(asked, above, level)

    def ranks_with_kge(
        self,
        split: str,
        aggregation: Aggregation,
        weights: Float64[np.ndarray, " weights"],
        kge: EntityScorer,
        kge_weights: Sequence[float],
    ) -> list[RankCounts]:
        """By the logarithm of the rules' scores and, for each weight, so many times an embedding's."""
        how = "maximum" if aggregation == "maximum" else "sum"

        def logarithms(rows: np.ndarray) -> np.ndarray:
            table = np.zeros((len(rows), self.index.num_constants), np.float32)
            self.applier.score(rows, how, weights, table)
            scores: np.ndarray = np.sign(table) * np.log1p(np.abs(table) / np.float32(_FLOOR))
            return scores

        return self.ranks_by_tables(split, logarithms, kge, kge_weights)


def rank_by_rules(
    rules: RuleSet,
    data: DataHandler,
    split: str = "test",
    aggregation: Aggregation | Literal["by-relation"] = "maximum",
    *,
    kge: EntityScorer | None = None,
    power: float = POWER,
    limit: int = 10_000,
    threads: int = 2,
    seed: int = 0,
    budget: TimeLimit | None = None,
) -> RuleRankingResult:
    """Rank every query of a split by rules: filtered by all splits, among all entities, heads and tails.

    `maximum` orders answers by their most certain rule, ties by the next, and so on. `noisy-or` takes rules
    for independent, and `power` is between the two: the sum of the terms of noisy-or, each to this power.
    `learned` gives each rule a weight that is learned on the facts. How to learn, and for each relation and
    side the weight of an embedding, are chosen on the validation queries; and so is, for each relation and
    side, one of `WAYS` by `by-relation`.
    """
    every = (*AGGREGATIONS, BY_RELATION)
    if aggregation not in every:
        raise ValueError(f"aggregation must be one of {', '.join(every)}, got {aggregation!r}")
    if (aggregation in ("learned", BY_RELATION) or kge is not None) and not data.valid_queries:
        raise ValueError(f"{data.dataset} has no validation queries to choose by; add a valid.txt")
    ranker = RulePredictor(rules, data, limit=limit, threads=threads, budget=budget)
    if aggregation == BY_RELATION:
        if kge is not None:
            raise ValueError(f"an embedding is weighed beside one aggregation for all, not {BY_RELATION}")
        return _rank_by_relation(ranker, split, seed)
    learnings = LEARNINGS if aggregation == "learned" else LEARNINGS[:1]
    kge_weights = (0.0,) if kge is None else KGE_WEIGHTS
    best = (
        -1.0,
        learnings[0],
        np.zeros(2 * rules.index.num_predicates),
        ranker.weights(aggregation, power=power),
    )
    chosen: dict[str, Any] = {}
    if len(learnings) + len(kge_weights) > 2:
        for mrr, learning, weight, weights in _tries(ranker, aggregation, learnings, kge, kge_weights, power):
            if mrr > best[0]:
                best = (mrr, learning, weight, weights)
        chosen = {"valid_mrr": best[0]}
        chosen |= {"learning": best[1]._asdict()} if aggregation == "learned" else {}
        chosen |= {} if kge is None else {"kge_weight": float(np.median(best[2]))}
    if kge is None:
        ranks = ranker.ranks(split, aggregation, best[3])
    else:
        used = np.unique(best[2]).tolist()
        each = ranker.ranks_with_kge(split, aggregation, best[3], kge, used)
        which = np.searchsorted(used, best[2])[ranker.list_relations(split)]
        ranks = chosen_ranks(each, which)
    return ranker.result(split, aggregation, ranks, chosen, len(rules), seed)


def _rank_by_relation(ranker: RulePredictor, split: str, seed: int) -> RuleRankingResult:
    """For each relation and side by what is best on its validation queries."""

    def found(on: str, ways: Sequence[int]) -> list[RankCounts]:
        return [
            ranker.ranks(on, WAYS[way][0], ranker.weights(WAYS[way][0], power=WAYS[way][1])) for way in ways
        ]

    relations, count = ranker.list_relations("valid"), 2 * ranker.index.num_predicates
    mrr, best = weighed(found("valid", range(len(WAYS))), relations, range(len(WAYS)), count)
    used = np.unique(best).tolist()
    ranks = chosen_ranks(found(split, used), np.searchsorted(used, best)[ranker.list_relations(split)])
    times = {f"{name} {power:g}": int((best == way).sum()) for way, (name, power) in enumerate(WAYS)}
    return ranker.result(split, BY_RELATION, ranks, {"valid_mrr": mrr, **times}, len(ranker.rules), seed)


def _tries(
    ranker: RulePredictor,
    aggregation: Aggregation,
    learnings: Sequence[Learning],
    kge: EntityScorer | None,
    kge_weights: Sequence[float],
    power: float,
) -> Iterator[tuple[float, Learning, np.ndarray, np.ndarray]]:
    """What each setting comes to on validation, ties as they are on average; weights of each relation."""
    relations = ranker.list_relations("valid")
    for learning in learnings:
        weights = ranker.weights(aggregation, learning, power)
        if kge is None:
            found = [ranker.ranks("valid", aggregation, weights)]
        else:
            found = ranker.ranks_with_kge("valid", aggregation, weights, kge, kge_weights)
        mrr, of_relations = weighed(found, relations, kge_weights, 2 * ranker.index.num_predicates)
        yield mrr, learning, of_relations, weights

"""Ranking by rules: the queries of a whole split among all entities, heads and tails, at once.

Rules are mined in `miner`. Ranking by proofs of any depth is in `phalanx.proofs.ranking`.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float64, Int32, Int64

from phalanx.proofs.knowledge.budget import Budget
from phalanx.proofs.knowledge.data import DataHandler
from phalanx.proofs.knowledge.joins import KnownArguments, expanded
from phalanx.proofs.mining.miner import engine, graph_of
from phalanx.proofs.mining.ruleset import RuleSet
from phalanx.proofs.ranking.candidates import SIDES, Candidates, Metrics, Ranks, Ties, list_metrics, summarize

Aggregation = Literal["maximum", "noisy-or", "power", "learned"]
AGGREGATIONS: tuple[Aggregation, ...] = ("maximum", "noisy-or", "power", "learned")
KGE_WEIGHTS = (0.0, 0.03, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0)
"""What an embedding may count for beside the rules; for each directed relation the best on validation."""
_FLOOR = 1e-3
"""The rules' score at which logarithms of it begin to count."""
_PRIOR = 20.0
"""A relation's own questions count against so many of all relations when its weight is chosen."""
_QUESTIONS_AT_ONCE = 256
_RELATIONS_AT_ONCE = 8


class Learning(NamedTuple):
    """How rule weights are learned: Adagrad on the softmax loss of the facts, from where noisy-or begins."""

    epochs: int
    rate: float
    decay: float
    """Pulls a weight back to where it began."""


LEARNINGS = (Learning(0, 0.0, 0.0), Learning(3, 0.02, 0.3), Learning(5, 0.05, 0.03), Learning(10, 0.05, 0.01))
"""The settings to choose from on validation; the first learns nothing."""


@runtime_checkable
class EntityScorer(Protocol):
    """What scores all entities for an open side; `phalanx.proofs.KGE` does."""

    def score_tails(self, relations: Any, heads: Any) -> Any: ...
    def score_heads(self, relations: Any, tails: Any) -> Any: ...


@dataclasses.dataclass(frozen=True)
class RuleRanking:
    """How the queries of a split rank, filtered, among all entities."""

    split: str
    aggregation: str
    total: Metrics
    """Ties at random."""
    mean_ties: Metrics
    """The mean of the best and the worst rank where scores tie."""
    sides: Mapping[str, Metrics]
    rules: int
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
        head = f"{self.split}, {self.total.queries} queries by {self.rules} rules, {self.aggregation}"
        lines = [f"{head}: {self.total.describe()} (mean rank of ties: MRR {self.mean_ties.mrr:.3f})"]
        lines += [f"  {name}: {part.describe()}" for name, part in self.sides.items()]
        if self.chosen:
            lines.append(f"  chosen on validation: {', '.join(f'{k} {v}' for k, v in self.chosen.items())}")
        return "\n".join(lines)


class _Questions(NamedTuple):
    """The different (entity, directed relation) of a split, and the answers of each."""

    rows: Int32[np.ndarray, "questions 2"]
    begins: Int64[np.ndarray, " questions_and_one"]
    targets: Int32[np.ndarray, " lists"]
    order: Int64[np.ndarray, " lists"]
    """Which list each target is of: first the tails of all queries, then the heads."""


class RuleRanker:
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
        budget: Budget | None = None,
    ) -> None:
        data = data.binary()
        self.rules, self.data, self.index = rules, data, rules.index
        self._budget = budget or Budget()
        self._known = self.index.encode_atoms(tuple(data.known))
        self._known_graph = graph_of(self._known, self.index)
        self.graph = graph_of(self.index.encode_atoms(data.facts), self.index)
        levels = np.cumsum(np.diff(rules.confidence, prepend=rules.confidence[:1]) != 0).astype(np.int32)
        self.applier = engine().RuleApplier(self.graph, rules.rows, levels, limit, threads)

    def weights(self, aggregation: Aggregation, learning: Learning = LEARNINGS[0]) -> np.ndarray:
        """Two for each rule, for the questions after its tail and after its head."""
        if aggregation == "maximum":
            return np.repeat(self.rules.confidence, 2)
        # The logarithm of the chance that all are wrong; certain ones must stay finite.
        weights = np.repeat(-np.log1p(-np.minimum(self.rules.confidence, 1 - 1e-6)), 2)
        if aggregation == "power":
            weights **= 2
        if aggregation == "learned" and learning.epochs:
            relations = np.arange(2 * self.index.num_predicates, dtype=np.int32)
            for begin in range(0, len(relations), _RELATIONS_AT_ONCE):
                some = relations[begin : begin + _RELATIONS_AT_ONCE]
                self.applier.learn(weights, some, 20_000, 200, *learning, 0)
                self._budget.word(f"learning weights: relation {begin // 2 + 1} of {len(relations) // 2}")
        return weights

    def ranks(self, split: str, aggregation: Aggregation, weights: Float64[np.ndarray, " weights"]) -> Ranks:
        """Of each query's tail, then of each query's head."""
        asked = self._questions(split)
        above, level = np.zeros(len(asked.targets), np.int64), np.zeros(len(asked.targets), np.int64)
        how = "maximum" if aggregation == "maximum" else "sum"
        for begin in range(0, len(asked.rows), _QUESTIONS_AT_ONCE):
            begins = asked.begins[begin : begin + _QUESTIONS_AT_ONCE + 1]
            here = slice(begins[0], begins[-1])
            self.applier.rank(
                self._known_graph,
                asked.rows[begin : begin + _QUESTIONS_AT_ONCE],
                begins - begins[0],
                asked.targets[here],
                how,
                weights,
                above[here],
                level[here],
            )
            self._budget.word(f"ranking {split}: {begin:,} of {len(asked.rows):,} questions")
        return _in_order(asked, above, level)

    def ranks_with_kge(
        self,
        split: str,
        aggregation: Aggregation,
        weights: Float64[np.ndarray, " weights"],
        kge: EntityScorer,
        kge_weights: Sequence[float],
    ) -> list[Ranks]:
        """The ranks by the logarithm of the rules' scores and, for each weight, so many times an embedding's.

        An embedding's scores are taken from their mean over all entities, over their deviation.
        """
        asked = self._questions(split)
        shape = (len(kge_weights), len(asked.targets))
        above, level = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        how = "maximum" if aggregation == "maximum" else "sum"
        for begin in range(0, len(asked.rows), _QUESTIONS_AT_ONCE):
            rows = asked.rows[begin : begin + _QUESTIONS_AT_ONCE]
            table = np.zeros((len(rows), self.index.num_constants), np.float32)
            self.applier.scores(rows, how, weights, table)
            table = np.sign(table) * np.log1p(np.abs(table) / np.float32(_FLOOR))
            belief = _standardized(kge, rows)
            first, last = asked.begins[begin], asked.begins[begin + len(rows)]
            place = np.repeat(np.arange(len(rows)), np.diff(asked.begins[begin : begin + len(rows) + 1]))
            targets = asked.targets[first:last]
            true = self._true(rows)
            for number, weight in enumerate(kge_weights):
                scores = table + np.float32(weight) * belief
                own = scores[place, targets][:, None]
                scores[true] = -np.inf
                above[number, first:last] = (scores[place] > own).sum(axis=1)
                # The target is among the true ones, or it would be level with itself.
                level[number, first:last] = (scores[place] == own).sum(axis=1)
            self._budget.word(f"ranking {split}: {begin:,} of {len(asked.rows):,} questions")
        return [_in_order(asked, *pair) for pair in zip(above, level, strict=True)]

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

    def _questions(self, split: str) -> _Questions:
        triples = self.index.encode_atoms(self.data.queries(split)) - 1
        if not len(triples):
            raise ValueError(f"there is nothing to rank: {self.data.dataset} has no {split} queries")
        relation, head, tail = triples.T
        rows = np.concatenate([np.stack([head, 2 * relation], 1), np.stack([tail, 2 * relation + 1], 1)])
        unique, place = np.unique(rows, axis=0, return_inverse=True)
        order = np.argsort(place.reshape(-1), kind="stable")
        begins = np.searchsorted(place.reshape(-1)[order], np.arange(len(unique) + 1))
        targets = np.concatenate([tail, head])[order]
        return _Questions(np.ascontiguousarray(unique), begins.astype(np.int64), targets, order)

    def list_relations(self, split: str) -> Int64[np.ndarray, " lists"]:
        """What each list of `ranks` asks by: 2r for the tails of relation r, then 2r + 1 for the heads."""
        relation = 2 * (self.index.encode_atoms(self.data.queries(split))[:, 0].astype(np.int64) - 1)
        return np.concatenate([relation, relation + 1])

    def result(
        self, split: str, aggregation: str, ranks: Ranks, chosen: Mapping[str, Any], seed: int = 0
    ) -> RuleRanking:
        """The metrics of ranks."""
        count = len(ranks.above) // 2
        lists = Candidates(
            triples=np.zeros((0, 3), np.int32),
            starts=np.zeros(1, np.int64),
            query=np.tile(np.arange(count), 2),
            side=np.repeat([1, 0], count),
            tie_draw=np.random.default_rng(seed).random(2 * count),
            num_queries=count,
        )

        def part(ties: Ties, mask: np.ndarray) -> Metrics:
            return summarize(lists, list_metrics(ranks, ties, lists.tie_draw), None, mask)

        every = np.ones(2 * count, bool)
        return RuleRanking(
            split,
            aggregation,
            part("random", every),
            part("mean", every),
            {SIDES[side]: part("random", lists.side == side) for side in (0, 1)},
            len(self.rules),
            chosen,
        )


def rank_by_rules(
    rules: RuleSet,
    data: DataHandler,
    split: str = "test",
    aggregation: Aggregation = "maximum",
    *,
    kge: EntityScorer | None = None,
    limit: int = 10_000,
    threads: int = 2,
    seed: int = 0,
    budget: Budget | None = None,
) -> RuleRanking:
    """Rank every query of a split by rules: filtered by all splits, among all entities, heads and tails.

    `maximum` orders answers by their most certain rule, ties by the next, and so on. `noisy-or` takes rules
    for independent, and `power` is between the two. `learned` gives each rule a weight that is learned on the
    facts. How to learn, and for each relation and side the weight of an embedding, are chosen on the
    validation queries.
    """
    if aggregation not in AGGREGATIONS:
        raise ValueError(f"aggregation must be one of {', '.join(AGGREGATIONS)}, got {aggregation!r}")
    ranker = RuleRanker(rules, data, limit=limit, threads=threads, budget=budget)
    learnings = LEARNINGS if aggregation == "learned" else LEARNINGS[:1]
    kge_weights = (0.0,) if kge is None else KGE_WEIGHTS
    best = (-1.0, learnings[0], np.zeros(2 * rules.index.num_predicates), ranker.weights(aggregation))
    chosen: dict[str, Any] = {}
    if len(learnings) + len(kge_weights) > 2:
        if not data.valid_queries:
            raise ValueError(f"{data.dataset} has no validation queries to choose by; add a valid.txt")
        for mrr, learning, weight, weights in _tries(ranker, aggregation, learnings, kge, kge_weights):
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
        ranks = Ranks(
            np.choose(which, [part.above for part in each]), np.choose(which, [part.level for part in each])
        )
    return ranker.result(split, aggregation, ranks, chosen, seed)


def _tries(
    ranker: RuleRanker,
    aggregation: Aggregation,
    learnings: Sequence[Learning],
    kge: EntityScorer | None,
    kge_weights: Sequence[float],
) -> Iterator[tuple[float, Learning, np.ndarray, np.ndarray]]:
    """What each setting comes to on validation, ties as they are on average; weights of each relation."""
    relations = ranker.list_relations("valid")
    for learning in learnings:
        weights = ranker.weights(aggregation, learning)
        if kge is None:
            found = [ranker.ranks("valid", aggregation, weights)]
        else:
            found = ranker.ranks_with_kge("valid", aggregation, weights, kge, kge_weights)
        nothing = np.zeros(len(relations))
        reciprocal = np.stack([list_metrics(ranks, "expected", nothing)[:, 0] for ranks in found])
        best = _best_by_relation(reciprocal, relations, 2 * ranker.index.num_predicates)
        mrr = float(reciprocal[best[relations], np.arange(len(relations))].mean())
        yield mrr, learning, np.array(kge_weights)[best], weights


def _best_by_relation(
    reciprocal: Float64[np.ndarray, "weights lists"], relations: Int64[np.ndarray, " lists"], count: int
) -> Int64[np.ndarray, " relations"]:
    """For each directed relation the weight with the best mean; with few lists, that of all counts."""
    sums = np.stack([np.bincount(relations, weights=row, minlength=count) for row in reciprocal])
    sizes = np.bincount(relations, minlength=count)
    means = (sums + _PRIOR * reciprocal.mean(axis=1, keepdims=True)) / (sizes + _PRIOR)
    return means.argmax(axis=0)


def _in_order(asked: _Questions, above: np.ndarray, level: np.ndarray) -> Ranks:
    ordered = [np.empty_like(above), np.empty_like(level)]
    ordered[0][asked.order], ordered[1][asked.order] = above, level
    return Ranks(*ordered)


def _standardized(kge: EntityScorer, rows: np.ndarray) -> np.ndarray:
    # Always as many, so that an embedding is compiled once.
    padded = np.zeros((_QUESTIONS_AT_ONCE, 2), np.int32)
    padded[: len(rows)] = rows
    entities, relations = padded[:, 0] + 1, padded[:, 1] // 2 + 1
    tails = np.asarray(kge.score_tails(relations, entities))[: len(rows)]
    heads = np.asarray(kge.score_heads(relations, entities))[: len(rows)]
    scores = np.where(rows[:, 1:] % 2 == 0, tails, heads)
    deviation = scores.std(axis=1, keepdims=True)
    return (scores - scores.mean(axis=1, keepdims=True)) / np.maximum(deviation, 1e-9)

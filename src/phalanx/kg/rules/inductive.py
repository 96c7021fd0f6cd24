"""Rules for entities that nobody has seen: mined on one graph, they rank the queries of another.

Ranking the graph that was mined, among all entities, is in `rank`. Rules with constants do not carry over.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float64

from phalanx.kg.candidates import (
    CandidateLists,
    RankMetrics,
    list_metrics,
    make_candidates,
    ranks_of,
    summarize,
)
from phalanx.kg.knowledge_base import DataHandler
from phalanx.kg.rules.predictor import Aggregation, RulePredictor
from phalanx.kg.rules.ruleset import BODY, BODY_CONSTANT, HEAD, HEAD_CONSTANT, RuleSet
from phalanx.kg.vocabulary import IndexManager

ROLE_WEIGHTS = (0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
"""What an entity's other relations may count for beside the rules; the best on validation is taken."""
_QUESTIONS_AT_ONCE = 256


def transfer_rules(rules: RuleSet, index: IndexManager) -> RuleSet:
    """The rules by the predicates' numbers in another graph; without those that it cannot have."""
    place = {name: number for number, name in enumerate(index.predicates)}
    numbers = np.array([place.get(name, -1) for name in rules.index.predicates])
    rows = rules.rows.copy()
    relations = np.concatenate([rows[:, HEAD : HEAD + 1], rows[:, BODY]], axis=1)
    moved = np.where(relations >= 0, 2 * numbers[np.maximum(relations, 0) // 2] + relations % 2, -1)
    known = np.all((relations < 0) | (numbers[np.maximum(relations, 0) // 2] >= 0), axis=1)
    plain = (rows[:, HEAD_CONSTANT] < 0) & (rows[:, BODY_CONSTANT] < 0)
    rows[:, HEAD], rows[:, BODY] = moved[:, 0], moved[:, 1:]
    kept = known & plain
    return RuleSet(index, np.ascontiguousarray(rows[kept]), rules.confidence[kept])


class RoleModel:
    """What entities of some relation take part in besides: naive Bayes over directed relations.

    Learned from the facts of one graph, by predicates' names, and applied to the facts of any other.
    """

    def __init__(self, data: DataHandler, index: IndexManager) -> None:
        self.predicates = index.predicates
        facts = index.encode_atoms(data.facts) - 1
        has = _incidence(facts, len(index.predicates), index.num_constants)
        everyone = (has > 0).mean(axis=0)
        counts = np.zeros((has.shape[1], has.shape[1]))
        total = np.zeros(has.shape[1])
        for role, column in ((0, 2), (1, 1)):
            for relation, entity in zip(facts[:, 0].tolist(), facts[:, column].tolist(), strict=True):
                answer = 2 * relation + role
                # Without the fact itself, which a query does not have either.
                others = has[entity] - (np.arange(has.shape[1]) == answer)
                counts[answer] += others > 0
                total[answer] += 1
        rate = (counts + 2 * everyone + 1e-3) / (total[:, None] + 2 + 2e-3)
        base = np.clip(everyone, 1e-3, 1 - 1e-3)
        rate = np.clip(rate, 1e-4, 1 - 1e-4)
        self._yes = np.log(rate / base)
        self._no = np.log((1 - rate) / (1 - base))

    def scores(self, data: DataHandler, index: IndexManager) -> Float64[np.ndarray, "answers entities"]:
        """How well each entity of a graph fits each answer: 2r for tails of r, 2r + 1 for heads."""
        place = {name: number for number, name in enumerate(self.predicates)}
        missing = [name for name in index.predicates if name not in place]
        if missing:
            raise ValueError(f"the graph that was learned from has no predicate {missing[0]!r}")
        own = np.array([place[name] for name in index.predicates])
        columns = np.stack([2 * own, 2 * own + 1], axis=1).reshape(-1)
        facts = index.encode_atoms(data.facts) - 1
        has = (_incidence(facts, len(index.predicates), index.num_constants) > 0).astype(np.float64)
        yes, no = self._yes[np.ix_(columns, columns)], self._no[np.ix_(columns, columns)]
        fit: Float64[np.ndarray, "answers entities"] = yes @ has.T + no @ (1 - has.T)
        return fit


def _incidence(facts: np.ndarray, predicates: int, constants: int) -> np.ndarray:
    """How often each entity is the tail (2r) and the head (2r + 1) of each relation."""
    table = np.zeros((constants, 2 * predicates), np.int32)
    np.add.at(table, (facts[:, 2], 2 * facts[:, 0]), 1)
    np.add.at(table, (facts[:, 1], 2 * facts[:, 0] + 1), 1)
    return table


@dataclasses.dataclass(frozen=True)
class InductiveResult:
    """How queries about unseen entities rank."""

    metrics: RankMetrics
    role_weight: float
    rules: int


class TransferRanker:
    """Ranks queries of a graph among random negatives, by rules and roles that were learned on any graph."""

    def __init__(self, rules: RuleSet, roles: RoleModel, data: DataHandler, aggregation: Aggregation) -> None:
        self.data, self.index = data, rules.index
        self._ranker = RulePredictor(rules, data, limit=2000, threads=1)
        self._weights = self._ranker.weights(aggregation)
        self._how = "maximum" if aggregation == "maximum" else "sum"
        self._fit = roles.scores(data, rules.index)

    def candidates(self, split: str, negatives: int, seed: int) -> CandidateLists:
        """Each query among so many negatives of either side, none of which is known."""
        known = self.index.encode_atoms(tuple(self.data.known))
        asked = self.index.encode_atoms(self.data.queries(split))
        return make_candidates(asked, known, self.index.num_constants, corruptions=negatives, seed=seed)

    def scores(self, candidates: CandidateLists) -> tuple[np.ndarray, np.ndarray]:
        """By rules, and by roles."""
        lists, triples = candidates.list_of, candidates.triples - 1
        side = candidates.side[lists]
        asked = np.stack([triples[:, 1], 2 * triples[:, 0]], axis=1)
        asked[side == 0] = np.stack([triples[:, 2], 2 * triples[:, 0] + 1], axis=1)[side == 0]
        answers = np.where(side == 0, triples[:, 1], triples[:, 2])
        rows, place = np.unique(asked, axis=0, return_inverse=True)
        place = place.reshape(-1)
        found = np.zeros(len(triples))
        for begin in range(0, len(rows), _QUESTIONS_AT_ONCE):
            some = np.ascontiguousarray(rows[begin : begin + _QUESTIONS_AT_ONCE]).astype(np.int32)
            table = np.zeros((len(some), self.index.num_constants), np.float32)
            self._ranker.applier.score(some, self._how, self._weights, table)
            here = np.flatnonzero((place >= begin) & (place < begin + len(some)))
            found[here] = table[place[here] - begin, answers[here]]
        return found, self._fit[rows[place, 1], answers]

    def metrics(self, candidates: CandidateLists, score: Float64[np.ndarray, " candidates"]) -> RankMetrics:
        """Ties at random."""
        by_list = list_metrics(ranks_of(candidates, score), "random", candidates.tie_draw)
        return summarize(candidates, by_list, None, np.ones(len(candidates), bool))


def evaluate_inductive(
    rules: RuleSet,
    source: DataHandler,
    target: DataHandler,
    split: str = "test",
    aggregation: Aggregation = "power",
    *,
    negatives: int = 50,
    role_weights: Sequence[float] = ROLE_WEIGHTS,
    seed: int = 0,
) -> InductiveResult:
    """Rank the queries of `target`, whose entities are new, by rules that were mined from `source`.

    As GraIL does it: each query among 50 random negatives of its head and 50 of its tail, which no split has.
    Beside the rules counts what else an entity takes part in (`Roles`, learned on the source's facts); how
    much is chosen on the source's validation queries, without a look at the target.
    """
    roles = RoleModel(source, rules.index)
    plain = transfer_rules(rules, rules.index)
    own = TransferRanker(plain, roles, source, aggregation)
    drawn = own.candidates("valid", negatives, seed)
    by_rules, by_roles = own.scores(drawn)

    def hits(weight: float) -> float:
        return own.metrics(drawn, by_rules + weight * by_roles).hits[10]

    best = max(role_weights, key=hits)
    index = IndexManager(target)
    moved = transfer_rules(rules, index)
    other = TransferRanker(moved, roles, target, aggregation)
    candidates = other.candidates(split, negatives, seed)
    found: Any = other.scores(candidates)
    return InductiveResult(other.metrics(candidates, found[0] + best * found[1]), best, len(moved))

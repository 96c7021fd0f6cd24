"""Inductive link prediction: rules that were mined on one graph rank queries about another graph.

The two graphs share their relations but not their entities.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64

from phalanx.kg.evaluation import (
    CandidateLists,
    LinkPredictionResult,
    TieRule,
    TripleScores,
    evaluate_scores,
    make_candidates,
)
from phalanx.kg.knowledge_base import KnowledgeBase
from phalanx.kg.rules.predictor import Aggregation, RuleApplier, RulePredictor, rule_weights
from phalanx.kg.rules.ruleset import BODY, BODY_CONSTANT, HEAD, HEAD_CONSTANT, RuleSet
from phalanx.kg.vocabulary import Vocabulary

ROLE_WEIGHTS = (0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
"""Candidate weights of the role model. The best one on the validation queries of the source is selected."""
_MAX_PATHS = 2000
_PAIRS_PER_BATCH = 256


def transfer_rules(rules: RuleSet, vocabulary: Vocabulary) -> RuleSet:
    """Convert rules to the ids of another graph, matching relations by name.

    Rules with constants, and rules with relations that the other graph does not have, are left out.
    """
    ids = np.array([vocabulary.predicate_ids.get(name, -1) for name in rules.vocabulary.predicates])
    rows = rules.rows.copy()
    relations = np.concatenate([rows[:, HEAD : HEAD + 1], rows[:, BODY]], axis=1)
    new_ids = ids[np.maximum(relations, 0) // 2]
    converted = np.where(relations >= 0, 2 * new_ids + relations % 2, -1)
    is_known = np.all((relations < 0) | (new_ids >= 0), axis=1)
    has_no_constants = (rows[:, HEAD_CONSTANT] < 0) & (rows[:, BODY_CONSTANT] < 0)
    rows[:, HEAD], rows[:, BODY] = converted[:, 0], converted[:, 1:]
    kept = is_known & has_no_constants
    return RuleSet(vocabulary, np.ascontiguousarray(rows[kept]), rules.confidence[kept])


class RoleModel:
    """Naive Bayes model of which entities are plausible as heads or tails of a relation.

    A role is a relation together with a side, head or tail. The model scores an entity by the other roles in
    which it occurs in the facts. It is fitted to the facts of one graph. Because relations are identified
    by name, it can be applied to other graphs with the same relations.

    Args:
        knowledge_base: The facts that the model is fitted to.
    """

    def __init__(self, knowledge_base: KnowledgeBase) -> None:
        vocabulary, facts = knowledge_base.vocabulary, knowledge_base.triples("train")
        self._predicate_ids = vocabulary.predicate_ids
        roles = _count_roles(facts, vocabulary.num_predicates, vocabulary.num_entities)
        overall = (roles > 0).mean(axis=0)
        counts = np.zeros((roles.shape[1], roles.shape[1]))
        total = np.zeros(roles.shape[1])
        for side, column in ((0, 2), (1, 1)):
            for relation, entity in zip(facts[:, 0].tolist(), facts[:, column].tolist(), strict=True):
                answer = 2 * relation + side
                # Without the fact itself, because a query is not a fact either.
                others = roles[entity] - (np.arange(roles.shape[1]) == answer)
                counts[answer] += others > 0
                total[answer] += 1
        rate = (counts + 2 * overall + 1e-3) / (total[:, None] + 2 + 2e-3)
        base = np.clip(overall, 1e-3, 1 - 1e-3)
        rate = np.clip(rate, 1e-4, 1 - 1e-4)
        self._log_odds_present = np.log(rate / base)
        self._log_odds_absent = np.log((1 - rate) / (1 - base))

    def scores(self, knowledge_base: KnowledgeBase) -> Float64[np.ndarray, "directed_relations entities"]:
        """Score how well each entity of a graph fits as the tail or head of each relation.

        Row 2r of the result contains the scores for tails of relation r, and row 2r + 1 those for heads.
        """
        vocabulary = knowledge_base.vocabulary
        missing = [name for name in vocabulary.predicates if name not in self._predicate_ids]
        if missing:
            raise ValueError(f"the graph that the roles were learned from has no predicate {missing[0]!r}")
        ids = np.array([self._predicate_ids[name] for name in vocabulary.predicates])
        columns = np.stack([2 * ids, 2 * ids + 1], axis=1).reshape(-1)
        facts = knowledge_base.triples("train")
        roles = _count_roles(facts, vocabulary.num_predicates, vocabulary.num_entities)
        present = (roles > 0).astype(np.float64)
        yes = self._log_odds_present[np.ix_(columns, columns)]
        no = self._log_odds_absent[np.ix_(columns, columns)]
        scores: Float64[np.ndarray, "directed_relations entities"] = yes @ present.T + no @ (1 - present.T)
        return scores


def _count_roles(facts: np.ndarray, num_predicates: int, num_entities: int) -> np.ndarray:
    """Count how often each entity is the tail (column 2r) and the head (column 2r + 1) of each relation r."""
    table = np.zeros((num_entities, 2 * num_predicates), np.int32)
    np.add.at(table, (facts[:, 2], 2 * facts[:, 0]), 1)
    np.add.at(table, (facts[:, 1], 2 * facts[:, 0] + 1), 1)
    return table


@dataclasses.dataclass(frozen=True)
class InductiveResult:
    """Result of `evaluate_inductive`."""

    result: LinkPredictionResult
    """Metrics on the target graph."""
    role_weight: float
    """Selected weight of the role model."""
    num_rules: int
    """Number of rules that could be transferred to the target graph."""


class _InductiveRanking:
    """Scores candidate lists of one graph with rules and a role model that were learned on any graph."""

    def __init__(
        self, rules: RuleSet, roles: RoleModel, knowledge_base: KnowledgeBase, aggregation: Aggregation
    ) -> None:
        self.knowledge_base = knowledge_base
        applier = RuleApplier(rules, knowledge_base, max_paths=_MAX_PATHS, num_threads=1)
        self._predictor = RulePredictor(applier, aggregation, rule_weights(applier, aggregation))
        self._role_scores = roles.scores(knowledge_base)

    def candidates(self, split: str, num_negatives: int, seed: int) -> CandidateLists:
        kb = self.knowledge_base
        return make_candidates(
            kb.triples(split),
            kb.known_triples,
            kb.vocabulary.num_entities,
            num_candidates=num_negatives,
            seed=seed,
        )

    def scores(self, candidates: CandidateLists) -> tuple[np.ndarray, np.ndarray]:
        """Return two scores of each candidate: one by the rules, and one by the role model."""
        triples, side = candidates.triples, candidates.side[candidates.list_index]
        pairs = np.stack([triples[:, 1], 2 * triples[:, 0]], axis=1)
        pairs[side == 0] = np.stack([triples[:, 2], 2 * triples[:, 0] + 1], axis=1)[side == 0]
        answers = np.where(side == 0, triples[:, 1], triples[:, 2])
        unique, inverse = np.unique(pairs, axis=0, return_inverse=True)
        inverse = inverse.reshape(-1)
        by_rules = np.zeros(len(triples))
        for start in range(0, len(unique), _PAIRS_PER_BATCH):
            batch = unique[start : start + _PAIRS_PER_BATCH]
            table = self._predictor.raw_scores(batch)
            rows = np.flatnonzero((inverse >= start) & (inverse < start + len(batch)))
            by_rules[rows] = table[inverse[rows] - start, answers[rows]]
        return by_rules, self._role_scores[unique[inverse, 1], answers]


def evaluate_inductive(
    rules: RuleSet,
    source: KnowledgeBase,
    target: KnowledgeBase,
    split: str = "test",
    aggregation: Aggregation = "power",
    *,
    ties: TieRule = "random",
    num_negatives: int = 50,
    role_weights: Sequence[float] = ROLE_WEIGHTS,
    seed: int = 0,
) -> InductiveResult:
    """Rank the queries of `target`, whose entities are unseen, with rules that were mined from `source`.

    The protocol is that of GraIL: each query is ranked among random corruptions of its head and among random
    corruptions of its tail, 50 each by default. Corruptions are not in any split. The scores of the rules are
    combined with a `RoleModel` of the source's facts. The weight of the role model is selected by Hits@10 on
    the validation queries of the source, without using the target.

    Args:
        rules: Rules that were mined from `source`.
        source: Graph for the role model and its weight.
        target: Graph to evaluate on. Its relations must occur in `source`.
        split: Split of the target's queries.
        aggregation: How to combine the rules that predict the same answer; see `AGGREGATORS`.
        ties: How to rank candidates with equal scores.
        num_negatives: Number of corruptions per query and side.
        role_weights: Candidate weights of the role model.
        seed: Seed of the corruptions.
    """
    roles = RoleModel(source)
    own = _InductiveRanking(transfer_rules(rules, source.vocabulary), roles, source, aggregation)
    validation = own.candidates("valid", num_negatives, seed)
    by_rules, by_roles = own.scores(validation)

    def hits(weight: float) -> float:
        scores = TripleScores(by_rules + weight * by_roles)
        return evaluate_scores(scores, validation, ties=ties).total.hits[10]

    best = max(role_weights, key=hits)
    transferred = transfer_rules(rules, target.vocabulary)
    other = _InductiveRanking(transferred, roles, target, aggregation)
    candidates = other.candidates(split, num_negatives, seed)
    by_rules, by_roles = other.scores(candidates)
    scores = TripleScores(by_rules + best * by_roles)
    result = evaluate_scores(scores, candidates, ties=ties, vocabulary=target.vocabulary)
    return InductiveResult(result, best, len(transferred))

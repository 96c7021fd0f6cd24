"""Inductive link prediction: rules mined from one graph rank answers to queries about another graph.

The two graphs share their relations but not their entities.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64

from phalanx.kg.evaluation import (
    DEFAULT_TIES,
    CandidateLists,
    LinkPredictionResult,
    TieRule,
    TripleScores,
    evaluate_candidates,
    make_candidates,
)
from phalanx.kg.knowledge_base import KnowledgeBase
from phalanx.kg.rules.predictor import Aggregation, RuleApplier, RulePredictor, rule_weights
from phalanx.kg.rules.ruleset import HEAD_CONSTANT, RuleSet
from phalanx.kg.triple_index import directed_queries
from phalanx.kg.vocabulary import Vocabulary

ROLE_WEIGHTS = (0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
"""Candidate weights for the scores of the `NaiveBayesRoleModel`. `evaluate_inductive` selects the weight with
the best results on the validation queries of the source graph, from which the rules were mined."""
_MAX_PATHS = 2000
_PAIRS_PER_BATCH = 256


def transfer_rules(rules: RuleSet, vocabulary: Vocabulary) -> RuleSet:
    """Convert rules to the ids of a different vocabulary. Relations are matched by name.

    Rules with constants, and rules with relations that the new vocabulary does not have, are left out.
    """
    ids = np.array([vocabulary.predicate_ids.get(name, -1) for name in rules.vocabulary.predicates])
    relations, constants = rules.rows[:, :HEAD_CONSTANT], rules.rows[:, HEAD_CONSTANT:]
    new_ids = ids[np.maximum(relations, 0) // 2]
    converted = np.where(relations >= 0, 2 * new_ids + relations % 2, -1)
    kept = np.all((relations < 0) | (new_ids >= 0), axis=1) & np.all(constants < 0, axis=1)
    rows = np.concatenate([converted, constants], axis=1).astype(np.int32)
    return RuleSet(vocabulary, rows[kept], rules.confidence[kept])


class NaiveBayesRoleModel:
    """Naive Bayes model of which entities are plausible as heads or tails of a relation.

    A role is a relation together with a side (head or tail). The score of an entity for a role depends on the
    other roles in which the entity occurs in the facts. The model is fitted to the facts of one graph.
    Because relations are identified by name, it can be applied to other graphs with the same relations.

    Args:
        knowledge_base: The facts that the model is fitted to.
    """

    def __init__(self, knowledge_base: KnowledgeBase) -> None:
        self._predicate_ids = knowledge_base.vocabulary.predicate_ids
        roles = _count_roles(knowledge_base)
        overall = (roles > 0).mean(axis=0)
        counts = np.zeros((roles.shape[1], roles.shape[1]))
        pairs, answers = directed_queries(knowledge_base.triples("train"))
        for role, entity in zip(pairs[:, 1].tolist(), answers.tolist(), strict=True):
            # The fact itself is not counted, because a query is not a fact either.
            counts[role] += roles[entity] - (np.arange(roles.shape[1]) == role) > 0
        total = np.bincount(pairs[:, 1], minlength=roles.shape[1])
        rate = (counts + 2 * overall + 1e-3) / (total[:, None] + 2 + 2e-3)
        base = np.clip(overall, 1e-3, 1 - 1e-3)
        rate = np.clip(rate, 1e-4, 1 - 1e-4)
        self._log_odds_present = np.log(rate / base)
        self._log_odds_absent = np.log((1 - rate) / (1 - base))

    def scores(self, knowledge_base: KnowledgeBase) -> Float64[np.ndarray, "directed_relations entities"]:
        """Score how plausible each entity of a graph is as the tail or head of each relation.

        Row 2r of the result contains the scores for tails of relation r, and row 2r + 1 those for heads.
        """
        vocabulary = knowledge_base.vocabulary
        missing = [name for name in vocabulary.predicates if name not in self._predicate_ids]
        if missing:
            raise ValueError(f"the graph that the roles were learned from has no predicate {missing[0]!r}")
        ids = np.array([self._predicate_ids[name] for name in vocabulary.predicates])
        columns = np.stack([2 * ids, 2 * ids + 1], axis=1).reshape(-1)
        present = (_count_roles(knowledge_base) > 0).astype(np.float64)
        yes = self._log_odds_present[np.ix_(columns, columns)]
        no = self._log_odds_absent[np.ix_(columns, columns)]
        scores: Float64[np.ndarray, "directed_relations entities"] = yes @ present.T + no @ (1 - present.T)
        return scores


def _count_roles(knowledge_base: KnowledgeBase) -> np.ndarray:
    """Count how often each entity is the tail (column 2r) and the head (column 2r + 1) of each relation r."""
    vocabulary = knowledge_base.vocabulary
    table = np.zeros((vocabulary.num_entities, 2 * vocabulary.num_predicates), np.int32)
    pairs, answers = directed_queries(knowledge_base.triples("train"))
    np.add.at(table, (answers, pairs[:, 1]), 1)
    return table


@dataclasses.dataclass(frozen=True)
class InductiveResult:
    """Result of `evaluate_inductive`."""

    result: LinkPredictionResult
    """Metrics on the target graph."""
    role_weight: float
    """Weight of the `NaiveBayesRoleModel` scores, selected on the validation queries of the source graph."""
    num_rules: int
    """Number of rules that could be transferred to the target graph."""


def _score_candidates(
    rules: RuleSet,
    roles: NaiveBayesRoleModel,
    base: KnowledgeBase,
    aggregation: Aggregation,
    candidates: CandidateLists,
) -> tuple[np.ndarray, np.ndarray]:
    """Return two scores for each candidate: one from the rules and one from the role model.

    The rules use the ids of `base.vocabulary`. The role model may come from a different graph with the same
    relations.
    """
    applier = RuleApplier(rules, base, max_paths_per_entity=_MAX_PATHS, num_threads=1)
    predictor = RulePredictor(applier, aggregation, rule_weights(applier, aggregation))
    side = candidates.side[candidates.list_index]
    # The first half of the queries asks for tails (side 1), and the second half for heads (side 0).
    rows = np.arange(len(side)) + len(side) * (side == 0)
    pairs, answers = (part[rows] for part in directed_queries(candidates.triples))
    unique, inverse = np.unique(pairs, axis=0, return_inverse=True)
    inverse = inverse.reshape(-1)
    by_rules = np.zeros(len(rows))
    for start in range(0, len(unique), _PAIRS_PER_BATCH):
        table = predictor.raw_scores(unique[start : start + _PAIRS_PER_BATCH])
        batch = np.flatnonzero((inverse >= start) & (inverse < start + len(table)))
        by_rules[batch] = table[inverse[batch] - start, answers[batch]]
    return by_rules, roles.scores(base)[pairs[:, 1], answers]


def evaluate_inductive(
    rules: RuleSet,
    source: KnowledgeBase,
    target: KnowledgeBase,
    split: str = "test",
    aggregation: Aggregation = "power",
    *,
    ties: TieRule = DEFAULT_TIES,
    num_negatives: int = 50,
    role_weights: Sequence[float] = ROLE_WEIGHTS,
    seed: int = 0,
) -> InductiveResult:
    """Evaluate rules from one graph on the queries of another graph, which has different entities.

    The protocol follows GraIL: the triple of each query is ranked among random corruptions of its head and,
    separately, among random corruptions of its tail. Known triples of any split are not used as corruptions.
    The score of a triple is its rule score plus a weighted score from a `NaiveBayesRoleModel`, which is
    fitted to the facts of the source. The weight is selected by Hits@10 on the validation queries of the
    source.

    Args:
        rules: Rules that were mined from `source`.
        source: Graph on which the role model is fitted and its weight is selected.
        target: Graph to evaluate on. Its relations must occur in `source`.
        split: Split of `target` whose queries are evaluated.
        aggregation: How to combine the rules that predict the same answer; see `AGGREGATORS`.
        ties: How to rank candidates with equal scores.
        num_negatives: Number of corruptions per query and side.
        role_weights: Candidate weights of the role model, of which the best is selected.
        seed: Seed for sampling corruptions.
    """
    roles = NaiveBayesRoleModel(source)

    def evaluate(
        rules: RuleSet, base: KnowledgeBase, split: str, weights: Sequence[float]
    ) -> list[LinkPredictionResult]:
        candidates = make_candidates(
            base.triples(split),
            base.known_triples,
            base.vocabulary.num_entities,
            num_candidates=num_negatives,
            seed=seed,
        )
        by_rules, by_roles = _score_candidates(rules, roles, base, aggregation, candidates)
        return [
            evaluate_candidates(
                TripleScores(by_rules + weight * by_roles),
                candidates,
                ties=ties,
                vocabulary=base.vocabulary,
            )
            for weight in weights
        ]

    source_rules = transfer_rules(rules, source.vocabulary)
    hits = [result.total.hits[10] for result in evaluate(source_rules, source, "valid", role_weights)]
    best = role_weights[int(np.argmax(hits))]
    target_rules = transfer_rules(rules, target.vocabulary)
    (result,) = evaluate(target_rules, target, split, [best])
    return InductiveResult(result, best, len(target_rules))

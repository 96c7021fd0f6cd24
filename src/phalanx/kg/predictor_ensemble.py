"""Ensembles of link predictors, with one weight per relation that is selected on validation data."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float32, Float64, Int64

from phalanx.kg.evaluation import (
    KnownAnswers,
    LinkPredictionQueries,
    LinkPredictor,
    RankCounts,
    count_ranks_in_tables,
    list_metrics,
    list_relations,
    score_pairs,
    table_rows,
)
from phalanx.kg.knowledge_base import KnowledgeBase
from phalanx.kg.time_limit import TimeLimit

KGE_WEIGHTS = (0.0, 0.03, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0)
"""Candidate weights of an embedding. The best one is selected for each directed relation."""
_PRIOR_QUERIES = 20.0
"""Strength of the prior when a relation's weight is selected. The overall mean counts as this many lists."""


class Ensemble:
    """Link predictor that adds the weighted scores of an embedding to those of another predictor.

    The embedding's scores are standardized over all entities for each query. There is one weight per directed
    relation: the weight of 2r is used for tails of relation r, and the weight of 2r + 1 for its heads.

    Args:
        predictor: The predictor, for example a `RulePredictor`.
        kge: The embedding.
        weights: Weight of the embedding for each directed relation.
        selected: Settings that were selected on validation data, for the report of an evaluation.
    """

    def __init__(
        self,
        predictor: LinkPredictor,
        kge: LinkPredictor,
        weights: Float64[np.ndarray, " directed_relations"],
        selected: dict[str, Any] | None = None,
    ) -> None:
        self.predictor, self.kge, self.weights = predictor, kge, weights
        self.selected = selected or {}
        """Settings that were selected on validation data."""

    @classmethod
    def fit(
        cls,
        predictors: Iterable[LinkPredictor],
        kge: LinkPredictor,
        knowledge_base: KnowledgeBase,
        *,
        weights: Sequence[float] = KGE_WEIGHTS,
        time_limit: TimeLimit | None = None,
    ) -> "Ensemble":
        """Select a predictor and the embedding's weights by the MRR on the validation queries.

        Args:
            predictors: Candidate predictors, for example with different learning settings.
            kge: The embedding.
            knowledge_base: Knowledge base with the validation queries.
            weights: Candidate weights of the embedding.
            time_limit: Receives progress messages. The limit itself is ignored.
        """
        knowledge_base = knowledge_base.binary()
        vocabulary, triples = knowledge_base.vocabulary, knowledge_base.triples("valid")
        if not len(triples):
            raise ValueError(
                f"{knowledge_base.name} has no validation queries to select settings with; add a valid.txt"
            )
        known = KnownAnswers(knowledge_base.known_triples, vocabulary.num_entities)
        queries, best = LinkPredictionQueries.create(triples), None
        sizes = _padded_sizes(queries, vocabulary.num_entities)
        for predictor in predictors:

            def tables(pairs: np.ndarray, predictor: LinkPredictor = predictor) -> Iterator[np.ndarray]:
                scores = score_pairs(predictor, pairs)
                standardized = _standardized_scores(kge, pairs, sizes[int(pairs[0, 1] % 2)])
                return (scores + np.float32(weight) * standardized for weight in weights)

            counts = count_ranks_in_tables(queries, known, tables, len(weights), time_limit)  # type: ignore[arg-type]
            relations = list_relations(triples)
            mrr, choice = select_per_relation(counts, relations, 2 * vocabulary.num_predicates)
            if best is None or mrr > best[0]:
                best = mrr, predictor, np.array(weights)[choice]
        if best is None:
            raise ValueError("an ensemble needs at least one predictor")
        mrr, predictor, chosen = best
        selected = {"valid_mrr": mrr, **getattr(predictor, "selected", {})}
        return cls(predictor, kge, chosen, {**selected, "kge_weight": float(np.median(chosen))})

    @property
    def description(self) -> str:
        """Short description of the predictor, for the report of an evaluation."""
        name = getattr(self.predictor, "description", type(self.predictor).__name__)
        return f"{name}, with an embedding"

    def score_tails(self, relations: Any, heads: Any) -> Float32[np.ndarray, "n entities"]:
        """Return the combined scores of all entities as tails of (relation, head, ?)."""
        return self._score(np.asarray(relations), np.asarray(heads), 0)

    def score_heads(self, relations: Any, tails: Any) -> Float32[np.ndarray, "n entities"]:
        """Return the combined scores of all entities as heads of (relation, ?, tail)."""
        return self._score(np.asarray(relations), np.asarray(tails), 1)

    def _score(self, relations: np.ndarray, entities: np.ndarray, side: int) -> np.ndarray:
        pairs = np.stack([entities, 2 * relations + side], axis=1).astype(np.int32)
        weights = self.weights[pairs[:, 1]].astype(np.float32)[:, None]
        return score_pairs(self.predictor, pairs) + weights * _standardized_scores(self.kge, pairs)


def _padded_sizes(queries: LinkPredictionQueries, num_entities: int) -> list[int]:
    num_tails = queries.num_tail_pairs
    return [table_rows(count, num_entities) for count in (num_tails, len(queries.pairs) - num_tails)]


def _standardized_scores(kge: LinkPredictor, pairs: np.ndarray, pad_to: int | None = None) -> np.ndarray:
    scores = score_pairs(kge, pairs, pad_to)
    deviation = scores.std(axis=1, keepdims=True)
    return (scores - scores.mean(axis=1, keepdims=True)) / np.maximum(deviation, 1e-9)


def select_per_relation(
    counts: Sequence[RankCounts], relations: Int64[np.ndarray, " lists"], num_relations: int
) -> tuple[float, Int64[np.ndarray, " relations"]]:
    """Select the best of several predictors for each directed relation.

    Args:
        counts: Rank counts of the same lists under each predictor.
        relations: Directed relation of each list.
        num_relations: Number of directed relations.

    Returns:
        The MRR of the selected predictors (with the tie rule `expected`), and the index of the best predictor
        for each directed relation.
    """
    reciprocal = np.stack([list_metrics(some, "expected")[:, 0] for some in counts])
    choice = best_per_relation(reciprocal, relations, num_relations)
    mrr = float(reciprocal[choice[relations], np.arange(len(relations))].mean())
    return mrr, choice


def best_per_relation(
    reciprocal: Float64[np.ndarray, "predictors lists"],
    relations: Int64[np.ndarray, " lists"],
    num_relations: int,
) -> Int64[np.ndarray, " relations"]:
    """Return the index of the best predictor for each relation.

    Predictors are compared by their mean reciprocal rank on the relation, shrunk towards their overall mean,
    so that relations with few lists do not overfit.
    """
    sums = np.stack([np.bincount(relations, weights=row, minlength=num_relations) for row in reciprocal])
    sizes = np.bincount(relations, minlength=num_relations)
    means = (sums + _PRIOR_QUERIES * reciprocal.mean(axis=1, keepdims=True)) / (sizes + _PRIOR_QUERIES)
    return means.argmax(axis=0)


def merge_counts(counts: Sequence[RankCounts], choice: Int64[np.ndarray, " lists"]) -> RankCounts:
    """Return the rank counts of each list under the predictor that was selected for it.

    Args:
        counts: Rank counts of the same lists under each predictor.
        choice: Index of the selected predictor for each list.
    """
    return RankCounts(*(np.choose(choice, columns) for columns in zip(*counts, strict=True)))

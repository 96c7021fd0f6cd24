"""Ensembles of a link predictor and an embedding, with weights that are selected on validation data."""

import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float32, Float64, Int, Int32, Int64

from phalanx.kg.evaluation import (
    DirectedRelationPredictor,
    GroupedQueries,
    LinkPredictor,
    RankCounts,
    count_ranks_in_tables,
    list_metrics,
    score_pairs,
)
from phalanx.kg.knowledge_base import KnowledgeBase
from phalanx.kg.time_limit import Report, ignore
from phalanx.kg.triple_index import directed_queries

KGE_WEIGHTS = (0.0, 0.03, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0)
"""Candidate weights of the embedding's scores. `Ensemble.fit` selects one for each directed relation."""
_PRIOR_QUERIES = 20.0
"""Strength of the shrinkage in `best_per_relation`. A predictor's mean over all ranking lists has the same
weight as this number of ranking lists."""


class Ensemble(DirectedRelationPredictor):
    """Link predictor whose scores are a predictor's scores plus the weighted scores of an embedding.

    The embedding's scores are standardized over all entities for each query. There are two weights per
    relation: entry 2r of `weights` is used to predict tails of relation r, and entry 2r + 1 to predict heads.

    Args:
        predictor: The predictor that is combined with the embedding, for example a `RulePredictor`.
        kge: The embedding.
        weights: Weight of the embedding for each directed relation.
        selected: Settings that were selected on validation data. They are included in evaluation results.
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
        name = getattr(predictor, "description", type(predictor).__name__)
        self.description = f"{name}, with an embedding"
        """Short description of the predictor, for evaluation results."""

    @classmethod
    def fit(
        cls,
        predictors: Iterable[LinkPredictor],
        kge: LinkPredictor,
        knowledge_base: KnowledgeBase,
        report: Report = ignore,
    ) -> "Ensemble":
        """Select a predictor, and the weights of the embedding's scores, by MRR on the validation queries.

        Args:
            predictors: Candidates to select from.
            kge: The embedding.
            knowledge_base: Knowledge base with the validation queries.
            report: Function that is called with progress messages.
        """
        knowledge_base = knowledge_base.binary()
        triples, best = validation_triples(knowledge_base), None
        queries, known = GroupedQueries.create(triples), knowledge_base.known_answers
        for predictor in predictors:
            tables = functools.partial(_weighted_scores, predictor, kge)
            counts = count_ranks_in_tables(queries, known, tables, len(KGE_WEIGHTS), report)
            mrr, choice = select_per_relation(counts, triples, knowledge_base.vocabulary.num_predicates)
            if best is None or mrr > best[0]:
                best = mrr, predictor, np.array(KGE_WEIGHTS)[choice]
        if best is None:
            raise ValueError("an ensemble needs at least one predictor")
        mrr, predictor, chosen = best
        selected = {"valid_mrr": mrr, **getattr(predictor, "selected", {})}
        return cls(predictor, kge, chosen, {**selected, "kge_weight": float(np.median(chosen))})

    def score_pairs(self, pairs: Int32[np.ndarray, "pairs 2"]) -> Float32[np.ndarray, "pairs entities"]:
        """Score every entity as the answer to each (entity, directed relation) query.

        The pairs must either all ask for tails or all ask for heads.
        """
        weights = self.weights[pairs[:, 1]].astype(np.float32)[:, None]
        return score_pairs(self.predictor, pairs) + weights * _standardize(score_pairs(self.kge, pairs))


def validation_triples(knowledge_base: KnowledgeBase) -> Int32[np.ndarray, "queries 3"]:
    """Return the validation queries of a knowledge base. Raises `ValueError` if there are none."""
    triples = knowledge_base.triples("valid")
    if not len(triples):
        raise ValueError(
            f"{knowledge_base.name} has no validation queries to select settings with; add a valid.txt"
        )
    return triples


def _weighted_scores(
    predictor: LinkPredictor, kge: LinkPredictor, pairs: np.ndarray, max_pairs: int
) -> Iterator[np.ndarray]:
    """Yield a table of a predictor's scores plus weighted embedding scores for each of `KGE_WEIGHTS`."""
    scores, standardized = score_pairs(predictor, pairs), _standardize(score_pairs(kge, pairs, max_pairs))
    return (scores + np.float32(weight) * standardized for weight in KGE_WEIGHTS)


def _standardize(scores: np.ndarray) -> np.ndarray:
    deviation = scores.std(axis=1, keepdims=True)
    return (scores - scores.mean(axis=1, keepdims=True)) / np.maximum(deviation, 1e-9)


def select_per_relation(
    counts: Sequence[RankCounts], triples: Int32[np.ndarray, "queries 3"], num_relations: int
) -> tuple[float, Int64[np.ndarray, " directed_relations"]]:
    """Select the best of several predictors for each directed relation.

    Args:
        counts: For each predictor, the result of `count_ranks` for `triples`.
        triples: The ranked triples.
        num_relations: Number of relations.

    Returns:
        The MRR (with the `expected` tie rule) that results if each query is answered with the predictor
        selected for its directed relation, and the index of the selected predictor for each directed
        relation.
    """
    reciprocal = np.stack([list_metrics(some, "expected")[:, 0] for some in counts])
    relations = directed_queries(triples)[0][:, 1]
    choice = best_per_relation(reciprocal, relations, 2 * num_relations)
    mrr = float(reciprocal[choice[relations], np.arange(len(relations))].mean())
    return mrr, choice


def best_per_relation(
    reciprocal: Float64[np.ndarray, "predictors lists"],
    relations: Int[np.ndarray, " lists"],
    num_relations: int,
) -> Int64[np.ndarray, " relations"]:
    """Return the index of the best predictor for each relation.

    Predictors are compared by their mean reciprocal rank on the ranking lists of the relation. To avoid
    overfitting to relations with few lists, this mean is shrunk toward the predictor's mean over all lists.

    Args:
        reciprocal: Reciprocal rank of each predictor on each ranking list.
        relations: Relation of each ranking list.
        num_relations: Number of relations.
    """
    sums = np.stack([np.bincount(relations, weights=row, minlength=num_relations) for row in reciprocal])
    sizes = np.bincount(relations, minlength=num_relations)
    means = (sums + _PRIOR_QUERIES * reciprocal.mean(axis=1, keepdims=True)) / (sizes + _PRIOR_QUERIES)
    return means.argmax(axis=0)

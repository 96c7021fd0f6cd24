"""Scorers from a knowledge-graph embedding, and from an embedding and proofs together with fixed weights.

Weights that are learned are in `ranking_combination`; embeddings themselves are in `kge_scorer`.
"""

from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Array, Float, Int32
from pydantic import Field

from phalanx.core.config import Config
from phalanx.proofs.ranking import Score, Scores

_TRIPLES_AT_ONCE = 1 << 14


@runtime_checkable
class Embedding(Protocol):
    """A knowledge-graph embedding; triples are (predicate, first, second), numbered from 1."""

    def score(self, triples: Int32[np.ndarray, "n 3"]) -> Float[Array, " n"]:
        """Greater is truer."""

    def log_probability(self, triples: Int32[np.ndarray, "n 3"]) -> Float[Array, " n"]:
        """The logarithm of the probability that each triple is true."""


class HybridConfig(Config):
    """What an embedding and a proof count for; the defaults are those of the report in the literature."""

    kge_weight: float = Field(default=2.0, ge=0)
    """Times the logarithm of the embedding's probability."""
    proved_bonus: float = 1.0
    """Added for a proof."""
    unproved_penalty: float = 0.5
    """Taken off without one."""
    rl_weight: float = Field(default=0.0, ge=0)
    """Times the logarithm of the proof's probability, where there is a proof."""


def embedding_scorer(embedding: Embedding) -> Score:
    """What an embedding says: its scores, and the logarithms of its probabilities."""

    def score(triples: Int32[np.ndarray, "triples 3"]) -> Scores:
        scores, beliefs = np.empty(len(triples)), np.empty(len(triples))
        for start in range(0, len(triples), _TRIPLES_AT_ONCE):
            some = triples[start : start + _TRIPLES_AT_ONCE]
            # Always as many, so that the embedding is compiled once.
            padded = np.ones((_TRIPLES_AT_ONCE, 3), np.int32)
            padded[: len(some)] = some
            here = slice(start, start + len(some))
            scores[here] = np.asarray(embedding.score(padded))[: len(some)]
            beliefs[here] = np.asarray(embedding.log_probability(padded))[: len(some)]
        return Scores(score=scores, log_belief=beliefs)

    return score


def hybrid_scorer(search: Score, embedding: Score, config: HybridConfig | None = None) -> Score:
    """An embedding's belief in a triple and a search for its proof, added up by fixed weights."""
    weights = HybridConfig() if config is None else config

    def score(triples: Int32[np.ndarray, "triples 3"]) -> Scores:
        return combine(search(triples), embedding(triples), weights)

    return score


def combine(search: Scores, embedding: Scores, config: HybridConfig) -> Scores:
    """The weighted sum for triples that both have scored."""
    proved, log_belief = search.proved, embedding.log_belief
    if proved is None or log_belief is None:
        raise ValueError("a hybrid needs a scorer that proves, and one that says how likely triples are")
    total = config.kge_weight * log_belief + np.where(proved, config.proved_bonus, -config.unproved_penalty)
    if config.rl_weight:
        if search.log_prob is None:
            raise ValueError(f"rl_weight is {config.rl_weight}, but the search gives proofs no probability")
        total += config.rl_weight * np.where(proved, search.log_prob, 0.0)
    return Scores(
        score=total, proved=proved, log_prob=search.log_prob, length=search.length, log_belief=log_belief
    )

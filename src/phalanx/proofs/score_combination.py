"""Combines proof and embedding scores, with fixed weights or with a fitted conditional logit model."""

import dataclasses

import numpy as np
from jaxtyping import Float64, Int
from pydantic import Field

from phalanx.config import Config
from phalanx.kg.evaluation import CandidateLists, TripleScorer, TripleScores

FEATURES = ("kge_log_prob", "kge_score", "proved", "log_prob", "length")
"""Names of the features of a triple.

- `kge_log_prob`: log-probability of the triple under the embedding;
- `kge_score`: score of the triple under the embedding;
- `proved`: 1 if a proof was found, otherwise 0;
- `log_prob`: log-probability of the proof under the policy;
- `length`: number of steps in the proof.
"""
_MIN_LOG_PROB = -30.0
_MAX_NEWTON_STEPS = 50


class HybridConfig(Config):
    """Weights for the `hybrid` evaluation mode.

    The defaults of `kge_weight`, `proved_bonus` and `unproved_penalty` are those of DeepProofLog
    (https://github.com/DeepProofLog/Batched_Env).
    """

    kge_weight: float = Field(default=2.0, ge=0)
    """Weight of the embedding's log-probability."""
    proved_bonus: float = 1.0
    """Constant that is added to the score of proved triples."""
    unproved_penalty: float = 0.5
    """Constant that is subtracted from the score of triples without a proof."""
    policy_weight: float | None = Field(default=None, ge=0)
    """Weight of the proof's log-probability under the policy. If None, the best value on validation data is
    selected, or 0 if there is no validation data or no policy."""


def hybrid_scorer(
    search: TripleScorer, embedding: TripleScorer, config: HybridConfig | None = None
) -> TripleScorer:
    """Return a scorer that combines a proof search and an embedding with fixed weights.

    Args:
        search: Scorer that searches for proofs.
        embedding: Scorer that provides the log-probabilities of an embedding.
        config: The weights. If None, the defaults are used.
    """
    weights = HybridConfig() if config is None else config

    def score(triples: np.ndarray, /) -> TripleScores:
        return combine_scores(search(triples), embedding(triples), weights)

    return score


def combine_scores(search: TripleScores, embedding: TripleScores, config: HybridConfig) -> TripleScores:
    """Combine the scores of a proof search and an embedding with fixed weights; see `HybridConfig`."""
    proved, kge_log_prob = search.proved, embedding.kge_log_prob
    if proved is None or kge_log_prob is None:
        raise ValueError("a hybrid needs a scorer that finds proofs, and one with probabilities")
    total = config.kge_weight * kge_log_prob
    total = total + np.where(proved, config.proved_bonus, -config.unproved_penalty)
    if config.policy_weight:
        if search.log_prob is None:
            raise ValueError(
                f"policy_weight is {config.policy_weight}, but the search gives no probabilities of proofs"
            )
        total += config.policy_weight * np.where(proved, search.log_prob, 0.0)
    return dataclasses.replace(search, score=total, kge_log_prob=kge_log_prob)


@dataclasses.dataclass(frozen=True)
class LearnedCombination:
    """Linear model that scores triples by the features in `FEATURES`.

    The weights of a relation are the sum of shared weights and corrections for this relation.
    """

    mean: Float64[np.ndarray, " features"]
    """Mean of each feature, for standardization."""
    scale: Float64[np.ndarray, " features"]
    """Standard deviation of each feature, for standardization, or 1 for constant features."""
    shared: Float64[np.ndarray, " features"]
    """Weights of the standardized features, shared by all relations."""
    by_relation: Float64[np.ndarray, "relations features"]
    """For each relation, corrections that are added to the shared weights."""

    def score(
        self, relation: Int[np.ndarray, " triples"], features: Float64[np.ndarray, "triples features"]
    ) -> Float64[np.ndarray, " triples"]:
        """Return the scores of triples. A higher score means that a triple is more likely to be true.

        Args:
            relation: Relation id of each triple.
            features: Result of `compute_features`.
        """
        weights = self.shared + self.by_relation[relation]
        return np.sum((features - self.mean) / self.scale * weights, axis=1)

    def scorer(self, search: TripleScorer, embedding: TripleScorer) -> TripleScorer:
        """Return a scorer that combines the scores of a proof search and an embedding with this model."""

        def score(triples: np.ndarray, /) -> TripleScores:
            found, scored = search(triples), embedding(triples)
            total = self.score(triples[:, 0], compute_features(found, scored))
            return dataclasses.replace(found, score=total, kge_log_prob=scored.kge_log_prob)

        return score


def compute_features(
    search: TripleScores, embedding: TripleScores
) -> Float64[np.ndarray, "triples features"]:
    """Return the features of triples, in the order of `FEATURES`.

    The last three features, which describe the proof, are 0 if no proof was found.

    Args:
        search: Result of a scorer that searches for proofs.
        embedding: Result of a scorer that provides log-probabilities, for the same triples.
    """
    proved, log_prob, length = search.proved, search.log_prob, search.length
    kge_log_prob = embedding.kge_log_prob
    if proved is None or length is None or kge_log_prob is None:
        raise ValueError("a combination needs a scorer that finds proofs, and one with probabilities")
    # The exact prover does not return proof probabilities; the length carries the same information.
    log_prob = np.zeros(len(proved)) if log_prob is None else log_prob
    columns = (
        np.maximum(kge_log_prob, _MIN_LOG_PROB),
        embedding.score,
        proved,
        np.where(proved, log_prob, 0.0),
        np.where(proved, length, 0),
    )
    return np.stack(columns, axis=1).astype(np.float64)


def fit_combination(
    candidates: CandidateLists,
    features: Float64[np.ndarray, "candidates features"],
    num_relations: int,
    *,
    shared_penalty: float = 1e-2,
    relation_penalty: float = 3.0,
) -> LearnedCombination:
    """Fit the weights of a `LearnedCombination` as a conditional logit model.

    The weights minimize the negative log-likelihood of the true triples, under a softmax over the scores of
    each list, plus L2 penalties. The problem is convex and is solved by Newton's method. Do not fit on test
    data.

    Args:
        candidates: Candidate lists, usually for the queries of the validation split.
        features: Features of all candidates; see `compute_features`.
        num_relations: Number of relations of the knowledge base.
        shared_penalty: Coefficient of the L2 penalty on the shared weights.
        relation_penalty: Coefficient of the L2 penalty on each relation's corrections to the shared weights.
            The penalty keeps the weights of relations with few queries close to the shared weights.
    """
    mean, scale = features.mean(axis=0), features.std(axis=0)
    # Because of rounding, the deviation of a constant column may not be exactly 0.
    scale = np.where(scale > 1e-9 * (1 + np.abs(mean)), scale, 1.0)
    x, first, list_index = (features - mean) / scale, candidates.starts[:-1], candidates.list_index
    # All triples of a list have the same relation.
    relation = candidates.triples[:, 0].astype(np.int64)
    # Row 0 contains the shared weights, followed by one row per relation.
    penalty = np.full((num_relations + 1, 1), relation_penalty)
    penalty[0] = shared_penalty

    def loss_of(weights: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the penalized loss, and the softmax probability of each candidate within its list."""
        value = np.einsum("cf,cf->c", x, (weights[0] + weights[1:])[relation])
        value -= np.maximum.reduceat(value, first)[list_index]
        power = np.exp(value)
        total = np.add.reduceat(power, first)
        loss = float(np.sum(np.log(total) - value[first]))
        return loss + float(np.sum(penalty * weights**2)) / 2, power / total[list_index]

    def derivatives(weights: np.ndarray, probability: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the gradient of the penalized loss, and its Hessian in terms of the flattened weights."""
        gradient = penalty * weights
        hessian = np.zeros((*weights.shape, *weights.shape))
        expected = np.add.reduceat(x * probability[:, None], first, axis=0)
        for number in np.unique(relation).tolist():
            mask, lists = relation == number, relation[first] == number
            slope = np.sum(expected[lists] - x[first[lists]], axis=0)
            rows, means = x[mask], expected[lists]
            covariance = (rows * probability[mask, None]).T @ rows - means.T @ means
            for one in (0, number + 1):
                gradient[one] += slope
                for other in (0, number + 1):
                    hessian[one, :, other] += covariance
        flat = hessian.reshape(weights.size, weights.size)
        flat[np.diag_indices_from(flat)] += np.repeat(penalty[:, 0], weights.shape[1])
        return gradient, flat

    weights = np.zeros((len(penalty), x.shape[1]))
    loss, probability = loss_of(weights)
    for _ in range(_MAX_NEWTON_STEPS):
        gradient, hessian = derivatives(weights, probability)
        step = np.linalg.solve(hessian, gradient.reshape(-1)).reshape(weights.shape)
        decrease = float(np.sum(step * gradient))
        if decrease < 1e-9 * (1 + abs(loss)):
            break
        size = 1.0
        while True:
            new_loss, new_probability = loss_of(weights - size * step)
            if new_loss <= loss - 1e-4 * size * decrease or size < 1e-6:
                break
            size /= 2
        weights, loss, probability = weights - size * step, new_loss, new_probability
    return LearnedCombination(mean, scale, weights[0], weights[1:])

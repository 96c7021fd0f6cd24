"""Combinations of proof and embedding scores: fixed and learned weights."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float

from phalanx.kg.evaluation import CandidateLists, TripleScores, evaluate_candidates, make_candidates
from phalanx.proofs.link_prediction import embedding_scorer
from phalanx.proofs.score_combination import (
    FEATURES,
    HybridConfig,
    LearnedCombination,
    combine_scores,
    compute_features,
    fit_combination,
    hybrid_scorer,
)

TRIPLES = np.array([(1, 1, 2), (1, 2, 1), (1, 2, 2)], np.int32)
SEARCH_SCORES = TripleScores(
    score=np.array([-1.5, -np.inf, -0.5]),
    proved=np.array([True, False, True]),
    log_prob=np.array([-1.5, -np.inf, -0.5]),
    length=np.array([2, -1, 1]),
)
KGE_SCORES = TripleScores(score=np.array([3.0, 2.0, -1.0]), kge_log_prob=np.log([0.5, 0.25, 0.1]))


def test_hybrid_score_is_a_weighted_sum_of_embedding_and_proof() -> None:
    default = combine_scores(SEARCH_SCORES, KGE_SCORES, HybridConfig())
    expected = [2 * math.log(0.5) + 1, 2 * math.log(0.25) - 0.5, 2 * math.log(0.1) + 1]
    np.testing.assert_allclose(default.score, expected)
    weights = HybridConfig(kge_weight=1.0, proved_bonus=3.0, unproved_penalty=2.0, policy_weight=0.5)
    scores = hybrid_scorer(lambda _: SEARCH_SCORES, lambda _: KGE_SCORES, weights)(TRIPLES)
    np.testing.assert_allclose(
        scores.score, [math.log(0.5) + 3 - 0.75, math.log(0.25) - 2, math.log(0.1) + 3 - 0.25]
    )
    assert scores.proved is not None and scores.proved.tolist() == [True, False, True]


def test_missing_inputs_of_a_hybrid_are_reported() -> None:
    with pytest.raises(ValueError, match="a hybrid needs a scorer that finds proofs"):
        combine_scores(KGE_SCORES, KGE_SCORES, HybridConfig())
    without = TripleScores(score=np.zeros(3), proved=np.zeros(3, bool))
    with pytest.raises(
        ValueError, match=r"policy_weight is 0.5, but the search gives no probabilities of proofs"
    ):
        combine_scores(without, KGE_SCORES, HybridConfig(policy_weight=0.5))


class LastArgument:
    """An embedding that scores triples by their last argument."""

    def score(self, triples: np.ndarray) -> Float[Array, " n"]:
        return jnp.asarray(triples[:, 2], jnp.float32)

    def log_prob(self, triples: np.ndarray) -> Float[Array, " n"]:
        return -1.0 / self.score(triples)


def test_embedding_scores_many_triples_in_order() -> None:
    triples = np.ones((40_000, 3), np.int32)
    triples[:, 2] = np.arange(1, 40_001)
    scores = embedding_scorer(LastArgument())(triples)
    np.testing.assert_array_equal(scores.score, triples[:, 2])
    np.testing.assert_allclose(scores.kge_log_prob, -1 / triples[:, 2], rtol=1e-6)


@pytest.fixture(scope="module")
def candidates() -> CandidateLists:
    queries = np.array([(p, a, a + 1) for p in (0, 1) for a in range(39)], np.int32)
    return make_candidates(queries, queries, 40, num_candidates=10)


def noisy_scores(candidates: CandidateLists) -> tuple[TripleScores, TripleScores]:
    """Return noise, except for the proofs of predicate 0 and the embeddings of predicate 1."""
    random = np.random.default_rng(0)
    size, first = len(candidates.triples), candidates.is_positive
    use_proof = candidates.triples[:, 0] == 0
    proved = np.where(use_proof, first, random.random(size) < 0.4)
    embedded = random.normal(size=size) + np.where(use_proof, 0.0, 4.0 * first)
    log_prob = np.where(proved, -random.random(size), -np.inf)
    search = TripleScores(
        score=log_prob, proved=proved, log_prob=log_prob, length=np.where(proved, 2, -1).astype(np.int64)
    )
    return search, TripleScores(score=embedded, kge_log_prob=-np.log1p(np.exp(-embedded)))


def mrr(candidates: CandidateLists, score: np.ndarray) -> float:
    by_triple = dict(zip(map(tuple, candidates.triples.tolist()), score.tolist(), strict=True))

    def look_up(triples: np.ndarray) -> TripleScores:
        return TripleScores(score=np.array([by_triple[tuple(row)] for row in triples.tolist()]))

    return evaluate_candidates(look_up, candidates, ties="expected").total.mrr


def test_learned_weights_prefer_the_informative_score_of_each_predicate(candidates: CandidateLists) -> None:
    search, kge_scores = noisy_scores(candidates)
    features = compute_features(search, kge_scores)
    learned = fit_combination(candidates, features, 2)
    learned_mrr = mrr(candidates, learned.score(candidates.triples[:, 0], features))
    fixed_mrr = mrr(candidates, combine_scores(search, kge_scores, HybridConfig()).score)
    assert learned_mrr > 0.97
    assert learned_mrr > fixed_mrr + 0.05
    proved, kge = FEATURES.index("proved"), FEATURES.index("kge_score")
    assert learned.by_relation[0, proved] > learned.by_relation[1, proved]
    assert learned.by_relation[1, kge] > learned.by_relation[0, kge]


def test_learned_weights_minimize_the_loss(candidates: CandidateLists) -> None:
    features = compute_features(*noisy_scores(candidates))
    learned = fit_combination(candidates, features, 2, shared_penalty=0.5, relation_penalty=2.0)

    def loss(combination: LearnedCombination) -> float:
        score = combination.score(candidates.triples[:, 0], features)
        total = 0.25 * np.sum(combination.shared**2) + 1.0 * np.sum(combination.by_relation**2)
        for start, end in zip(candidates.starts[:-1], candidates.starts[1:], strict=True):
            total += np.log(np.sum(np.exp(score[start:end]))) - score[start]
        return float(total)

    random = np.random.default_rng(1)
    for _ in range(20):
        perturbed = LearnedCombination(
            learned.mean,
            learned.scale,
            learned.shared + 0.05 * random.normal(size=learned.shared.shape),
            learned.by_relation + 0.05 * random.normal(size=learned.by_relation.shape),
        )
        assert loss(perturbed) > loss(learned)


def test_constant_feature_has_zero_weight(candidates: CandidateLists) -> None:
    features = compute_features(*noisy_scores(candidates))
    features[:, FEATURES.index("length")] = 2.1
    learned = fit_combination(candidates, features, 2)
    assert np.isfinite(learned.shared).all()
    assert learned.shared[FEATURES.index("length")] == pytest.approx(0.0, abs=1e-6)


def test_combined_scores_keep_the_proofs_and_the_embedding_probabilities(candidates: CandidateLists) -> None:
    search, kge_scores = noisy_scores(candidates)
    features = compute_features(search, kge_scores)
    learned = fit_combination(candidates, features, 2)
    triples = candidates.triples
    scores = learned.scorer(lambda _: search, lambda _: kge_scores)(triples)
    np.testing.assert_array_equal(scores.score, learned.score(triples[:, 0], features))
    np.testing.assert_array_equal(scores.proved, search.proved)
    assert scores.kge_log_prob is kge_scores.kge_log_prob

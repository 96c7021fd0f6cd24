"""Proofs and embeddings together: fixed weights by hand, learned ones by what they must achieve."""

import json
import math
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float

from phalanx.kg.atoms import parse_atom
from phalanx.kg.candidates import CandidateLists, make_candidates
from phalanx.kg.evaluation import (
    HybridConfig,
    TripleScores,
    combine,
    embedding_scorer,
    evaluate_ranking,
    hybrid_scorer,
)
from phalanx.kg.formats import KnowledgeBase
from phalanx.kg.knowledge_base import DataHandler
from phalanx.kg.vocabulary import IndexManager
from phalanx.proofs.score_combination import FEATURES, ScoreCombination, features_of, fit_combination
from tests.helpers.file_damage import write_json

TRIPLES = np.array([(1, 1, 2), (1, 2, 1), (1, 2, 2)], np.int32)
SEARCHED = TripleScores(
    score=np.array([-1.5, -np.inf, -0.5]),
    proved=np.array([True, False, True]),
    log_prob=np.array([-1.5, -np.inf, -0.5]),
    length=np.array([2, -1, 1]),
)
BELIEVED = TripleScores(score=np.array([3.0, 2.0, -1.0]), log_belief=np.log([0.5, 0.25, 0.1]))


def test_a_hybrid_adds_belief_and_proof_by_the_weights() -> None:
    default = combine(SEARCHED, BELIEVED, HybridConfig())
    expected = [2 * math.log(0.5) + 1, 2 * math.log(0.25) - 0.5, 2 * math.log(0.1) + 1]
    np.testing.assert_allclose(default.score, expected)
    weights = HybridConfig(kge_weight=1.0, proved_bonus=3.0, unproved_penalty=2.0, rl_weight=0.5)
    scores = hybrid_scorer(lambda _: SEARCHED, lambda _: BELIEVED, weights)(TRIPLES)
    np.testing.assert_allclose(
        scores.score, [math.log(0.5) + 3 - 0.75, math.log(0.25) - 2, math.log(0.1) + 3 - 0.25]
    )
    assert scores.proved is not None and scores.proved.tolist() == [True, False, True]


def test_a_hybrid_says_what_it_misses() -> None:
    with pytest.raises(ValueError, match="a hybrid needs a scorer that proves"):
        combine(BELIEVED, BELIEVED, HybridConfig())
    without = TripleScores(score=np.zeros(3), proved=np.zeros(3, bool))
    with pytest.raises(ValueError, match=r"rl_weight is 0.5, but the search gives proofs no probability"):
        combine(without, BELIEVED, HybridConfig(rl_weight=0.5))


class LastArgument:
    """Believes in triples by their last argument."""

    def score(self, triples: np.ndarray) -> Float[Array, " n"]:
        return jnp.asarray(triples[:, 2], jnp.float32)

    def log_probability(self, triples: np.ndarray) -> Float[Array, " n"]:
        return -1.0 / self.score(triples)


def test_an_embedding_is_asked_in_batches_and_keeps_the_order() -> None:
    triples = np.ones((40_000, 3), np.int32)
    triples[:, 2] = np.arange(1, 40_001)
    scores = embedding_scorer(LastArgument())(triples)
    np.testing.assert_array_equal(scores.score, triples[:, 2])
    np.testing.assert_allclose(scores.log_belief, -1 / triples[:, 2], rtol=1e-6)


@pytest.fixture(scope="module")
def index() -> IndexManager:
    names = [f"{predicate}({a},{a + 1})" for predicate in ("p", "q") for a in range(1, 40)]
    return IndexManager(DataHandler.from_knowledge(KnowledgeBase(train=tuple(map(parse_atom, names)))))


@pytest.fixture(scope="module")
def candidates(index: IndexManager) -> CandidateLists:
    queries = np.array([(p, a, a + 1) for p in (1, 2) for a in range(1, 40)], np.int32)
    return make_candidates(queries, queries, index.num_constants, corruptions=10)


def noisy_scores(candidates: CandidateLists) -> tuple[TripleScores, TripleScores]:
    """For predicate 1 a proof says all there is to know, for predicate 2 the embedding does; else noise."""
    random = np.random.default_rng(0)
    size, first = len(candidates.triples), candidates.is_positive
    proofs_count = candidates.triples[:, 0] == 1
    proved = np.where(proofs_count, first, random.random(size) < 0.4)
    embedded = random.normal(size=size) + np.where(proofs_count, 0.0, 4.0 * first)
    log_prob = np.where(proved, -random.random(size), -np.inf)
    search = TripleScores(
        score=log_prob, proved=proved, log_prob=log_prob, length=np.where(proved, 2, -1).astype(np.int64)
    )
    return search, TripleScores(score=embedded, log_belief=-np.log1p(np.exp(-embedded)))


def mrr(candidates: CandidateLists, score: np.ndarray) -> float:
    by_triple = dict(zip(map(tuple, candidates.triples.tolist()), score.tolist(), strict=True))

    def look_up(triples: np.ndarray) -> TripleScores:
        return TripleScores(score=np.array([by_triple[tuple(row)] for row in triples.tolist()]))

    return evaluate_ranking(look_up, candidates, ties="expected").total.mrr


def test_learned_weights_find_out_whom_to_trust_for_each_predicate(
    index: IndexManager, candidates: CandidateLists
) -> None:
    search, belief = noisy_scores(candidates)
    features = features_of(search, belief)
    learned = fit_combination(candidates, features, index)
    reached = mrr(candidates, learned.score(candidates.triples[:, 0], features))
    fixed = mrr(candidates, combine(search, belief, HybridConfig()).score)
    assert reached > 0.97
    assert reached > fixed + 0.05
    proved, kge = FEATURES.index("proved"), FEATURES.index("kge_score")
    assert learned.own[0, proved] > learned.own[1, proved]
    assert learned.own[1, kge] > learned.own[0, kge]


def test_learned_weights_are_the_most_likely_ones(index: IndexManager, candidates: CandidateLists) -> None:
    features = features_of(*noisy_scores(candidates))
    learned = fit_combination(candidates, features, index, shared_penalty=0.5, own_penalty=2.0)

    def loss(combination: ScoreCombination) -> float:
        score = combination.score(candidates.triples[:, 0], features)
        total = 0.25 * np.sum(combination.shared**2) + 1.0 * np.sum(combination.own**2)
        for start, end in zip(candidates.starts[:-1], candidates.starts[1:], strict=True):
            total += np.log(np.sum(np.exp(score[start:end]))) - score[start]
        return float(total)

    random = np.random.default_rng(1)
    for _ in range(20):
        moved = ScoreCombination(
            learned.predicates,
            learned.mean,
            learned.scale,
            learned.shared + 0.05 * random.normal(size=learned.shared.shape),
            learned.own + 0.05 * random.normal(size=learned.own.shape),
        )
        assert loss(moved) > loss(learned)


def test_a_feature_that_never_varies_does_no_harm(index: IndexManager, candidates: CandidateLists) -> None:
    features = features_of(*noisy_scores(candidates))
    features[:, FEATURES.index("length")] = 2.1
    learned = fit_combination(candidates, features, index)
    assert np.isfinite(learned.shared).all()
    assert learned.shared[FEATURES.index("length")] == pytest.approx(0.0, abs=1e-6)


def test_a_combination_comes_back_from_its_file(
    index: IndexManager, candidates: CandidateLists, tmp_path: Path
) -> None:
    search, belief = noisy_scores(candidates)
    learned = fit_combination(candidates, features_of(search, belief), index)
    learned.save(tmp_path / "combination.json")
    loaded = ScoreCombination.load(tmp_path / "combination.json", index)
    triples = candidates.triples
    before = learned.scorer(lambda _: search, lambda _: belief)(triples)
    after = loaded.scorer(lambda _: search, lambda _: belief)(triples)
    np.testing.assert_array_equal(before.score, after.score)
    np.testing.assert_array_equal(after.proved, search.proved)
    assert after.log_belief is belief.log_belief


def test_a_file_that_does_not_fit_is_refused(
    index: IndexManager, candidates: CandidateLists, tmp_path: Path
) -> None:
    path = tmp_path / "combination.json"
    path.write_text("[1, 2]")
    with pytest.raises(ValueError, match=r"combination.json is corrupt or was written by an older version"):
        ScoreCombination.load(path, index)
    write_json(path, {"version": 1})
    with pytest.raises(ValueError, match=r"combination.json is not a combination that was saved here"):
        ScoreCombination.load(path, index)
    fit_combination(candidates, features_of(*noisy_scores(candidates)), index).save(path)
    record = json.loads(path.read_text())
    for changed, message in (
        ({"predicates": ["p", "r"]}, "fitted for other predicates than p, q"),
        ({"version": 0}, "is of version 0"),
        ({"shared": [1.0]}, "numbers instead of"),
    ):
        write_json(path, record | changed)
        with pytest.raises(ValueError, match=message):
            ScoreCombination.load(path, index)

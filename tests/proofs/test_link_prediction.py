"""Link prediction by search, by an embedding, by both, and by the exact prover, on generated families."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float

from phalanx.kg.atoms import parse_atom, parse_rule
from phalanx.kg.evaluation import TripleScores, score_candidates
from phalanx.kg.knowledge_base import KnowledgeBase
from phalanx.kg.proof_depths import compute_proof_depths
from phalanx.proofs.config import ProofConfig
from phalanx.proofs.link_prediction import (
    LinkPredictionConfig,
    ProofLinkPredictionTask,
    can_chain,
    embedding_scorer,
    evaluate_proofs,
)
from phalanx.proofs.score_combination import HybridConfig
from phalanx.proofs.search.beam import BeamSearchConfig
from phalanx.proofs.vocabulary import ProofVocabulary
from tests.helpers import knowledge_bases as shared_sets
from tests.helpers.uniform_policy import UniformPolicy

pytestmark = pytest.mark.slow

SEARCH = BeamSearchConfig(beam_width=16, max_depth=3)


class PerfectEmbedding:
    """An embedding that knows which triples are true."""

    def __init__(self, data: KnowledgeBase, index: ProofVocabulary) -> None:
        self.known = {tuple(row) for row in data.known_triples.tolist()}

    def score(self, triples: np.ndarray) -> Float[Array, " n"]:
        return jnp.asarray([4.0 if tuple(row) in self.known else -4.0 for row in triples.tolist()])

    def log_prob(self, triples: np.ndarray) -> Float[Array, " n"]:
        return -jnp.log1p(jnp.exp(-self.score(triples)))


class UniformEmbedding:
    """An embedding that gives all triples the same score."""

    def score(self, triples: np.ndarray) -> Float[Array, " n"]:
        return jnp.zeros(len(triples))

    def log_prob(self, triples: np.ndarray) -> Float[Array, " n"]:
        return jnp.full(len(triples), jnp.log(0.5))


@pytest.fixture(scope="module")
def ranking() -> ProofLinkPredictionTask:
    data = KnowledgeBase.generate(num_families=3, generations=4)
    config = LinkPredictionConfig(
        num_candidates=10, beam=SEARCH, max_queries=30, max_fit_queries=30, batch_size=32
    )
    settings = ProofConfig(max_actions=64, max_goals=6)
    return ProofLinkPredictionTask(data, ProofVocabulary(data), settings, config)


def ancestors(**settings: Any) -> ProofLinkPredictionTask:
    """Create a task in which the ancestors of someone are the parents and the ancestors of the parents."""
    data = KnowledgeBase(
        train=tuple(map(parse_atom, ("parent(ann,bob)", "parent(bob,cat)", "ancestor(ann,bob)"))),
        rules=(
            parse_rule("ancestor(X,Y) :- parent(X,Y)."),
            parse_rule("ancestor(X,Y) :- parent(X,Z), ancestor(Z,Y)."),
        ),
    )
    return ProofLinkPredictionTask(
        data, ProofVocabulary(data), ProofConfig(), LinkPredictionConfig(**settings)
    )


def test_exact_scores_rank_by_rounds_with_unproved_last(capsys: pytest.CaptureFixture[str]) -> None:
    task = ancestors()
    names = ("ancestor(bob,cat)", "ancestor(ann,cat)", "ancestor(cat,ann)")
    triples = task.vocabulary.kg.encode(map(parse_atom, names))
    scores = task.score_exactly(triples)
    assert scores.score.tolist() == [-1, -2, -np.inf]
    assert scores.length is not None and scores.length.tolist() == [1, 2, -1]
    one_round = ancestors(max_chaining_rounds=1)
    assert one_round.score_exactly(triples).score.tolist() == [-1, -np.inf, -np.inf]
    scores = ancestors(max_chaining_seconds=0).score_exactly(triples)
    assert scores.proved is not None and not scores.proved.any()
    assert capsys.readouterr().err.count("out of time after 0 s") == 1


def test_facts_have_no_exact_score() -> None:
    task = ancestors()
    fact = task.vocabulary.kg.encode([parse_atom("ancestor(ann,bob)")])
    with pytest.raises(ValueError, match=r"\[0, 0, 1\] is a fact, and rounds"):
        task.score_exactly(fact)


@pytest.mark.skipif(not shared_sets.present("countries_s3"), reason="the shared dataset is not available")
@pytest.mark.filterwarnings("ignore:countries_s3")
def test_exact_scores_on_countries() -> None:
    data = KnowledgeBase.load(shared_sets.FOLDER / "countries_s3", on_leak="drop")
    config = LinkPredictionConfig(ties="expected")
    result = evaluate_proofs(
        "exact", ProofLinkPredictionTask(data, ProofVocabulary(data), ProofConfig(), config)
    )
    assert 0.92 < result.total.mrr < 0.97
    assert result.total.proved_rate == 1.0
    assert result.num_candidates == 5 * result.total.num_lists
    assert list(result.relations) == ["locatedInCR"]


def test_exact_prover_ranks_the_generated_families_well(ranking: ProofLinkPredictionTask) -> None:
    result = evaluate_proofs("exact", ranking)
    assert (result.total.num_queries, result.total.num_lists) == (30, 60)
    assert result.total.mrr > 0.9
    assert set(result.sides) == {"head", "tail"}
    assert sum(part.num_queries for part in result.depths.values()) == 30
    assert set(result.relations) <= set(ranking.vocabulary.predicates)


def test_uniform_policy_proves_provable_queries_and_ranks_by_proofs(
    ranking: ProofLinkPredictionTask,
) -> None:
    result = evaluate_proofs("policy", ranking, policy=UniformPolicy())
    provable = sum(part.num_queries for depth, part in result.depths.items() if depth > 0) / 30
    assert 0.5 < provable < 0.9
    assert result.total.proved_rate == pytest.approx(provable)
    assert result.total.mrr > 0.7
    assert result.depths[2].proved_rate == 1.0 and result.depths[2].mrr > 0.9


def test_skipping_unprovable_candidates_does_not_change_scores(ranking: ProofLinkPredictionTask) -> None:
    candidates = ranking.candidates(ranking.queries("test", 10))
    searching_all = dataclasses.replace(
        ranking, config=ranking.config.model_copy(update={"skip_unprovable_search": False})
    )
    unscreened = score_candidates(searching_all.policy_scorer(UniformPolicy()), candidates)
    screened = score_candidates(ranking.policy_scorer(UniformPolicy()), candidates)
    np.testing.assert_array_equal(unscreened.proved, screened.proved)
    np.testing.assert_array_equal(unscreened.length, screened.length)
    np.testing.assert_allclose(unscreened.score, screened.score, rtol=1e-5)
    assert np.isneginf(unscreened.score[~unscreened.proved]).all() and not unscreened.proved.all()


def test_embedding_ranks_alone_and_in_a_hybrid(ranking: ProofLinkPredictionTask) -> None:
    perfect, uniform = PerfectEmbedding(ranking.knowledge_base, ranking.vocabulary), UniformEmbedding()
    assert evaluate_proofs("kge", ranking, kge=perfect).total.mrr == 1.0
    assert evaluate_proofs("kge", ranking, kge=uniform).total.mrr < 0.5
    # The embedding has no information, so the proofs decide.
    by_proof = evaluate_proofs("hybrid", ranking, kge=uniform, policy=UniformPolicy())
    assert by_proof.total.mrr > 0.7
    assert by_proof.total.proved_rate is not None
    # Without a policy, the exact prover is used; the embedding outweighs the proofs of corrupted triples.
    strong = ranking.config.model_copy(update={"hybrid": HybridConfig(kge_weight=10.0)})
    both = dataclasses.replace(ranking, config=strong)
    assert evaluate_proofs("hybrid", both, kge=perfect).total.mrr == 1.0


def test_learned_combination_is_fitted_to_the_validation_split(ranking: ProofLinkPredictionTask) -> None:
    embedding = PerfectEmbedding(ranking.knowledge_base, ranking.vocabulary)
    assert evaluate_proofs("learned", ranking, kge=embedding).total.mrr > 0.99
    scored = []

    def search(triples: np.ndarray, /) -> object:
        scored.append({tuple(row) for row in triples.tolist()})
        return ranking.policy_scorer(UniformPolicy())(triples)

    ranking.fit_combination(search, embedding_scorer(embedding))
    test = {tuple(row) for row in ranking.queries("test", None).tolist()}
    valid = {tuple(row) for row in ranking.queries("valid", 30).tolist()}
    assert valid <= scored[0] and not test & scored[0]


@pytest.mark.parametrize(
    ("mode", "message"),
    [("policy", "mode=policy needs a policy"), ("hybrid", "mode=hybrid needs an embedding")],
)
def test_missing_input_of_a_mode_is_reported(
    ranking: ProofLinkPredictionTask, mode: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        evaluate_proofs(mode, ranking)


def test_queries_are_sampled_reproducibly(ranking: ProofLinkPredictionTask) -> None:
    every, some = ranking.queries("test", None), ranking.queries("test", 5)
    assert len(some) == 5 and {tuple(row) for row in some.tolist()} <= {tuple(row) for row in every.tolist()}
    np.testing.assert_array_equal(some, ranking.queries("test", 5))


def test_rules_with_unbound_head_variables_cannot_be_chained() -> None:
    assert can_chain([((1, -1, -2), ((1, -2, -1),))])
    assert can_chain([((1, -1, 3), ((1, -1, -2),))])
    assert not can_chain([((1, -1, -3), ((1, -1, -2),))])


def test_depths_match_forward_chaining(ranking: ProofLinkPredictionTask) -> None:
    queries = ranking.queries("test", 30)
    expected = compute_proof_depths(
        queries,
        ranking.knowledge_base.triples("train"),
        ranking.knowledge_base.encoded_rules,
        SEARCH.max_depth,
    )
    np.testing.assert_array_equal(ranking.depths(queries), expected)


def test_policy_weight_of_a_hybrid_is_selected_on_validation_unless_given(
    ranking: ProofLinkPredictionTask, capsys: pytest.CaptureFixture[str]
) -> None:
    positives = {tuple(row) for row in ranking.queries("valid", None).tolist()}

    def search(triples: np.ndarray, /) -> TripleScores:
        true = np.array([tuple(row) in positives for row in triples.tolist()])
        # All triples are proved; only the log-probabilities of the policy distinguish the true ones.
        log_prob = np.where(true, -0.1, -5.0)
        proved = np.ones(len(triples), bool)
        return TripleScores(log_prob, proved=proved, log_prob=log_prob, length=proved.astype(np.int64))

    chosen = ranking.select_hybrid_weights(search, embedding_scorer(UniformEmbedding()))
    assert chosen.policy_weight == 0.03, "the smallest sufficient weight"
    assert "policy_weight 0.03" in capsys.readouterr().err
    given = dataclasses.replace(
        ranking, config=ranking.config.model_copy(update={"hybrid": HybridConfig(policy_weight=0.5)})
    )
    assert given.select_hybrid_weights(search, embedding_scorer(UniformEmbedding())).policy_weight == 0.5

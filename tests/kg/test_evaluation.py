"""Link prediction: candidates, ties, and metrics with standard errors."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from phalanx.kg.atoms import parse_atom
from phalanx.kg.evaluation import (
    CandidateLists,
    RankCounts,
    TripleScores,
    count_ranks_in_lists,
    default_sides,
    evaluate_candidates,
    list_metrics,
    make_candidates,
)
from phalanx.kg.knowledge_base import KnowledgeBase
from phalanx.kg.vocabulary import Vocabulary

LIKES, KNOWS = 1, 2
# Ids start at 0; the literals below start at 1.
QUERIES = np.array([(LIKES, 1, 2), (KNOWS, 3, 4)], np.int32) - 1
KNOWN = np.array([(LIKES, 1, 2), (LIKES, 1, 4), (LIKES, 5, 2), (KNOWS, 3, 4)], np.int32) - 1


def candidate_lists(candidates: CandidateLists) -> list[list[tuple[int, ...]]]:
    rows = [tuple(row) for row in (candidates.triples + 1).tolist()]
    return [rows[a:b] for a, b in zip(candidates.starts[:-1], candidates.starts[1:], strict=True)]


def test_candidates_exclude_known_triples() -> None:
    candidates = make_candidates(QUERIES, KNOWN, 5, num_candidates=None)
    assert candidate_lists(candidates) == [
        [(1, 1, 2), (1, 2, 2), (1, 3, 2), (1, 4, 2)],
        [(1, 1, 2), (1, 1, 1), (1, 1, 3), (1, 1, 5)],
        [(2, 3, 4), (2, 1, 4), (2, 2, 4), (2, 4, 4), (2, 5, 4)],
        [(2, 3, 4), (2, 3, 1), (2, 3, 2), (2, 3, 3), (2, 3, 5)],
    ]
    assert candidates.query.tolist() == [0, 0, 1, 1]
    assert candidates.side.tolist() == [0, 1, 0, 1]


def test_sides_selects_head_or_tail_corruptions() -> None:
    assert [rows[1] for rows in candidate_lists(make_candidates(QUERIES, KNOWN, 5, sides="head"))] == [
        (1, 2, 2),
        (2, 1, 4),
    ]
    assert [rows[1] for rows in candidate_lists(make_candidates(QUERIES, KNOWN, 5, sides="tail"))] == [
        (1, 1, 1),
        (2, 3, 1),
    ]


def test_corruptions_stay_within_the_domain() -> None:
    domains = np.array([1, 2, 1, 2, 2], np.int32)
    candidates = make_candidates(QUERIES[:1], KNOWN, 5, num_candidates=None, domains=domains)
    assert candidate_lists(candidates) == [[(1, 1, 2), (1, 3, 2)], [(1, 1, 2), (1, 1, 5)]]


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.integers(1, 12))
def test_corruptions_are_sampled_without_replacement_and_independent_of_query_order(
    seed: int, count: int
) -> None:
    queries = np.array([(1, 1, 2), (1, 3, 4), (2, 5, 6)], np.int32) - 1
    known = np.array([(1, 1, 2), (1, 7, 2), (1, 3, 4), (2, 5, 6)], np.int32) - 1
    candidates = make_candidates(queries, known, 10, num_candidates=count, seed=seed)
    true = {tuple(row) for row in (known + 1).tolist()}
    for rows in candidate_lists(candidates):
        assert len(set(rows)) == len(rows)
        assert not true & set(rows[1:])
    assert len(candidate_lists(candidates)[0]) == 1 + min(count, 8)
    assert len(candidate_lists(candidates)[1]) == 1 + min(count, 9)
    reversed_lists = candidate_lists(
        make_candidates(queries[::-1].copy(), known, 10, num_candidates=count, seed=seed)
    )
    assert sorted(reversed_lists) == sorted(candidate_lists(candidates))


def test_corruptions_are_sampled_uniformly() -> None:
    # 800 queries whose second argument is one of five constants.
    queries = np.array([(1, first, 2) for first in range(6, 806)], np.int32) - 1
    domains = np.repeat(np.array([1, 2], np.int32), [5, 800])
    candidates = make_candidates(queries, queries, 805, sides="tail", num_candidates=1, domains=domains)
    values, counts = np.unique([rows[1][2] for rows in candidate_lists(candidates)], return_counts=True)
    assert values.tolist() == [1, 3, 4, 5]
    # Each is expected 200 times, with a standard deviation of 12.
    assert counts.min() > 140 and counts.max() < 260


def test_seed_determines_corruptions_and_tie_draws() -> None:
    one, same, other = (
        make_candidates(QUERIES[:1], QUERIES, 50, num_candidates=5, seed=seed) for seed in (1, 1, 2)
    )
    assert candidate_lists(one) == candidate_lists(same) != candidate_lists(other)
    assert one.tie_draw.tolist() == same.tie_draw.tolist() != other.tie_draw.tolist()


def test_zero_candidates_raises_error() -> None:
    with pytest.raises(ValueError, match="num_candidates must be at least 1, or None for all, got 0"):
        make_candidates(QUERIES, KNOWN, 5, num_candidates=0)


def test_rank_counts_include_higher_and_tied_candidates() -> None:
    candidates = make_candidates(QUERIES[:1], KNOWN, 5, num_candidates=None, sides="tail")
    ranks = count_ranks_in_lists(candidates, np.array([0.5, 0.7, 0.5, 0.1]))
    assert (ranks.higher.tolist(), ranks.tied.tolist()) == ([1], [1])
    ranks = count_ranks_in_lists(candidates, np.array([-np.inf, -np.inf, 3.0, -np.inf]))
    assert (ranks.higher.tolist(), ranks.tied.tolist()) == ([1], [2])


def test_nan_score_raises_error() -> None:
    candidates = make_candidates(QUERIES[:1], KNOWN, 5, num_candidates=None, sides="tail")
    with pytest.raises(ValueError, match=r"score of candidate \[0, 0, 2\] is not a number"):
        count_ranks_in_lists(candidates, np.array([0.5, 0.7, np.nan, 0.1]))


def tie_metrics(higher: int, tied: int, ties: str, draw: float = 0.0) -> list[float]:
    ranks = RankCounts(np.array([higher]), np.array([tied]), np.array([higher + tied]))
    return list_metrics(ranks, ties, np.array([draw]))[0].tolist()


def test_metrics_of_tied_ranks() -> None:
    # One candidate is higher and three are tied: the positive is 2nd, 3rd, 4th or 5th.
    assert tie_metrics(1, 3, "realistic") == [1 / 3.5, 0, 0, 1]
    assert tie_metrics(1, 3, "random", 0.0) == [1 / 2, 0, 1, 1]
    assert tie_metrics(1, 3, "random", 0.3) == [1 / 3, 0, 1, 1]
    assert tie_metrics(1, 3, "random", 0.99) == [1 / 5, 0, 0, 1]
    assert tie_metrics(1, 3, "expected") == pytest.approx([(1 / 2 + 1 / 3 + 1 / 4 + 1 / 5) / 4, 0, 0.5, 1])


@given(st.integers(0, 20), st.integers(0, 20))
def test_mean_of_random_ties_equals_expected_ties(higher: int, tied: int) -> None:
    draws = (np.arange(tied + 1) + 0.5) / (tied + 1)
    mean = np.mean([tie_metrics(higher, tied, "random", draw) for draw in draws], axis=0)
    np.testing.assert_allclose(mean, tie_metrics(higher, tied, "expected"), rtol=1e-9)


def constant_score(triples: np.ndarray) -> TripleScores:
    return TripleScores(score=np.zeros(len(triples)))


@pytest.mark.parametrize("ties", ["random", "realistic", "expected"])
def test_constant_scorer_has_chance_level_mrr(ties: str) -> None:
    queries = np.array([(1, a, b) for a in range(1, 31) for b in range(1, 31) if a != b], np.int32)[::3] - 1
    candidates = make_candidates(queries, queries, 200, num_candidates=9)
    result = evaluate_candidates(constant_score, candidates, ties=ties)
    chance = {"realistic": 1 / 5.5}.get(ties, sum(1 / rank for rank in range(1, 11)) / 10)
    assert result.total.mrr == pytest.approx(chance, abs=4 * (result.total.mrr_se or 0) + 1e-9)
    assert result.total.proved_rate is None


def test_metrics_include_standard_errors_and_groups() -> None:
    candidates = make_candidates(QUERIES, KNOWN, 5, num_candidates=None)
    # `likes` is first on its head side and second on its tail side; `knows` is fourth and fifth.
    values = {(1, 1, 2): 5.0, (1, 1, 1): 6.0, (2, 3, 4): 2.0}
    values |= {(2, 1, 4): 3.0, (2, 2, 4): 3.0, (2, 4, 4): 3.0}
    values |= dict.fromkeys([(2, 3, 1), (2, 3, 2), (2, 3, 3), (2, 3, 5)], 9.0)
    scored: list[tuple[int, ...]] = []

    def score(triples: np.ndarray) -> TripleScores:
        triples = triples + 1
        scored.extend(tuple(row) for row in triples.tolist())
        return TripleScores(
            score=np.array([values.get(tuple(row), 0.0) for row in triples.tolist()]),
            proved=np.array([tuple(row) in ((1, 1, 2), (1, 1, 1)) for row in triples.tolist()]),
        )

    result = evaluate_candidates(score, candidates, ties="random", depths=np.array([2, -1], np.int32))
    assert len(scored) == len(set(scored)) == 16
    assert result.num_candidates == 18
    first, second = (1 + 1 / 2) / 2, (1 / 4 + 1 / 5) / 2
    assert result.total.mrr == pytest.approx((first + second) / 2)
    # The standard error of the mean of two numbers is half of their difference.
    assert result.total.mrr_se == pytest.approx((first - second) / 2)
    assert result.total.hits == pytest.approx({1: 0.25, 3: 0.5, 10: 1.0})
    assert (result.total.num_queries, result.total.num_lists) == (2, 4)
    assert result.total.proved_rate == 0.5
    assert result.total.false_proof_rate == pytest.approx(1 / 14)
    assert result.sides["head"].mrr == pytest.approx((1 + 1 / 4) / 2)
    assert result.sides["tail"].mrr == pytest.approx((1 / 2 + 1 / 5) / 2)
    assert result.relations["0"].mrr == result.depths[2].mrr == pytest.approx(first)
    assert result.depths[-1].proved_rate == 0.0
    assert result.relations["0"].mrr_se is None
    record = result.as_record()
    assert record["hits@3"] == 0.5 and record["groups"]["depth 2"]["mrr"] == pytest.approx(first)
    lines = result.describe()
    assert lines[0].startswith("2 queries, 18 candidates, ties random: MRR 0.487 ± 0.262, Hits@1 0.250")
    assert any("no proof" in line and "MRR 0.225" in line for line in lines)


def test_inconsistent_inputs_raise_error() -> None:
    candidates = make_candidates(QUERIES, KNOWN, 5)
    with pytest.raises(ValueError, match="got 1 depths for 2 queries"):
        evaluate_candidates(constant_score, candidates, ties="random", depths=np.zeros(1, np.int32))
    with pytest.raises(ValueError, match="the scorer returned 1 values of score for 16 triples"):
        evaluate_candidates(lambda _: TripleScores(score=np.zeros(1)), candidates, ties="random")
    with pytest.raises(ValueError, match="the split has no queries"):
        evaluate_candidates(constant_score, make_candidates(QUERIES[:0], KNOWN, 5), ties="random")


def countries(**domains: tuple[str, ...]) -> tuple[KnowledgeBase, Vocabulary]:
    facts = tuple(map(parse_atom, ("in(oslo,europe)", "in(quito,america)")))
    data = KnowledgeBase(train=facts, domains=domains)
    return data, data.vocabulary


def test_domain_ids_and_default_sides() -> None:
    data, index = countries(towns=("oslo", "quito"), regions=("america", "europe"))
    assert index.entities == ("america", "europe", "oslo", "quito")
    assert index.entity_domains.tolist() == [2, 2, 1, 1]
    assert default_sides(data) == "tail"
    assert default_sides(countries(all=("oslo",))[0]) == "both"
    with pytest.raises(ValueError, match="'oslo' is in domain 'regions' and in another"):
        _ = countries(towns=("oslo", "quito"), regions=("oslo", "europe"))[1].entity_domains

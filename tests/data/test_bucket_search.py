"""Bucket efficiency and the best bucket edges."""

import itertools
import time

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from phalanx.compat.chuk_lazarus.data.batching.analyze import visualize_buckets
from phalanx.data import (
    BucketSpec,
    LengthTable,
    OptimizationGoal,
    analyze_bucket_efficiency,
    suggest_bucket_edges,
)

SMALL = {"a": 1, "b": 2, "c": 2, "d": 9}
LENGTHS = st.lists(st.integers(1, 60), min_size=1, max_size=40)


def table(lengths: list[int]) -> LengthTable:
    return LengthTable.from_arrays(None, np.array(lengths))


@pytest.fixture(scope="module")
def million() -> LengthTable:
    """The lengths on which the peers were measured."""
    draws = np.random.default_rng(0).lognormal(np.log(300) - 0.5, 1.0, 1_000_000)
    return LengthTable.from_arrays(None, np.clip(np.round(draws), 1, 2048).astype(np.int32))


def test_each_bucket_pads_its_samples_to_its_longest_length() -> None:
    analysis = analyze_bucket_efficiency(SMALL, BucketSpec(edges=(2, 4), max_sample_length=10))
    rows = [(b.sample_count, b.total_tokens, b.padded_tokens, b.efficiency) for b in analysis.buckets]
    assert rows == [(3, 5, 6, 5 / 6), (0, 0, 0, 1.0), (1, 9, 10, 0.9)]
    assert analysis.overall_efficiency == 14 / 16
    assert analysis.overall_waste == 1 - 14 / 16
    assert analysis.empty_buckets == 1
    assert analysis.buckets[0].waste_tokens == 1
    assert analysis.buckets[0].waste_percentage == pytest.approx(100 / 6)


def test_samples_that_no_bucket_takes_are_told_apart_and_not_counted_as_full() -> None:
    spec = BucketSpec(edges=(4,), max_sample_length=8, min_length=2)
    analysis = analyze_bucket_efficiency({"a": 4, "b": 1, "c": 40, "d": 50}, spec)
    assert analysis.overall_efficiency == 1.0
    assert (analysis.skipped_samples, analysis.skipped_tokens, analysis.too_long) == (3, 91, 2)
    assert "skipped: 3 samples (91 tokens), 2 longer than 8" in analysis.to_ascii()


@given(LENGTHS, st.sampled_from([(1,), (5, 20), (10, 11, 12)]), st.sampled_from([15, 40, 80]))
def test_efficiency_is_never_above_one(lengths: list[int], edges: tuple[int, ...], overflow: int) -> None:
    analysis = analyze_bucket_efficiency(
        table(lengths), BucketSpec(edges=edges[:1], max_sample_length=overflow)
    )
    assert 0 < analysis.overall_efficiency <= 1
    assert all(0 < bucket.efficiency <= 1 for bucket in analysis.buckets)
    kept = [n for n in lengths if n <= overflow]
    assert analysis.total_tokens == sum(kept)
    assert analysis.padded_tokens == sum(edges[0] if n <= edges[0] else overflow for n in kept)


def test_tables_and_pictures_of_buckets_fit_a_terminal(million: LengthTable) -> None:
    spec = BucketSpec.default()
    for printed in (analyze_bucket_efficiency(million, spec).to_ascii(), visualize_buckets(million, spec)):
        assert printed.isascii()
        assert max(map(len, printed.split("\n"))) <= 80
        assert "1025-2048" in printed


@pytest.mark.parametrize(
    ("buckets", "edges", "efficiency"),
    [
        (4, (190, 436, 897), 0.6362),
        (5, (150, 312, 571, 1033), 0.6978),
        (8, (96, 175, 277, 409, 594, 856, 1270), 0.7998),
    ],
)
def test_the_published_optimum_is_found_at_once(
    million: LengthTable, buckets: int, edges: tuple[int, ...], efficiency: float
) -> None:
    start = time.process_time()
    found = suggest_bucket_edges(million, buckets)
    assert time.process_time() - start < 0.1
    assert found.edges == edges
    assert found.max_sample_length == 2048
    assert found.estimated_efficiency == pytest.approx(efficiency, abs=5e-5)
    analysis = analyze_bucket_efficiency(million, found.bucket_spec)
    assert analysis.overall_efficiency == found.estimated_efficiency


def test_edges_on_multiples_of_eight_lose_next_to_nothing(million: LengthTable) -> None:
    found = suggest_bucket_edges(million, 4, multiple_of=8)
    assert all(edge % 8 == 0 for edge in found.edges)
    assert found.estimated_efficiency > 0.636


def cost_of(lengths: list[int], ends: tuple[int, ...], goal: OptimizationGoal) -> int:
    """What a goal minimises, counted sample by sample."""
    padded = [min(end for end in ends if end >= n) for n in lengths]
    if goal is OptimizationGoal.MINIMIZE_WASTE:
        return sum(padded)
    if goal is OptimizationGoal.MINIMIZE_MEMORY:
        return sum(end**2 for end in padded)
    return sum(padded.count(end) ** 2 for end in ends)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.integers(1, 14), min_size=1, max_size=25),
    st.integers(2, 5),
    st.sampled_from(list(OptimizationGoal)),
    st.integers(0, 3),
)
def test_no_other_edges_serve_the_goal_better(
    lengths: list[int], buckets: int, goal: OptimizationGoal, above: int
) -> None:
    top = max(2, max(lengths) + above)
    found = suggest_bucket_edges(table(lengths), buckets, goal, max_length=top)
    ends = (*found.edges, top)
    assert found.num_buckets == min(buckets, max(2, len({*lengths, top})))
    every = (
        (*edges, top) for count in range(buckets) for edges in itertools.combinations(range(1, top), count)
    )
    assert cost_of(lengths, ends, goal) == min(cost_of(lengths, other, goal) for other in every)


@pytest.mark.parametrize("goal", list(OptimizationGoal))
def test_asking_for_eight_buckets_gives_eight(million: LengthTable, goal: OptimizationGoal) -> None:
    found = suggest_bucket_edges(million, 8, goal)
    assert found.num_buckets == 8
    assert found.bucket_spec.num_buckets == 8
    assert found.optimization_goal is goal


def test_balanced_buckets_hold_like_numbers_of_samples(million: LengthTable) -> None:
    found = suggest_bucket_edges(million, 4, OptimizationGoal.BALANCE_BUCKETS)
    counts = [b.sample_count for b in analyze_bucket_efficiency(million, found.bucket_spec).buckets]
    assert max(counts) < 1.03 * min(counts)


def test_fewer_lengths_than_buckets_are_said_so() -> None:
    found = suggest_bucket_edges({"a": 3, "b": 7}, num_buckets=6)
    assert (found.edges, found.max_sample_length, found.estimated_efficiency) == ((3,), 7, 1.0)
    assert "6 were requested, but there are only 2 possible ends" in found.rationale


def test_samples_of_one_length_still_get_buckets() -> None:
    found = suggest_bucket_edges({"a": 5, "b": 5})
    assert (found.edges, found.max_sample_length, found.estimated_efficiency) == ((4,), 5, 1.0)
    ones = suggest_bucket_edges({"a": 1, "b": 1})
    assert (ones.edges, ones.max_sample_length, ones.estimated_efficiency) == ((1,), 2, 1.0)


def test_samples_beyond_max_length_are_left_out_and_said_so() -> None:
    found = suggest_bucket_edges({"a": 3, "b": 7, "c": 90}, num_buckets=2, max_length=7)
    assert (found.edges, found.max_sample_length, found.estimated_efficiency) == ((3,), 7, 1.0)
    assert "1 samples longer than 7 are ignored" in found.rationale
    with pytest.raises(ValueError, match="every sample is longer than max_length 2"):
        suggest_bucket_edges({"a": 3}, max_length=2)


def test_one_bucket_is_not_a_choice() -> None:
    with pytest.raises(ValueError, match="num_buckets must be at least 2"):
        suggest_bucket_edges(SMALL, num_buckets=1)


def test_a_wide_range_of_lengths_is_still_quick() -> None:
    lengths = np.random.default_rng(0).integers(1, 10_000_000, 50_000)
    start = time.process_time()
    assert suggest_bucket_edges(LengthTable.from_arrays(None, lengths), 6).num_buckets == 6
    assert time.process_time() - start < 2.0

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


def test_samples_are_padded_to_the_maximum_length_of_their_bucket() -> None:
    analysis = analyze_bucket_efficiency(SMALL, BucketSpec(edges=(2, 4), max_sample_length=10))
    rows = [(b.sample_count, b.total_tokens, b.padded_tokens, b.efficiency) for b in analysis.buckets]
    assert rows == [(3, 5, 6, 5 / 6), (0, 0, 0, 1.0), (1, 9, 10, 0.9)]
    assert analysis.overall_efficiency == 14 / 16
    assert analysis.overall_waste == 1 - 14 / 16
    assert analysis.empty_buckets == 1
    assert analysis.buckets[0].waste_tokens == 1
    assert analysis.buckets[0].waste_percentage == pytest.approx(100 / 6)


def test_skipped_samples_are_not_counted_in_the_efficiency() -> None:
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


def test_text_output_is_ascii_within_80_columns(million_lengths: LengthTable) -> None:
    spec = BucketSpec.default()
    for printed in (
        analyze_bucket_efficiency(million_lengths, spec).to_ascii(),
        visualize_buckets(million_lengths, spec),
    ):
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
def test_published_optimum_is_found_quickly(
    million_lengths: LengthTable, buckets: int, edges: tuple[int, ...], efficiency: float
) -> None:
    start = time.process_time()
    found = suggest_bucket_edges(million_lengths, buckets)
    assert time.process_time() - start < 0.1
    assert found.edges == edges
    assert found.max_sample_length == 2048
    assert found.estimated_efficiency == pytest.approx(efficiency, abs=5e-5)
    analysis = analyze_bucket_efficiency(million_lengths, found.bucket_spec)
    assert analysis.overall_efficiency == found.estimated_efficiency


def test_edges_at_multiples_of_eight_are_nearly_optimal(million_lengths: LengthTable) -> None:
    found = suggest_bucket_edges(million_lengths, 4, multiple_of=8)
    assert all(edge % 8 == 0 for edge in found.edges)
    assert found.estimated_efficiency > 0.636


def compute_cost(lengths: list[int], ends: tuple[int, ...], goal: OptimizationGoal) -> int:
    """Return the cost that a goal minimizes, computed sample by sample."""
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
def test_suggested_edges_are_optimal(
    lengths: list[int], buckets: int, goal: OptimizationGoal, margin: int
) -> None:
    top = max(2, max(lengths) + margin)
    found = suggest_bucket_edges(table(lengths), buckets, goal, max_length=top)
    ends = (*found.edges, top)
    assert found.num_buckets == min(buckets, max(2, len({*lengths, top})))
    candidates = (
        (*edges, top) for count in range(buckets) for edges in itertools.combinations(range(1, top), count)
    )
    assert compute_cost(lengths, ends, goal) == min(
        compute_cost(lengths, other, goal) for other in candidates
    )


@pytest.mark.parametrize("goal", list(OptimizationGoal))
def test_requested_number_of_buckets_is_returned(
    million_lengths: LengthTable, goal: OptimizationGoal
) -> None:
    found = suggest_bucket_edges(million_lengths, 8, goal)
    assert found.num_buckets == 8
    assert found.bucket_spec.num_buckets == 8
    assert found.optimization_goal is goal


def test_balanced_buckets_have_similar_sample_counts(million_lengths: LengthTable) -> None:
    found = suggest_bucket_edges(million_lengths, 4, OptimizationGoal.BALANCE_BUCKETS)
    counts = [b.sample_count for b in analyze_bucket_efficiency(million_lengths, found.bucket_spec).buckets]
    assert max(counts) < 1.03 * min(counts)


def test_too_few_distinct_lengths_are_reported() -> None:
    found = suggest_bucket_edges({"a": 3, "b": 7}, num_buckets=6)
    assert (found.edges, found.max_sample_length, found.estimated_efficiency) == ((3,), 7, 1.0)
    assert "6 were requested, but there are only 2 possible ends" in found.rationale


def test_equal_lengths_still_get_buckets() -> None:
    found = suggest_bucket_edges({"a": 5, "b": 5})
    assert (found.edges, found.max_sample_length, found.estimated_efficiency) == ((4,), 5, 1.0)
    ones = suggest_bucket_edges({"a": 1, "b": 1})
    assert (ones.edges, ones.max_sample_length, ones.estimated_efficiency) == ((1,), 2, 1.0)


@pytest.mark.parametrize(
    ("length", "edge", "max_sample_length"), [(5, 8, 9), (8, 8, 9), (15, 8, 15), (17, 16, 17)]
)
def test_edges_of_equal_lengths_are_multiples(length: int, edge: int, max_sample_length: int) -> None:
    found = suggest_bucket_edges({"a": length, "b": length}, num_buckets=2, multiple_of=8)
    assert (found.edges, found.max_sample_length) == ((edge,), max_sample_length)


def test_max_length_without_room_for_a_multiple_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"max_length must be greater than multiple_of \(8\), got 8"):
        suggest_bucket_edges({"a": 5}, max_length=8, multiple_of=8)


def test_samples_above_max_length_are_ignored_and_reported() -> None:
    found = suggest_bucket_edges({"a": 3, "b": 7, "c": 90}, num_buckets=2, max_length=7)
    assert (found.edges, found.max_sample_length, found.estimated_efficiency) == ((3,), 7, 1.0)
    assert "1 samples longer than 7 are ignored" in found.rationale
    with pytest.raises(ValueError, match="every sample is longer than max_length 2"):
        suggest_bucket_edges({"a": 3}, max_length=2)


def test_single_bucket_is_rejected() -> None:
    with pytest.raises(ValueError, match="num_buckets must be at least 2"):
        suggest_bucket_edges(SMALL, num_buckets=1)


def test_wide_range_of_lengths_is_fast() -> None:
    lengths = np.random.default_rng(0).integers(1, 10_000_000, 50_000)
    start = time.process_time()
    assert suggest_bucket_edges(LengthTable.from_arrays(None, lengths), 6).num_buckets == 6
    assert time.process_time() - start < 2.0

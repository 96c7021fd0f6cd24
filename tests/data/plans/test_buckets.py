"""Buckets: assignment of lengths, invalid settings, and statistics."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from phalanx.compat.chuk_lazarus.data.batching.core import BucketSpec, BucketStats

SPEC = BucketSpec(edges=(128, 256, 512), max_sample_length=1024)


@pytest.mark.parametrize(
    ("length", "bucket"),
    [(1, 0), (128, 0), (129, 1), (150, 1), (256, 1), (257, 2), (513, 3), (1024, 3), (9999, 3)],
)
def test_length_is_in_the_first_bucket_with_a_sufficient_edge(length, bucket):
    assert SPEC.get_bucket(length) == bucket == SPEC.get_bucket_id(length)


def test_bucket_ranges_have_no_gaps_or_overlaps():
    assert [SPEC.get_bucket_range(b) for b in range(4)] == [(1, 128), (129, 256), (257, 512), (513, 1024)]
    assert SPEC.num_buckets == 4
    assert [SPEC.is_overflow(b) for b in range(4)] == [False, False, False, True]
    assert SPEC.get_bucket_max_length(1) == 256


def test_lengths_outside_all_buckets_are_skipped():
    spec = BucketSpec(edges=(8,), max_sample_length=16, min_length=3)
    assert [spec.should_skip(length) for length in (2, 3, 16, 17)] == [True, False, False, True]


@given(st.lists(st.integers(1, 3000), min_size=1))
def test_bucket_ids_of_an_array_equal_those_of_its_elements(lengths):
    found = SPEC.get_bucket_ids(np.array(lengths, np.int32))
    assert found.tolist() == [SPEC.get_bucket(length) for length in lengths]


@pytest.mark.parametrize(
    ("edges", "max_sample_length", "message"),
    [
        ((), 10, r"edges must not be empty, for example edges=\(128, 256, 512\)"),
        ((256, 128), 512, "edges must be strictly ascending, but 128 follows 256"),
        ((128, 128), 512, "edges must be strictly ascending, but 128 follows 128"),
        ((0, 5), 10, "Input should be greater than 0"),
        ((128, 256), 256, r"max_sample_length \(256\) must be greater than the last edge \(256\)"),
    ],
)
def test_invalid_edges_are_rejected(edges, max_sample_length, message):
    with pytest.raises(ValueError, match=message):
        BucketSpec(edges=edges, max_sample_length=max_sample_length)


def test_invalid_length_and_bucket_id_are_rejected():
    with pytest.raises(ValueError, match="must be a positive integer, got 0"):
        SPEC.get_bucket(0)
    with pytest.raises(ValueError, match="bucket_id must be between 0 and 3, got 4"):
        SPEC.get_bucket_range(4)


@given(st.integers(2, 12).flatmap(lambda n: st.tuples(st.just(n), st.integers(n, 5000))))
def test_from_max_length_creates_the_requested_number_of_buckets(case):
    num_buckets, max_length = case
    spec = BucketSpec.from_max_length(max_length, num_buckets)
    assert spec.num_buckets == num_buckets and spec.max_sample_length == max_length


def test_from_max_length_creates_buckets_of_equal_width():
    assert BucketSpec.from_max_length(2048).edges == (512, 1024, 1536)
    assert BucketSpec.default().edges == (128, 256, 512, 1024)


def test_stats_count_real_and_padded_tokens():
    stats = BucketStats(bucket_id=0, bucket_max_length=10)
    assert stats.efficiency == 1.0 and stats.avg_length == 0.0
    stats.add_sample(4)
    stats.add_sample(8, padded_length=8)
    assert (stats.sample_count, stats.total_tokens, stats.padded_tokens) == (2, 12, 18)
    assert stats.padding_tokens == 6 and stats.padding_ratio == pytest.approx(1 / 3)
    assert stats.efficiency == pytest.approx(2 / 3) and stats.avg_length == 6.0


def test_stats_reject_a_sample_longer_than_the_bucket():
    with pytest.raises(ValueError, match="bucket 0: length must be between 1 and 10, got 11"):
        BucketStats(bucket_id=0, bucket_max_length=10).add_sample(11)

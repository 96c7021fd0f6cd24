"""Histograms of lengths."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from phalanx.data import LengthTable, compute_length_histogram
from phalanx.data.length_histogram import TextBar, bar_lines

SMALL = {"a": 1, "b": 2, "c": 2, "d": 9}
LENGTHS = st.lists(st.integers(1, 60), min_size=1, max_size=40)


def table(lengths: list[int]) -> LengthTable:
    return LengthTable.from_arrays(None, np.array(lengths))


def test_histogram_counts_samples_per_bin() -> None:
    histogram = compute_length_histogram(SMALL, num_bins=3)
    assert [(b.min_length, b.max_length, b.count) for b in histogram.bins] == [
        (1, 4, 3),
        (4, 7, 0),
        (7, 10, 1),
    ]
    assert [b.label for b in histogram.bins] == ["1-3", "4-6", "7-9"]
    assert histogram.bins[0].percentage == 75
    assert (histogram.total_samples, histogram.total_tokens) == (4, 14)
    assert (histogram.min_length, histogram.max_length, histogram.mean_length) == (1, 9, 3.5)
    assert histogram.std_length == pytest.approx(np.std([1, 2, 2, 9]))


def test_percentiles_are_lengths_that_occur() -> None:
    histogram = compute_length_histogram(table(list(range(1, 101))))
    assert (histogram.p25, histogram.p50, histogram.p75) == (25, 50, 75)
    assert (histogram.p90, histogram.p95, histogram.p99) == (90, 95, 99)
    assert histogram.median_length == 50


@given(LENGTHS, st.integers(1, 70))
def test_histogram_has_the_requested_number_of_bins(lengths: list[int], bins: int) -> None:
    histogram = compute_length_histogram(table(lengths), num_bins=bins)
    assert len(histogram.bins) == bins
    assert sum(b.count for b in histogram.bins) == len(lengths)
    for b in histogram.bins:
        assert b.count == sum(b.min_length <= n < b.max_length for n in lengths)


def test_bins_of_fixed_width_include_the_longest_sample() -> None:
    histogram = compute_length_histogram(SMALL, bin_width=4)
    assert [(b.min_length, b.max_length, b.count) for b in histogram.bins] == [
        (1, 5, 3),
        (5, 9, 0),
        (9, 13, 1),
    ]


def test_printed_histogram_is_ascii_within_80_columns(million_lengths: LengthTable) -> None:
    printed = compute_length_histogram(million_lengths, num_bins=20).to_ascii(width=50)
    lines = printed.split("\n")
    assert printed.isascii()
    assert max(map(len, lines)) <= 80
    assert sum("|" in line for line in lines) == 20
    assert "p50 182" in printed


def test_bars_are_shortened_for_wide_labels() -> None:
    lines = bar_lines(
        [TextBar("1,000,000,000-2,000,000,000", 5, "1,000,000 100.0%"), TextBar("x", 0.001, "")], width=20
    )
    assert max(map(len, lines)) <= 50
    assert "|###|" in lines[0]
    assert "|." in lines[1]


def test_empty_lengths_raise_error() -> None:
    with pytest.raises(ValueError, match="there are no samples"):
        compute_length_histogram({})


def test_invalid_length_is_reported() -> None:
    with pytest.raises(ValueError, match=r"sample 1 \('b'\): length must be a positive integer, got -3"):
        compute_length_histogram({"a": 1, "b": -3})

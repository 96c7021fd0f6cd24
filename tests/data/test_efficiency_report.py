"""The report that compares buckets with packing."""

import pytest

from phalanx.data import BucketSpec, LengthTable, OptimizationGoal, create_efficiency_report


def test_report_compares_buckets_with_packing(million_lengths: LengthTable) -> None:
    report = create_efficiency_report(million_lengths, BucketSpec.default())
    assert report.overall_efficiency == pytest.approx(0.6919, abs=1e-4)
    assert report.packing.efficiency > 0.9999
    assert report.packing.num_packs <= 143_087
    assert report.suggestions[0].estimated_efficiency == pytest.approx(0.6978, abs=1e-4)
    assert [s.optimization_goal for s in report.suggestions] == list(OptimizationGoal)
    assert report.recommendations[0].startswith(
        "Packing into rows of 2048 is 99.99% full, where these buckets"
    )
    assert "31% fewer padded tokens" in report.recommendations[0]
    assert report.total_tokens == report.packing.total_tokens == 293_012_355
    printed = report.to_ascii()
    assert printed.isascii()
    assert max(map(len, printed.split("\n"))) <= 80


def test_report_excludes_skipped_samples() -> None:
    lengths = {"a": 1, "b": 4, "c": 8, "d": 100}
    report = create_efficiency_report(lengths, BucketSpec(edges=(4,), max_sample_length=8, min_length=2))
    assert report.total_samples == report.packing.total_samples == 2
    assert report.length_histogram.total_samples == 4
    assert report.overall_efficiency == 1.0
    text = " ".join(report.recommendations)
    assert "1 samples are longer than max_sample_length 8 and are skipped; raise it to 100" in text
    assert "1 samples are shorter than min_length 2" in text
    assert "stay with buckets, which are simpler" in text


def test_report_recommends_edges_and_lists_empty_and_crowded_buckets() -> None:
    lengths = {f"s{i}": 30 + i % 3 for i in range(50)} | {"long": 1000}
    report = create_efficiency_report(lengths, BucketSpec(edges=(10, 20, 512), max_sample_length=1024))
    text = " ".join(report.recommendations)
    assert "If you pad to buckets, 30,32,1000 (maximum 1024) gives 99.34%" in text
    assert "No sample is in buckets 1-10 and 11-20" in text
    assert "Bucket 21-512 holds 98% of the samples" in text


def test_report_without_samples_in_buckets_raises_error() -> None:
    with pytest.raises(
        ValueError, match="all buckets are empty: lengths are 50 to 60, but buckets have lengths 1 to 8"
    ):
        create_efficiency_report({"a": 50, "b": 60}, BucketSpec(edges=(4,), max_sample_length=8))

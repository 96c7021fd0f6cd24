"""Batch metrics of chuk-lazarus."""

import json

import pytest

from phalanx.compat.chuk_lazarus.data.batching import (
    BatchingConfig,
    BatchMetrics,
    BatchPlanBuilder,
    BucketSpec,
    PackingConfig,
    TokenBudgetBatchSampler,
)
from phalanx.compat.chuk_lazarus.data.batching.core import BatchShapeHistogram

SPEC = BucketSpec(edges=(4, 8), overflow_max=16)


def test_metrics_of_a_small_epoch():
    # Bucket 0 (rows of 4): two batches of 5 and 1; bucket 1 (rows of 8): one batch of 2.
    lengths = {**{f"a{i}": 3 for i in range(6)}, "b": 5, "c": 8, "d": 99}
    metrics = TokenBudgetBatchSampler(lengths, SPEC, 20).compute_metrics()
    assert metrics.total_samples == 8 and metrics.skipped_samples == 1
    assert metrics.total_batches == 3
    assert metrics.total_tokens == 6 * 3 + 13 and metrics.padded_tokens == 6 * 4 + 2 * 8
    assert metrics.efficiency == pytest.approx(31 / 40) and metrics.padding_waste == pytest.approx(9 / 40)
    assert metrics.loss_tokens == 31 and metrics.loss_efficiency == metrics.efficiency
    assert metrics.avg_batch_size == pytest.approx(8 / 3) and metrics.skip_rate == pytest.approx(1 / 9)
    assert metrics.shape_histogram.shapes == {"5 x 4": 1, "1 x 4": 1, "2 x 8": 1}
    assert metrics.shape_histogram.total_batches == 3 and metrics.shape_histogram.total_samples == 8
    assert metrics.shape_histogram.bucket_fraction(0) == 0.75
    assert [(row["bucket_id"], row["samples"], row["efficiency"]) for row in metrics.bucket_summary()] == [
        (0, 6, 0.75),
        (1, 2, 0.8125),
    ]


def test_summary_contains_numbers():
    summary = TokenBudgetBatchSampler({"a": 3, "b": 2}, SPEC, 20).compute_metrics().summary()
    assert summary["efficiency"] == 0.625 and summary["padding_waste"] == 0.375
    assert all(isinstance(value, int | float) for value in summary.values())
    assert json.loads(json.dumps(summary)) == summary


def test_loss_tokens_are_summed_over_the_batched_samples():
    sampler = TokenBudgetBatchSampler({"a": 3, "b": 2, "long": 99}, SPEC, 20)
    assert sampler.compute_metrics(loss_tokens_per_sample={"a": 1, "b": 2, "long": 50}).loss_tokens == 3
    with pytest.raises(ValueError, match="no entry for sample 'b'"):
        sampler.compute_metrics(loss_tokens_per_sample={"a": 1})
    with pytest.raises(
        ValueError, match="sample 'a' has 3 tokens, but loss_tokens_per_sample says 4 of them count"
    ):
        sampler.compute_metrics(loss_tokens_per_sample={"a": 4, "b": 0})


def test_samples_dropped_with_the_last_batch_count_as_skipped():
    metrics = TokenBudgetBatchSampler(
        {f"a{i}": 3 for i in range(6)}, SPEC, 20, drop_last=True
    ).compute_metrics()
    assert (metrics.total_samples, metrics.skipped_samples, metrics.total_batches) == (5, 1, 1)


def test_packed_rows_are_packs():
    config = BatchingConfig(token_budget=16, bucket_edges=(4,), overflow_max=8)
    lengths = {"a": 5, "b": 3, "c": 8, "d": 4}
    plan = BatchPlanBuilder(lengths, config, packing=PackingConfig(max_length=8)).build_sync()
    metrics = plan.compute_metrics()
    assert metrics.total_tokens == 20 and metrics.padded_tokens == 24
    assert metrics.shape_histogram.shapes == {"2 x 8": 1, "1 x 8": 1}
    assert metrics.shape_histogram.total_samples == 4


def test_metrics_can_be_recorded_one_by_one():
    metrics = BatchMetrics()
    metrics.record_sample(0, 3, 2, 4)
    metrics.record_sample(0, 4, loss_tokens=4, bucket_max_length=4)
    metrics.record_batch(0, 2, 4)
    metrics.record_batch(1, 3)
    metrics.record_skip()
    metrics.record_time(0.5)
    assert metrics.efficiency == 0.875 and metrics.loss_efficiency == 0.75
    assert metrics.tokens_per_second == 14 and metrics.effective_tokens_per_second == 12
    assert metrics.padding_tokens == 1
    assert metrics.shape_histogram.shapes == {"2 x 4": 1}
    assert metrics.shape_histogram.bucket_counts == {0: 1, 1: 1}
    assert metrics.shape_histogram.bucket_samples == {0: 2, 1: 3}
    assert metrics.shape_histogram.bucket_fraction(1) == 0.6
    assert metrics.samples_per_second == 4 and metrics.skip_rate == pytest.approx(1 / 3)
    assert metrics.summary()["tokens_per_second"] == 14
    assert metrics.bucket_stats[0].efficiency == 0.875


def test_inconsistent_records_are_rejected():
    with pytest.raises(ValueError, match="loss_tokens must be between 0 and 3, got 4"):
        BatchMetrics().record_sample(0, 3, 4, 4)
    with pytest.raises(ValueError, match="time must not be negative"):
        BatchMetrics().record_time(-1.0)
    with pytest.raises(ValueError, match="batch_size and max_length must be at least 1, got 0, 4"):
        BatchShapeHistogram().record_batch(0, 0, 4)


def test_empty_histogram_has_no_fractions():
    assert BatchShapeHistogram().bucket_fraction(0) == 0.0

"""Small functions of chuk-lazarus accept the original arguments."""

import pytest

from phalanx.compat.chuk_lazarus.data.batching import (
    BatchingConfig,
    BatchPlanBuilder,
    BucketSpec,
    LengthEntry,
    OptimizationGoal,
    PackingConfig,
    PackingMetrics,
    SequenceToPack,
    TokenBudgetBatchSampler,
    compute_packing_metrics,
    create_segment_attention_mask,
    default_collate,
    pack_sequences,
    suggest_bucket_edges,
)


def test_length_entry_is_one_line():
    entry = LengthEntry(sample_id="a", tokenizer_hash="t", length=3)
    assert entry.to_json() == '{"sample_id":"a","tokenizer_hash":"t","length":3}'
    assert LengthEntry.from_json(entry.to_json()) == entry


def test_goals_have_two_names():
    assert OptimizationGoal("minimize_waste") is OptimizationGoal.MINIMIZE_WASTE
    with pytest.raises(ValueError, match="speed"):
        OptimizationGoal("speed")


def test_plan_accepts_both_names_of_packing():
    plans = [
        BatchPlanBuilder({"a": 3, "b": 4}, BatchingConfig(), **{name: PackingConfig.default(8)}).build_sync()
        for name in ("packing", "pack_config")
    ]
    assert plans[0].fingerprint == plans[1].fingerprint and plans[0].meta.pack_config.max_length == 8


def test_skipped_samples_are_counted():
    sequence = SequenceToPack(sample_id="a", input_ids=[1, 2], loss_mask=[0, 1])
    assert sequence.length == 2
    packs = pack_sequences([sequence], PackingConfig(max_length=4))
    assert compute_packing_metrics(list(packs), num_skipped=3).num_skipped == 3
    assert compute_packing_metrics(packs).summary()["num_skipped"] == 0


def test_all_tokens_count_without_a_loss_mask():
    arrays = default_collate([{"input_ids": [5, 6]}, {"input_ids": [7], "loss_mask": [0]}], 3)
    assert arrays["loss_mask"].tolist() == [[1, 1, 0], [0, 0, 0]]


def test_bucket_sizes_is_callable():
    sampler = TokenBudgetBatchSampler({"a": 3, "b": 9}, BucketSpec(edges=(4,), overflow_max=16), 64)
    assert sampler.bucket_sizes() == sampler.bucket_sizes == {0: 1, 1: 1}


def test_segment_mask_accepts_the_original_arguments():
    for mask in (
        create_segment_attention_mask([1, 1], False),
        create_segment_attention_mask([1, 1], use_mlx=False),
    ):
        assert mask.tolist() == [[True, False], [True, True]]
    with pytest.raises(ValueError, match=r"remove use_mlx, and use mlx.core.array\(mask\)"):
        create_segment_attention_mask([1, 1], use_mlx=True)


def test_renamed_packing_metrics_are_reported():
    metrics = compute_packing_metrics(packed_sequences=[])
    for name, ours in (("total_loss_tokens", "loss_tokens"), ("record_skip", "compute_packing_metrics")):
        with pytest.raises(AttributeError, match=f"PackingMetrics has no {name}: use {ours}"):
            getattr(metrics, name)
    with pytest.raises(ValueError, match="PackingMetrics has no num_packed_sequences: use num_packs"):
        PackingMetrics(num_packed_sequences=3)


def test_the_maximum_length_of_the_last_bucket_has_its_name_there():
    assert BucketSpec(edges=(4,), overflow_max=16).overflow_max == 16
    assert BatchingConfig(bucket_edges=(4,), overflow_max=16).bucket_spec.max_sample_length == 16
    assert suggest_bucket_edges({"a": 3, "b": 9}, num_buckets=2).overflow_max == 9
    assert BatchingConfig.throughput(64, (4,), 16).get_pad_length(0, 3) == 3
    assert BatchingConfig.predictable(64, (4,), 16).get_pad_length(0, 3) == 4

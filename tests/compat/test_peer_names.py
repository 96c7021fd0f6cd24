"""Small names of chuk-lazarus's batching that are here with their arguments."""

from pathlib import Path

import numpy as np
import pytest

from phalanx.compat.chuk_lazarus.data.batching import (
    BatchingConfig,
    BatchPlanBuilder,
    BucketSpec,
    CollatedBatch,
    LengthEntry,
    OptimizationGoal,
    PackingConfig,
    PackingMetrics,
    SequenceToPack,
    TokenBudgetBatchSampler,
    collate_microbatch,
    compute_packing_metrics,
    create_segment_attention_mask,
    default_collate,
    pack_sequences,
)
from phalanx.data import assign_packs


def test_a_length_entry_is_a_line():
    entry = LengthEntry(sample_id="a", tokenizer_hash="t", length=3)
    assert entry.to_json() == '{"sample_id":"a","tokenizer_hash":"t","length":3}'
    assert LengthEntry.from_json(entry.to_json()) == entry


def test_goals_have_two_names():
    assert OptimizationGoal("minimize_waste") is OptimizationGoal.MINIMIZE_WASTE
    with pytest.raises(ValueError, match="speed"):
        OptimizationGoal("speed")


def test_a_plan_takes_its_packing_under_either_name():
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
    layout = assign_packs(np.array([2, 9]), PackingConfig(max_length=4, overlong="skip"))
    assert compute_packing_metrics(layout).summary()["num_skipped"] == 1


def test_every_token_counts_where_no_mask_is_given():
    arrays = default_collate([{"input_ids": [5, 6]}, {"input_ids": [7], "loss_mask": [0]}], 3)
    assert arrays["loss_mask"].tolist() == [[1, 1, 0], [0, 0, 0]]


@pytest.mark.parametrize("packing", [None, PackingConfig(max_length=8)])
def test_a_collated_batch_goes_through_a_file(tmp_path: Path, packing: PackingConfig | None):
    plan = BatchPlanBuilder({"a": 3, "b": 4}, BatchingConfig(), packing=packing).build_sync()
    samples = {"a": {"input_ids": [1, 2, 3]}, "b": {"input_ids": [4, 5, 6, 7]}}
    batch = collate_microbatch(plan.get_epoch(0)[0], samples, packing=packing)
    np.savez(tmp_path / "batch.npz", **batch.to_dict())
    with np.load(tmp_path / "batch.npz") as data:
        again = CollatedBatch.from_npz(data)
    assert again.spec == batch.spec
    for name in batch.keys():  # noqa: SIM118 - a batch is iterated over by its arrays' names
        assert np.array_equal(again[name], batch[name])


def test_a_batch_without_rows_and_lengths_has_one_sample_a_row():
    told = {"input_ids": np.ones((2, 3), np.int32), "loss_mask": np.ones((2, 3), np.int32)}
    batch = CollatedBatch.from_npz(
        told | {"sample_ids": ["a", "b"], "bucket_id": 0, "max_len": 3, "index": 0}
    )
    assert batch.sample_rows == (0, 1) and batch.lengths == (3, 3)


def test_bucket_sizes_may_be_called():
    sampler = TokenBudgetBatchSampler({"a": 3, "b": 9}, BucketSpec(edges=(4,), overflow_max=16), 64)
    assert sampler.bucket_sizes() == sampler.bucket_sizes == {0: 1, 1: 1}


def test_a_mask_of_numpy_is_asked_for_as_there():
    for mask in (
        create_segment_attention_mask([1, 1], False),
        create_segment_attention_mask([1, 1], use_mlx=False),
    ):
        assert mask.tolist() == [[True, False], [True, True]]
    with pytest.raises(ValueError, match=r"remove use_mlx, and use mlx.core.array\(mask\)"):
        create_segment_attention_mask([1, 1], use_mlx=True)


def test_figures_of_packing_that_are_called_otherwise_say_how():
    metrics = compute_packing_metrics(packed_sequences=[])
    for name, ours in (("total_loss_tokens", "loss_tokens"), ("record_skip", "compute_packing_metrics")):
        with pytest.raises(AttributeError, match=f"PackingMetrics has no {name}: use {ours}"):
            getattr(metrics, name)
    with pytest.raises(ValueError, match="PackingMetrics has no num_packed_sequences: use num_packs"):
        PackingMetrics(num_packed_sequences=3)

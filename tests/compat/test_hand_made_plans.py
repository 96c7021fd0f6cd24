"""Plans that are built manually from batch specs, as in chuk-lazarus."""

from pathlib import Path

import numpy as np
import pytest

from phalanx.compat.chuk_lazarus.data.batching import (
    BatchingConfig,
    BatchingMode,
    BatchPlan,
    BatchPlanMeta,
    BatchReader,
    BatchWriter,
    EpochPlan,
    MicrobatchSpec,
    MissingEpochError,
    PackingConfig,
    PadPolicy,
    load_batch_plan,
    save_batch_plan,
)


def spec(index: int, *samples: str, **more: object) -> MicrobatchSpec:
    return MicrobatchSpec(samples=samples, bucket_id=0, max_len=8, index=index, **more)


def meta(**more: object) -> BatchPlanMeta:
    parts = {"bucket_edges": (8, 16), "overflow_max": 32, "token_budget": 64, "base_seed": 7, "num_epochs": 2}
    return BatchPlanMeta(dataset_hash="d", tokenizer_hash="t", pad_policy="pad_to_bucket", **(parts | more))


def made() -> BatchPlan:
    """Three batches of five samples in the first epoch, two in the second."""
    plan = BatchPlan(meta=meta())
    plan.add_epoch(
        EpochPlan(epoch=0, microbatches=[spec(0, "a", "b"), spec(1, "c", "d"), spec(2, "e")], seed=7)
    )
    plan.add_epoch(EpochPlan(epoch=1, microbatches=[spec(0, "c", "e", "f"), spec(1, "b")], seed=8))
    return plan


def test_plan_contains_the_added_epochs():
    plan = made()
    assert (plan.num_epochs, plan.total_microbatches, plan.meta.num_epochs) == (2, 5, 2)
    assert [batch.samples for batch in plan.iter_epoch(1)] == [("c", "e", "f"), ("b",)]
    assert plan.get_epoch(0).num_microbatches == 3 and plan.get_epoch(0)[1].samples == ("c", "d")
    assert (plan.get_epoch(0).total_samples, plan.get_epoch(0).seed) == (5, 7)
    assert [place[:2] for place in plan.iter_from(0, 2)] == [(0, 2), (1, 0), (1, 1)]
    assert set(plan.table.ids) == set("abcdef")


def test_missing_epoch_raises_key_error():
    with pytest.raises(KeyError) as caught:
        made().get_epoch(9)
    assert isinstance(caught.value, MissingEpochError)
    assert str(caught.value) == "the plan has epochs 0 to 1, not epoch 9"


def test_replacing_an_epoch_changes_the_fingerprint():
    plan = made()
    before = plan.fingerprint
    assert len(before) == 16 and plan.fingerprint == before == made().fingerprint
    plan.add_epoch(EpochPlan(epoch=1, microbatches=[spec(0, "z")], seed=8))
    assert [batch.samples for batch in plan.iter_epoch(1)] == [("z",)]
    assert plan.fingerprint != before and plan.num_epochs == 2


def test_manual_plan_is_sharded_saved_and_loaded(tmp_path: Path):
    plan = made()
    parts = [plan.shard(rank=rank, world_size=2) for rank in range(2)]
    first = [sample for part in parts for batch in part.iter_epoch(0) for sample in batch.samples]
    assert sorted(first) == list("abcde")
    save_batch_plan(plan, tmp_path / "plan")
    loaded = load_batch_plan(tmp_path / "plan", verify=True)
    assert loaded.meta == plan.meta and loaded.fingerprint == plan.fingerprint
    assert list(loaded.iter_epoch(1)) == list(plan.iter_epoch(1))


@pytest.mark.parametrize("packing", [None, PackingConfig(max_length=8)])
def test_batches_with_unknown_lengths_are_allowed(tmp_path: Path, packing: PackingConfig | None):
    packs = None if packing is None else (("a", "b"), ("c",))
    plan = BatchPlan(meta=meta(pack_config=packing))
    plan.add_epoch(EpochPlan(epoch=0, microbatches=[spec(0, "a", "b", "c", packs=packs)]))
    samples = {name: {"input_ids": [ord(name)] * (1 + row)} for row, name in enumerate("abc")}
    BatchWriter(plan, samples, tmp_path / "files").write_all()
    (batch,) = BatchReader(tmp_path / "files").iter_epoch(0)
    assert batch.lengths == (1, 2, 3) and batch.sample_ids == ("a", "b", "c")
    assert batch.input_ids.shape == ((3, 8) if packing is None else (2, 8))
    assert np.count_nonzero(batch.input_ids) == 6


def test_given_lengths_are_kept_and_must_be_consistent():
    plan = BatchPlan(meta=meta())
    plan.add_epoch(EpochPlan(epoch=0, microbatches=[spec(0, "a", "b", lengths=(3, 5))], total_tokens=8))
    plan.add_epoch(EpochPlan(epoch=1, microbatches=[spec(0, "b"), spec(1, "a")], total_tokens=8))
    assert plan.table.as_dict() == {"a": 3, "b": 5}
    assert [batch.lengths for batch in plan.iter_epoch(1)] == [(5,), (3,)]
    assert plan.compute_metrics(0).efficiency == 0.5
    with pytest.raises(ValueError, match="sample 'a' has 3 tokens in one epoch and 4 in another"):
        plan.add_epoch(EpochPlan(epoch=2, microbatches=[spec(0, "a", lengths=(4,))]))


def test_given_token_counts_are_used_without_lengths():
    epoch = EpochPlan(epoch=0, microbatches=(spec(0, "a", "b"),), seed=42, total_samples=2, total_tokens=11)
    assert epoch.total_tokens == 11 and epoch[0].lengths == ()
    plan = BatchPlan(meta=meta())
    plan.add_epoch(epoch)
    assert plan.get_epoch(0).total_tokens == 11


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: EpochPlan(epoch=0, microbatches=[spec(0, "a")], total_samples=2),
            "has 1 samples, not total_samples=2",
        ),
        (
            lambda: EpochPlan(epoch=0, microbatches=[spec(0, "a", lengths=(3,))], total_tokens=2),
            "has 3 tokens, not total_tokens=2",
        ),
        (lambda: EpochPlan(epoch=0, microbatches=[spec(0)]), "at least 1 item"),
        (
            lambda: EpochPlan(epoch=0, microbatches=[spec(0, "a"), spec(1, "b", packs=(("b",),))]),
            "some microbatches have packs and some do not; a plan packs all or none",
        ),
        (
            lambda: spec(0, "a", "b", packs=(("b", "a"),)),
            "packs must have the same samples as `samples`, in the same order",
        ),
        (lambda: spec(0, "a", "b", lengths=(1,)), "2 samples but 1 lengths"),
        (lambda: EpochPlan(epoch=-1, microbatches=[spec(0, "a")]), "1 validation error for EpochPlan"),
        (
            lambda: made().shard(0, 2).add_epoch(EpochPlan(epoch=2, microbatches=[spec(0, "a")])),
            "cannot add an epoch to a shard",
        ),
    ],
)
def test_inconsistent_batches_are_rejected(make, message: str):
    with pytest.raises(ValueError, match=message):
        make()


def test_plan_metadata_accepts_fields_or_a_config():
    output = meta()
    assert (output.bucket_edges, output.overflow_max, output.token_budget) == ((8, 16), 32, 64)
    assert (output.pad_policy, output.base_seed, output.batching.mode) == ("pad_to_bucket", 7, "predictable")
    config = BatchingConfig.predictable(token_budget=64, bucket_edges=(8, 16), overflow_max=32, seed=7)
    created = BatchPlanMeta.create("d", "t", batching_config=config, num_epochs=2)
    assert created.batching == config == output.batching and created.num_epochs == 2
    assert BatchPlanMeta(num_epochs=1, token_budget=64).batching.mode is BatchingMode.THROUGHPUT


def test_default_mode_is_throughput_and_pad_policy_has_an_alias():
    config = BatchingConfig()
    assert (config.mode, config.pad_policy) == ("throughput", "pad_to_max_in_batch")
    assert (config.token_budget, config.bucket_edges, config.overflow_max) == (
        4096,
        (128, 256, 512, 1024),
        2048,
    )
    assert PadPolicy("pad_to_max") is PadPolicy.PAD_TO_MAX_IN_BATCH

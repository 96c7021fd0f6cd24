"""Batch plans: contents, resuming, packing, and the comparison of two plans."""

import dataclasses
import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from phalanx.data import (
    BatchingConfig,
    BatchingMode,
    BatchPlanBuilder,
    PackingConfig,
    PackingMode,
    TokenBudgetBatchSampler,
    compare_plans,
    verify_batch_plan,
)
from tests.helpers.length_cases import lognormal_lengths, recipes, sample_lists, small_plan

NARROW = BatchingConfig.predictable(token_budget=16, bucket_edges=(4,), max_sample_length=8)


def test_repr_is_short():
    plan = BatchPlanBuilder({"a": 3, "b": 4, "c": 8}, NARROW).build(num_epochs=2)
    assert repr(plan) == "BatchPlan(num_samples=3, num_epochs=2, num_batches=4)"


def test_plan_has_epochs_batches_and_metadata():
    lengths = {f"news-{row}": 30 + row % 7 * 60 for row in range(50)}
    batching = BatchingConfig.predictable(token_budget=3000, bucket_edges=(100, 200, 300), seed=6)
    plan = BatchPlanBuilder(
        lengths=lengths, batching_config=batching, dataset_hash="news", tokenizer_hash="words"
    ).build(num_epochs=3)
    assert plan.num_epochs == plan.meta.num_epochs == 3
    assert plan.num_batches == sum(len(plan.get_epoch(epoch)) for epoch in range(3))
    assert len(plan.fingerprint) == 16 and (plan.meta.dataset_hash, plan.meta.tokenizer_hash) == (
        "news",
        "words",
    )
    assert plan.meta.batching == batching and batching.max_sample_length == 2048
    epoch = plan.get_epoch(1)
    assert epoch.num_samples == 50 and epoch.total_tokens == sum(lengths.values())
    assert [batch.index for batch in epoch] == list(range(len(epoch)))
    assert epoch[-1] == epoch[len(epoch) - 1] and epoch[:2] == [epoch[0], epoch[1]]


@pytest.mark.parametrize("mode", ["predictable", "throughput"])
def test_plan_has_the_batches_of_the_sampler(mode):
    plan = small_plan(num_epochs=2)
    config = plan.meta.batching.model_copy(update={"mode": BatchingMode(mode)})
    plan = BatchPlanBuilder(plan.table, config).build(2)
    sampler = TokenBudgetBatchSampler.from_config(plan.table, config)
    for epoch in range(2):
        assert sample_lists(plan, epoch) == [batch.sample_ids for batch in sampler.iter_batches(epoch)]


@settings(max_examples=150, deadline=None)
@given(recipes())
def test_batches_respect_the_budget_and_contain_every_sample_once(recipe):
    plan = recipe.plan()
    config, packing = plan.meta.batching, plan.meta.packing
    batches = list(plan.iter_epoch(0))
    seen = list(itertools.chain.from_iterable(batch.sample_ids for batch in batches))
    missing = set(plan.table.ids) - {*seen, *(sample.sample_id for sample in plan.skipped)}
    assert len(set(seen)) == len(seen)
    assert bool(missing) <= config.drop_last
    assert len(plan.skipped) == plan.num_skipped
    for batch in batches:
        assert batch.num_samples >= 1
        assert batch.padded_token_count <= config.token_budget
        if packing is None:
            assert batch.packs is None
            continue
        assert tuple(itertools.chain.from_iterable(batch.packs)) == batch.sample_ids
        length = dict(zip(batch.sample_ids, batch.lengths, strict=True))
        gap = int(packing.separator_token_id is not None)
        fills = [sum(length[s] for s in pack) + gap * (len(pack) - 1) for pack in batch.packs]
        assert all(fills) and max(fills) <= packing.max_length
        assert batch.max_length == (packing.max_length if packing.pad_to_max else max(fills))


def test_packs_are_filled_and_padded_to_max_length():
    lengths = {"a": 5, "b": 3, "c": 8, "d": 4, "e": 4}
    plan = BatchPlanBuilder(lengths, NARROW, packing=PackingConfig(max_length=8)).build()
    packs = {frozenset(pack) for batch in plan.iter_epoch(0) for pack in batch.packs}
    assert packs == {frozenset("ab"), frozenset("c"), frozenset("de")}
    assert sorted(batch.num_rows for batch in plan.iter_epoch(0)) == [1, 2]
    assert {batch.max_length for batch in plan.iter_epoch(0)} == {8}
    unpadded = PackingConfig(max_length=8, pad_to_max=False)
    plan = BatchPlanBuilder({"a": 3, "b": 3}, NARROW, packing=unpadded).build()
    assert [batch.max_length for batch in plan.iter_epoch(0)] == [6]


@pytest.mark.parametrize(("samples", "min_efficiency"), [(1_000, 0.97), (20_000, 0.98)])
def test_epochs_use_different_packs_that_are_nearly_full(samples, min_efficiency):
    config = BatchingConfig.predictable(token_budget=16_384)
    builder = BatchPlanBuilder(lognormal_lengths(samples), config, packing=PackingConfig(max_length=2048))
    plan = builder.build(2)
    first, second = (
        {pack for batch in plan.iter_epoch(e) for pack in batch.packs if len(pack) > 1} for e in range(2)
    )
    assert len(first & second) < 0.05 * len(first)
    assert plan.compute_metrics().efficiency > min_efficiency


def test_packing_mode_changes_the_number_of_packs():
    lengths = {f"s{i}": length for i, length in enumerate([5, 4, 4, 3] * 4)}

    def num_packs(mode):
        plan = BatchPlanBuilder(lengths, NARROW, packing=PackingConfig(max_length=8, mode=mode)).build()
        return sum(batch.num_rows for batch in plan.iter_epoch(0))

    assert num_packs(PackingMode.BEST_FIT_DECREASING) == 8 < num_packs(PackingMode.GREEDY)


def test_overlong_policy_is_applied_to_samples_longer_than_a_pack():
    lengths = {"a": 2, "b": 7}

    def build(overlong):
        return BatchPlanBuilder(lengths, NARROW, packing=PackingConfig(max_length=5, overlong=overlong))

    with pytest.raises(
        ValueError,
        match=r"sample 1 \('b'\) has 7 tokens, more than the packing max_length 5, and overlong='e",
    ):
        build("error")
    with pytest.raises(ValueError, match="cannot split"):
        build("split")
    skipping = build("skip").build()
    assert [(s.sample_id, s.reason) for s in skipping.skipped] == [
        ("b", "longer than the packing max_length 5")
    ]
    truncated = build("truncate").build()
    batched_lengths = {
        sample: length
        for batch in truncated.iter_epoch(0)
        for sample, length in zip(batch.sample_ids, batch.lengths, strict=True)
    }
    assert batched_lengths == {"a": 2, "b": 5} and truncated.get_epoch(0).total_tokens == 7


def test_pack_length_above_the_budget_is_rejected():
    with pytest.raises(ValueError, match="the packing max_length 32 exceeds token_budget 16"):
        BatchPlanBuilder({"a": 1}, NARROW, packing=PackingConfig(max_length=32))


def test_zero_epochs_are_rejected():
    with pytest.raises(ValueError, match="num_epochs must be at least 1, got 0"):
        BatchPlanBuilder({"a": 1}, NARROW).build(0)


def test_overlong_samples_are_skipped_and_reported():
    builder = BatchPlanBuilder({"a": 1, "b": 9, "c": 100}, NARROW)
    assert builder.build().num_skipped == 2
    assert [(s.sample_id, s.length) for s in builder.build().skipped] == [("b", 9), ("c", 100)]


def test_rebuilt_plan_is_equal():
    plan = small_plan(num_epochs=2)
    assert verify_batch_plan(plan, plan.table.as_dict()) is None
    shard = plan.shard(1, 3, balance=True)
    assert verify_batch_plan(shard, plan.table) is None


@pytest.mark.parametrize(
    ("change", "cause", "message"),
    [
        ({"s7": 171}, "lengths", "sample 's7' had 170 tokens, now 171 (1 samples changed)"),
        ({"new": 100}, "membership", "50 samples before, 51 now, 'new' is new"),
    ],
)
def test_changed_lengths_are_reported_with_the_first_different_batch(change, cause, message):
    plan = small_plan()
    difference = verify_batch_plan(plan, plan.table.as_dict() | change)
    assert difference.cause == cause and message in difference.message
    assert difference.epoch == 0 and f"epoch 0, batch {difference.batch}:" in difference.message


def test_missing_sample_is_reported():
    plan = small_plan()
    lengths = plan.table.as_dict()
    del lengths["s3"]
    assert "50 samples before, 49 now, 's3' is missing" in verify_batch_plan(plan, lengths).message


def test_changed_settings_are_reported():
    plan = small_plan()
    config = plan.meta.batching.model_copy(update={"seed": 7, "token_budget": 1024})
    other = BatchPlanBuilder(plan.table, config, "data_v1", "tokenizer_v1").build()
    difference = compare_plans(plan, other)
    assert difference.cause == "config"
    assert "batching.token_budget was 2048, now 1024, batching.seed was 42, now 7" in difference.message


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_first_different_batch_is_the_changed_one(data):
    plan = small_plan(num_epochs=2)
    epoch = data.draw(st.integers(0, 1))
    old = plan.get_epoch(epoch)
    large = [i for i, batch in enumerate(old) if len(batch.sample_ids) > 1]
    batch = data.draw(st.sampled_from(large))
    order = old.batches.order.copy()
    begin, end = old.batches.offsets[batch : batch + 2]
    order[begin:end] = np.roll(order[begin:end], 1)
    changed = dataclasses.replace(old, batches=dataclasses.replace(old.batches, order=order))
    epochs = tuple(changed if e.epoch == epoch else e for e in plan.epochs)
    other = dataclasses.replace(plan, epochs=epochs)
    difference = compare_plans(plan, other)
    assert (difference.cause, difference.epoch, difference.batch) == ("order", epoch, batch)
    assert other.fingerprint != plan.fingerprint


@settings(max_examples=25, deadline=None)
@given(recipes())
def test_resuming_at_any_batch_equals_the_uninterrupted_run(recipe):
    plan = recipe.plan(num_epochs=2)
    complete = list(plan.batches())
    assert complete == [batch for epoch in plan.epochs for batch in epoch]
    iterator = plan.batches()
    for position in range(len(complete) + 1):
        resumed = plan.batches()
        resumed.load_state_dict(json.loads(json.dumps(iterator.state_dict())))
        assert list(resumed) == complete[position:]
        next(iterator, None)

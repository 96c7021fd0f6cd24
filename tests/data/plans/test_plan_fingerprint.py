"""Fingerprints of batches and plans change exactly when the batches or the settings change."""

import asyncio
import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from phalanx.compat.chuk_lazarus.data.batching.planning import (
    BatchFingerprint,
    MicrobatchSpec,
    compute_batch_fingerprint,
    compute_batch_fingerprint_async,
    load_fingerprint,
    load_fingerprint_async,
    save_fingerprint_async,
    verify_batch_fingerprint,
)
from phalanx.data import BatchingConfig, BatchPlanBuilder, LengthTable, PackingConfig
from tests.helpers.file_damage import write_json
from tests.helpers.length_cases import recipes, small_plan

CONFIG = BatchingConfig.predictable(token_budget=64, bucket_edges=(8,), max_sample_length=16)


def batch(*samples, lengths=None, max_length=8, bucket_id=0):
    lengths = tuple(lengths or [4] * len(samples))
    return MicrobatchSpec(samples=samples, bucket_id=bucket_id, max_len=max_length, index=0, lengths=lengths)


BATCHES = [batch("a", "b"), batch("c", "d")]
EXPECTED = compute_batch_fingerprint(BATCHES, CONFIG)


def reported_cause(batches, config=None):
    matches, message = verify_batch_fingerprint(batches, EXPECTED, config)
    assert matches is (message is None)
    return message.partition(":")[0] if message else None


def test_equal_batches_match():
    assert reported_cause(list(BATCHES)) is None
    assert reported_cause(list(BATCHES), CONFIG) is None
    assert EXPECTED.matches(compute_batch_fingerprint(list(BATCHES), CONFIG))
    assert len(EXPECTED.fingerprint) == 16 and EXPECTED.full_hash.startswith(EXPECTED.fingerprint)
    assert (EXPECTED.num_batches, EXPECTED.total_samples, EXPECTED.total_tokens) == (2, 4, 16)


@pytest.mark.parametrize(
    ("batches", "cause"),
    [
        ([batch("c", "d"), batch("a", "b")], "order changed"),
        ([batch("b", "a"), batch("c", "d")], "order changed"),
        ([batch("a", "b", "c"), batch("d")], "order changed"),
        ([batch("a", "c"), batch("b", "d")], "order changed"),
        ([batch("a", "b"), batch("c")], "membership changed"),
        ([batch("a", "b"), batch("c", "e")], "membership changed"),
        ([batch("a", "b"), batch("c", "d"), batch("a")], "membership changed"),
        ([batch("a", "b", lengths=[5, 4]), batch("c", "d")], "lengths changed"),
        ([batch("a", "b", lengths=[3, 5]), batch("c", "d")], "lengths changed"),
        ([batch("a", "b", max_length=16), batch("c", "d")], "lengths changed"),
        ([batch("b", "a", lengths=[5, 4]), batch("c", "e")], "membership changed"),
        ([batch("b", "a", lengths=[5, 4]), batch("c", "d")], "order changed"),
    ],
)
def test_change_is_detected_and_its_first_cause_reported(batches, cause):
    assert reported_cause(batches) == cause
    assert not EXPECTED.matches(compute_batch_fingerprint(batches, CONFIG))


def test_config_change_is_reported_first():
    other = CONFIG.model_copy(update={"seed": 7})
    assert reported_cause([batch("z")], other) == "config changed"
    assert not EXPECTED.matches(compute_batch_fingerprint(BATCHES, other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([batch("a", "b")], [batch("a,b")]),
        ([batch("a", "b")], [batch('a", "b')]),
        ([batch("ab"), batch("c")], [batch("a"), batch("bc")]),
        ([batch("a", "b"), batch("c")], [batch("a"), batch("b", "c")]),
        ([batch("a\n", "b")], [batch("a", "\nb")]),
    ],
)
def test_ids_with_equal_concatenations_do_not_collide(one, other):
    assert compute_batch_fingerprint(one).full_hash != compute_batch_fingerprint(other).full_hash


def test_fingerprint_depends_on_the_packs():
    def packed(*packs):
        samples = tuple(sample for pack in packs for sample in pack)
        return MicrobatchSpec(
            samples=samples, packs=packs, bucket_id=0, max_len=8, index=0, lengths=(2,) * len(samples)
        )

    one = compute_batch_fingerprint([packed(("a", "b"), ("c",))])
    assert one.full_hash != compute_batch_fingerprint([packed(("a",), ("b", "c"))]).full_hash
    assert verify_batch_fingerprint([packed(("a",), ("b", "c"))], one)[1].startswith("order changed")


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"token_budget": 65},
        {"bucket_edges": (9,)},
        {"max_sample_length": 17},
        {"mode": "throughput"},
        {"pad_policy": "pad_to_max_in_batch"},
        {"drop_last": True},
        {"interleave_buckets": False},
        {"min_length": 2},
        {"bucket_padded_lengths": (8, 32)},
    ],
)
def test_config_digest_depends_on_every_setting_that_affects_batches(change):
    assert BatchingConfig(**{**CONFIG.model_dump(), **change}).digest() != CONFIG.digest()


def test_config_digest_ignores_settings_without_effect():
    assert CONFIG.model_copy(update={"pool_batches": 5}).digest() == CONFIG.digest()
    same = BatchingConfig(**{**CONFIG.model_dump(), "bucket_padded_lengths": (8, 16)})
    assert same.digest() == CONFIG.digest()
    throughput = BatchingConfig.throughput()
    assert throughput.model_copy(update={"pool_batches": 5}).digest() != throughput.digest()


def test_loaded_fingerprint_equals_the_saved_one(tmp_path):
    EXPECTED.save(tmp_path / "print.json")
    assert BatchFingerprint.load(tmp_path / "print.json") == EXPECTED
    asyncio.run(save_fingerprint_async(EXPECTED, tmp_path / "rebuilt.json"))
    assert asyncio.run(load_fingerprint_async(tmp_path / "rebuilt.json")) == EXPECTED


def test_invalid_fingerprint_file_is_rejected(tmp_path):
    write_json(tmp_path / "bad.json", {"fingerprint": "x"})
    with pytest.raises(ValueError, match=r"bad.json is not a batch fingerprint: full_hash"):
        load_fingerprint(tmp_path / "bad.json")


def test_other_version_and_inconsistent_fingerprint_do_not_match():
    assert "version 0" in verify_batch_fingerprint(BATCHES, EXPECTED.model_copy(update={"version": 0}))[1]
    edited = EXPECTED.model_copy(update={"full_hash": "0" * 64})
    assert "is inconsistent" in verify_batch_fingerprint(BATCHES, edited)[1]


@settings(max_examples=40, deadline=None)
@given(recipes(), recipes())
def test_plan_fingerprints_are_equal_iff_batches_and_settings_are_equal(recipe, other_recipe):
    one, other = recipe.plan(), other_recipe.plan()

    def contents(plan):
        packing = plan.meta.packing
        settings = [plan.meta.batching.digest(), packing, packing and plan.meta.batching.pool_batches]
        # Batches only have the lengths after truncation.
        lengths = [plan.table.lengths[epoch.batches.order].tolist() for epoch in plan.epochs]
        return [list(epoch) for epoch in plan.epochs], lengths, settings

    assert (one.full_hash == other.full_hash) is (contents(one) == contents(other))
    assert recipe.plan().full_hash == one.full_hash


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 49), st.integers(1, 20))
def test_plan_fingerprint_depends_on_every_length(row, added):
    plan = small_plan()
    lengths = plan.table.as_dict()
    lengths[f"s{row}"] += added
    rebuilt = BatchPlanBuilder(lengths, plan.meta.batching, "data_v1", "tokenizer_v1").build()
    assert rebuilt.fingerprint != plan.fingerprint


def test_plan_fingerprint_depends_on_data_and_settings():
    config = BatchingConfig.predictable(
        token_budget=2048, bucket_edges=(128, 256, 512), max_sample_length=1024
    )
    lengths = {f"s{row}": length for row, length in enumerate(range(100, 600, 10))}

    def fingerprint(lengths=lengths, config=config, data="d", tokenizer="t", packing=None, epochs=1):
        return BatchPlanBuilder(lengths, config, data, tokenizer, packing).build(epochs).fingerprint

    renamed = {("x" if key == "s7" else key): value for key, value in lengths.items()}
    packing = PackingConfig(max_length=1024)
    variants = [
        fingerprint(),
        fingerprint(lengths=renamed),
        fingerprint(config=config.model_copy(update={"seed": 1})),
        fingerprint(data="other"),
        fingerprint(tokenizer="other"),
        fingerprint(epochs=2),
        fingerprint(packing=packing),
        fingerprint(packing=packing.model_copy(update={"max_length": 900})),
        fingerprint(packing=packing, config=config.model_copy(update={"pool_batches": 1})),
    ]
    assert len(set(variants)) == len(variants)


@pytest.mark.parametrize("name", ["order", "offsets", "bucket_ids", "max_lens", "pack_offsets"])
def test_plan_fingerprint_depends_on_every_array(name):
    plan = small_plan(packing=PackingConfig(max_length=1024))
    epoch = plan.get_epoch(0)
    array = getattr(epoch.batches, name).copy()
    if name == "order":
        array[[0, 1]] = array[[1, 0]]
    else:
        array[1] += 1
    changed = dataclasses.replace(epoch, batches=dataclasses.replace(epoch.batches, **{name: array}))
    assert dataclasses.replace(plan, epochs=(changed,)).fingerprint != plan.fingerprint


def test_plan_fingerprint_ignores_creation_time_and_skipped_samples():
    plan = small_plan()
    config = plan.meta.batching.model_copy(update={"pool_batches": 5})
    later = BatchPlanBuilder(plan.table, config, "data_v1", "tokenizer_v1").build()
    later = dataclasses.replace(later, meta=later.meta.model_copy(update={"created_at": "2001-01-01"}))
    assert later.fingerprint == plan.fingerprint
    # Skipped samples are in no batch.
    with_skipped = {**plan.table.as_dict(), "huge": 5000}
    rebuilt = BatchPlanBuilder(with_skipped, config, "data_v1", "tokenizer_v1").build()
    assert rebuilt.num_skipped == 1 and rebuilt.fingerprint == plan.fingerprint


def test_expected_fingerprint_can_be_a_short_or_full_hash():
    batches = list(small_plan().iter_epoch(0))
    found = compute_batch_fingerprint(batches)
    for text in (found.fingerprint, found.full_hash):
        assert verify_batch_fingerprint(batches, text) == (True, None)
    assert verify_batch_fingerprint(batches[:-1], found.fingerprint)[0] is False
    assert "not 0123" in verify_batch_fingerprint(batches, "0123")[1]
    config = BatchingConfig()
    with_config = compute_batch_fingerprint(batches, config)
    assert verify_batch_fingerprint(batches, with_config.fingerprint, config) == (True, None)
    assert with_config.matches_config(with_config) and not with_config.matches_config(found)


def test_fingerprint_can_be_limited_to_the_first_batches():
    batches = list(small_plan().iter_epoch(0))
    first = compute_batch_fingerprint(batches, n_batches=3)
    assert first == compute_batch_fingerprint(batches[:3]) and first.num_batches == 3
    assert verify_batch_fingerprint(batches, first, n_batches=3) == (True, None)
    assert verify_batch_fingerprint(batches, first)[0] is False


@pytest.mark.parametrize("n_batches", [None, 0, 2])
def test_async_fingerprint_equals_the_sync_one(n_batches: int | None):
    plan = small_plan()
    consumed = []

    async def batches():
        for batch in plan.iter_epoch(0):
            consumed.append(batch.index)
            yield batch

    found = asyncio.run(compute_batch_fingerprint_async(batches(), BatchingConfig(), n_batches))
    assert found == compute_batch_fingerprint(plan.iter_epoch(0), BatchingConfig(), n_batches)
    assert len(consumed) == (len(plan.get_epoch(0)) if n_batches is None else n_batches)


@pytest.mark.parametrize("count", [1, 9, 10, 11, 100, 12_345, 100_001])
def test_implicit_row_ids_hash_like_explicit_ones(count: int):
    lengths = np.ones(count, np.int32)
    explicit = LengthTable.from_arrays([str(row) for row in range(count)], lengths)
    plans = [
        BatchPlanBuilder(table, BatchingConfig(token_budget=2048)).build()
        for table in (explicit, LengthTable.from_arrays(None, lengths))
    ]
    assert plans[0].full_hash == plans[1].full_hash


def test_cached_table_hashes_do_not_change_fingerprints():
    table = LengthTable.from_arrays(["a", "b", "c"], np.array([3, 4, 5], np.int32))
    fresh = LengthTable.from_arrays(["a", "b", "c"], np.array([3, 4, 5], np.int32))
    for config in (BatchingConfig(token_budget=8), BatchingConfig(token_budget=9)):
        for epochs in (1, 2, 3):
            rebuilt = BatchPlanBuilder(table, config).build(epochs)
            assert rebuilt.full_hash == BatchPlanBuilder(fresh, config).build(epochs).full_hash
    skipping = BatchingConfig(token_budget=8, bucket_edges=(3,), max_sample_length=4)
    assert (
        BatchPlanBuilder(table, skipping).build().full_hash
        == BatchPlanBuilder({"a": 3, "b": 4, "c": 5}, skipping).build().full_hash
    )


def test_fingerprint_of_another_rank_can_be_adopted():
    first, second = small_plan(), small_plan()
    second.adopt_fingerprint(first.full_hash)
    assert second.__dict__["full_hash"] == first.full_hash and second.fingerprint == first.fingerprint
    with pytest.raises(ValueError, match="64 characters"):
        second.adopt_fingerprint(first.fingerprint)

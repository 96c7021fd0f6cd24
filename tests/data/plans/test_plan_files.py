"""Saving and loading plans: round trips, memory mapping, atomic replacement, and corrupt files."""

import threading

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from phalanx.data import (
    BatchingConfig,
    BatchPlanBuilder,
    LengthTable,
    PackingConfig,
    load_batch_plan,
    save_batch_plan,
    verify_batch_plan,
)
from phalanx.io.atomic import _machine_id
from phalanx.io.checksum import CorruptFileError
from tests.helpers.length_cases import recipes, small_plan


@pytest.fixture
def saved(tmp_path):
    save_batch_plan(small_plan(num_epochs=2), tmp_path / "train.plan")
    return tmp_path / "train.plan"


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(recipe=recipes())
def test_loaded_plan_equals_the_saved_one(tmp_path_factory, recipe):
    plan = recipe.plan(num_epochs=2)
    path = tmp_path_factory.mktemp("plans") / "a.plan"
    save_batch_plan(plan, path)
    loaded = load_batch_plan(path, verify=True)
    assert loaded.meta == plan.meta and loaded.fingerprint == plan.fingerprint
    assert [list(epoch) for epoch in loaded.epochs] == [list(epoch) for epoch in plan.epochs]
    assert loaded.skipped == plan.skipped and verify_batch_plan(loaded, plan.table) is None


def test_arrays_are_memory_mapped_and_ids_are_loaded_lazily(saved):
    plan = load_batch_plan(saved)
    assert not plan.get_epoch(0).batches.order.flags.owndata
    assert "_ids" not in vars(plan.table.ids)
    assert plan.get_epoch(0)[0].sample_ids == small_plan(num_epochs=2).get_epoch(0)[0].sample_ids


def test_plan_can_be_saved_in_a_folder(tmp_path):
    plan = small_plan()
    save_batch_plan(plan, f"{tmp_path}/batch_plan/")
    assert [path.name for path in (tmp_path / "batch_plan").iterdir()] == ["batch.plan"]
    assert load_batch_plan(tmp_path / "batch_plan").fingerprint == plan.fingerprint


def test_shards_are_saved_with_their_rank(tmp_path):
    shard = small_plan().shard(2, 4, policy="drop")
    save_batch_plan(shard, tmp_path / "rank2")
    loaded = load_batch_plan(tmp_path / "rank2", verify=True)
    assert (loaded.meta.shard.rank, loaded.meta.shard.world_size) == (2, 4)
    assert list(loaded.iter_epoch(0)) == list(shard.iter_epoch(0))


def test_ids_can_contain_anything(tmp_path):
    lengths = {"a,b": 1, 'say "x"': 2, "line\nbreak": 3, "größe": 4, "": 5, "\udcff": 6}
    plan = BatchPlanBuilder(lengths, BatchingConfig()).build()
    save_batch_plan(plan, tmp_path / "a.plan")
    assert load_batch_plan(tmp_path / "a.plan").table.as_dict() == lengths


def test_file_has_at_most_ten_bytes_per_sample(tmp_path):
    ids = [f"s{n}" for n in range(100_000)]
    table = LengthTable.from_arrays(ids, np.random.default_rng(0).integers(1, 500, len(ids)))
    save_batch_plan(BatchPlanBuilder(table, BatchingConfig.throughput(4096)).build(), tmp_path / "a.plan")
    assert (tmp_path / "a.plan").stat().st_size < 1_000_000


def test_overwriting_must_be_requested(saved):
    other = small_plan()
    with pytest.raises(FileExistsError, match="already exists"):
        save_batch_plan(other, saved)
    before = load_batch_plan(saved)
    save_batch_plan(other, saved, overwrite=True)
    assert load_batch_plan(saved).num_epochs == 1
    assert list(before.iter_epoch(1)) == list(small_plan(num_epochs=2).iter_epoch(1))


@pytest.mark.parametrize("part", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_changed_byte_is_detected(saved, part):
    data = bytearray(saved.read_bytes())
    data[int(part * (len(data) - 64))] ^= 1
    saved.write_bytes(data)
    with pytest.raises((CorruptFileError, ValueError), match=r"train\.plan"):
        load_batch_plan(saved, verify=True)


@pytest.mark.parametrize("size", [0, 20, 100, 2000])
def test_truncated_file_is_rejected(saved, size):
    saved.write_bytes(saved.read_bytes()[:size])
    with pytest.raises(CorruptFileError, match=r"train\.plan"):
        load_batch_plan(saved)


def test_concurrent_readers_load_the_old_or_the_new_plan(saved):
    plans = [small_plan(num_epochs=2), small_plan(samples=20)]
    fingerprints = {plan.fingerprint for plan in plans}
    stop = threading.Event()
    writes = 0

    def overwrite():
        nonlocal writes
        while not stop.is_set():
            save_batch_plan(plans[writes % 2], saved, overwrite=True)
            writes += 1

    writer = threading.Thread(target=overwrite)
    writer.start()
    reads = 0
    try:
        while writer.is_alive() and (writes < 12 or reads < 12):
            assert load_batch_plan(saved, verify=True).fingerprint in fingerprints
            reads += 1
    finally:
        stop.set()
        writer.join()
    assert writes >= 12 and reads >= 12


def test_temporary_file_of_a_killed_writer_is_removed(saved):
    leftover = saved.with_name(f".train.plan.999999999-{_machine_id()}0123.tmp")
    leftover.touch()
    save_batch_plan(small_plan(), saved, overwrite=True)
    assert [path.name for path in saved.parent.iterdir()] == ["train.plan"]


def test_lengths_above_sixteen_bits_are_saved(tmp_path):
    lengths = {"a": 3, "b": 70_000}
    plan = BatchPlanBuilder(lengths, BatchingConfig.throughput(100_000, max_sample_length=80_000)).build()
    save_batch_plan(plan, tmp_path / "a.plan")
    assert load_batch_plan(tmp_path / "a.plan", verify=True).table.as_dict() == lengths


def test_loaded_plan_can_be_sharded_and_resumed(saved):
    plan, loaded = small_plan(num_epochs=2), load_batch_plan(saved)
    assert list(loaded.shard(1, 3).iter_epoch(1)) == list(plan.shard(1, 3).iter_epoch(1))
    iterator = plan.batches(1, 3)
    for _ in range(2):
        next(iterator)
    resumed = loaded.batches(1, 3)
    resumed.load_state_dict(iterator.state_dict())
    assert list(resumed) == list(iterator)


def test_other_files_in_the_folder_are_kept(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "notes.txt").write_text("mine")
    save_batch_plan(small_plan(), tmp_path / "folder", overwrite=True)
    assert sorted(path.name for path in (tmp_path / "folder").iterdir()) == ["batch.plan", "notes.txt"]


def test_packed_plan_keeps_its_packs(tmp_path):
    plan = small_plan(num_epochs=2, packing=PackingConfig(max_length=1024))
    save_batch_plan(plan, tmp_path / "a.plan")
    loaded = load_batch_plan(tmp_path / "a.plan", verify=True)
    assert [batch.packs for batch in loaded.iter_epoch(1)] == [batch.packs for batch in plan.iter_epoch(1)]
    assert loaded.meta.packing == plan.meta.packing


def test_missing_and_outdated_plans_are_rejected(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no batch plan"):
        load_batch_plan(tmp_path / "nothing")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "plan.json").write_text("{}")
    with pytest.raises(ValueError, match="was saved by an earlier version"):
        load_batch_plan(tmp_path / "old")


def test_expected_hashes_are_checked(tmp_path):
    plan = BatchPlanBuilder({"a": 3}, BatchingConfig(), "data", "tokenizer", PackingConfig()).build()
    save_batch_plan(plan, tmp_path / "a.plan")
    load_batch_plan(tmp_path / "a.plan", expected_dataset_hash="data", expected_tokenizer_hash="tokenizer")
    with pytest.raises(ValueError, match="built with the tokenizer 'tokenizer', but 'other' is expected"):
        load_batch_plan(tmp_path / "a.plan", expected_tokenizer_hash="other")

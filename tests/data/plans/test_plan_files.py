"""Plans on disk: read back as they were, small, mapped, and refused when damaged."""

import asyncio
import hashlib
import json
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
    load_batch_plan_async,
    save_batch_plan,
    save_batch_plan_async,
    verify_batch_plan,
)
from phalanx.io.atomic import _machine_id
from phalanx.io.checksum import CorruptFileError
from tests.helpers.file_damage import write_json
from tests.helpers.length_cases import lognormal_lengths, recipes, small_plan


@pytest.fixture
def saved(tmp_path):
    save_batch_plan(small_plan(num_epochs=2), tmp_path / "plan")
    return tmp_path / "plan"


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(recipe=recipes())
def test_a_plan_comes_back_as_it_was(tmp_path_factory, recipe):
    plan = recipe.plan(num_epochs=2)
    folder = tmp_path_factory.mktemp("plans") / "plan"
    save_batch_plan(plan, folder)
    loaded = load_batch_plan(folder, verify=True)
    assert loaded.meta == plan.meta and loaded.fingerprint == plan.fingerprint
    assert [list(epoch) for epoch in loaded.epochs] == [list(epoch) for epoch in plan.epochs]
    assert [epoch.seed for epoch in loaded.epochs] == [epoch.seed for epoch in plan.epochs]
    assert loaded.skipped == plan.skipped and verify_batch_plan(loaded, plan.table) is None


def test_a_loaded_plan_is_mapped_and_its_ids_are_read_when_needed(saved):
    plan = load_batch_plan(saved)
    order = plan.get_epoch(0).batches.order
    assert isinstance(order, np.memmap) or isinstance(order.base, np.memmap)
    assert plan.table.ids._ids is None
    assert plan.fingerprint == small_plan(num_epochs=2).fingerprint and plan.table.ids._ids is None
    assert plan.get_epoch(0)[0].samples == small_plan(num_epochs=2).get_epoch(0)[0].samples


def test_a_loaded_plan_shards_and_resumes(saved):
    plan, loaded = small_plan(num_epochs=2), load_batch_plan(saved)
    assert list(loaded.shard(1, 4).iter_from(0)) == list(plan.shard(1, 4).iter_from(0))
    assert list(loaded.remaining(0, 2, 3).iter_from(0)) == list(plan.remaining(0, 2, 3).iter_from(0))


def test_shards_are_saved_with_their_rank(tmp_path):
    shard = small_plan().shard(2, 4, policy="drop")
    save_batch_plan(shard, tmp_path / "rank2")
    loaded = load_batch_plan(tmp_path / "rank2", verify=True)
    assert (loaded.meta.shard.rank, loaded.meta.shard.world_size) == (2, 4)
    assert loaded.meta.shard.plan_fingerprint == small_plan().fingerprint
    assert list(loaded.iter_epoch(0)) == list(shard.iter_epoch(0))


def test_ids_may_hold_anything(tmp_path):
    lengths = {"a,b": 1, 'say "x"': 2, "line\nbreak": 3, "größe ✓": 4, "": 5, "\udcff": 6}
    plan = BatchPlanBuilder(lengths, BatchingConfig()).build()
    save_batch_plan(plan, tmp_path / "plan")
    assert load_batch_plan(tmp_path / "plan", verify=True).table.as_dict() == lengths


def test_lengths_above_sixteen_bits_survive(tmp_path):
    config = BatchingConfig(token_budget=200_000, overflow_max=150_000)
    plan = BatchPlanBuilder({"a": 100_000, "b": 5}, config).build()
    save_batch_plan(plan, tmp_path / "plan")
    assert load_batch_plan(tmp_path / "plan", verify=True).table.as_dict() == {"a": 100_000, "b": 5}


def test_a_sample_takes_less_than_ten_bytes_with_ids_and_seven_without(tmp_path):
    table = lognormal_lengths(100_000)
    named = LengthTable.from_arrays([f"s{i}" for i in range(100_000)], table.lengths)
    for lengths, limit in ((named, 10.0), (table, 7.0)):
        plan = BatchPlanBuilder(lengths, BatchingConfig.predictable(16_384)).build()
        folder = tmp_path / str(limit)
        save_batch_plan(plan, folder)
        assert sum(file.stat().st_size for file in folder.iterdir()) / 100_000 < limit


def test_saving_and_loading_work_asynchronously(tmp_path):
    plan = small_plan()
    asyncio.run(save_batch_plan_async(plan, tmp_path / "plan"))
    assert asyncio.run(load_batch_plan_async(tmp_path / "plan", verify=True)).fingerprint == plan.fingerprint


def test_an_older_plan_is_replaced_only_when_asked(saved):
    other = small_plan(samples=20)
    with pytest.raises(FileExistsError, match="already exists and is not empty"):
        save_batch_plan(other, saved)
    assert load_batch_plan(saved).fingerprint == small_plan(num_epochs=2).fingerprint
    save_batch_plan(other, saved, overwrite=True)
    assert load_batch_plan(saved, verify=True).fingerprint == other.fingerprint
    assert [path.name for path in saved.parent.iterdir()] == ["plan"]


def test_overwriting_does_not_touch_a_folder_that_is_no_plan(tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").touch()
    with pytest.raises(FileExistsError, match="not empty"):
        save_batch_plan(small_plan(), tmp_path / "photos", overwrite=True)
    assert (tmp_path / "photos" / "cat.jpg").exists()


def test_a_plan_from_another_tokenizer_or_dataset_is_refused(saved):
    assert load_batch_plan(saved, expected_tokenizer_hash="tokenizer_v1", expected_dataset_hash="data_v1")
    with pytest.raises(ValueError, match="was made from the tokenizer 'tokenizer_v1', not 'tokenizer_v2'"):
        load_batch_plan(saved, expected_tokenizer_hash="tokenizer_v2")
    with pytest.raises(ValueError, match="was made from the dataset 'data_v1', not 'data_v2'"):
        load_batch_plan(saved, expected_dataset_hash="data_v2")


@pytest.mark.parametrize("name", ["order.npy", "offsets.npy", "lengths.npy", "ids.json.gz", "plan.json"])
def test_a_missing_file_is_named(saved, name):
    (saved / name).unlink()
    with pytest.raises(FileNotFoundError, match=name):
        load_batch_plan(saved)


@pytest.mark.parametrize(
    "name", ["order.npy", "offsets.npy", "max_lens.npy", "bucket_ids.npy", "lengths.npy"]
)
def test_a_file_cut_short_is_named(saved, name):
    content = (saved / name).read_bytes()
    for length in (len(content) - 4, 40, 0):
        (saved / name).write_bytes(content[:length])
        with pytest.raises(CorruptFileError, match=rf"{name} is corrupt"):
            load_batch_plan(saved)


def test_ids_cut_short_are_named_when_they_are_read(saved):
    content = (saved / "ids.json.gz").read_bytes()
    (saved / "ids.json.gz").write_bytes(content[:-20])
    with pytest.raises(ValueError, match=r"ids\.json\.gz is corrupt"):
        load_batch_plan(saved).get_epoch(0)[0]


def test_a_changed_file_is_found_at_once_and_changed_batches_by_verifying(saved):
    order = np.load(saved / "order.npy")
    order[[0, 1]] = order[[1, 0]]
    np.save(saved / "order.npy", order)
    with pytest.raises(CorruptFileError, match=r"order\.npy is corrupt.*build the plan again"):
        load_batch_plan(saved)
    header = json.loads((saved / "plan.json").read_text())
    digest = hashlib.sha256((saved / "order.npy").read_bytes()).hexdigest()
    write_json(saved / "plan.json", {**header, "files": {**header["files"], "order.npy": digest}})
    load_batch_plan(saved)
    with pytest.raises(ValueError, match="holds other batches than it says"):
        load_batch_plan(saved, verify=True)


def test_readers_find_the_old_plan_or_the_new_one_while_it_is_overwritten(saved):
    plans = [small_plan(num_epochs=2), small_plan(samples=20)]
    prints = {plan.fingerprint for plan in plans}
    done = threading.Event()

    def overwrite():
        for turn in range(12):
            save_batch_plan(plans[turn % 2], saved, overwrite=True)
        done.set()

    writer = threading.Thread(target=overwrite)
    writer.start()
    reads = 0
    while not done.is_set():
        assert load_batch_plan(saved, verify=True).fingerprint in prints
        reads += 1
    writer.join()
    assert reads > 3


def test_a_plan_that_was_replaced_and_put_back_in_the_middle_is_read_again(saved, monkeypatch):
    first, second = small_plan(num_epochs=2), small_plan(samples=20)
    save_batch_plan(first, saved, overwrite=True)
    load, replaced = np.load, []

    def load_from_another(path, **options):
        if path.name != "offsets.npy" or replaced:
            return load(path, **options)
        replaced.append(path)
        save_batch_plan(second, saved, overwrite=True)
        array = load(path, **options)
        save_batch_plan(first, saved, overwrite=True)
        return array

    monkeypatch.setattr(np, "load", load_from_another)
    assert load_batch_plan(saved, verify=True).fingerprint == first.fingerprint
    assert replaced


def test_what_a_killed_writer_left_is_removed_by_the_next(saved):
    left = saved.with_name(".plan.999999999-" + _machine_id() + "0123.tmp")
    left.mkdir()
    (left / "order.npy").touch()
    save_batch_plan(small_plan(), saved, overwrite=True)
    assert [path.name for path in saved.parent.iterdir()] == ["plan"]


def test_a_header_that_is_none_is_refused(saved):
    header = json.loads((saved / "plan.json").read_text())
    write_json(saved / "plan.json", {**header, "num_samples": "many"})
    with pytest.raises(ValueError, match=r"plan.json is not a plan's header: num_samples"):
        load_batch_plan(saved)
    write_json(saved / "plan.json", {**header, "meta": {**header["meta"], "version": 99}})
    with pytest.raises(ValueError, match="has version 99, this reads version 2"):
        load_batch_plan(saved)
    for text in ("{", "[]", json.dumps(header).replace("true", "false")):
        (saved / "plan.json").write_text(text)
        with pytest.raises(CorruptFileError, match=r"plan.json is corrupt"):
            load_batch_plan(saved)


def test_a_packed_plan_keeps_its_packs(tmp_path):
    plan = small_plan(num_epochs=2, packing=PackingConfig(max_length=1024))
    save_batch_plan(plan, tmp_path / "plan")
    loaded = load_batch_plan(tmp_path / "plan", verify=True)
    assert [batch.packs for batch in loaded.iter_epoch(1)] == [batch.packs for batch in plan.iter_epoch(1)]
    assert loaded.meta.packing == plan.meta.packing

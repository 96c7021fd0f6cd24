"""Batch files: collation, writing, interruption, and reading."""

import json
from pathlib import Path

import numpy as np
import pytest

from phalanx.compat.chuk_lazarus.data.batching.generation import (
    BatchReader,
    BatchWriter,
    default_collate,
    pad_sequences,
)
from phalanx.compat.chuk_lazarus.data.batching.planning import (
    BatchPlan,
    BatchPlanBuilder,
    BatchPlanMeta,
    EpochPlan,
    MicrobatchSpec,
)
from phalanx.data import BatchingConfig, OverlongPolicy, PackingConfig, Sample, TokenBatch, collate
from phalanx.io.atomic import _machine_id
from phalanx.io.checksum import CorruptFileError
from tests.helpers.file_damage import write_json

LENGTHS = {f"s{i}": 3 + i for i in range(12)}


def samples(lengths: dict[str, int] = LENGTHS) -> dict[str, dict[str, list[int]]]:
    """Return samples with tokens 100, 101, ...; the first token of each sample is not in the loss."""
    return {
        sample_id: {"input_ids": list(range(100, 100 + n)), "loss_mask": [0] + [1] * (n - 1)}
        for sample_id, n in lengths.items()
    }


def plan(num_epochs: int = 2, packing: PackingConfig | None = None, seed: int = 1) -> BatchPlan:
    config = BatchingConfig.predictable(token_budget=32, bucket_edges=(8,), max_sample_length=16, seed=seed)
    return BatchPlanBuilder(LENGTHS, config, packing=packing).build_sync(num_epochs)


def test_sequences_are_padded_to_equal_length() -> None:
    assert pad_sequences([[1, 2], [], [3]], 9).tolist() == [[1, 2], [9, 9], [3, 9]]
    assert pad_sequences([[1]], 0, max_length=3).tolist() == [[1, 0, 0]]
    assert pad_sequences([], 0, max_length=3).shape == (0, 3)


def test_sequences_longer_than_max_length_are_rejected() -> None:
    with pytest.raises(ValueError, match="sequence 1 has 3 tokens, more than max_length 2"):
        pad_sequences([[1], [1, 2, 3]], 0, max_length=2)


def test_padding_has_the_pad_token_and_no_loss() -> None:
    arrays = default_collate([{"input_ids": np.array([5, 6]), "loss_mask": np.array([0, 1])}], 3, pad_id=7)
    assert arrays["input_ids"].tolist() == [[5, 6, 7]]
    assert arrays["loss_mask"].tolist() == [[0, 1, 0]]


def collate_rows(
    tokens: dict, packing: PackingConfig | None = None, pad_id: int = 0, **changes: object
) -> TokenBatch:
    """Collate one batch of `a` (two tokens) and `b` (one token) in rows of four, with the given changes."""
    fields = {"samples": ("a", "b"), "bucket_id": 0, "max_len": 4, "index": 0, "lengths": (2, 1)}
    spec = MicrobatchSpec.model_validate(fields | changes)
    plan = BatchPlan(BatchPlanMeta(num_epochs=1, packing=packing), {0: EpochPlan(0, [spec])})
    return collate(plan.arrays.get_epoch(0)[0], tokens, pad_id=pad_id)


TOKENS = {"a": Sample("a", [5, 6], [0, 1]), "b": {"input_ids": [7]}}


def test_arrays_of_a_batch_are_accessed_by_name() -> None:
    batch = collate_rows(TOKENS)
    assert batch["input_ids"].tolist() == [[5, 6, 0, 0], [7, 0, 0, 0]]
    assert batch["loss_mask"].tolist() == [[0, 1, 0, 0], [1, 0, 0, 0]]


def test_loaded_batch_is_a_mapping_of_arrays(tmp_path: Path) -> None:
    BatchWriter(plan(), samples(), tmp_path / "out").write_all()
    batch = BatchReader(tmp_path / "out").get_batch(0, 3)
    assert dict(batch).keys() >= {"input_ids"}
    assert set({**batch}) == {"input_ids", "loss_mask"}
    assert "input_ids" in batch and "segment_ids" not in batch and "index" not in batch
    assert batch.spec == plan().get_epoch(0)[3]
    with pytest.raises(KeyError, match="the batch has no array 'labels'; it has input_ids, loss_mask"):
        batch["labels"]


def test_packed_batch_has_segment_ids_and_restarted_positions() -> None:
    batch = collate_rows(TOKENS, PackingConfig(max_length=4), packs=(("a", "b"),))
    assert batch["input_ids"].tolist() == [[5, 6, 7, 0]]
    assert batch["segment_ids"].tolist() == [[1, 1, 2, 0]]
    assert batch["position_ids"].tolist() == [[0, 1, 0, 0]]
    assert batch["loss_mask"].tolist() == [[0, 1, 1, 0]]


def test_short_pack_is_padded_to_the_planned_length() -> None:
    config = PackingConfig(max_length=4, pad_to_max=False)
    batch = collate_rows(TOKENS, config, pad_id=9, packs=(("a", "b"),))
    assert batch["input_ids"].tolist() == [[5, 6, 7, 9]]


def test_only_planned_truncation_is_applied() -> None:
    long = {"a": {"input_ids": [1, 2, 3, 4, 5]}}
    changes = {"samples": ("a",), "packs": (("a",),)}
    config = PackingConfig(max_length=4, overlong=OverlongPolicy.TRUNCATE)
    assert collate_rows(long, config, **changes, lengths=(5,))["input_ids"].tolist() == [[1, 2, 3, 4]]
    with pytest.raises(ValueError, match="'a' has 5 tokens, but 4 were planned"):
        collate_rows(long, PackingConfig(max_length=4), **changes, lengths=(4,))


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ({"a": TOKENS["a"]}, "the plan has sample 'b', but the dataset does not"),
        ({"a": {"input_ids": [1]}, "b": TOKENS["b"]}, "'a' has 1 tokens, but 2 were planned"),
        ({"a": {"text": "x"}, "b": TOKENS["b"]}, "'a' has no input_ids; it has text"),
        ({"a": {"input_ids": [1, 2], "loss_mask": [1]}, "b": TOKENS["b"]}, "2 input_ids but 1 entries"),
    ],
)
def test_samples_that_differ_from_the_plan_are_rejected(tokens: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        collate_rows(tokens)


@pytest.mark.parametrize("packing", [None, PackingConfig(max_length=16)])
def test_written_batches_are_read_back(tmp_path: Path, packing: PackingConfig | None) -> None:
    batch_plan = plan(packing=packing)
    paths = BatchWriter(batch_plan, samples(), tmp_path / "out").write_all()
    assert len(paths) == batch_plan.total_microbatches
    assert paths[0] == tmp_path / "out/epoch_0/batch_000000.npz"
    reader = BatchReader(tmp_path / "out")
    assert reader.num_epochs == 2
    assert reader.fingerprint == batch_plan.fingerprint
    assert reader.verify_fingerprint(batch_plan.fingerprint)
    assert not reader.verify_fingerprint("another")
    assert reader.verify() == len(paths)
    tokens = samples()
    for epoch in range(2):
        seen = []
        for planned, (found, batch) in zip(
            batch_plan.iter_epoch(epoch), reader.iter_epoch_specs(epoch), strict=True
        ):
            assert found == planned
            assert batch["input_ids"].shape == (planned.num_packs, planned.max_len)
            assert batch["input_ids"].sum() == sum(sum(tokens[i]["input_ids"]) for i in planned.samples)
            assert batch["loss_mask"].sum() == sum(sum(tokens[i]["loss_mask"]) for i in planned.samples)
            seen += batch.sample_ids
        assert sorted(seen) == sorted(LENGTHS)


def test_files_can_be_loaded_with_numpy(tmp_path: Path) -> None:
    path = BatchWriter(plan(), samples(), tmp_path / "out").write_all()[0]
    with np.load(path, allow_pickle=False) as archive:
        assert archive["input_ids"].dtype == np.int32
        assert {"input_ids", "loss_mask", "sample_ids", "bucket_id", "max_len", "index"} <= set(archive.files)


def test_two_runs_write_the_same_bytes(tmp_path: Path) -> None:
    one = BatchWriter(plan(), samples(), tmp_path / "1").write_all()
    two = BatchWriter(plan(), samples(), tmp_path / "2").write_all()
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in two]


def test_interrupted_writing_can_be_resumed(tmp_path: Path) -> None:
    complete = BatchWriter(plan(), samples(), tmp_path / "complete").write_all()

    def interrupt(path: Path) -> None:
        if path.name == "batch_000002.npz":
            raise KeyboardInterrupt

    writer = BatchWriter(plan(), samples(), tmp_path / "out")
    with pytest.raises(KeyboardInterrupt):
        writer.write_all(interrupt)
    first = tmp_path / "out/epoch_0/batch_000000.npz"
    before = first.stat().st_mtime_ns
    (first.parent / f".batch_000003.npz.999999999-{_machine_id()}0123.tmp").write_bytes(
        b"left by a killed run"
    )
    with pytest.raises(FileNotFoundError, match=r"batch_000003\.npz is missing \(the epoch is incomplete\)"):
        BatchReader(tmp_path / "out").iter_epoch(0)
    paths = writer.write_all()
    assert first.stat().st_mtime_ns == before
    assert [path.read_bytes() for path in paths] == [path.read_bytes() for path in complete]
    assert sorted(path.name for path in first.parent.iterdir()) == [
        p.name for p in paths if p.parent == first.parent
    ]


def test_corrupt_file_is_rewritten_on_resume(tmp_path: Path) -> None:
    writer = BatchWriter(plan(), samples(), tmp_path / "out")
    paths = writer.write_all()
    original = paths[1].read_bytes()
    paths[1].write_bytes(original[:100])
    writer.write_all()
    assert paths[1].read_bytes() == original


def test_file_of_other_samples_is_rejected(tmp_path: Path) -> None:
    BatchWriter(plan(), samples(), tmp_path / "out").write_all()
    other = samples()
    other["s4"]["input_ids"][0] += 1
    with pytest.raises(
        ValueError, match=r"batch_000001\.npz differs from the batch of the plan and the samples: the samples"
    ):
        BatchWriter(plan(), other, tmp_path / "out").write_all()


def test_folder_of_another_plan_is_rejected(tmp_path: Path) -> None:
    BatchWriter(plan(), samples(), tmp_path / "out").write_all()
    with pytest.raises(
        ValueError, match="out has batches of plan fff0a2cc905f11d2, not of this plan 2c3e0f438eddc85f"
    ):
        BatchWriter(plan(seed=2), samples(), tmp_path / "out").write_all()
    with pytest.raises(ValueError, match="was written with pad_id 0, not 5"):
        BatchWriter(plan(), samples(), tmp_path / "out", pad_id=5).write_all()


def test_nonempty_folder_without_manifest_is_not_modified(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(
        FileExistsError, match=r"test_nonempty_folder_without_m0 is not empty and has no manifest\.json"
    ):
        BatchWriter(plan(), samples(), tmp_path).write_all()
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_missing_file_is_reported_before_reading(tmp_path: Path) -> None:
    paths = BatchWriter(plan(), samples(), tmp_path / "out").write_all()
    paths[2].unlink()
    reader = BatchReader(tmp_path / "out")
    with pytest.raises(FileNotFoundError, match=rf"{paths[2].name} is missing; run BatchWriter again"):
        reader.iter_epoch(0)
    with pytest.raises(FileNotFoundError, match=rf"{paths[2].name} is missing"):
        reader.get_batch(0, 2)


@pytest.mark.parametrize("damage", ["cut", "empty", "flip", "text"])
def test_corrupt_file_is_reported(tmp_path: Path, damage: str) -> None:
    path = BatchWriter(plan(), samples(), tmp_path / "out").write_all()[1]
    data = bytearray(path.read_bytes())
    if damage == "flip":
        data[data.find(np.array([100, 101], np.int32).tobytes())] ^= 1
    changed = {"cut": data[:-30], "empty": b"", "flip": data, "text": b"hello"}[damage]
    path.write_bytes(bytes(changed))
    with pytest.raises(ValueError, match=r"batch_000001\.npz is corrupt"):
        BatchReader(tmp_path / "out").verify()


def test_swapped_files_are_detected(tmp_path: Path) -> None:
    paths = BatchWriter(plan(), samples(), tmp_path / "out").write_all()
    one, two = paths[0].read_bytes(), paths[1].read_bytes()
    paths[0].write_bytes(two)
    paths[1].write_bytes(one)
    with pytest.raises(
        ValueError, match=r"batch_000000\.npz has batch 1 of epoch 0 of plan fff0a2cc905f11d2, not batch 0 of"
    ):
        list(BatchReader(tmp_path / "out").iter_epoch(0))


def test_single_epoch_can_be_written_and_read(tmp_path: Path) -> None:
    writer = BatchWriter(plan(), samples(), tmp_path / "out")
    writer.write_epoch(1)
    reader = BatchReader(tmp_path / "out")
    assert len(list(reader.iter_epoch(1))) == reader.num_batches(1)
    with pytest.raises(FileNotFoundError, match=r"epoch_0/batch_000000\.npz is missing"):
        reader.iter_epoch(0)
    with pytest.raises(ValueError, match=r"out has the epochs \[0, 1\], not epoch 5"):
        reader.iter_epoch(5)
    with pytest.raises(ValueError, match="batch index must be between 0 and"):
        reader.get_batch(1, 99)


def test_shards_with_more_ranks_than_batches_can_be_written(tmp_path: Path) -> None:
    complete = plan(num_epochs=1)
    ranks = complete.total_microbatches + 1
    shards = [complete.shard(rank, ranks, policy="split") for rank in range(ranks)]
    seen: list[str] = []
    for rank, shard in enumerate(shards):
        BatchWriter(shard, samples(), tmp_path / str(rank)).write_all()
        seen += [i for batch in BatchReader(tmp_path / str(rank)).iter_epoch(0) for i in batch.sample_ids]
    assert sorted(seen) == sorted(LENGTHS)


def test_custom_collate_function_can_add_arrays(tmp_path: Path) -> None:
    def with_labels(tokens: list[dict[str, np.ndarray]], max_len: int, pad_id: int) -> dict[str, np.ndarray]:
        arrays = default_collate(tokens, max_len, pad_id)
        return arrays | {"labels": np.where(arrays["loss_mask"] == 1, arrays["input_ids"], -100)}

    BatchWriter(plan(), samples(), tmp_path / "out", collate_fn=with_labels).write_all()
    batch = BatchReader(tmp_path / "out").get_batch(0, 0)
    assert batch["labels"][0, 0] == -100
    assert batch["labels"][0, 1] == 101


def test_collate_function_that_drops_a_row_is_rejected(tmp_path: Path) -> None:
    def lossy(tokens: list[dict[str, np.ndarray]], max_len: int, pad_id: int) -> dict[str, np.ndarray]:
        return default_collate(tokens[1:], max_len, pad_id)

    with pytest.raises(ValueError, match=r"batch 0: collate_fn returned \d+ rows of input_ids for"):
        BatchWriter(plan(), samples(), tmp_path / "out", collate_fn=lossy).write_all()


def test_folder_without_valid_manifest_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"has no manifest\.json"):
        BatchReader(tmp_path)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(CorruptFileError, match=r"manifest\.json is corrupt"):
        BatchReader(tmp_path)
    write_json(tmp_path / "manifest.json", {"fingerprint": "x"})
    with pytest.raises(ValueError, match=r"manifest\.json is not a batch manifest: pad_id is required"):
        BatchReader(tmp_path)


LABELS = {"input_ids": [5, 6, 7], "loss_mask": [-100, -100, 7]}


@pytest.mark.parametrize("packing", [None, PackingConfig(max_length=8)])
def test_labels_as_loss_mask_are_rejected(packing: PackingConfig | None) -> None:
    plan = BatchPlanBuilder({"a": 3}, BatchingConfig.throughput(8), packing=packing).build_sync()
    with pytest.raises(ValueError, match=r"sample 'a': loss_mask\[0\] must be 0 or 1, got -100"):
        collate(plan.arrays.get_epoch(0)[0], {"a": LABELS})
    with pytest.raises(ValueError, match="row 0: loss_mask\\[0\\] must be 0 or 1"):
        default_collate([LABELS], 4)
    with pytest.raises(ValueError, match=r"loss_mask\[1\] must be 0 or 1, got 0\.5"):
        collate(plan.arrays.get_epoch(0)[0], {"a": {**LABELS, "loss_mask": [0, 0.5, 1]}})


def test_missing_loss_mask_includes_every_token() -> None:
    arrays = default_collate([{"input_ids": [5, 6]}, {"input_ids": [7], "loss_mask": [0]}], 3, pad_id=9)
    assert arrays["input_ids"].tolist() == [[5, 6, 9], [7, 9, 9]]
    assert arrays["loss_mask"].tolist() == [[1, 1, 0], [0, 0, 0]]


def test_largest_token_is_read_from_the_manifest_or_the_batches(tmp_path: Path) -> None:
    plan = BatchPlanBuilder({"a": 2, "b": 3}, BatchingConfig.throughput(4)).build_sync(2)
    data = {"a": {"input_ids": [5, 7]}, "b": {"input_ids": [1, 2, 3]}}
    BatchWriter(plan, data, tmp_path / "files", pad_id=4).write_all()
    assert BatchReader(tmp_path / "files").largest_token() == 7
    manifest = json.loads((tmp_path / "files/manifest.json").read_text())
    assert [epoch.pop("largest_token") for epoch in manifest["epochs"]] == [7, 7]
    write_json(tmp_path / "files/manifest.json", manifest)
    assert BatchReader(tmp_path / "files").largest_token() == 7

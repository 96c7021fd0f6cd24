"""Batches of a plan in PyTorch: labels and positions, ranks, workers, resuming, and errors."""

import importlib
import pickle
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader  # noqa: E402

from phalanx.data import (  # noqa: E402
    BatchingConfig,
    BatchPlan,
    BatchPlanBuilder,
    IterableSource,
    PackingConfig,
    ShardingConfig,
    ShuffledDatasetSource,
    StreamingPlan,
    StreamingPlanConfig,
)
from phalanx.integrations.torch_data import (  # noqa: E402
    PackedRowPaddingCollator,
    PlanDataset,
    PlanLoader,
    TorchBatch,
    attention_bias,
)

SAMPLES = {
    f"s{row}": {"input_ids": [10 * row + index + 1 for index in range(1 + row % 5)]} for row in range(23)
}
CONFIG = BatchingConfig.throughput(token_budget=16, bucket_edges=(4,), max_sample_length=8, seed=3)


def plan_of(*, packed: bool = True, epochs: int = 2) -> BatchPlan:
    lengths = {name: len(sample["input_ids"]) for name, sample in SAMPLES.items()}
    packing = PackingConfig(max_length=8) if packed else None
    return BatchPlanBuilder(lengths, CONFIG, packing=packing).build(epochs)


PACKED, PADDED = plan_of(), plan_of(packed=False)


def single_row_dataset(**settings: Any) -> PlanDataset:
    """Create one packed row of `b` (two tokens) and `a` (three tokens, only the last one in the loss)."""
    samples = {"a": {"input_ids": [5, 6, 7], "loss_mask": [0, 0, 1]}, "b": {"input_ids": [8, 9]}}
    plan = BatchPlanBuilder({"a": 3, "b": 2}, CONFIG, packing=PackingConfig(max_length=6)).build()
    return PlanDataset(plan, samples, **settings)


def ids(batches: Any) -> list[tuple[str, ...]]:
    return [batch.sample_ids for batch in batches]


def test_packed_row_restarts_positions_and_masks_first_labels() -> None:
    (batch,) = single_row_dataset(pad_id=1, attention="segments")
    assert batch["input_ids"].tolist() == [[8, 9, 5, 6, 7, 1]]
    assert batch["labels"].tolist() == [[-100, 9, -100, -100, 7, -100]]
    assert batch["position_ids"].tolist() == [[0, 1, 0, 1, 2, 0]]
    assert batch["segment_ids"].tolist() == [[1, 1, 2, 2, 2, 0]]
    assert "attention_mask" not in batch
    assert all(tensor.dtype == torch.int64 for tensor in batch.values())
    assert batch.sample_ids == ("b", "a") and batch.sample_rows == (0, 0) and batch.index == 0


def test_packed_row_has_an_additive_attention_mask() -> None:
    (batch,) = single_row_dataset(attention="mask", dtype=torch.bfloat16)
    mask = batch["attention_mask"]
    assert mask.shape == (1, 1, 6, 6) and mask.dtype == torch.bfloat16
    assert (mask[0, 0] == 0).int().tolist() == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [0, 0, 1, 0, 0, 0],
        [0, 0, 1, 1, 0, 0],
        [0, 0, 1, 1, 1, 0],
        [0, 0, 0, 0, 0, 1],
    ]
    assert mask.min() == torch.finfo(torch.bfloat16).min


def test_packed_row_has_no_dense_mask_by_default() -> None:
    (batch,) = single_row_dataset()
    assert sorted(batch) == ["input_ids", "labels", "position_ids", "use_cache"]
    assert not batch["use_cache"]
    assert max(tensor.numel() for tensor in batch.values()) == 6


def test_padded_row_has_a_binary_attention_mask() -> None:
    samples = {"a": {"input_ids": [5, 6, 7]}, "b": {"input_ids": [8, 9]}}
    plan = BatchPlanBuilder({"a": 3, "b": 2}, CONFIG).build()
    (batch,) = PlanDataset(plan, samples)
    rows = dict(zip(batch.sample_ids, range(2), strict=True))
    order = [rows["a"], rows["b"]]
    assert batch["input_ids"][order].tolist() == [[5, 6, 7], [8, 9, 0]]
    assert batch["labels"][order].tolist() == [[-100, 6, 7], [-100, 9, -100]]
    assert batch["attention_mask"][order].tolist() == [[1, 1, 1], [1, 1, 0]]
    assert batch["position_ids"][order].tolist() == [[0, 1, 2], [0, 1, 0]]


@pytest.mark.parametrize("plan", [PACKED, PADDED], ids=["packed", "padded"])
def test_epoch_has_every_sample_once_in_the_order_of_the_plan(plan: BatchPlan) -> None:
    dataset = PlanDataset(plan, SAMPLES)
    for epoch in (0, 1):
        dataset.set_epoch(epoch)
        batches = list(DataLoader(dataset, batch_size=None))
        assert ids(batches) == [batch.sample_ids for batch in plan.get_epoch(epoch)]
        tokens = np.concatenate([batch["input_ids"][batch["input_ids"] > 0].numpy() for batch in batches])
        assert sorted(tokens) == sorted(token for s in SAMPLES.values() for token in s["input_ids"])
    assert len(dataset) == len(plan.get_epoch(1))


def test_ranks_divide_an_epoch_equally() -> None:
    parts = [ids(PlanDataset(PADDED, SAMPLES, rank=rank, world_size=3)) for rank in range(3)]
    assert len({len(part) for part in parts}) == 1
    assert sorted(name for part in parts for batch in part for name in batch) == sorted(SAMPLES)


def test_batch_can_be_pickled() -> None:
    batch = next(iter(PlanDataset(PACKED, SAMPLES)))
    again = pickle.loads(pickle.dumps(batch))
    assert isinstance(again, TorchBatch) and again.sample_ids == batch.sample_ids


def loader(num_workers: int = 0, **settings: Any) -> PlanLoader:
    return PlanLoader(PlanDataset(PACKED, SAMPLES, **settings), num_workers=num_workers)


def test_loader_resumes_from_its_state_once() -> None:
    complete = ids(loader())
    first = loader()
    batches = iter(first)
    done = ids([next(batches), next(batches)])
    state = first.state_dict()
    assert (state["epoch"], state["step"], state["shard"]["world_size"]) == (0, 2, 1)
    second = loader()
    second.load_state_dict(pickle.loads(pickle.dumps(state)))
    assert second.state_dict() == state
    assert done + ids(second) == complete
    assert second.state_dict()["step"] == len(complete) == len(second)
    assert ids(second) == complete, "the state must apply to one iteration only"
    second.set_epoch(1)
    assert second.state_dict()["step"] == 0 and ids(second) == [
        batch.sample_ids for batch in PACKED.get_epoch(1)
    ]
    finished = loader()
    finished.load_state_dict(state | {"step": len(complete)})
    assert ids(finished) == []


def test_abandoned_iterator_is_silent_at_exit() -> None:
    code = """
from phalanx.data import BatchingConfig, BatchPlanBuilder
from phalanx.integrations.torch_data import PlanDataset, PlanLoader
samples = {str(row): {"input_ids": [1] * 4} for row in range(8)}
config = BatchingConfig.throughput(token_budget=8, bucket_edges=(4,), max_sample_length=8)
loader = PlanLoader(PlanDataset(BatchPlanBuilder({name: 4 for name in samples}, config).build(), samples))
batches = iter(loader)
next(batches)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_state_of_one_rank_is_valid_for_all_ranks_of_the_plan() -> None:
    state = loader(rank=0, world_size=2).state_dict() | {"step": 1}
    other = loader(rank=1, world_size=2)
    complete = ids(other)
    other.load_state_dict(state)
    assert ids(other) == complete[1:]
    with pytest.raises(ValueError, match="the dataset, the settings or the seed differ"):
        PlanLoader(PlanDataset(PADDED, SAMPLES)).load_state_dict(loader().state_dict())
    with pytest.raises(ValueError, match="only world_size may differ"):
        loader(world_size=ShardingConfig(world_size=2, balance=True)).load_state_dict(state)
    with pytest.raises(ValueError, match="not the state of a batch plan"):
        loader().load_state_dict({"epoch": 0})


@pytest.mark.parametrize("after", [1, 3])
def test_state_can_be_resumed_on_another_number_of_ranks(after: int) -> None:
    used: list[str] = []
    for rank in range(2):
        before = loader(rank=rank, world_size=2)
        batches = iter(before)
        used += [name for _ in range(2) for name in next(batches).sample_ids]
        state = before.state_dict()
    for rank in range(after):
        resumed = loader(rank=rank, world_size=after)
        resumed.load_state_dict(state)
        batches = iter(resumed)
        first = next(batches)
        again = loader(rank=rank, world_size=after)
        again.load_state_dict(resumed.state_dict())
        used += [*first.sample_ids, *(name for batch in again for name in batch.sample_ids)]
    assert sorted(used) == sorted(SAMPLES)


@pytest.mark.parametrize("all_epochs", [False, True])
def test_epoch_that_is_set_again_after_a_rank_change_is_complete(all_epochs: bool) -> None:
    before = PlanDataset(PACKED, SAMPLES, world_size=2)
    dataset = PlanDataset(PACKED, SAMPLES, all_epochs=all_epochs)
    complete = ids(dataset)
    dataset.load_state_dict(before.state_dict(2))
    assert 0 < len(ids(dataset)) < len(complete)
    dataset.set_epoch(0)
    assert ids(dataset) == complete and dataset.state_dict() == PlanDataset(PACKED, SAMPLES).state_dict()


@pytest.mark.filterwarnings("ignore:This DataLoader will create 2 worker processes")  # on one core
def test_workers_return_batches_in_order() -> None:
    expected = loader()
    parallel = PlanLoader(PlanDataset(PACKED, SAMPLES), num_workers=2, persistent_workers=True)
    assert ids(parallel) == ids(expected)
    parallel.set_epoch(1)
    assert ids(parallel) == [batch.sample_ids for batch in PACKED.get_epoch(1)], (
        "persistent workers must use the new epoch"
    )
    parallel.load_state_dict(expected.state_dict() | {"epoch": 0, "step": 3})
    batches = list(parallel)
    assert ids(batches) == ids(expected)[3:]
    assert batches[0]["labels"].shape == batches[0]["input_ids"].shape
    for resumed in (parallel, expected):
        resumed.load_state_dict(PlanDataset(PACKED, SAMPLES, world_size=2).state_dict(1))
    assert ids(parallel) == ids(expected), "persistent workers must use the steps of the other ranks"


def test_collator_pads_rows() -> None:
    rows = [
        {"input_ids": [5, 6, 7, 8, 9], "labels": [-100, -100, 7, -100, 9], "position_ids": [0, 1, 2, 0, 1]},
        {"input_ids": [4], "labels": [-100], "position_ids": [0]},
    ]
    batch = PackedRowPaddingCollator(pad_id=1)(rows)
    assert batch["input_ids"].tolist() == [[5, 6, 7, 8, 9], [4, 1, 1, 1, 1]]
    assert batch["labels"][1].tolist() == [-100] * 5
    segments = np.array([[1, 1, 1, 2, 2], [1, 0, 0, 0, 0]])
    assert "attention_mask" not in batch and not batch["use_cache"]
    masked = PackedRowPaddingCollator(pad_id=1, attention="mask")(rows)
    assert torch.equal(masked["attention_mask"], attention_bias(segments))
    with pytest.raises(ValueError, match="row 1 has no labels; it has input_ids"):
        PackedRowPaddingCollator()([rows[0], {"input_ids": [1]}])


def test_plan_of_other_samples_is_rejected() -> None:
    some = {name: sample for name, sample in SAMPLES.items() if name not in ("s3", "s7")}
    with pytest.raises(ValueError, match=r"2 of its 23 samples are not in this one \('s3', 's7'\)"):
        PlanDataset(PACKED, some)


def test_invalid_arguments_are_rejected() -> None:
    with pytest.raises(TypeError, match=r"expected a PlanDataset, got BatchPlan"):
        PlanLoader(PACKED)
    with pytest.raises(TypeError, match="shuffle is determined by the plan"):
        PlanLoader(PlanDataset(PACKED, SAMPLES), shuffle=True)
    with pytest.raises(ValueError, match=r"batch must be between 0 and \d+ in epoch 0, got 99"):
        PlanDataset(PACKED, SAMPLES).set_epoch(0, 99)
    with pytest.raises(ValueError, match="the plan has epochs 0 to 1, not epoch 5"):
        PlanDataset(PACKED, SAMPLES).set_epoch(5)


def test_missing_library_is_reported_with_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    for loaded in [name for name in sys.modules if name.partition(".")[0] == "torch"]:
        monkeypatch.setitem(sys.modules, loaded, None)
    monkeypatch.delitem(sys.modules, "phalanx.integrations.torch_data")
    with pytest.raises(ModuleNotFoundError, match=r"needs torch.*: pip install 'phalanx\[torch\]'"):
        importlib.import_module("phalanx.integrations.torch_data")


def test_varlen_batch_concatenates_packed_samples():
    samples = {
        "a": {"input_ids": [1, 2, 3]},
        "b": {"input_ids": [4, 5], "loss_mask": [0, 1]},
        "c": {"input_ids": [6]},
    }
    lengths = {name: len(sample["input_ids"]) for name, sample in samples.items()}
    packing = PackingConfig(max_length=4)
    plan = BatchPlanBuilder(lengths, BatchingConfig.throughput(8), packing=packing).build()
    (batch,) = PlanDataset(plan, samples, attention="varlen")
    order = batch.sample_ids
    expected = [token for name in order for token in samples[name]["input_ids"]]
    assert batch["input_ids"].tolist() == [expected] and batch["max_seqlen"] == 3
    ends = np.cumsum([0, *(lengths[name] for name in order)])
    assert batch["cu_seqlens"].tolist() == ends.tolist() and batch["cu_seqlens"].dtype == torch.int32
    assert batch["position_ids"].tolist() == [[n for name in order for n in range(lengths[name])]]
    assert (batch["labels"] != -100).sum() == 2 + 1
    (aligned,) = PlanDataset(plan, samples, attention="varlen", align=4, pad_id=9)
    assert aligned["cu_seqlens"].tolist() == ends.tolist() and aligned["max_seqlen"] == 4
    assert aligned["cu_seqlens_padded"].tolist() == [0, 4, 8, 12]
    for index, name in enumerate(order):
        row = aligned["input_ids"][0, 4 * index : 4 * index + 4].tolist()
        assert row == samples[name]["input_ids"] + [9] * (4 - lengths[name])
        assert aligned["position_ids"][0, 4 * index : 4 * index + 4].tolist() == [0, 1, 2, 3]
    assert (aligned["labels"] != -100).sum() == 2 + 1
    with pytest.raises(ValueError, match="align can only be used with attention='varlen'"):
        PlanDataset(plan, samples, align=4)
    with pytest.raises(ValueError, match="align must be at least 1"):
        list(PlanDataset(plan, samples, attention="varlen", align=0))


def test_varlen_batch_has_no_padding():
    samples = {"a": {"input_ids": [1, 2, 3]}, "b": {"input_ids": [4]}}
    plan = BatchPlanBuilder({"a": 3, "b": 1}, BatchingConfig.throughput(8)).build()
    (batch,) = PlanDataset(plan, samples, attention="varlen")
    assert sorted(batch["input_ids"][0].tolist()) == [1, 2, 3, 4]
    assert sorted(batch["cu_seqlens"].diff().tolist()) == [1, 3]


@pytest.mark.parametrize("align", [1, 4])
@pytest.mark.parametrize("packing", [PackingConfig(max_length=4), None], ids=["packed", "padded"])
def test_columns_have_the_shape_of_the_tokens_in_a_varlen_batch(
    packing: PackingConfig | None, align: int
) -> None:
    ids = {"a": [1, 2, 3], "b": [4, 5], "c": [6]}
    samples = {name: {"input_ids": t, "advantages": [x / 2 for x in t]} for name, t in ids.items()}
    lengths = {name: len(tokens) for name, tokens in ids.items()}
    plan = BatchPlanBuilder(lengths, BatchingConfig.throughput(16), packing=packing).build()
    for batch in PlanDataset(plan, samples, attention="varlen", align=align):
        assert batch["advantages"].shape == batch["input_ids"].shape
        assert torch.equal(batch["advantages"], batch["input_ids"] / 2)


def test_arrays_of_rows_are_kept_in_a_varlen_batch() -> None:
    samples = {"a": {"input_ids": [1, 2, 3]}, "b": {"input_ids": [4]}}
    plan = BatchPlanBuilder({"a": 3, "b": 1}, BatchingConfig.throughput(8)).build()

    def first_tokens(samples: list[Any], width: int, pad_id: int) -> dict[str, np.ndarray]:
        return {"first": np.array([sample.input_ids[0] for sample in samples])}

    (batch,) = PlanDataset(plan, samples, attention="varlen", collate_fn=first_tokens)
    assert sorted(batch["first"].tolist()) == [1, 4]


def test_all_epochs_can_be_iterated_from_any_batch():
    samples = {str(n): {"input_ids": [n + 1] * (n % 5 + 1)} for n in range(20)}
    lengths = {name: len(sample["input_ids"]) for name, sample in samples.items()}
    plan = BatchPlanBuilder(lengths, BatchingConfig.throughput(10)).build(2)
    steps = PlanDataset(plan, samples, all_epochs=True)
    complete = [batch.sample_ids for batch in steps]
    assert complete == [spec.sample_ids for epoch in range(2) for spec in plan.iter_epoch(epoch)]
    steps.set_epoch(1, 1)
    assert [batch.sample_ids for batch in steps] == complete[len(plan.get_epoch(0)) + 1 :]


def test_streaming_plan_resumes_from_its_state() -> None:
    lengths = {name: len(sample["input_ids"]) for name, sample in SAMPLES.items()}
    config = StreamingPlanConfig(packing=PackingConfig(max_length=8), packs_per_batch=2, packs_per_buffer=4)

    def dataset() -> PlanDataset:
        return PlanDataset(
            StreamingPlan({"t": ShuffledDatasetSource(lengths, SAMPLES)}, config), attention="segments"
        )

    first = dataset()
    batches = iter(PlanLoader(first))
    used = ids([next(batches) for _ in range(5)])
    state = first.state_dict()
    rest = ids([next(batches) for _ in range(5)])
    resumed = PlanLoader(dataset())
    resumed.load_state_dict(state)
    again = iter(resumed)
    assert ids([next(again) for _ in range(5)]) == rest and used != rest
    with pytest.raises(TypeError, match="has no length"):
        len(first)


def test_stream_continues_after_an_error_of_its_source() -> None:
    config = StreamingPlanConfig(packing=PackingConfig(max_length=8), packs_per_batch=2, packs_per_buffer=3)
    broken = [11]

    def open_at(start: int) -> Iterator[dict[str, Any]]:
        for n in range(start, 30):
            if n in broken:
                broken.remove(n)
                raise ConnectionError("the connection was lost")
            yield {"input_ids": [n + 1] * (n % 5 + 1)}

    batches = iter(PlanLoader(PlanDataset(StreamingPlan({"t": IterableSource(open_at)}, config))))
    found: list[TorchBatch] = []
    with pytest.raises(ConnectionError):
        found.extend(batches)
    found += batches
    assert sorted(name for batch in found for name in batch.sample_ids) == sorted(f"t/{n}" for n in range(30))

"""PyTorch training that continues on another number of ranks uses every sample once per epoch."""

import os
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

pytest.importorskip("torch")

from phalanx.data import ShardingConfig
from phalanx.integrations.torch_data import PlanDataset, PlanLoader, TorchBatch
from tests.helpers.rank_changes import (
    Case,
    Loader,
    OpenLoader,
    UsedBatch,
    check_rank_changes,
)

CASES = int(os.environ.get("PHALANX_RANK_CHANGES", "25"))


def open_dataset(case: Case, rank: int, spec: ShardingConfig, state: Mapping[str, Any] | None) -> Loader:
    """Iterate over all epochs, as the Hugging Face trainer does."""
    dataset = create_dataset(case, rank, spec, all_epochs=True)
    if state is not None:
        dataset.load_state_dict(state)
    num_used = 0

    def batches() -> Iterator[UsedBatch]:
        nonlocal num_used
        for batch in dataset:
            num_used += 1
            yield used_batch(dataset.state_dict(num_used)["epoch"], batch)

    return Loader(batches(), lambda: dataset.state_dict(num_used))


def open_loader(case: Case, rank: int, spec: ShardingConfig, state: Mapping[str, Any] | None) -> Loader:
    """Iterate over the epochs one by one."""
    loader = PlanLoader(create_dataset(case, rank, spec))
    if state is not None:
        loader.load_state_dict(state)

    def batches() -> Iterator[UsedBatch]:
        for epoch in range(loader.dataset.position[0], case.num_epochs):
            if epoch > loader.dataset.position[0]:
                loader.set_epoch(epoch)
            for batch in loader:
                yield used_batch(epoch, batch)

    return Loader(batches(), loader.state_dict)


def create_dataset(case: Case, rank: int, spec: ShardingConfig, **settings: Any) -> PlanDataset:
    samples = {name: {"input_ids": [1] * length} for name, length in case.lengths.items()}
    return PlanDataset(case.plan, samples, rank=rank, world_size=spec, **settings)


def used_batch(epoch: int, batch: TorchBatch) -> UsedBatch:
    return UsedBatch(tuple((epoch, name) for name in batch.sample_ids), len(batch["input_ids"]))


@pytest.mark.parametrize("open_loader", [open_dataset, open_loader])
def test_rank_changes_lose_and_repeat_no_sample(open_loader: OpenLoader) -> None:
    for seed in range(CASES):
        check_rank_changes(seed, open_loader)

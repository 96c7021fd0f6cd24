"""Training that continues on another number of ranks, one included, uses every sample once per epoch."""

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from phalanx.data import (
    PackingConfig,
    ShardingConfig,
    ShuffledDatasetSource,
    StreamingPlan,
    StreamingPlanConfig,
)
from phalanx.data.plans.batch_plan import BatchSpec, Plan
from tests.helpers.rank_changes import Case, Loader, OpenLoader, UsedBatch, check_rank_changes

CASES = int(os.environ.get("PHALANX_RANK_CHANGES", "25"))


def open_iterator(case: Case, rank: int, spec: ShardingConfig, state: Mapping[str, Any] | None) -> Loader:
    return iterate(case.plan, rank, spec, state)


def open_stream(case: Case, rank: int, spec: ShardingConfig, state: Mapping[str, Any] | None) -> Loader:
    packing = None if case.packing is None else PackingConfig(max_length=20)
    config = StreamingPlanConfig(
        packing=packing,
        unpacked_row_length=None if packing else 20,
        packs_per_batch=2,
        packs_per_buffer=5,
        seed=case.config.seed,
    )
    source = ShuffledDatasetSource(case.lengths, num_epochs=case.num_epochs)
    plan = StreamingPlan({"all": source}, config)

    def used_batch(batch: BatchSpec) -> UsedBatch:
        positions = [int(name.removeprefix("all/")) for name in batch.sample_ids]
        size = len(case.lengths)
        return UsedBatch(tuple((n // size, f"s{n % size}") for n in positions), batch.num_rows)

    return iterate(plan, rank, spec, state, used_batch)


def used_batch(batch: BatchSpec) -> UsedBatch:
    return UsedBatch(tuple((batch.epoch, name) for name in batch.sample_ids), batch.num_rows)


def iterate(
    plan: Plan,
    rank: int,
    spec: ShardingConfig,
    state: Mapping[str, Any] | None,
    convert: Callable[[BatchSpec], UsedBatch] = used_batch,
) -> Loader:
    iterator = plan.batches(rank, spec)
    if state is not None:
        iterator.load_state_dict(state)
    return Loader(map(convert, iterator), iterator.state_dict)


def open_shard(case: Case, rank: int, spec: ShardingConfig, state: Mapping[str, Any] | None) -> Loader:
    """Open a shard of the remaining plan. The state is the history of steps with their sharding settings."""
    plan = case.plan
    for step in state["history"] if state is not None else ():
        plan = plan.remaining(step["epoch"], step["count"], ShardingConfig(**step["sharding"]))
    shard = plan.shard(rank, spec)
    position = [0, 0]

    def batches() -> Iterator[UsedBatch]:
        for batch in shard.batches():
            position[:] = batch.epoch, batch.index + 1
            yield used_batch(batch)

    def state_dict() -> dict[str, Any]:
        epoch, count = position if position[1] else (plan.epochs[0].epoch, 0)
        step = {"epoch": epoch, "count": count, "sharding": spec.model_dump(mode="json")}
        return {"history": [*(state["history"] if state is not None else ()), step]}

    return Loader(batches(), state_dict)


@pytest.mark.parametrize("open_loader", [open_iterator, open_shard, open_stream])
def test_rank_changes_lose_and_repeat_no_sample(open_loader: OpenLoader) -> None:
    for seed in range(CASES):
        check_rank_changes(seed, open_loader)

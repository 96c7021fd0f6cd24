"""Iterating over a plan, and resuming from a state on any number of ranks."""

import pytest

from phalanx.data import BatchingConfig, BatchPlan, BatchPlanBuilder, PackingConfig, ShardingConfig

LENGTHS = {f"s{n}": 1 + n * 7 % 50 for n in range(300)}


def build(seed: int = 1, packing: PackingConfig | None = None) -> BatchPlan:
    config = BatchingConfig.throughput(256, (16, 32), 64, seed)
    return BatchPlanBuilder(LENGTHS, config, packing=packing).build(num_epochs=2)


@pytest.mark.parametrize("packing", [None, PackingConfig(max_length=64)])
def test_resuming_continues_with_the_next_batch(packing: PackingConfig | None):
    plan = build(packing=packing)
    complete = list(plan.batches())
    assert len(complete) == plan.num_batches
    for used in (0, 1, len(plan.get_epoch(0)), len(complete) - 1, len(complete)):
        iterator = plan.batches()
        for _ in range(used):
            next(iterator)
        resumed = plan.batches()
        resumed.load_state_dict(iterator.state_dict())
        assert list(resumed) == complete[used:]


@pytest.mark.parametrize("policy", ["split", "drop", "repeat"])
@pytest.mark.parametrize("balance", [False, True])
@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 2), (4, 1)])
def test_changing_the_number_of_ranks_loses_and_repeats_no_sample(
    policy: str, balance: bool, before: int, after: int
):
    plan = build()
    spec = ShardingConfig(world_size=before, policy=policy, balance=balance)
    used: list[str] = []
    for rank in range(before):
        iterator = plan.batches(rank, spec)
        used += [name for _ in range(3) for name in next(iterator).sample_ids]
    state = iterator.state_dict()
    found: list[str] = []
    for rank in range(after):
        resumed = plan.batches(rank, ShardingConfig(world_size=after, policy=policy, balance=balance))
        resumed.load_state_dict(state)
        found += [name for batch in resumed if batch.epoch == 0 for name in batch.sample_ids]
    if policy == "split":
        assert sorted(used + found) == sorted(LENGTHS)
    assert not set(used) & set(found) or policy == "repeat"


def test_number_of_ranks_can_change_repeatedly():
    plan = build()
    used: list[str] = []
    state = None
    for ranks in (2, 3, 4):
        for rank in range(ranks):
            iterator = plan.batches(rank, ranks)
            if state is not None:
                iterator.load_state_dict(state)
            used += [name for _ in range(2) for name in next(iterator).sample_ids]
        state = iterator.state_dict()
    rest = plan.batches()
    rest.load_state_dict(state)
    left = [name for batch in rest if batch.epoch == 0 for name in batch.sample_ids]
    assert sorted(used + left) == sorted(LENGTHS)


def test_states_of_other_plans_and_settings_are_rejected():
    state = build().batches(0, ShardingConfig(world_size=2, balance=True)).state_dict()
    with pytest.raises(ValueError, match="the dataset, the settings or the seed differ"):
        build(seed=2).batches(0, ShardingConfig(world_size=2, balance=True)).load_state_dict(state)
    with pytest.raises(ValueError, match="only world_size may differ"):
        build().batches(0, 2).load_state_dict(state)
    with pytest.raises(ValueError, match="not the state of a batch plan"):
        build().batches().load_state_dict({"epoch": 0})
    with pytest.raises(ValueError, match="plan is required; epoch is required; step is required"):
        build().batches().load_state_dict({})

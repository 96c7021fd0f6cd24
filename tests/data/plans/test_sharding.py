"""Shards are disjoint and complete, with equal sizes and costs, and can be resumed on other ranks."""

import itertools
from collections import Counter

import pytest
from hypothesis import given, settings, strategies as st

from phalanx.data import (
    BatchingConfig,
    BatchPlanBuilder,
    PackingConfig,
    RemainderPolicy,
    ShardingConfig,
    verify_batch_plan,
)
from phalanx.data.plans.sharding import batch_costs
from tests.helpers.length_cases import lognormal_lengths, recipes, sample_lists, small_plan

POLICIES = st.sampled_from(RemainderPolicy)


def shards(plan, world_size, policy="split", balance=False):
    return [plan.shard(rank, world_size, policy=policy, balance=balance) for rank in range(world_size)]


def samples(plan, epoch=0):
    return Counter(itertools.chain.from_iterable(sample_lists(plan, epoch)))


def total(parts, epoch=0):
    return sum((samples(part, epoch) for part in parts), Counter())


@pytest.mark.parametrize("world_size", range(1, 17))
@settings(max_examples=5, deadline=None)
@given(recipe=recipes(), balance=st.booleans())
def test_shards_are_disjoint_complete_and_of_equal_length(world_size, recipe, balance):
    plan = recipe.plan(num_epochs=2)
    parts = shards(plan, world_size, balance=balance)
    for epoch in range(2):
        batches = list(itertools.chain.from_iterable(part.iter_epoch(epoch) for part in parts))
        assert len({len(part.get_epoch(epoch)) for part in parts}) == 1
        if sum(batch.num_rows for batch in plan.iter_epoch(epoch)) >= len(batches):
            assert total(parts, epoch) == samples(plan, epoch)
        else:
            assert all(batch.num_rows == 1 for batch in batches)
            assert set(total(parts, epoch)) == set(samples(plan, epoch))
        for batch in batches:
            assert batch.sample_ids and batch.padded_token_count <= plan.meta.batching.token_budget


@settings(max_examples=30, deadline=None)
@given(recipes(), st.integers(1, 16), st.booleans())
def test_drop_policy_loses_less_than_one_step_and_repeats_nothing(recipe, world_size, balance):
    plan = recipe.plan()
    count = plan.num_batches
    if 0 < count < world_size:
        with pytest.raises(ValueError, match=f"{count} batches cannot be divided among {world_size} ranks"):
            plan.shard(0, world_size, policy="drop")
        return
    parts = shards(plan, world_size, "drop", balance)
    assigned = Counter(itertools.chain.from_iterable(map(sample_lists, parts)))
    assert {part.num_batches for part in parts} == {count // world_size}
    assert assigned <= Counter(sample_lists(plan)) and count - assigned.total() < world_size


@settings(max_examples=30, deadline=None)
@given(recipes(min_size=1), st.integers(1, 16), st.booleans())
def test_repeat_policy_loses_nothing_and_repeats_less_than_one_step(recipe, world_size, balance):
    plan = recipe.plan()
    parts = shards(plan, world_size, "repeat", balance)
    assigned = Counter(itertools.chain.from_iterable(map(sample_lists, parts)))
    assert {part.num_batches for part in parts} == {-(-plan.num_batches // world_size)}
    assert assigned >= Counter(sample_lists(plan))
    assert assigned.total() - plan.num_batches < world_size


@settings(max_examples=30, deadline=None)
@given(recipes(min_size=1, drop_last=False), st.integers(1, 16))
def test_split_policy_splits_batches_before_repeating_any(recipe, world_size):
    plan = recipe.plan()
    parts = shards(plan, world_size)
    batches = list(itertools.chain.from_iterable(part.iter_epoch(0) for part in parts))
    if total(parts) != samples(plan):
        assert all(batch.num_rows == 1 for batch in batches)
    if plan.meta.packing is None and plan.meta.batching.pad_policy == "pad_to_max_in_batch":
        assert all(batch.max_length == max(batch.lengths) for batch in batches)


@pytest.mark.parametrize("balance", [False, True])
def test_every_rank_has_a_row_in_every_step(balance):
    # Ten batches of one row are divided among four ranks, so two batches are repeated.
    plan = BatchPlanBuilder({f"s{i}": 10 for i in range(10)}, BatchingConfig.throughput(10)).build()
    parts = shards(plan, 4, balance=balance)
    assert [[batch.num_rows for batch in part.iter_epoch(0)] for part in parts] == [[1, 1, 1]] * 4
    assert sorted(total(parts).values()) == [1] * 8 + [2] * 2


def test_batches_are_assigned_round_robin_without_balance():
    plan = small_plan()
    parts = shards(plan, 3, "drop")
    batches = sample_lists(plan)
    batches = batches[: len(batches) // 3 * 3]
    assert [sample_lists(part) for part in parts] == [batches[0::3], batches[1::3], batches[2::3]]


def test_shard_metadata_describes_the_rank_and_the_plan():
    plan = small_plan()
    shard = plan.shard(rank=1, world_size=4, policy="repeat", balance=True).meta.shard
    assert (shard.rank, shard.world_size, shard.policy, shard.balance) == (1, 4, "repeat", True)
    assert shard.plan_fingerprint == plan.fingerprint and plan.meta.shard is None
    with pytest.raises(ValueError, match=r"cannot shard a shard \(rank 1 of 4\)"):
        plan.shard(1, 4).shard(0, 2)


def test_samples_are_repeated_if_there_are_more_ranks():
    plan = BatchPlanBuilder({"a": 5, "b": 6, "c": 7}, BatchingConfig(token_budget=1024)).build()
    parts = shards(plan, 5)
    assert [len(part.get_epoch(0)[0].sample_ids) for part in parts] == [1, 1, 1, 1, 1]
    assert sorted(total(parts).values()) == [1, 2, 2]
    assert {part.num_batches for part in parts} == {1}
    assert sorted(sample_lists(plan.remaining(0, 0, 5))) == [("a",), ("b",), ("c",)]
    assert len(plan.remaining(0, 1, 5).get_epoch(0)) == 0


@pytest.mark.parametrize(("rank", "world_size"), [(-1, 2), (2, 2)])
def test_rank_out_of_range_is_rejected(rank, world_size):
    with pytest.raises(ValueError, match=f"rank must be between 0 and 1, got {rank}"):
        small_plan().shard(rank, world_size)


@pytest.mark.parametrize(
    ("invalid", "message"),
    [
        ({"world_size": 0}, r"^world_size must be at least 1, got 0$"),
        ({"d_model": 0}, r"^d_model must be at least 1, got 0$"),
        ({"policy": "keep"}, r"^policy must be 'drop', 'repeat' or 'split', got 'keep'$"),
        ({"polcy": "drop"}, r"^unknown key 'polcy'; did you mean 'policy'\?$"),
        (
            {"world_size": ShardingConfig(world_size=2), "policy": "drop", "d_modl": 8},
            r"^policy, d_modl cannot be combined with a ShardingConfig; set all settings in",
        ),
    ],
)
def test_invalid_shard_settings_are_rejected_by_all_methods(invalid, message):
    plan, options = small_plan(), {"world_size": 2, **invalid}
    for call in (plan.shard, plan.measure_balance):
        with pytest.raises(ValueError, match=message):
            call(0, **options)
    with pytest.raises(ValueError, match=message):
        plan.remaining(0, 0, **options)


def test_shard_spec_equals_keyword_arguments():
    plan = BatchPlanBuilder(lognormal_lengths(2_000), BatchingConfig.throughput(16_384)).build()
    spec = ShardingConfig(world_size=3, policy="repeat", balance=True, d_model=512)
    arguments = {"world_size": 3, "policy": "repeat", "balance": True, "d_model": 512}
    assert plan.shard(1, spec).fingerprint == plan.shard(1, **arguments).fingerprint
    assert plan.remaining(0, 2, spec).fingerprint == plan.remaining(0, 2, **arguments).fingerprint
    assert plan.measure_balance(0, spec) == plan.measure_balance(0, **arguments)
    assert plan.shard(1, spec).meta.shard.model_dump().items() >= spec.model_dump().items()


@pytest.mark.parametrize("d_model", [None, 2048])
def test_shards_are_verified_with_their_settings(d_model):
    lengths = lognormal_lengths(5_000)
    plan = BatchPlanBuilder(lengths, BatchingConfig.throughput(16_384)).build()
    for rank in range(3):
        assert verify_batch_plan(plan.shard(rank, 3, balance=True, d_model=d_model), lengths) is None


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_resuming_with_another_world_size_loses_and_repeats_no_sample(data):
    plan = data.draw(recipes(min_size=data.draw(st.sampled_from([0, 40])))).plan(num_epochs=2)
    before, after = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 8))
    policy, balance = data.draw(POLICIES), data.draw(st.booleans())
    if policy is RemainderPolicy.DROP and min(len(epoch) for epoch in plan.epochs) < before:
        policy = RemainderPolicy.SPLIT
    old = shards(plan, before, policy, balance)
    step = data.draw(st.integers(0, len(old[0].get_epoch(0))))
    done = Counter(
        itertools.chain.from_iterable(b.sample_ids for part in old for b in part.get_epoch(0)[:step])
    )
    left = plan.remaining(0, step, before, policy=policy, balance=balance)
    rest = samples(left)
    # Only batches that were already repeated may occur more than once.
    assert set(done) | set(rest) == set(samples(plan)) and not set(done) & set(rest)
    assert max(rest.values(), default=1) == 1
    if policy is RemainderPolicy.DROP or len(done) == done.total():
        assert done + rest == samples(plan)
    assert set(total(shards(left, after, "split", balance))) == set(rest)
    assert [sample_lists(left, 1)] == [sample_lists(plan, 1)]
    # Resume again with a third world size.
    again = left.remaining(0, min(1, len(left.get_epoch(0)) // 2), 2)
    assert set(samples(again)) <= set(rest)


@pytest.mark.parametrize("balance", [False, True])
@pytest.mark.parametrize("policy", RemainderPolicy)
def test_remaining_samples_are_those_that_no_rank_has_used(policy, balance):
    plan = small_plan()
    old = shards(plan, 3, policy, balance)
    for step in range(len(old[0].get_epoch(0)) + 1):
        done = {s for part in old for batch in part.get_epoch(0)[:step] for s in batch.sample_ids}
        left = samples(plan.remaining(0, step, 3, policy=policy, balance=balance))
        assert set(left) == set(samples(plan)) - done and max(left.values(), default=1) == 1


def test_remaining_plan_is_complete_at_the_start_and_empty_at_the_end():
    plan = small_plan(num_epochs=2)
    assert sample_lists(plan.remaining(0, 0)) == sample_lists(plan)
    steps = plan.shard(0, 4).get_epoch(0)
    end = plan.remaining(0, len(steps), 4)
    assert len(end.get_epoch(0)) == 0 and end.num_epochs == end.meta.num_epochs == 2
    assert plan.remaining(1, 0).num_epochs == 1
    with pytest.raises(ValueError, match=f"step must be between 0 and {len(steps)}, got {len(steps) + 1}"):
        plan.remaining(0, len(steps) + 1, 4)
    with pytest.raises(ValueError, match="world_size must be at least 1"):
        plan.measure_balance(0, 0)
    with pytest.raises(ValueError, match="cannot take the remainder of a shard"):
        plan.shard(0, 2).remaining(0, 1)


BALANCED_PLANS = [
    pytest.param(BatchingConfig.throughput(16_384), None, id="throughput"),
    pytest.param(BatchingConfig.predictable(16_384), None, id="predictable"),
    pytest.param(BatchingConfig.predictable(16_384), PackingConfig(max_length=2048), id="packed"),
]


@pytest.mark.parametrize(("config", "packing"), BALANCED_PLANS)
@pytest.mark.parametrize("policy", RemainderPolicy)
def test_balanced_ranks_have_equal_total_cost(config, packing, policy):
    plan = BatchPlanBuilder(lognormal_lengths(200_000), config, packing=packing).build()
    unbalanced = plan.measure_balance(0, 8, policy=policy, balance=False)
    balanced = plan.measure_balance(0, 8, policy=policy, balance=True)
    assert balanced.by_rank <= 1.001
    assert balanced.by_step < 1.02 < unbalanced.by_step


@pytest.mark.parametrize(("config", "packing"), BALANCED_PLANS)
def test_ranks_balanced_by_flops_have_equal_cost_in_every_step(config, packing):
    plan = BatchPlanBuilder(lognormal_lengths(200_000), config, packing=packing).build()
    balanced = plan.measure_balance(0, 8, balance=True, d_model=2048)
    assert balanced.by_rank <= 1.0005 and balanced.by_step <= 1.003


def test_flops_cost_includes_tokens_and_attention():
    # Two rows of 3 tokens have 2 x 3 x 3 pairs; with d_model=10, each of the 6 tokens costs 6 x 10.
    plan = BatchPlanBuilder({"a": 3, "b": 3}, BatchingConfig.throughput(6)).build()
    epoch = plan.get_epoch(0)
    assert batch_costs(epoch.batches, epoch.lengths).tolist() == [18.0]
    assert batch_costs(epoch.batches, epoch.lengths, d_model=10).tolist() == [18.0 + 360.0]


def test_measured_balance_equals_the_costs_of_the_shards():
    plan = BatchPlanBuilder(lognormal_lengths(20_000), BatchingConfig.throughput(16_384)).build()
    costs = [
        sum(batch.num_rows * batch.max_length**2 for batch in part.iter_epoch(0))
        for part in shards(plan, 4, balance=True)
    ]
    assert plan.measure_balance(0, 4, balance=True).by_rank == pytest.approx(max(costs) / (sum(costs) / 4))


def test_balance_is_measured_with_the_defaults_of_the_sharding_config():
    plan = BatchPlanBuilder(lognormal_lengths(2_000), BatchingConfig.throughput(16_384)).build()
    unbalanced = plan.measure_balance(0, 4, balance=False)
    assert unbalanced != plan.measure_balance(0, 4, balance=True)
    assert plan.measure_balance(0, 4) == plan.measure_balance(0, ShardingConfig(world_size=4)) == unbalanced


def test_balanced_steps_are_shuffled_in_every_epoch():
    plan = BatchPlanBuilder(lognormal_lengths(50_000), BatchingConfig.throughput(16_384)).build(2)
    first, second = (
        [batch.max_length for batch in plan.shard(0, 8, balance=True).iter_epoch(e)] for e in (0, 1)
    )
    assert first != second and first != sorted(first)
    half = len(first) // 2
    assert sum(first[:half]) / half == pytest.approx(sum(first[half:]) / (len(first) - half), rel=0.1)


@settings(max_examples=20, deadline=None)
@given(recipes(), st.integers(1, 5), POLICIES, st.booleans())
def test_shard_can_resume_at_any_batch(recipe, world_size, policy, balance):
    plan = recipe.plan(num_epochs=2)
    if 0 < min(len(epoch) for epoch in plan.epochs) < world_size:
        policy = RemainderPolicy.SPLIT
    shard = ShardingConfig(world_size=world_size, policy=policy, balance=balance)
    complete = list(plan.batches(0, shard))
    iterator = plan.batches(0, shard)
    for position in range(len(complete) + 1):
        resumed = plan.batches(0, shard)
        resumed.load_state_dict(iterator.state_dict())
        assert list(resumed) == complete[position:]
        next(iterator, None)

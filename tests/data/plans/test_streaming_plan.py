"""Live plans: streams mixed by tokens, packed in pools, resumed exactly on any number of ranks."""

import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from phalanx.data import (
    DatasetSource,
    IterableSource,
    Mixture,
    MixtureStage,
    PackingConfig,
    SimulatedSource,
    StreamingPlan,
    StreamingPlanConfig,
)

SMALL = StreamingPlanConfig(packing=PackingConfig(max_length=64), rows=2, pool_packs=16)


def two_sources() -> dict:
    return {name: SimulatedSource(seed, mean=20, longest=64) for seed, name in enumerate(("web", "code"))}


def live(config: StreamingPlanConfig = SMALL, **weights: float) -> StreamingPlan:
    return StreamingPlan(two_sources(), config, Mixture(weights=weights or {"web": 3.0, "code": 1.0}))


def members(batch) -> list[tuple[int, int]]:
    return list(zip(batch.sources.tolist(), batch.places.tolist(), strict=True))


def test_packs_hold_what_fits_and_every_sample_comes_once():
    plan = live()
    seen: list[tuple[int, int]] = []
    for batch in itertools.islice(plan.batches(), 100):
        sums = np.add.reduceat(batch.lengths, batch.offsets[:-1])
        assert len(batch) == 2 and sums.max() <= 64
        for source, place, length in zip(batch.sources, batch.places, batch.lengths, strict=True):
            assert plan.sources[plan._names[source]].lengths(int(place), 1)[0] == length
        seen += members(batch)
    assert len(set(seen)) == len(seen)
    before = [max(place for source, place in seen if source == n) for n in (0, 1)]
    missing = sum(before) + 2 - len(seen)
    assert missing <= 16 * 64  # those of the last pool that are still to come


def test_each_source_has_its_part_of_the_tokens_whatever_its_lengths():
    sources = {
        "long": SimulatedSource(1, mean=60, longest=64),
        "short": SimulatedSource(2, mean=8, longest=64),
    }
    plan = StreamingPlan(sources, SMALL, Mixture(weights={"long": 1.0, "short": 1.0}))
    for _ in itertools.islice(plan.batches(), 400):
        pass
    tokens = plan.state.tokens
    assert abs(tokens["long"] - tokens["short"]) <= 64
    assert plan.state.places["short"] > 4 * plan.state.places["long"]


def test_weights_follow_their_schedule_and_temperature():
    mixture = Mixture(weights={"a": 1.0}, schedule=(MixtureStage(tokens=100, weights={"a": 1.0, "b": 3.0}),))
    assert mixture.at(0, ["a", "b"]).tolist() == [1.0, 0.0]
    assert mixture.at(50, ["a", "b"]).tolist() == [0.625, 0.375]
    assert mixture.at(10**9, ["a", "b"]).tolist() == [0.25, 0.75]
    even = Mixture(weights={"a": 100.0, "b": 1.0}, temperature=2.0)
    assert even.at(0, ["a", "b"]) == pytest.approx([10 / 11, 1 / 11])
    assert Mixture().at(0, ["a", "b"]).tolist() == [0.5, 0.5]


def test_a_curriculum_moves_the_tokens_over():
    later = MixtureStage(tokens=60_000, weights={"code": 1.0})
    plan = StreamingPlan(two_sources(), SMALL, Mixture(weights={"web": 1.0}, schedule=(later,)))
    while sum(plan.state.tokens.values()) < 60_000:
        plan.next_batch()
    assert plan.state.tokens["web"] / sum(plan.state.tokens.values()) == pytest.approx(0.5, abs=0.02)


def flat(parts) -> list[tuple[int, int]]:
    return list(itertools.chain.from_iterable(parts))


@pytest.mark.slow
def test_nothing_is_lost_or_repeated_over_kills_and_other_numbers_of_ranks():
    config = SMALL.model_copy(update={"balance": True, "pool_packs": 8})
    rng = np.random.default_rng(5)
    seen: list[tuple[int, int]] = []
    packs = 0
    state = json.dumps(live(config).state_dict())
    ranks = [live(config) for _ in range(8)]
    for world_size in itertools.islice(itertools.cycle((8, 3, 5)), 100):
        steps = int(rng.integers(0, 3))
        ends = set()
        for rank, process in enumerate(ranks[:world_size]):
            process.load_state_dict(json.loads(state))  # where the last checkpoint was, not where it is now
            for _ in range(steps):
                batch = process.next_batch(rank, world_size)
                seen += members(batch)
                packs += len(batch)
            ends.add(json.dumps(process.state_dict()))
            if rank == 0:
                process.next_batch(rank, world_size)  # behind the checkpoint, and lost in the kill
        (state,) = ends
    expected = flat(
        members(batch) for batch in itertools.islice(live(config).batches(), packs // config.rows)
    )
    assert sorted(seen) == sorted(expected) and len(set(seen)) == len(seen)
    assert len(state) < 500


@pytest.mark.parametrize("model_width", [None, 8])
def test_ranks_are_balanced_by_what_their_packs_cost(model_width):
    def spread(balance: bool) -> float:
        """The dearest rank's cost over the mean, over twenty steps of four ranks."""
        config = SMALL.model_copy(update={"balance": balance, "model_width": model_width, "rows": 4})
        costs = np.zeros((20, 4))
        for rank in range(4):
            for step, batch in enumerate(itertools.islice(live(config).batches(rank, 4), 20)):
                lengths = batch.lengths.astype(float)
                costs[step, rank] = (lengths**2 + 6 * (model_width or 0) * lengths).sum()
        return float((costs.max(1) / costs.mean(1)).mean())

    assert spread(True) - 1 < 0.5 * (spread(False) - 1)


def test_a_finite_plan_hands_out_everything_once_and_ends():
    lengths = {f"s{n}": 1 + n % 30 for n in range(200)}
    config = StreamingPlanConfig(packing=PackingConfig(max_length=32), rows=3, pool_packs=8)
    plan = StreamingPlan({"t": DatasetSource(lengths, epochs=2, seed=3)}, config)
    found = flat(members(batch) for batch in plan.batches())
    assert sorted(place for _, place in found) == list(range(400))
    assert plan.next_batch() is None
    rows = plan.sources["t"].rows(np.arange(400)).tolist()
    assert sorted(rows[:200]) == sorted(rows[200:]) == list(range(200)) and rows[:200] != rows[200:]


def test_in_the_last_step_no_rank_goes_without():
    config = StreamingPlanConfig(packing=PackingConfig(max_length=8), rows=2, pool_packs=64)
    plan = StreamingPlan({"t": DatasetSource({f"s{n}": 8 for n in range(7)}, epochs=1)}, config)
    state = plan.state_dict()
    counts = []
    for rank in range(5):
        plan.load_state_dict(state)
        counts.append(len(plan.next_batch(rank, 5)))
        assert plan.next_batch(rank, 5) is None
    assert counts == [2, 2, 1, 1, 1]
    plan.load_state_dict(state)
    assert len(plan.next_batch(8, 9)) == 1


@settings(max_examples=30, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=60),
    rows=st.integers(1, 5),
    world=st.integers(1, 4),
)
def test_every_sample_comes_once_whatever_the_lengths(sizes, rows, world):
    source = IterableSource(lambda start: sizes[start:], length=int)
    config = StreamingPlanConfig(
        packing=PackingConfig(max_length=32, overlong="skip"), rows=rows, pool_packs=2
    )
    plan = StreamingPlan({"t": source}, config)
    found = []
    while True:
        state = plan.state_dict()
        parts = []
        for rank in range(world):
            plan.load_state_dict(state)
            parts.append(plan.next_batch(rank, world))
        if parts[0] is None:
            break
        found += {place for part in parts for place in part.places.tolist()}
    assert sorted(found) == [place for place, size in enumerate(sizes) if size <= 32]
    assert plan.state.skipped["t"] == sum(size > 32 for size in sizes)


def test_tokens_come_from_the_sources_and_old_ones_are_let_go():
    opened = []

    def rows(start: int):
        opened.append(start)
        return (
            {"input_ids": [n % 50 + 1] * (n % 7 + 1), "loss_mask": [1] * (n % 7 + 1)}
            for n in itertools.count(start)
        )

    config = StreamingPlanConfig(packing=PackingConfig(max_length=16), rows=2, pool_packs=8)
    plan = StreamingPlan(
        {"a": IterableSource(rows), "b": DatasetSource({"x": 3}, {"x": {"input_ids": [7, 8, 9]}})}, config
    )
    for batch in itertools.islice(plan.batches(), 60):
        packed = plan.collate(batch, pad_id=0)
        assert packed.input_ids.shape == (2, 16)
        first = batch.places[0]
        expected = [int(first) % 50 + 1] * batch.lengths[0] if batch.sources[0] == 0 else [7, 8, 9]
        assert packed.input_ids[0, : batch.lengths[0]].tolist() == list(expected)
        assert np.count_nonzero(packed.input_ids) == batch.lengths.sum()
    assert opened == [0] and len(plan.sources["a"]._held) < 500
    again = StreamingPlan(plan.sources | {"a": IterableSource(rows)}, config)
    again.load_state_dict(plan.state_dict())
    assert members(again.next_batch()) == members(plan.next_batch()) and opened[1] > 0


def test_an_ended_source_leaves_its_part_to_the_others():
    sources = {"small": DatasetSource({"a": 10, "b": 20}, epochs=1), "large": SimulatedSource(0, 20, 64)}
    plan = StreamingPlan(sources, SMALL)
    for _ in itertools.islice(plan.batches(), 50):
        pass
    assert plan.state.tokens["small"] == 30 and plan.state.ended == ("small",)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: StreamingPlan({}), "needs a source"),
        (lambda: live(nowhere=1.0), "names 'nowhere', but the sources are web, code"),
        (lambda: Mixture(weights={"a": -1.0}), "must not be negative"),
        (lambda: Mixture(weights={"a": 0.0}), "some weight must be above 0"),
        (lambda: Mixture(schedule=(MixtureStage(tokens=1, weights={"a": 1.0}),)), "weights to start from"),
        (
            lambda: Mixture(
                weights={"a": 1.0},
                schedule=tuple(MixtureStage(tokens=t, weights={"a": 1.0}) for t in (5, 5)),
            ),
            "in the order of their tokens",
        ),
        (lambda: live().next_batch(2, 2), "rank must be 0 to 1, got 2"),
        (lambda: live().load_state_dict({"pool": 1}), "not the state of a live plan: settings is required"),
        (
            lambda: live().load_state_dict(live(web=1.0).state_dict()),
            "other settings, mixture or sources",
        ),
        (
            lambda: StreamingPlan(
                two_sources(), StreamingPlanConfig(packing=PackingConfig(max_length=30))
            ).next_batch(),
            r"of 'web' has \d+ tokens, more than a pack's max_length 30",
        ),
        (
            lambda: StreamingPlan(
                two_sources(), StreamingPlanConfig(packing=PackingConfig(overlong="split"))
            ),
            "whole samples",
        ),
        (lambda: DatasetSource({}), "a source needs samples"),
    ],
)
def test_what_cannot_be_planned_is_said(make, message: str):
    with pytest.raises(ValueError, match=message):
        make()


def test_lengths_alone_have_no_samples():
    plan = live()
    with pytest.raises(TypeError, match="SimulatedSource knows lengths only"):
        plan.collate(plan.next_batch())


def test_balanced_ranks_have_like_costs():
    config = StreamingPlanConfig(packing=PackingConfig(max_length=64), rows=8, pool_packs=64, balance=True)
    sources = {"t": SimulatedSource(0, mean=20, longest=64)}

    def spread(config: StreamingPlanConfig) -> float:
        costs = []
        for rank in range(4):
            plan = StreamingPlan(sources, config)
            batches = [plan.next_batch(rank, 4) for _ in range(8)]
            costs.append([float((batch.lengths.astype(np.int64) ** 2).sum()) for batch in batches])
        table = np.array(costs)
        return float((table.max(axis=0) / table.mean(axis=0)).mean())

    assert spread(config) < 1.02 < 1.1 < spread(config.model_copy(update={"balance": False}))

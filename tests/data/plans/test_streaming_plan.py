"""Streaming plans: mixtures, pools, ranks, resuming, and the samples that batches contain."""

import itertools
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import pytest
from benchmarks.simulated_source import SimulatedSource
from hypothesis import given, settings, strategies as st

from phalanx.data import (
    IterableSource,
    MixtureConfig,
    MixtureMilestone,
    PackingConfig,
    ShardingConfig,
    ShuffledDatasetSource,
    StreamingPlan,
    StreamingPlanConfig,
    collate,
)
from phalanx.data.plans.batch_plan import BatchSpec
from phalanx.data.plans.stream_sources import StreamChunk, StreamSource

SMALL = StreamingPlanConfig(packing=PackingConfig(max_length=64), packs_per_batch=2, packs_per_buffer=16)


def simulated_plan(config: StreamingPlanConfig = SMALL, **weights: float) -> StreamingPlan:
    sources = {"web": SimulatedSource(0, 20, 64), "code": SimulatedSource(1, 20, 64)}
    return StreamingPlan(sources, config, MixtureConfig(weights=weights))


def rows(start: int) -> Iterator[dict[str, Any]]:
    """Yield samples of different lengths whose tokens are their position plus 1."""
    return ({"input_ids": [n + 1] * (n % 7 + 1)} for n in itertools.count(start))


def test_tokens_follow_the_mixture():
    iterator = simulated_plan(web=3.0, code=1.0).batches()
    for _ in itertools.islice(iterator, 200):
        pass
    tokens = iterator.state.tokens
    assert tokens["web"] / sum(tokens.values()) == pytest.approx(0.75, abs=0.01)


def test_schedule_changes_the_mixture():
    mixture = MixtureConfig(
        weights={"a": 1.0}, schedule=(MixtureMilestone(at_tokens=100, weights={"b": 1.0}),)
    )
    assert mixture.at(50, ["a", "b"]).tolist() == [0.5, 0.5]
    assert mixture.at(200, ["a", "b"]).tolist() == [0.0, 1.0]


@pytest.mark.parametrize("resumed_ranks", [1, 2, 5])
def test_state_can_be_resumed_on_any_number_of_ranks(resumed_ranks: int):
    plan = simulated_plan(web=2.0, code=1.0)
    iterator = plan.batches(0, 2)
    for _ in range(37):
        next(iterator)
    state = iterator.state_dict()
    expected = [sample for rank in range(2) for sample in _resume(plan, state, rank, 2, 10)]
    count = 10 * 2 // resumed_ranks
    found = [s for rank in range(resumed_ranks) for s in _resume(plan, state, rank, resumed_ranks, count)]
    assert len(state) < 12 and sorted(expected[: len(found)]) != [] and len(set(found)) == len(found)
    if 20 % resumed_ranks == 0:
        assert sorted(found) == sorted(expected)


def _resume(plan: StreamingPlan, state: dict[str, Any], rank: int, world_size: int, count: int) -> list[str]:
    iterator = plan.batches(rank, world_size)
    iterator.load_state_dict(state)
    return [name for spec in itertools.islice(iterator, count) for name in spec.sample_ids]


def test_step_over_several_pools_returns_the_tokens_of_its_samples():
    """One step of 128 packs uses 8 pools of 16 packs each."""
    config = StreamingPlanConfig(packing=PackingConfig(max_length=16), packs_per_batch=2, packs_per_buffer=16)
    source = IterableSource(lambda start: ({"input_ids": [n + 1] * 16} for n in itertools.count(start)))
    plan = StreamingPlan({"t": source}, config)
    seen = set()
    for rank in range(64):
        spec = next(plan.batches(rank, 64))
        batch = collate(spec)
        for row, sample in enumerate(spec.samples):
            assert batch.input_ids[row].tolist() == sample.input_ids.tolist()
            assert sample.sample_id == f"t/{sample.input_ids[0] - 1}"
            seen.add(sample.sample_id)
    assert seen == {f"t/{n}" for n in range(128)}


def test_batches_contain_the_samples_of_their_sources():
    opened = []

    def open_at(start: int) -> Iterator[dict[str, Any]]:
        opened.append(start)
        return rows(start)

    config = StreamingPlanConfig(packing=PackingConfig(max_length=16), packs_per_batch=2, packs_per_buffer=8)
    sources = {
        "a": IterableSource(open_at),
        "b": ShuffledDatasetSource({"x": 3}, {"x": {"input_ids": [7, 8, 9]}}),
    }
    plan = StreamingPlan(sources, config)
    iterator = plan.batches()
    for spec in itertools.islice(iterator, 60):
        batch = collate(spec)
        assert batch.input_ids.shape == (2, 16)
        first = spec.samples[int(spec.layout.samples[0])]
        assert batch.input_ids[0, : first.length].tolist() == first.input_ids.tolist()
        assert batch.real_tokens == spec.token_count
    assert opened == [0]
    resumed = plan.batches()
    resumed.load_state_dict(iterator.state_dict())
    assert next(resumed).sample_ids == next(iterator).sample_ids


def test_finite_plan_returns_every_sample_once():
    lengths = {f"s{n}": 1 + n % 30 for n in range(200)}
    samples = {name: {"input_ids": [1] * length} for name, length in lengths.items()}
    config = StreamingPlanConfig(packing=PackingConfig(max_length=32), packs_per_batch=3, packs_per_buffer=8)
    plan = StreamingPlan({"t": ShuffledDatasetSource(lengths, seed=3, num_epochs=2)}, config)
    positions = [int(name.split("/")[1]) for spec in plan.batches() for name in spec.sample_ids]
    assert sorted(positions) == list(range(400)) and samples


@settings(max_examples=30, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=60),
    packs_per_batch=st.integers(1, 5),
    world_size=st.integers(1, 4),
)
def test_every_sample_that_fits_is_used(sizes: list[int], packs_per_batch: int, world_size: int):
    config = StreamingPlanConfig(
        packing=PackingConfig(max_length=32, overlong="skip"),
        packs_per_batch=packs_per_batch,
        packs_per_buffer=2,
    )
    source = IterableSource(lambda start: ({"input_ids": [1] * size} for size in sizes[start:]))
    found = {
        int(name.split("/")[1])
        for rank in range(world_size)
        for spec in StreamingPlan({"t": source}, config).batches(rank, world_size)
        for name in spec.sample_ids
    }
    assert sorted(found) == [position for position, size in enumerate(sizes) if size <= 32]


def test_every_rank_has_a_pack_in_the_last_step():
    config = StreamingPlanConfig(packing=PackingConfig(max_length=8), packs_per_batch=2, packs_per_buffer=64)
    plan = StreamingPlan({"t": ShuffledDatasetSource({f"s{n}": 8 for n in range(7)}, num_epochs=1)}, config)
    assert [[spec.num_rows for spec in plan.batches(rank, 5)] for rank in range(5)] == [
        [2],
        [2],
        [1],
        [1],
        [1],
    ]
    assert next(plan.batches(8, 9)).num_rows == 1


def test_without_packing_every_row_has_one_sample():
    config = StreamingPlanConfig(packing=None, unpacked_row_length=10, packs_per_batch=4, packs_per_buffer=2)
    spec = next(StreamingPlan({"a": IterableSource(rows)}, config).batches())
    assert not spec.packed and spec.num_rows == spec.num_samples == 4 and spec.max_length == 10


def test_balanced_ranks_have_similar_costs():
    config = StreamingPlanConfig(packing=PackingConfig(max_length=64), packs_per_batch=8, packs_per_buffer=64)

    def spread(balance: bool) -> float:
        costs = np.zeros((8, 4))
        for rank in range(4):
            batches = simulated_plan(config).batches(rank, ShardingConfig(world_size=4, balance=balance))
            for step, spec in enumerate(itertools.islice(batches, 8)):
                costs[step, rank] = (spec.layout.lengths.astype(float) ** 2).sum()
        return float((costs.max(1) / costs.mean(1)).mean())

    assert spread(True) - 1 < 0.5 * (spread(False) - 1)


def test_exhausted_source_is_replaced_by_the_others():
    sources = {
        "small": ShuffledDatasetSource({"a": 10, "b": 20}, num_epochs=1),
        "large": SimulatedSource(0, 20, 64),
    }
    iterator = StreamingPlan(sources, SMALL).batches()
    for _ in itertools.islice(iterator, 50):
        pass
    assert iterator.state.tokens["small"] == 30 and iterator.state.ended == ("small",)


@pytest.mark.parametrize(
    ("create", "message"),
    [
        (lambda: StreamingPlan({}), "needs at least one source"),
        (lambda: simulated_plan(nowhere=1.0), "has a weight for 'nowhere', but the sources are web, code"),
        (lambda: MixtureConfig(weights={"a": -1.0}), "must be finite and at least 0"),
        (lambda: MixtureConfig(weights={"a": 0.0}), "at least one weight must be positive"),
        (lambda: simulated_plan().batches(2, 2), "rank must be between 0 and 1, got 2"),
        (
            lambda: simulated_plan().batches().load_state_dict({"pool": 1}),
            "not the state of a streaming plan",
        ),
        (lambda: StreamingPlanConfig(packing=None), "unpacked_row_length is required without packing"),
        (lambda: StreamingPlanConfig(unpacked_row_length=8), "set packing.max_length and packing.overlong"),
        (lambda: StreamingPlanConfig(packing=PackingConfig(overlong="split")), "cannot split samples"),
        (lambda: ShuffledDatasetSource({}), "needs at least one sample"),
    ],
)
def test_invalid_settings_are_rejected(create, message: str):
    with pytest.raises(ValueError, match=message):
        create()


def test_state_of_another_plan_or_source_is_rejected():
    lengths = {f"s{n}": 1 + n for n in range(20)}

    def plan(seed: int) -> StreamingPlan:
        return StreamingPlan({"t": ShuffledDatasetSource(lengths, seed=seed)}, SMALL)

    state = plan(1).batches().state_dict()
    plan(1).batches().load_state_dict(state)
    for other in (plan(2), simulated_plan()):
        with pytest.raises(ValueError, match="the settings, the mixture or the sources differ"):
            other.batches().load_state_dict(state)


def test_batches_without_samples_cannot_be_collated():
    spec: BatchSpec = next(simulated_plan().batches())
    with pytest.raises(TypeError, match="collate needs the samples"):
        collate(spec)


TOKENS = {f"s{n}": [n + 1] * (n % 7 + 1) for n in range(60)}
FINITE = StreamingPlanConfig(packing=PackingConfig(max_length=8), packs_per_batch=3, packs_per_buffer=4)


class BrokenSource(StreamSource):
    """A source of the samples in `TOKENS` that raises in some of its reads."""

    def __init__(self, broken_reads: Collection[int]) -> None:
        self.broken_reads, self.num_reads = broken_reads, 0

    def read(self, start: int, count: int) -> StreamChunk:
        self.num_reads += 1
        if self.num_reads - 1 in self.broken_reads:
            raise ConnectionError("the connection was lost")
        samples = [{"input_ids": tokens} for tokens in list(TOKENS.values())[start : start + count]]
        return StreamChunk(np.array([len(s["input_ids"]) for s in samples], np.int32), samples)


def broken_stream(position: int) -> IterableSource:
    """Return a source whose generator raises once, before it yields the sample at a position."""
    broken = [position]

    def open_at(start: int) -> Iterator[dict[str, Any]]:
        for n, tokens in enumerate([*TOKENS.values(), None]):
            if n in broken:
                broken.remove(n)
                raise ConnectionError("the connection was lost")
            if n >= start and tokens is not None:
                yield {"input_ids": tokens}

    return IterableSource(open_at)


def batches_with_retries(batches: Iterator[BatchSpec]) -> tuple[list[BatchSpec], int]:
    """Return all batches and the number of errors. After an error, the next batch is requested again."""
    found, num_errors = [], 0
    while True:
        state = batches.state_dict()
        try:
            found.append(next(batches))
        except ConnectionError:
            assert batches.state_dict() == state
            num_errors += 1
        except StopIteration:
            return found, num_errors


@pytest.mark.parametrize("world_size", [1, 3])
def test_step_is_complete_after_an_error_of_a_source(world_size: int):
    """A step of three ranks takes 9 packs from two or three pools of 4 packs."""
    expected = list(
        StreamingPlan({"a": BrokenSource(()), "b": BrokenSource(())}, FINITE).batches(0, world_size)
    )
    for read in range(12):
        plan = StreamingPlan({"a": BrokenSource(()), "b": BrokenSource((read, read + 2))}, FINITE)
        found, num_errors = batches_with_retries(plan.batches(0, world_size))
        assert found == expected and num_errors == 2


def test_state_after_an_error_of_a_source_continues_with_the_same_packs():
    expected = list(StreamingPlan({"a": BrokenSource(())}, FINITE).batches())
    broken = StreamingPlan({"a": BrokenSource((3,))}, FINITE).batches()
    used: list[BatchSpec] = []
    with pytest.raises(ConnectionError):
        used.extend(broken)
    resumed = StreamingPlan({"a": BrokenSource(())}, FINITE).batches()
    resumed.load_state_dict(broken.state_dict())
    assert used and [*used, *resumed] == expected


@pytest.mark.parametrize("world_size", [1, 3])
def test_stream_is_opened_again_after_an_error(world_size: int):
    expected = list(StreamingPlan({"a": broken_stream(-1)}, FINITE).batches(0, world_size))
    for position in range(len(TOKENS) + 1):
        plan = StreamingPlan({"a": broken_stream(position)}, FINITE)
        found, num_errors = batches_with_retries(plan.batches(0, world_size))
        assert found == expected and num_errors == 1


@pytest.mark.parametrize("position", [0, 1, 20, 59, 60])
@pytest.mark.parametrize(
    "open_at",
    [lambda stream, start: stream, lambda stream, start: itertools.islice(stream, start, None)],
    ids=["generator", "islice"],
)
def test_finished_generator_does_not_end_the_plan(open_at, position: int):
    stream = broken_stream(position)._open_at(0)
    batches = StreamingPlan({"a": IterableSource(lambda start: open_at(stream, start))}, FINITE).batches()
    with pytest.raises(ConnectionError):
        list(batches)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"cannot continue a stream: it .*; open_at must return a new"):
            next(batches)


def test_stream_that_is_shorter_than_before_is_rejected():
    batches = StreamingPlan({"a": broken_stream(-1)}, FINITE).batches()
    for _ in range(3):
        next(batches)
    shorter = IterableSource(lambda start: ({"input_ids": [1]} for _ in range(start, 9)))
    resumed = StreamingPlan({"a": shorter}, FINITE).batches()
    resumed.load_state_dict(batches.state_dict())
    with pytest.raises(ValueError, match=r"it ended after \d+ samples, but had at least \d+ before"):
        list(resumed)

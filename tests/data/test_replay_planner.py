"""The replay planner: the samples of each window, reproducibility, and resuming."""

import json
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from phalanx.data import (
    BatchingConfig,
    EvictionPolicy,
    PackingConfig,
    ReplayBuffer,
    ReplayBufferConfig,
    ReplayPlanner,
    ReplayPlannerConfig,
)
from phalanx.data.replay_planner import BufferEndPolicy
from tests.helpers.sample_cases import sample

BATCHING = BatchingConfig.predictable(token_budget=64, bucket_edges=(4, 8), max_sample_length=16)


def create_buffer(count: int, **settings: object) -> ReplayBuffer:
    buffer = ReplayBuffer(ReplayBufferConfig(**settings))
    grow(buffer, count)
    return buffer


def grow(buffer: ReplayBuffer, count: int) -> None:
    first = buffer.total_added
    buffer.add_batch([sample(f"s{n}", length=1 + n % 9) for n in range(first, first + count)])


def create_planner(buffer: ReplayBuffer, size: int, overlap: int, **settings: object) -> ReplayPlanner:
    return ReplayPlanner(buffer, ReplayPlannerConfig(window_size=size, overlap=overlap, **settings), BATCHING)


def next_serials(planner: ReplayPlanner) -> list[int]:
    """Plan the next window and return the serial numbers of its samples in order."""
    planner.next_plan()
    return planner.snapshot.serials.tolist()


def test_consecutive_windows_overlap() -> None:
    planner = create_planner(create_buffer(10), 4, 1)
    assert [next_serials(planner) for _ in range(3)] == [[0, 1, 2, 3], [3, 4, 5, 6], [6, 7, 8, 9]]


def test_last_window_is_shorter_and_the_next_starts_over() -> None:
    planner = create_planner(create_buffer(6), 4, 1)
    assert [next_serials(planner) for _ in range(3)] == [[0, 1, 2, 3], [3, 4, 5], [0, 1, 2, 3]]
    grow(planner.buffer, 2)
    assert [next_serials(planner) for _ in range(2)] == [[3, 4, 5, 6], [6, 7]]


def test_evicted_samples_are_skipped() -> None:
    planner = create_planner(create_buffer(6, max_size=6), 4, 2)
    assert next_serials(planner) == [0, 1, 2, 3]
    grow(planner.buffer, 3)
    assert next_serials(planner) == [3, 4, 5, 6]


def test_plan_contains_every_sample_of_the_window_once() -> None:
    planner = create_planner(create_buffer(30), 20, 5)
    plan = planner.next_plan(num_epochs=2)
    for epoch in range(2):
        seen = [name for batch in plan.iter_epoch(epoch) for name in batch.sample_ids]
        assert sorted(seen) == sorted(f"s{n}" for n in range(20))
    for batch, batch_samples in planner.iter_batches():
        assert [one.sample_id for one in batch_samples] == list(batch.sample_ids)
        assert all(one.length <= batch.max_length for one in batch_samples)
    assert len(planner.samples) == 20
    assert list(planner.samples)[:2] == ["s0", "s1"]


def test_duplicate_samples_have_distinct_names() -> None:
    buffer = ReplayBuffer()
    buffer.add_batch([sample("a"), sample("a", length=5)])
    planner = create_planner(buffer, 10, 0)
    planner.next_plan()
    assert {name: one.length for name, one in planner.samples.items()} == {"a": 3, "a#1": 5}


def test_plan_depends_only_on_samples_seed_and_window_number() -> None:
    def fingerprints(buffer: ReplayBuffer, seed: int = 42) -> list[str]:
        batching = BATCHING.model_copy(update={"seed": seed})
        planner = ReplayPlanner(buffer, ReplayPlannerConfig(window_size=20, overlap=0), batching)
        return [planner.next_plan().fingerprint for _ in range(3)]

    first = fingerprints(create_buffer(20))
    assert first == fingerprints(create_buffer(20))
    # Later windows have the same samples in another order.
    assert len(set(first)) == 3
    assert set(first).isdisjoint(fingerprints(create_buffer(20), seed=43))
    changed = create_buffer(19)
    changed.add(sample("s19", length=2, input_ids=(5, 5)))
    assert changed.snapshot().lengths.tolist() == create_buffer(20).snapshot().lengths.tolist()
    assert set(first).isdisjoint(fingerprints(changed))


def test_window_is_restored_after_loading(tmp_path: Path) -> None:
    planner = create_planner(create_buffer(50, max_size=40), 12, 3)
    for _ in range(2):
        planner.next_plan()
    planner.buffer.save(tmp_path / "buffer.npz")
    restored = create_planner(ReplayBuffer.load(tmp_path / "buffer.npz"), 12, 3)
    restored.load_state_dict(json.loads(json.dumps(planner.state_dict())))
    assert restored.plan.fingerprint == planner.plan.fingerprint
    assert list(restored.samples) == list(planner.samples)
    for each in (planner, restored):
        grow(each.buffer, 5)
    assert [next_serials(restored) for _ in range(6)] == [next_serials(planner) for _ in range(6)]
    assert restored.state == planner.state


def test_invalid_state_is_rejected() -> None:
    planner = create_planner(create_buffer(10), 4, 1)
    with pytest.raises(ValueError, match="no window has been planned yet"):
        planner.plan  # noqa: B018
    planner.next_plan()
    other = create_planner(create_buffer(3), 4, 1)
    with pytest.raises(ValueError, match="no longer has the additions 0 to 3"):
        other.load_state_dict(planner.state_dict())
    with pytest.raises(ValueError, match="no window has been planned yet"):
        _ = other.plan
    with pytest.raises(ValueError, match="not the state of a replay planner"):
        other.load_state_dict({"window": -1})
    fresh = create_planner(create_buffer(10), 4, 1)
    fresh.load_state_dict(create_planner(create_buffer(1), 4, 1).state_dict())
    assert next_serials(fresh) == [0, 1, 2, 3]


def test_invalid_settings_are_rejected() -> None:
    with pytest.raises(ValueError, match=r"overlap \(5\) must be less than window_size \(5\)"):
        ReplayPlannerConfig(window_size=5, overlap=5)
    with pytest.raises(ValueError, match="the buffer has 0 samples, but a window needs at least 1"):
        create_planner(ReplayBuffer(), 4, 1).next_plan()


def test_windows_can_be_packed() -> None:
    planner = ReplayPlanner(
        create_buffer(30),
        ReplayPlannerConfig(window_size=30, overlap=0),
        BATCHING,
        PackingConfig(max_length=16),
    )
    plan = planner.next_plan()
    packs = [pack for batch in plan.iter_epoch(0) for pack in batch.packs]
    assert sorted(name for pack in packs for name in pack) == sorted(f"s{n}" for n in range(30))


@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 6),
    st.integers(0, 5),
    st.integers(1, 12),
    st.sampled_from(EvictionPolicy),
    st.lists(st.integers(0, 8), min_size=1, max_size=8),
)
def test_windows_cover_consecutive_samples_with_overlap(
    size: int, overlap: int, capacity: int, policy: EvictionPolicy, growths: list[int]
) -> None:
    overlap = min(overlap, size - 1)
    buffer = ReplayBuffer(ReplayBufferConfig(max_size=capacity, eviction_policy=policy))
    planner = create_planner(buffer, size, overlap)
    last: list[int] = []
    grow(buffer, 1)
    for growth in growths:
        grow(buffer, growth)
        held = buffer.snapshot().serials.tolist()
        covered = next_serials(planner)
        assert 1 <= len(covered) <= size
        # A window has consecutive samples of the buffer, oldest first.
        start = held.index(covered[0])
        assert covered == held[start : start + len(covered)]
        new = [serial for serial in held if not last or serial > last[-1]]
        if last and new:
            kept = [serial for serial in last[-overlap:] if serial in held] if overlap else []
            assert covered == (kept + new)[:size]
        else:
            assert covered == held[:size]
        last = covered


def test_planner_can_wait_for_new_samples() -> None:
    planner = create_planner(create_buffer(4), 4, 1, at_end=BufferEndPolicy.WAIT, min_new_samples=2)
    planner.next_plan()
    assert not planner.can_plan
    thread = threading.Thread(target=planner.next_plan)
    thread.start()
    planner.buffer.add_batch([sample("new0"), sample("new1")])
    thread.join(timeout=10)
    assert not thread.is_alive() and planner.state.window == 2

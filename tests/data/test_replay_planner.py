"""Rolling windows: which samples they cover, that they are reproducible, and that they go on after a stop."""

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
from phalanx.data.replay_planner import WindowEnd
from tests.helpers.sample_cases import sample

BATCHING = BatchingConfig.predictable(token_budget=64, bucket_edges=(4, 8), max_sample_length=16)


def filled(count: int, **settings: object) -> ReplayBuffer:
    buffer = ReplayBuffer(ReplayBufferConfig(**settings))
    grow(buffer, count)
    return buffer


def grow(buffer: ReplayBuffer, count: int) -> None:
    first = buffer.total_added
    buffer.add_batch([sample(f"s{n}", length=1 + n % 9) for n in range(first, first + count)])


def window_over(buffer: ReplayBuffer, size: int, overlap: int, **settings: object) -> ReplayPlanner:
    return ReplayPlanner(buffer, ReplayPlannerConfig(window_size=size, overlap=overlap, **settings), BATCHING)


def take(window: ReplayPlanner) -> list[int]:
    """The numbers of the samples that the next window covers, in order."""
    window.next_plan()
    return window.snapshot.serials.tolist()


def test_windows_follow_one_another_and_overlap() -> None:
    window = window_over(filled(10), 4, 1)
    assert [take(window) for _ in range(3)] == [[0, 1, 2, 3], [3, 4, 5, 6], [6, 7, 8, 9]]


def test_the_end_of_a_buffer_makes_a_shorter_window_and_then_it_starts_over() -> None:
    window = window_over(filled(6), 4, 1)
    assert [take(window) for _ in range(3)] == [[0, 1, 2, 3], [3, 4, 5], [0, 1, 2, 3]]
    grow(window.buffer, 2)
    assert [take(window) for _ in range(2)] == [[3, 4, 5, 6], [6, 7]]


def test_samples_that_were_evicted_are_passed_over() -> None:
    window = window_over(filled(6, max_size=6), 4, 2)
    assert take(window) == [0, 1, 2, 3]
    grow(window.buffer, 3)
    assert take(window) == [3, 4, 5, 6]


def test_a_plan_names_every_sample_once_and_knows_it() -> None:
    window = window_over(filled(30), 20, 5)
    plan = window.next_plan(num_epochs=2)
    for epoch in range(2):
        seen = [name for batch in plan.iter_epoch(epoch) for name in batch.sample_ids]
        assert sorted(seen) == sorted(f"s{n}" for n in range(20))
    for batch, batch_samples in window.iter_batches():
        assert [one.sample_id for one in batch_samples] == list(batch.sample_ids)
        assert all(one.length <= batch.max_length for one in batch_samples)
    assert len(window.samples) == 20
    assert list(window.samples)[:2] == ["s0", "s1"]


def test_a_sample_that_is_held_twice_has_two_names() -> None:
    buffer = ReplayBuffer()
    buffer.add_batch([sample("a"), sample("a", length=5)])
    window = window_over(buffer, 10, 0)
    window.next_plan()
    assert {name: one.length for name, one in window.samples.items()} == {"a": 3, "a#1": 5}


def test_a_plan_follows_from_samples_seed_and_number_alone() -> None:
    def prints(buffer: ReplayBuffer, seed: int = 42) -> list[str]:
        batching = BATCHING.model_copy(update={"seed": seed})
        window = ReplayPlanner(buffer, ReplayPlannerConfig(window_size=20, overlap=0), batching)
        return [window.next_plan().fingerprint for _ in range(3)]

    first = prints(filled(20))
    assert first == prints(filled(20))
    # The same samples again, as the next window: another order.
    assert len(set(first)) == 3
    assert set(first).isdisjoint(prints(filled(20), seed=43))
    changed = filled(19)
    changed.add(sample("s19", length=2, input_ids=(5, 5)))
    assert changed.snapshot().lengths.tolist() == filled(20).snapshot().lengths.tolist()
    assert set(first).isdisjoint(prints(changed))


def test_a_window_is_found_again_after_a_stop(tmp_path: Path) -> None:
    window = window_over(filled(50, max_size=40), 12, 3)
    for _ in range(2):
        window.next_plan()
    window.buffer.save(tmp_path / "buffer.npz")
    window.save(tmp_path / "window.json")
    again = window_over(ReplayBuffer.load(tmp_path / "buffer.npz"), 12, 3)
    again.load(tmp_path / "window.json")
    assert again.plan.fingerprint == window.plan.fingerprint
    assert list(again.samples) == list(window.samples)
    for each in (window, again):
        grow(each.buffer, 5)
    assert [take(again) for _ in range(6)] == [take(window) for _ in range(6)]
    assert again.state == window.state


def test_a_state_that_does_not_fit_is_refused_in_words(tmp_path: Path) -> None:
    window = window_over(filled(10), 4, 1)
    with pytest.raises(ValueError, match="no window has been planned yet"):
        window.plan  # noqa: B018
    window.next_plan()
    other = window_over(filled(3), 4, 1)
    with pytest.raises(ValueError, match="no longer has the additions 0 to 3"):
        other.load_state_dict(window.state_dict())
    with pytest.raises(ValueError, match="no window has been planned yet"):
        _ = other.plan
    with pytest.raises(ValueError, match="not the state of a replay planner"):
        other.load_state_dict({"window": -1})
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(ValueError, match=r"bad\.json is corrupt"):
        other.load(tmp_path / "bad.json")
    fresh = window_over(filled(10), 4, 1)
    fresh.load_state_dict(window_over(filled(1), 4, 1).state_dict())
    assert take(fresh) == [0, 1, 2, 3]


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(ValueError, match=r"overlap \(5\) must be less than window_size \(5\)"):
        ReplayPlannerConfig(window_size=5, overlap=5)
    with pytest.raises(ValueError, match="the buffer has 0 samples, but a window needs at least 1"):
        window_over(ReplayBuffer(), 4, 1).next_plan()


def test_a_window_may_be_packed() -> None:
    window = ReplayPlanner(
        filled(30), ReplayPlannerConfig(window_size=30, overlap=0), BATCHING, PackingConfig(max_length=16)
    )
    plan = window.next_plan()
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
def test_what_holds_of_every_window(
    size: int, overlap: int, capacity: int, policy: EvictionPolicy, growths: list[int]
) -> None:
    overlap = min(overlap, size - 1)
    buffer = ReplayBuffer(ReplayBufferConfig(max_size=capacity, eviction_policy=policy))
    window = window_over(buffer, size, overlap)
    last: list[int] = []
    grow(buffer, 1)
    for growth in growths:
        grow(buffer, growth)
        held = buffer.snapshot().serials.tolist()
        covered = take(window)
        assert 1 <= len(covered) <= size
        # Held samples, oldest first, none left out in between.
        place = held.index(covered[0])
        assert covered == held[place : place + len(covered)]
        new = [serial for serial in held if not last or serial > last[-1]]
        if last and new:
            kept = [serial for serial in last[-overlap:] if serial in held] if overlap else []
            assert covered == (kept + new)[:size]
        else:
            assert covered == held[:size]
        last = covered


def test_a_planner_can_wait_for_new_samples() -> None:
    planner = window_over(filled(4), 4, 1, at_end=WindowEnd.WAIT, min_samples=2)
    planner.next_plan()
    assert not planner.can_plan
    thread = threading.Thread(target=planner.next_plan)
    thread.start()
    planner.buffer.add_batch([sample("new0"), sample("new1")])
    thread.join(timeout=10)
    assert not thread.is_alive() and planner.state.window == 2

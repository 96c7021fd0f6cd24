"""A state machine that compares the replay buffer with a reference implementation based on a list."""

import dataclasses
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from phalanx.data import EvictionPolicy, ReplayBuffer, ReplayBufferConfig, Sample, SampleOrigin
from tests.helpers.sample_cases import PRIORITIES, samples


@dataclasses.dataclass
class Entry:
    """A sample of the reference implementation."""

    serial: int
    sample: Sample
    priority: float
    replay_count: int

    def as_sample(self, **changes: Any) -> Sample:
        return self.sample.replace_info(priority=self.priority, replay_count=self.replay_count, **changes)


class ReplayMachine(RuleBasedStateMachine):
    """The reference keeps a list of samples, oldest first, and scans it for every operation."""

    @initialize(policy=st.sampled_from(EvictionPolicy), size=st.integers(1, 7))
    def create_buffer(self, policy: EvictionPolicy, size: int) -> None:
        self.config = ReplayBufferConfig(max_size=size, eviction_policy=policy, seed=7)
        self.buffer = ReplayBuffer(self.config)
        self.entries: list[Entry] = []
        self.added = 0

    def _add(self, sample: Sample, priority: float) -> None:
        """Add a sample to the reference. With RANDOM eviction, remove the sample that the buffer evicted."""
        if len(self.entries) == self.config.max_size:
            match self.config.eviction_policy:
                case EvictionPolicy.FIFO:
                    del self.entries[0]
                case EvictionPolicy.PRIORITY:
                    self.entries.remove(min(self.entries, key=lambda entry: (entry.priority, entry.serial)))
                case EvictionPolicy.RANDOM:
                    remaining = set(self.buffer.snapshot().serials.tolist())
                    evicted = [entry for entry in self.entries if entry.serial not in remaining]
                    assert len(evicted) == 1
                    self.entries.remove(evicted[0])
        self.entries.append(Entry(self.added, sample, priority, sample.info.replay_count))
        self.added += 1

    @rule(sample=samples(), priority=st.none() | PRIORITIES)
    def add(self, sample: Sample, priority: float | None) -> None:
        self.buffer.add(sample, priority)
        self._add(sample, sample.info.priority if priority is None else priority)

    @precondition(lambda self: self.config.eviction_policy is not EvictionPolicy.RANDOM)
    @rule(batch=st.lists(samples(), max_size=12))
    def add_batch(self, batch: list[Sample]) -> None:
        self.buffer.add_batch(batch)
        for sample in batch:
            self._add(sample, sample.info.priority)

    @rule(
        n=st.integers(0, 9),
        min_difficulty=st.none() | st.sampled_from([0.0, 0.3, 0.5]),
        success=st.none() | st.booleans(),
    )
    def draw(self, n: int, min_difficulty: float | None, success: bool | None) -> None:
        matching = [
            entry
            for entry in self.entries
            if (
                min_difficulty is None
                or (
                    entry.sample.info.difficulty is not None
                    and entry.sample.info.difficulty >= min_difficulty
                )
            )
            and (success is None or entry.sample.info.success is success)
        ]
        if n and matching and all(entry.priority == 0.0 for entry in matching):
            with pytest.raises(ValueError, match="have priority 0"):
                self.buffer.sample(n, min_difficulty=min_difficulty, success=success)
            return
        drawn = self.buffer.sample(n, min_difficulty=min_difficulty, success=success)
        assert len(drawn) == (n if matching else 0)
        # The replay counts show which samples were drawn.
        rows = {serial: row for row, serial in enumerate(self.buffer.snapshot().serials.tolist())}
        after = self.buffer.get_all()
        for entry in self.entries:
            entry.replay_count = after[rows[entry.serial]].info.replay_count
        candidates = [e.as_sample(origin=SampleOrigin.REPLAY) for e in matching if e.priority > 0]
        assert all(sample in candidates for sample in drawn)

    @rule(n=st.integers(0, 9))
    def draw_uniformly(self, n: int) -> None:
        before = [entry.replay_count for entry in self.entries]
        drawn = self.buffer.sample_uniform(n)
        after = [sample.info.replay_count for sample in self.buffer.get_all()]
        assert len(drawn) == min(n, len(self.entries))
        assert sorted(np.subtract(after, before).tolist(), reverse=True) == [1] * len(drawn) + [0] * (
            len(self.entries) - len(drawn)
        )
        for entry, count in zip(self.entries, after, strict=True):
            entry.replay_count = count

    @precondition(lambda self: self.entries)
    @rule(index=st.integers(0, 6), priority=PRIORITIES)
    def update_priority_by_id(self, index: int, priority: float) -> None:
        sample_id = self.entries[index % len(self.entries)].sample.sample_id
        assert self.buffer.update_priority(sample_id, priority)
        for entry in self.entries:
            if entry.sample.sample_id == sample_id:
                entry.priority = priority

    @precondition(lambda self: any(entry.priority for entry in self.entries))
    @rule(n=st.integers(1, 5), priority=PRIORITIES, later=st.lists(samples(), max_size=3))
    def update_priorities_of_a_draw(self, n: int, priority: float, later: list[Sample]) -> None:
        drawn = self.buffer.draw(n)
        for sample in later:
            self.add(sample, None)
        assert len(drawn.samples) == n
        assert drawn.weights.max() == 1.0
        updated = self.buffer.update_priorities(drawn.handles, np.full(n, priority))
        serials = drawn.handles.serials.tolist()
        assert updated == sum(serial in {entry.serial for entry in self.entries} for serial in serials)
        for entry in self.entries:
            if entry.serial in serials:
                entry.priority = priority
                entry.replay_count += serials.count(entry.serial)

    @rule()
    def update_priorities_by_reward(self) -> None:
        self.buffer.update_priorities_by_reward(alpha=0.5)
        for entry in self.entries:
            if entry.sample.info.reward is not None:
                entry.priority = 0.5 * entry.priority + 0.5 * max(entry.sample.info.reward + 1.0, 0.0)

    @rule()
    def clear(self) -> None:
        self.buffer.clear()
        self.entries.clear()

    @rule()
    def save_and_load(self) -> None:
        with TemporaryDirectory() as folder:
            path = Path(folder, "buffer.npz")
            self.buffer.save(path)
            self.buffer = ReplayBuffer.load(path)
        assert self.buffer.config == self.config

    @invariant()
    def samples_equal_the_reference(self) -> None:
        snapshot = self.buffer.snapshot()
        assert snapshot.serials.tolist() == [entry.serial for entry in self.entries]
        assert list(snapshot.samples) == [entry.as_sample() for entry in self.entries]
        assert (self.buffer.size, self.buffer.total_added) == (len(self.entries), self.added)
        assert self.buffer.total_evicted == self.added - len(self.entries)

    @invariant()
    def statistics_equal_recomputation(self) -> None:
        buffer, all_samples = self.buffer, [entry.sample for entry in self.entries]
        difficulties = [s.info.difficulty for s in all_samples if s.info.difficulty is not None]
        rewards = [s.info.reward for s in all_samples if s.info.reward is not None]
        outcomes = [s.info.success for s in all_samples if s.info.success is not None]
        assert buffer.total_tokens == sum(s.length for s in all_samples)
        assert buffer.mean_difficulty == pytest.approx(_mean(difficulties), rel=1e-15)
        assert buffer.mean_reward == pytest.approx(_mean(rewards), rel=1e-15)
        assert buffer.success_rate == (sum(outcomes) / len(outcomes) if outcomes else 0.0)


def _mean(numbers: list[float]) -> float:
    """Return the mean, computed exactly and rounded once. The mean of no numbers is 0."""
    return float(sum(map(Fraction, numbers), Fraction(0)) / len(numbers)) if numbers else 0.0


TestReplayMachine = ReplayMachine.TestCase
TestReplayMachine.settings = settings(max_examples=30, stateful_step_count=20, deadline=None)

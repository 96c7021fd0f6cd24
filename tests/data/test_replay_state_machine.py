"""The replay buffer against a plain list that does one thing after the other."""

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
class Held:
    """What the oracle knows of a sample."""

    serial: int
    sample: Sample
    priority: float
    replays: int

    def as_sample(self, **changes: Any) -> Sample:
        return self.sample.replace_info(priority=self.priority, replay_count=self.replays, **changes)


class ReplayMachine(RuleBasedStateMachine):
    """The oracle keeps samples in a list, oldest first, and scans it for everything."""

    @initialize(policy=st.sampled_from(EvictionPolicy), size=st.integers(1, 7))
    def begin(self, policy: EvictionPolicy, size: int) -> None:
        self.config = ReplayBufferConfig(max_size=size, eviction_policy=policy, seed=7)
        self.buffer = ReplayBuffer(self.config)
        self.held: list[Held] = []
        self.added = 0

    def _add(self, sample: Sample, priority: float) -> None:
        """FIFO and PRIORITY are known beforehand; which one RANDOM gives up is asked of the buffer."""
        if len(self.held) == self.config.max_size:
            match self.config.eviction_policy:
                case EvictionPolicy.FIFO:
                    del self.held[0]
                case EvictionPolicy.PRIORITY:
                    self.held.remove(min(self.held, key=lambda held: (held.priority, held.serial)))
                case EvictionPolicy.RANDOM:
                    left = set(self.buffer.snapshot().serials.tolist())
                    gone = [held for held in self.held if held.serial not in left]
                    assert len(gone) == 1
                    self.held.remove(gone[0])
        self.held.append(Held(self.added, sample, priority, sample.info.replay_count))
        self.added += 1

    @rule(sample=samples(), priority=st.none() | PRIORITIES)
    def add(self, sample: Sample, priority: float | None) -> None:
        self.buffer.add(sample, priority)
        self._add(sample, sample.info.priority if priority is None else priority)

    @precondition(lambda self: self.config.eviction_policy is not EvictionPolicy.RANDOM)
    @rule(batch=st.lists(samples(), max_size=12))
    def add_many_before_looking(self, batch: list[Sample]) -> None:
        self.buffer.add_batch(batch)
        for sample in batch:
            self._add(sample, sample.info.priority)

    @rule(
        n=st.integers(0, 9),
        low=st.none() | st.sampled_from([0.0, 0.3, 0.5]),
        success=st.none() | st.booleans(),
    )
    def draw(self, n: int, low: float | None, success: bool | None) -> None:
        fitting = [
            held
            for held in self.held
            if (
                low is None
                or (held.sample.info.difficulty is not None and held.sample.info.difficulty >= low)
            )
            and (success is None or held.sample.info.success is success)
        ]
        if n and fitting and all(held.priority == 0.0 for held in fitting):
            with pytest.raises(ValueError, match="have priority 0"):
                self.buffer.sample(n, min_difficulty=low, success=success)
            return
        drawn = self.buffer.sample(n, min_difficulty=low, success=success)
        assert len(drawn) == (n if fitting else 0)
        # Which one was drawn is seen by the counts that have moved.
        counts = {serial: row for row, serial in enumerate(self.buffer.snapshot().serials.tolist())}
        after = self.buffer.get_all()
        for held in self.held:
            held.replays = after[counts[held.serial]].info.replay_count
        wanted = [h.as_sample(origin=SampleOrigin.REPLAY) for h in fitting if h.priority > 0]
        assert all(sample in wanted for sample in drawn)

    @rule(n=st.integers(0, 9))
    def draw_uniformly(self, n: int) -> None:
        before = [held.replays for held in self.held]
        drawn = self.buffer.sample_uniform(n)
        after = [sample.info.replay_count for sample in self.buffer.get_all()]
        assert len(drawn) == min(n, len(self.held))
        assert sorted(np.subtract(after, before).tolist(), reverse=True) == [1] * len(drawn) + [0] * (
            len(self.held) - len(drawn)
        )
        for held, count in zip(self.held, after, strict=True):
            held.replays = count

    @precondition(lambda self: self.held)
    @rule(place=st.integers(0, 6), priority=PRIORITIES)
    def change_priority_by_id(self, place: int, priority: float) -> None:
        wanted = self.held[place % len(self.held)].sample.sample_id
        assert self.buffer.update_priority(wanted, priority)
        for held in self.held:
            if held.sample.sample_id == wanted:
                held.priority = priority

    @precondition(lambda self: any(held.priority for held in self.held))
    @rule(n=st.integers(1, 5), priority=PRIORITIES, later=st.lists(samples(), max_size=3))
    def change_priorities_of_a_draw(self, n: int, priority: float, later: list[Sample]) -> None:
        drawn = self.buffer.draw(n)
        for sample in later:
            self.add(sample, None)
        assert len(drawn.samples) == n
        assert drawn.weights.max() == 1.0
        updated = self.buffer.update_priorities(drawn.handles, np.full(n, priority))
        serials = drawn.handles.serials.tolist()
        assert updated == sum(serial in {held.serial for held in self.held} for serial in serials)
        for held in self.held:
            if held.serial in serials:
                held.priority = priority
                held.replays += serials.count(held.serial)

    @rule()
    def follow_rewards(self) -> None:
        self.buffer.update_priorities_by_reward(alpha=0.5)
        for held in self.held:
            if held.sample.info.reward is not None:
                held.priority = 0.5 * held.priority + 0.5 * max(held.sample.info.reward + 1.0, 0.0)

    @rule()
    def clear(self) -> None:
        self.buffer.clear()
        self.held.clear()

    @rule()
    def save_and_load(self) -> None:
        with TemporaryDirectory() as folder:
            path = Path(folder, "buffer.npz")
            self.buffer.save(path)
            self.buffer = ReplayBuffer.load(path)
        assert self.buffer.config == self.config

    @invariant()
    def holds_the_same_samples_in_the_same_order(self) -> None:
        snapshot = self.buffer.snapshot()
        assert snapshot.serials.tolist() == [held.serial for held in self.held]
        assert list(snapshot.samples) == [held.as_sample() for held in self.held]
        assert (self.buffer.size, self.buffer.total_added) == (len(self.held), self.added)
        assert self.buffer.total_evicted == self.added - len(self.held)

    @invariant()
    def statistics_equal_recomputation(self) -> None:
        stats, all_of_them = self.buffer.stats(), [held.sample for held in self.held]
        difficulties = [s.info.difficulty for s in all_of_them if s.info.difficulty is not None]
        rewards = [s.info.reward for s in all_of_them if s.info.reward is not None]
        outcomes = [s.info.success for s in all_of_them if s.info.success is not None]
        assert stats.total_tokens == sum(s.length for s in all_of_them)
        assert stats.mean_difficulty == pytest.approx(_mean(difficulties), rel=1e-15)
        assert stats.mean_reward == pytest.approx(_mean(rewards), rel=1e-15)
        assert stats.success_rate == (sum(outcomes) / len(outcomes) if outcomes else 0.0)


def _mean(numbers: list[float]) -> float:
    """Without rounding but at the end."""
    return float(sum(map(Fraction, numbers), Fraction(0)) / len(numbers)) if numbers else 0.0


TestReplayMachine = ReplayMachine.TestCase
TestReplayMachine.settings = settings(max_examples=30, stateful_step_count=20, deadline=None)

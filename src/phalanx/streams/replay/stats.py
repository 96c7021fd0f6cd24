"""A replay buffer's figures, exact after any number of additions and evictions: no rounding error builds up.

What is added and evicted is decided in `buffer`.
"""

import dataclasses
from fractions import Fraction

import numpy as np
from jaxtyping import Float64, Int8, Int32, Int64

_LIMB_BITS = 27
_LOWEST = -1126
"""Twice the smallest float64 and half its 53 bits; every mantissa is a whole number of 2**_LOWEST."""
_EXPONENTS = 1025 - _LOWEST


class ExactSum:
    """Sums float64 numbers without rounding, many at a time.

    Each number is an integer of 53 bits times a power of two. The integers are added up for each power by
    itself, in two halves, so that no sum of fewer than 2**36 numbers overflows.
    """

    def __init__(self) -> None:
        self._limbs = np.zeros((2, _EXPONENTS), np.int64)

    def add(self, numbers: Float64[np.ndarray, " count"]) -> None:
        """Count these numbers in; they must be finite."""
        self._move(numbers, 1)

    def remove(self, numbers: Float64[np.ndarray, " count"]) -> None:
        """Take out numbers that were counted in before."""
        self._move(numbers, -1)

    def _move(self, numbers: Float64[np.ndarray, " count"], sign: int) -> None:
        mantissas, exponents = np.frexp(numbers)
        whole = np.ldexp(mantissas, 53).astype(np.int64)
        high = whole >> _LIMB_BITS
        low = whole - (high << _LIMB_BITS)
        place = exponents - 53 - _LOWEST
        np.add.at(self._limbs[0], place, sign * low)
        np.add.at(self._limbs[1], place, sign * high)

    @property
    def fraction(self) -> Fraction:
        """The sum itself."""
        limbs = self._limbs[0].astype(object) + (self._limbs[1].astype(object) << _LIMB_BITS)
        places = np.flatnonzero(self._limbs.any(axis=0)).tolist()
        total = sum(int(limbs[place]) << place for place in places)
        return Fraction(total, 1) * Fraction(1, 1 << -_LOWEST)

    def mean(self, count: int) -> float:
        """The sum over `count`, rounded once; 0 for a count of 0."""
        return float(self.fraction / count) if count else 0.0

    def clear(self) -> None:
        """Back to 0."""
        self._limbs[:] = 0


DIFFICULTY_BINS = 10


@dataclasses.dataclass(frozen=True)
class ReplayStats:
    """A buffer's figures at one moment."""

    size: int
    total_added: int
    total_evicted: int
    total_tokens: int
    """Tokens of the samples that are held."""
    mean_length: float
    mean_difficulty: float
    """Over the samples whose difficulty is known; 0 without any, as for the other means."""
    mean_reward: float
    success_rate: float
    difficulty_counts: tuple[int, ...]
    """Samples with a difficulty in [0, 0.1), [0.1, 0.2), ... [0.9, 1]."""
    success_by_difficulty: tuple[float | None, ...]
    """Success rate in each of those; None where no outcome is known."""
    memory_bytes: int


class RunningStats:
    """Counts of what a buffer holds, exact after any number of additions and evictions."""

    def __init__(self, track_difficulty: bool = True, track_success: bool = True) -> None:
        self._track_difficulty = track_difficulty
        self._track_success = track_success
        self.clear()

    def clear(self) -> None:
        """Nothing is held."""
        self.total_tokens = 0
        self._difficulty, self._reward = ExactSum(), ExactSum()
        self._rewards = 0
        self._bins = np.zeros(DIFFICULTY_BINS, np.int64)
        self._outcomes = np.zeros((2, DIFFICULTY_BINS + 1), np.int64)

    def add(self, records: dict[str, np.ndarray]) -> None:
        """Count samples in, by their columns."""
        self._move(1, records["length"], records["difficulty"], records["reward"], records["success"])

    def remove(self, records: dict[str, np.ndarray]) -> None:
        """Count samples out that were counted in."""
        self._move(-1, records["length"], records["difficulty"], records["reward"], records["success"])

    def _move(
        self,
        sign: int,
        lengths: Int32[np.ndarray, " count"],
        difficulties: Float64[np.ndarray, " count"],
        rewards: Float64[np.ndarray, " count"],
        successes: Int8[np.ndarray, " count"],
    ) -> None:
        self.total_tokens += sign * int(lengths.sum(dtype=np.int64))
        rewards = rewards[~np.isnan(rewards)]
        self._rewards += sign * len(rewards)
        _change(self._reward, sign, rewards)
        bins = difficulty_bins(difficulties)
        if self._track_difficulty:
            known = difficulties[bins < DIFFICULTY_BINS]
            _change(self._difficulty, sign, known)
            self._bins += sign * np.bincount(bins, minlength=DIFFICULTY_BINS + 1)[:DIFFICULTY_BINS]
        if self._track_success:
            told = successes >= 0
            # Samples of unknown difficulty have a place of their own behind the bins.
            where = successes[told].astype(np.int64) * (DIFFICULTY_BINS + 1) + bins[told]
            counts = np.bincount(where, minlength=2 * (DIFFICULTY_BINS + 1))
            self._outcomes += sign * counts.reshape(2, DIFFICULTY_BINS + 1)

    @property
    def mean_difficulty(self) -> float:
        """Mean over the samples whose difficulty is known, rounded once; 0 without any."""
        if not self._track_difficulty:
            raise ValueError("difficulty is not tracked; set track_difficulty=True")
        return self._difficulty.mean(int(self._bins.sum()))

    @property
    def mean_reward(self) -> float:
        """Mean over the samples whose reward is known, rounded once; 0 without any."""
        return self._reward.mean(self._rewards)

    @property
    def success_rate(self) -> float:
        """Part that succeeded of the samples whose outcome is known; 0 without any."""
        if not self._track_success:
            raise ValueError("success is not tracked; set track_success=True")
        failures, successes = self._outcomes.sum(axis=1).tolist()
        return successes / (successes + failures) if successes + failures else 0.0

    @property
    def difficulty_counts(self) -> tuple[int, ...]:
        """Samples in each tenth of difficulty."""
        return tuple(self._bins.tolist())

    @property
    def success_by_difficulty(self) -> tuple[float | None, ...]:
        """Success rate in each tenth of difficulty; None where no outcome is known."""
        failures, successes = self._outcomes[:, :DIFFICULTY_BINS].tolist()
        return tuple(s / (s + f) if s + f else None for f, s in zip(failures, successes, strict=True))

    def figures(self, size: int, total_added: int, memory_bytes: int) -> ReplayStats:
        """All of it at once; what is not tracked is 0."""
        return ReplayStats(
            size=size,
            total_added=total_added,
            total_evicted=total_added - size,
            total_tokens=self.total_tokens,
            mean_length=self.total_tokens / size if size else 0.0,
            mean_difficulty=self.mean_difficulty if self._track_difficulty else 0.0,
            mean_reward=self.mean_reward,
            success_rate=self.success_rate if self._track_success else 0.0,
            difficulty_counts=self.difficulty_counts,
            success_by_difficulty=self.success_by_difficulty,
            memory_bytes=memory_bytes,
        )


def difficulty_bins(difficulties: Float64[np.ndarray, " count"]) -> Int64[np.ndarray, " count"]:
    """The tenth that each difficulty lies in; the number of tenths for one that is not known."""
    known = ~np.isnan(difficulties)
    tenths = np.floor(np.where(known, difficulties, 0.0) * DIFFICULTY_BINS).astype(np.int64)
    return np.where(known, np.minimum(tenths, DIFFICULTY_BINS - 1), DIFFICULTY_BINS)


def _change(total: ExactSum, sign: int, numbers: Float64[np.ndarray, " count"]) -> None:
    if sign > 0:
        total.add(numbers)
    else:
        total.remove(numbers)

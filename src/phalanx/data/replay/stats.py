"""A replay buffer's figures at one moment, from the columns of what it holds.

What it holds is decided in `buffer`.
"""

import dataclasses
import math

import numpy as np
from jaxtyping import Float64

DIFFICULTY_BINS = 10
_HEADROOM = 2.0**64


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


def replay_stats(
    columns: dict[str, np.ndarray], total_added: int, memory_bytes: int, difficulty: bool, success: bool
) -> ReplayStats:
    """The figures of samples in columns; without `difficulty` or `success`, those are 0."""
    size, tokens = len(columns["length"]), int(columns["length"].sum(dtype=np.int64))
    known = columns["difficulty"] if difficulty else np.full(size, np.nan)
    told = columns["success"] if success else np.full(size, -1, np.int8)
    bins = np.where(np.isnan(known), DIFFICULTY_BINS, np.minimum(np.nan_to_num(known) * 10, 9)).astype(
        np.int64
    )
    outcomes = [np.bincount(bins[told == outcome], minlength=DIFFICULTY_BINS + 1) for outcome in (0, 1)]
    failures, successes = (counts[:DIFFICULTY_BINS].tolist() for counts in outcomes)
    return ReplayStats(
        size=size,
        total_added=total_added,
        total_evicted=total_added - size,
        total_tokens=tokens,
        mean_length=tokens / size if size else 0.0,
        mean_difficulty=known_mean(known),
        mean_reward=known_mean(columns["reward"]),
        success_rate=known_mean(np.where(told < 0, np.nan, told)),
        difficulty_counts=tuple(np.bincount(bins, minlength=DIFFICULTY_BINS + 1)[:DIFFICULTY_BINS].tolist()),
        success_by_difficulty=tuple(
            right / (right + wrong) if right + wrong else None
            for wrong, right in zip(failures, successes, strict=True)
        ),
        memory_bytes=memory_bytes,
    )


def known_mean(values: Float64[np.ndarray, " count"]) -> float:
    """The mean of what is not NaN, whatever the order; 0 without any."""
    known = values[~np.isnan(values)]
    # Summed exactly; made smaller first, so that the sum of large numbers is a number too.
    return math.fsum((known / _HEADROOM).tolist()) / len(known) * _HEADROOM if len(known) else 0.0

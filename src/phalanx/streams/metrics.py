"""What a stream counts while it runs.

The samples that are counted are in `types`.
"""

import dataclasses
from typing import Protocol, runtime_checkable


@runtime_checkable
class Countable(Protocol):
    """What is counted of a sample."""

    @property
    def length(self) -> int: ...
    @property
    def num_loss_tokens(self) -> int: ...
    @property
    def difficulty(self) -> float | None: ...
    @property
    def reward(self) -> float | None: ...


@dataclasses.dataclass
class StreamMetrics:
    """What a stream has given so far. It counts up while the stream runs."""

    samples_produced: int = 0
    samples_filtered: int = 0
    """Left out because they were too short, too long, or failures that were not wanted."""
    samples_errored: int = 0
    episodes_completed: int = 0
    episodes_successful: int = 0
    episodes_failed: int = 0
    total_time_seconds: float = 0.0
    total_tokens: int = 0
    total_loss_tokens: int = 0
    min_length_seen: int | None = None
    max_length_seen: int | None = None
    difficulty_sum: float = 0.0
    difficulty_count: int = 0
    """Samples whose difficulty is known."""
    reward_sum: float = 0.0
    reward_count: int = 0
    """Samples whose reward is known."""
    reconnects: int = 0
    """Connections that were lost and made again."""
    episodes_replayed: int = 0
    """Episodes that were played again from the start because their connection was lost."""

    @property
    def samples_total(self) -> int:
        """Produced and filtered."""
        return self.samples_produced + self.samples_filtered

    @property
    def filter_rate(self) -> float:
        """Part of the samples that was left out."""
        return _ratio(self.samples_filtered, self.samples_total)

    @property
    def samples_per_second(self) -> float:
        """Samples in a second of the stream's time."""
        return _ratio(self.samples_produced, self.total_time_seconds)

    @property
    def tokens_per_second(self) -> float:
        """Tokens in a second of the stream's time."""
        return _ratio(self.total_tokens, self.total_time_seconds)

    @property
    def success_rate(self) -> float:
        """Part of the episodes that succeeded."""
        return _ratio(self.episodes_successful, self.episodes_completed)

    @property
    def mean_difficulty(self) -> float:
        """Mean over the samples whose difficulty is known; 0 without any."""
        return _ratio(self.difficulty_sum, self.difficulty_count)

    @property
    def mean_reward(self) -> float:
        """Mean over the samples whose reward is known; 0 without any."""
        return _ratio(self.reward_sum, self.reward_count)

    @property
    def mean_length(self) -> float:
        """Tokens in a sample."""
        return _ratio(self.total_tokens, self.samples_produced)

    def record_sample(self, sample: Countable) -> None:
        """Count a sample that was produced."""
        length = sample.length
        self.samples_produced += 1
        self.total_tokens += length
        self.total_loss_tokens += sample.num_loss_tokens
        self.min_length_seen = length if self.min_length_seen is None else min(self.min_length_seen, length)
        self.max_length_seen = length if self.max_length_seen is None else max(self.max_length_seen, length)
        difficulty, reward = sample.difficulty, sample.reward
        if difficulty is not None:
            self.difficulty_sum += difficulty
            self.difficulty_count += 1
        if reward is not None:
            self.reward_sum += reward
            self.reward_count += 1

    def record_filtered(self) -> None:
        """Count a sample that was left out."""
        self.samples_filtered += 1

    def record_error(self) -> None:
        """Count a sample that could not be made."""
        self.samples_errored += 1

    def record_episode(self, success: bool) -> None:
        """Count an episode that came to its end."""
        self.episodes_completed += 1
        if success:
            self.episodes_successful += 1
        else:
            self.episodes_failed += 1

    def to_dict(self) -> dict[str, float]:
        """The figures that a log shows."""
        return {
            "samples_produced": self.samples_produced,
            "samples_filtered": self.samples_filtered,
            "filter_rate": self.filter_rate,
            "samples_per_second": self.samples_per_second,
            "tokens_per_second": self.tokens_per_second,
            "mean_length": self.mean_length,
            "mean_difficulty": self.mean_difficulty,
            "mean_reward": self.mean_reward,
            "success_rate": self.success_rate,
            "episodes_completed": self.episodes_completed,
        }


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0

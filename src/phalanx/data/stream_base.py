"""Base classes of sample streams, and their counters."""

import abc
import dataclasses
from collections.abc import Iterator
from enum import StrEnum
from types import TracebackType
from typing import Self

from phalanx.data.samples import Sample


class StreamState(StrEnum):
    """What a stream is doing."""

    IDLE = "idle"
    STREAMING = "streaming"
    PAUSED = "paused"
    EXHAUSTED = "exhausted"
    ERROR = "error"


@dataclasses.dataclass
class StreamMetrics:
    """Counters of a stream."""

    samples_produced: int = 0
    samples_filtered: int = 0
    """Samples that were left out because of their length or outcome."""
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
    """Samples with a known difficulty."""
    reward_sum: float = 0.0
    reward_count: int = 0
    """Samples with a known reward."""
    reconnects: int = 0
    """Connections that were lost and established again."""
    episodes_replayed: int = 0
    """Episodes that were repeated on a new connection because theirs was lost."""

    @property
    def samples_total(self) -> int:
        """Samples produced and filtered."""
        return self.samples_produced + self.samples_filtered

    @property
    def filter_rate(self) -> float:
        """Fraction of the samples that were filtered."""
        return _ratio(self.samples_filtered, self.samples_total)

    @property
    def samples_per_second(self) -> float:
        """Samples per second."""
        return _ratio(self.samples_produced, self.total_time_seconds)

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second."""
        return _ratio(self.total_tokens, self.total_time_seconds)

    @property
    def success_rate(self) -> float:
        """Fraction of the episodes that succeeded."""
        return _ratio(self.episodes_successful, self.episodes_completed)

    @property
    def mean_difficulty(self) -> float:
        """Mean over the samples with a known difficulty; 0 without any."""
        return _ratio(self.difficulty_sum, self.difficulty_count)

    @property
    def mean_reward(self) -> float:
        """Mean over the samples with a known reward; 0 without any."""
        return _ratio(self.reward_sum, self.reward_count)

    @property
    def mean_length(self) -> float:
        """Mean number of tokens per sample."""
        return _ratio(self.total_tokens, self.samples_produced)

    def record_sample(self, sample: Sample) -> None:
        """Count a sample that was produced."""
        length = sample.length
        self.samples_produced += 1
        self.total_tokens += length
        self.total_loss_tokens += sample.num_loss_tokens
        self.min_length_seen = length if self.min_length_seen is None else min(self.min_length_seen, length)
        self.max_length_seen = length if self.max_length_seen is None else max(self.max_length_seen, length)
        info = sample.info
        difficulty, reward = (None, None) if info is None else (info.difficulty, info.reward)
        if difficulty is not None:
            self.difficulty_sum += difficulty
            self.difficulty_count += 1
        if reward is not None:
            self.reward_sum += reward
            self.reward_count += 1

    def record_filtered(self) -> None:
        """Count a sample that was filtered."""
        self.samples_filtered += 1

    def record_error(self) -> None:
        """Count a sample that could not be created."""
        self.samples_errored += 1

    def record_episode(self, success: bool) -> None:
        """Count a completed episode."""
        self.episodes_completed += 1
        if success:
            self.episodes_successful += 1
        else:
            self.episodes_failed += 1

    def to_dict(self) -> dict[str, float]:
        """Return the values for a log."""
        return {name: getattr(self, name) for name in _LOGGED}


_LOGGED = (
    *("samples_produced", "samples_filtered", "filter_rate", "samples_per_second", "tokens_per_second"),
    *("mean_length", "mean_difficulty", "mean_reward", "success_rate", "episodes_completed"),
)


def _ratio(part: float, total: float) -> float:
    return part / total if total else 0.0


class CountedStream:
    """State and counters of a stream."""

    def __init__(self) -> None:
        self._state = StreamState.IDLE
        self._metrics = StreamMetrics()

    @property
    def state(self) -> StreamState:
        """Current state."""
        return self._state

    @property
    def metrics(self) -> StreamMetrics:
        """Counters."""
        return self._metrics


class IteratedStream(CountedStream, abc.ABC):
    """A stream over the samples that `_samples` yields. A second loop continues where the first one
    stopped."""

    def __init__(self) -> None:
        super().__init__()
        self._running: Iterator[Sample] | None = None

    @abc.abstractmethod
    def _samples(self) -> Iterator[Sample]:
        """Iterate over all samples, and count them."""

    def __iter__(self) -> Iterator[Sample]:
        """Iterate over the remaining samples."""
        if self._running is None:
            self._running = self._samples()
        return self._running

    def reset(self) -> None:
        """Restart the stream and its counters."""
        self.close()
        self._state = StreamState.IDLE
        self._metrics = StreamMetrics()

    def close(self) -> None:
        """Release resources; closing twice is allowed."""
        self._running = None


class ClosedOnExit(abc.ABC):
    """An asynchronous context manager that calls `close`."""

    @abc.abstractmethod
    async def close(self) -> None:
        """Release resources; closing twice is allowed."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

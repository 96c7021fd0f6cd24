"""What every stream of samples offers: the two protocols, what a stream counts, and the common base classes.

The streams themselves are in their own modules; none of them has to inherit from these.
"""

import abc
import dataclasses
from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import Protocol, Self, runtime_checkable

from phalanx.data.samples import StreamSample, StreamState


@dataclasses.dataclass
class StreamMetrics:
    """What a stream has handed out so far. It counts up while the stream runs."""

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
    """Times that an episode was taken up on a new connection because its own was lost."""

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

    def record_sample(self, sample: StreamSample) -> None:
        """Count a sample that was handed out."""
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
        return {name: getattr(self, name) for name in _SHOWN}


_SHOWN = (
    *("samples_produced", "samples_filtered", "filter_rate", "samples_per_second", "tokens_per_second"),
    *("mean_length", "mean_difficulty", "mean_reward", "success_rate", "episodes_completed"),
)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


class _Counted(Protocol):
    @property
    def state(self) -> StreamState:
        """What the stream is doing."""
        ...

    @property
    def metrics(self) -> StreamMetrics:
        """What it has handed out so far."""
        ...


@runtime_checkable
class SampleStream(_Counted, Protocol):
    """Samples in a `for` loop: from files, lists, and environments on this machine."""

    def __iter__(self) -> Iterator[StreamSample]:
        """The samples, from where the stream stands."""
        ...

    def reset(self) -> None:
        """Go back to the start, and count from 0."""
        ...

    def close(self) -> None:
        """Let go of files and memory; closing twice is fine."""
        ...


@runtime_checkable
class AsyncSampleStream(_Counted, Protocol):
    """Samples in an `async for` loop: from puzzle servers."""

    def __aiter__(self) -> AsyncIterator[StreamSample]:
        """The samples, from where the stream stands."""
        ...

    async def reset(self) -> None:
        """Go back to the start, and count from 0."""
        ...

    async def close(self) -> None:
        """Let go of connections; closing twice is fine."""
        ...

    async def __aenter__(self) -> "AsyncSampleStream":
        """Open what the stream needs."""
        ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the stream."""
        ...


class CountedStream:
    """A stream's state and counts."""

    def __init__(self) -> None:
        self._state = StreamState.IDLE
        self._metrics = StreamMetrics()

    @property
    def state(self) -> StreamState:
        """What the stream is doing."""
        return self._state

    @property
    def metrics(self) -> StreamMetrics:
        """What it has handed out so far."""
        return self._metrics


class IteratedStream(CountedStream, abc.ABC):
    """A stream for a `for` loop over what `_samples` yields. Several loops go on with one another's place."""

    def __init__(self) -> None:
        super().__init__()
        self._running: Iterator[StreamSample] | None = None

    @abc.abstractmethod
    def _samples(self) -> Iterator[StreamSample]:
        """All samples from the start, counted."""

    def __iter__(self) -> Iterator[StreamSample]:
        """The samples, from where the stream stands; nothing more after the last, until it is reset."""
        if self._running is None:
            self._running = self._samples()
        return self._running

    def reset(self) -> None:
        """Go back to the start, and count from 0."""
        self.close()
        self._state = StreamState.IDLE
        self._metrics = StreamMetrics()

    def close(self) -> None:
        """Let go of files and of what was played; closing twice is fine."""
        self._running = None


class ClosedOnExit(abc.ABC):
    """An `async with` that closes what it opened, however it is left."""

    @abc.abstractmethod
    async def close(self) -> None:
        """Let go of what was opened; closing twice is fine."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

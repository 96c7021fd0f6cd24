"""What every stream of samples offers, whether it is read in a loop or awaited.

The streams themselves live in their own modules; none of them inherits from these.
"""

import abc
from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import Protocol, runtime_checkable

from phalanx.streams.types import StreamMetrics, StreamSample, StreamState


@runtime_checkable
class SampleStream(Protocol):
    """Samples in a `for` loop: from files, lists, and environments on this machine."""

    @property
    def state(self) -> StreamState:
        """What the stream is doing."""
        ...

    @property
    def metrics(self) -> StreamMetrics:
        """What it has given so far."""
        ...

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
class AsyncSampleStream(Protocol):
    """Samples in an `async for` loop: from puzzle servers."""

    @property
    def state(self) -> StreamState:
        """What the stream is doing."""
        ...

    @property
    def metrics(self) -> StreamMetrics:
        """What it has given so far."""
        ...

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
        """What it has given so far."""
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

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

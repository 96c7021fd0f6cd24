"""What every stream of samples offers, whether it is read in a loop or awaited.

The streams themselves live in their own modules; none of them inherits from these.
"""

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

"""Protocols of sample streams."""

from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import Protocol, runtime_checkable

from phalanx.compat.chuk_lazarus.data.batching.streaming.types import StreamMetrics, StreamSample, StreamState


class _Counted(Protocol):
    @property
    def state(self) -> StreamState:
        """Current state."""
        ...

    @property
    def metrics(self) -> StreamMetrics:
        """Counters."""
        ...


@runtime_checkable
class SampleStream(_Counted, Protocol):
    """Samples in a `for` loop."""

    def __iter__(self) -> Iterator[StreamSample]:
        """Iterate over the remaining samples."""
        ...

    def reset(self) -> None:
        """Restart the stream and its counters."""
        ...

    def close(self) -> None:
        """Release resources."""
        ...


@runtime_checkable
class AsyncSampleStream(_Counted, Protocol):
    """Samples in an `async for` loop."""

    def __aiter__(self) -> AsyncIterator[StreamSample]:
        """Iterate over the remaining samples."""
        ...

    async def reset(self) -> None:
        """Restart the stream and its counters."""
        ...

    async def close(self) -> None:
        """Release resources."""
        ...

    async def __aenter__(self) -> "AsyncSampleStream":
        """Open the stream."""
        ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the stream."""
        ...


__all__ = ["AsyncSampleStream", "SampleStream"]

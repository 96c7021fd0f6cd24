"""Protocols for sample streams."""

from collections.abc import AsyncIterable, Iterable
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, runtime_checkable

from phalanx.compat.chuk_lazarus.data.batching.streaming.types import StreamMetrics, StreamSample, StreamState


class _Counted(Protocol):
    @property
    def state(self) -> StreamState:
        """Current state."""

    @property
    def metrics(self) -> StreamMetrics:
        """Statistics of the stream."""


@runtime_checkable
class SampleStream(_Counted, Iterable[StreamSample], Protocol):
    """Protocol for a stream of samples that a `for` loop can iterate over."""

    def reset(self) -> None:
        """Restart the stream and reset its metrics."""

    def close(self) -> None:
        """Release resources."""


@runtime_checkable
class AsyncSampleStream(_Counted, AsyncIterable[StreamSample], AbstractAsyncContextManager[Any], Protocol):
    """Protocol for a stream of samples that an `async for` loop can iterate over."""

    async def reset(self) -> None:
        """Restart the stream and reset its metrics."""

    async def close(self) -> None:
        """Release resources."""


__all__ = ["AsyncSampleStream", "SampleStream"]

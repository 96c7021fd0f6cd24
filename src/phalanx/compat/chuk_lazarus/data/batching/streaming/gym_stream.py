"""Streams of samples from puzzle episodes."""

from collections.abc import AsyncIterator

from phalanx.compat.chuk_lazarus.data.batching.streaming.types import StreamSample
from phalanx.puzzles.server.gym_stream import (
    CollectConfig as GymConfig,
    MockGymStream as _MockGymStream,
    PuzzleSampleStream,
)


class GymEpisodeStream(PuzzleSampleStream):
    """Samples of a puzzle server as `StreamSample`s."""

    async def __aiter__(self) -> AsyncIterator[StreamSample]:  # type: ignore[override]
        async for sample in super().__aiter__():
            yield StreamSample.from_sample(sample)


class MockGymStream(_MockGymStream):
    """Samples of simulated episodes as `StreamSample`s."""

    async def __aiter__(self) -> AsyncIterator[StreamSample]:  # type: ignore[override]
        async for sample in super().__aiter__():
            yield StreamSample.from_sample(sample)


__all__ = ["GymConfig", "GymEpisodeStream", "MockGymStream"]

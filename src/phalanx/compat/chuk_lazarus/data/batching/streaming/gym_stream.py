"""Streams of puzzle episodes that come from a server or are generated."""

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from typing import Any, ClassVar

from pydantic import model_validator

from phalanx.compat.chuk_lazarus.data.batching.streaming.types import (
    StreamMetrics,
    StreamSample,
    StreamState,
)
from phalanx.compat.renamed import RenamedAttributes, RenamedFields, alias
from phalanx.data.samples import EpisodeStatus, Sample
from phalanx.puzzles.server_client.episode_pool import episode_seed
from phalanx.puzzles.server_client.episodes import (
    CollectConfig,
    EpisodeStep,
    PuzzleEpisode,
    PuzzleSampleStream,
)

_ADDRESS = ("host", "port", "connect_timeout", "read_timeout", "deadline", "max_retries")


class GymConfig(RenamedFields, CollectConfig):
    """`CollectConfig` whose `client` settings, such as `host`, can be passed as separate arguments."""

    renamed: ClassVar = {
        "transport": "the default, TCP",
        "output_mode": "the default, JSON",
        "episode_timeout": "max_steps to limit an episode, and deadline to limit the wait for the server",
        "puzzle_types": "games, with the server's names",
        "difficulty_range": "difficulties: easy, medium, hard",
        "retry_delay": "max_retries and deadline; delays grow automatically",
    }
    host: ClassVar = alias("client.host")
    port: ClassVar = alias("client.port")
    connect_timeout: ClassVar = alias("client.connect_timeout")
    read_timeout: ClassVar = alias("client.read_timeout")
    deadline: ClassVar = alias("client.deadline")
    max_retries: ClassVar = alias("client.max_retries")

    @model_validator(mode="before")
    @classmethod
    def _collect_client(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        values = dict(values)
        address = {name: values.pop(name) for name in _ADDRESS if name in values}
        if address and "client" in values:
            raise ValueError(f"set {', '.join(address)} in client, because client is also given")
        return {"client": {"max_retries": 12, "retry_seed": values.get("seed", 0), **address}, **values}


class GymEpisodeStream(RenamedAttributes, PuzzleSampleStream):
    """`PuzzleSampleStream` under its chuk-lazarus name, with a state and statistics."""

    renamed: ClassVar = {
        "connect": "it connects when it is iterated",
        "disconnect": "await close(), or use `async with`",
    }

    def __init__(self, config: GymConfig | None = None, tokenizer: Any = None, **settings: Any) -> None:
        if not settings.keys().isdisjoint(("min_length", "max_length")):
            raise ValueError("set min_sample_length and max_sample_length in GymConfig")
        super().__init__(config or GymConfig(), tokenizer, **settings)
        self.state = StreamState.IDLE
        """Current state of the stream."""
        self.metrics = StreamMetrics()
        """Statistics of the stream since its start or the last `reset`."""

    async def __aiter__(self) -> AsyncIterator[StreamSample]:  # type: ignore[override]
        clock = asyncio.get_running_loop().time
        self.state, start = StreamState.STREAMING, clock()
        state_after = StreamState.ERROR
        try:
            async for sample in super().__aiter__():
                converted = StreamSample.from_sample(sample)
                self.metrics.record_sample(converted)
                self.metrics.total_time_seconds += clock() - start
                yield converted
                self.state, start = StreamState.STREAMING, clock()
            state_after = StreamState.EXHAUSTED if self._next == self._end else StreamState.PAUSED
        except (GeneratorExit, asyncio.CancelledError):  # the loop was left or canceled
            state_after = StreamState.PAUSED
            raise
        finally:
            if self.state is StreamState.STREAMING:
                self.state = state_after

    async def reset(self) -> None:
        """Restart with the first episode, and reset the metrics."""
        await super().reset()
        self.state, self.metrics = StreamState.IDLE, StreamMetrics()

    def _select_samples(self, episode: PuzzleEpisode) -> list[Sample]:
        samples = super()._select_samples(episode)
        self.metrics.record_episode(episode.success)
        self.metrics.samples_filtered += len(episode.steps) - len(samples)
        return samples


class MockGymStream(GymEpisodeStream):
    """A stream of generated episodes, in which the blank cells of a 4x4 Latin square are filled one by one.

    In a failed episode, the last move is a wrong number. The same seed gives the same samples.

    Args:
        tokenizer: Function that converts text to token ids, or an object whose `encode` method does so. If
            None, the bytes of the text are used.
        num_episodes: Number of episodes.
        steps_per_episode: Number of blank cells in each square, from 1 to 16.
        difficulty_range: Range from which the difficulty of each episode is drawn, within 0 to 1.
        success_rate: Probability that an episode is successful.
        seed: Seed for the episodes.
        dataset_id: Name of the dataset in the samples.
    """

    def __init__(
        self,
        tokenizer: Any = None,
        num_episodes: int = 100,
        steps_per_episode: int = 5,
        difficulty_range: tuple[float, float] = (0.0, 1.0),
        success_rate: float = 0.7,
        seed: int = 42,
        *,
        dataset_id: str = "mock_gym",
    ) -> None:
        low, high = difficulty_range
        if not 0.0 <= low <= high <= 1.0:
            raise ValueError(f"difficulty_range must increase within 0 to 1, got {difficulty_range}")
        if not 1 <= steps_per_episode <= 16:
            raise ValueError(f"steps_per_episode must be between 1 and 16, got {steps_per_episode}")
        if not 0.0 <= success_rate <= 1.0:
            raise ValueError(f"success_rate must be between 0 and 1, got {success_rate}")
        super().__init__(None, tokenizer, dataset_id=dataset_id, max_episodes=num_episodes)
        self._steps = steps_per_episode
        self._difficulties = difficulty_range
        self._success_rate = success_rate
        self._seed = seed

    async def _next_episode(self) -> PuzzleEpisode | None:
        if self._next == self._end:
            return None
        self._next += 1
        return self._episode(self._next - 1)

    def _episode(self, index: int) -> PuzzleEpisode:
        rng = random.Random(episode_seed(self._seed, index))
        low, high = self._difficulties
        difficulty = low + (high - low) * rng.random()
        solved = rng.random() < self._success_rate
        numbers, rows = rng.sample(range(1, 5), 4), rng.sample(range(4), 4)
        answer = [numbers[(row + column) % 4] for row in rows for column in range(4)]
        empty = sorted(rng.sample(range(16), self._steps))
        shown = ["." if cell in empty else str(number) for cell, number in enumerate(answer)]
        steps = []
        for cell in empty:
            board = "\n".join(" ".join(shown[start : start + 4]) for start in range(0, 16, 4))
            is_wrong = cell == empty[-1] and not solved
            number = answer[cell] % 4 + 1 if is_wrong else answer[cell]
            reward = -0.1 if is_wrong else float(cell == empty[-1])
            command = f"place {cell // 4 + 1} {cell % 4 + 1} {number}"
            steps.append(EpisodeStep(f"Puzzle: latin\n{board}\nMove: ", command, not is_wrong, reward))
            shown[cell] = str(number)
        status = EpisodeStatus.SUCCESS if solved else EpisodeStatus.FAILURE
        return PuzzleEpisode(f"latin_{self._seed}_{index}", "latin", difficulty, tuple(steps), status)


__all__ = ["GymConfig", "GymEpisodeStream", "MockGymStream"]

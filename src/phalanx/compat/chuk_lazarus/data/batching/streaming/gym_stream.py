"""Drop-in replacement for `chuk_lazarus.data.batching.streaming.gym_stream`."""

import random
from collections.abc import AsyncIterator
from typing import Any, ClassVar

from pydantic import Field, model_validator

from phalanx.compat.chuk_lazarus.data.batching.streaming.types import StreamSample
from phalanx.compat.renamed import RenamedAttributes, reject_renamed
from phalanx.config import Config
from phalanx.data.samples import EpisodeStatus
from phalanx.puzzles.server.client import PuzzleClientConfig
from phalanx.puzzles.server.episodes import (
    CollectConfig,
    EpisodeStep,
    EpisodeStream,
    PuzzleEpisode,
    PuzzleSampleStream,
    StepRewards,
    StreamedEpisode,
    StreamState,
)
from phalanx.puzzles.server.pool import ConnectionPoolConfig, episode_seed
from phalanx.puzzles.server.protocol import PuzzleDifficulty, PuzzleGame

_ADDRESS = ("host", "port", "connect_timeout", "read_timeout", "deadline", "max_retries")


class GymConfig(Config):
    """Settings of `GymEpisodeStream`: those of `CollectConfig`, with the address at the top level."""

    host: str = "localhost"
    """Host name or address of the server."""
    port: int = Field(default=8023, ge=1, le=65535)
    """Port of the server."""
    connect_timeout: float = Field(default=10.0, gt=0)
    """Seconds for one attempt to connect."""
    read_timeout: float = Field(default=30.0, gt=0)
    """Seconds for one reply."""
    deadline: float = Field(default=120.0, gt=0)
    """Seconds for one request in total, including all retries."""
    max_retries: int = Field(default=12, ge=0)
    """Number of further attempts to connect."""
    games: tuple[str, ...] = (PuzzleGame.SUDOKU.value,)
    """Names of the games, in turn."""
    difficulties: tuple[PuzzleDifficulty, ...] = (PuzzleDifficulty.EASY,)
    """Difficulties; each round of the games uses the next one."""
    seed: int = 0
    """Base seed."""
    use_hints: bool = True
    """Ask for a hint before each move."""
    max_steps: int = Field(default=99, ge=1)
    """Maximum number of moves per episode."""
    max_invalid_answers: int = Field(default=10, ge=1)
    """Number of invalid moves of a policy in a row after which an episode ends."""
    min_length: int = Field(default=1, ge=1)
    """Minimum number of tokens of a sample."""
    max_length: int = Field(default=8192, ge=1)
    """Maximum number of tokens of a sample."""
    keep_failures: bool = True
    """Keep samples of puzzles that were not solved."""
    pool: ConnectionPoolConfig = ConnectionPoolConfig(ordered=True)
    """Connections."""
    rewards: StepRewards = StepRewards()
    """Rewards by the outcome of a move."""

    @model_validator(mode="before")
    @classmethod
    def _explain_missing(cls, values: Any) -> Any:
        missing = {
            "transport": "the server speaks TCP",
            "output_mode": "the server always sends JSON",
            "episode_timeout": "max_steps limits an episode, and deadline limits the wait for the server",
            "puzzle_types": "set games, with the server's names",
            "difficulty_range": "set difficulties: easy, medium, hard",
            "retry_delay": "delays grow automatically; set max_retries and deadline",
        }
        return reject_renamed(cls, values, missing)

    def to_collect_config(self) -> CollectConfig:
        """Return the same settings as a `CollectConfig`."""
        settings = {name: getattr(self, name) for name in type(self).model_fields}
        address = {name: settings.pop(name) for name in _ADDRESS}
        return CollectConfig(client=PuzzleClientConfig(**address, retry_seed=self.seed), **settings)


class GymEpisodeStream(RenamedAttributes, PuzzleSampleStream):
    """`PuzzleSampleStream` under its chuk-lazarus name."""

    renamed: ClassVar = {
        "connect": "it connects when it is iterated",
        "disconnect": "await close(), or use `async with`",
    }

    def __init__(self, config: GymConfig | None = None, tokenizer: Any = None, **settings: Any) -> None:
        if not settings.keys().isdisjoint(("min_length", "max_length")):
            raise ValueError("set min_length and max_length in GymConfig")
        super().__init__((config or GymConfig()).to_collect_config(), tokenizer, **settings)

    async def __aiter__(self) -> AsyncIterator[StreamSample]:  # type: ignore[override]
        async for sample in super().__aiter__():
            yield StreamSample.from_sample(sample)


class MockGymStream(EpisodeStream):
    """A stream without a server: 4x4 Latin squares whose blank cells are filled one after another.

    In an episode that fails, the last move is a wrong number. The same seed gives the same samples.
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
        super().__init__(tokenizer, dataset_id)
        self._num_episodes = num_episodes
        self._steps = steps_per_episode
        self._difficulties = difficulty_range
        self._success_rate = success_rate
        self._seed = seed
        self._next_index = 0

    async def __aiter__(self) -> AsyncIterator[StreamSample]:  # type: ignore[override]
        async for sample in super().__aiter__():
            yield StreamSample.from_sample(sample)

    async def reset(self) -> None:
        """Restart with the first episode, and reset the metrics."""
        await super().reset()
        self._next_index = 0

    async def _next_episode(self) -> StreamedEpisode | None:
        if self._next_index == self._num_episodes:
            self._state = StreamState.EXHAUSTED
            return None
        self._next_index += 1
        return StreamedEpisode(None, self._episode(self._next_index - 1))

    def _episode(self, index: int) -> PuzzleEpisode:
        rng = random.Random(episode_seed(self._seed, index))
        low, high = self._difficulties
        difficulty = low + (high - low) * rng.random()
        solved = rng.random() < self._success_rate
        numbers, rows = rng.sample(range(1, 5), 4), rng.sample(range(4), 4)
        answer = [[numbers[(row + column) % 4] for column in range(4)] for row in rows]
        empty = sorted(rng.sample(range(16), self._steps))
        shown = [
            [0 if 4 * row + column in empty else answer[row][column] for column in range(4)]
            for row in range(4)
        ]
        steps = []
        for index_in_episode, cell in enumerate(empty):
            row, column = divmod(cell, 4)
            last = index_in_episode == len(empty) - 1
            number = answer[row][column]
            if last and not solved:
                number = number % 4 + 1
            board = "\n".join(" ".join(str(value or ".") for value in line) for line in shown)
            reward = 0.0 if not last else 1.0 if solved else -0.1
            steps.append(
                EpisodeStep(
                    prompt=f"Puzzle: latin\n{board}\nMove: ",
                    command=f"place {row + 1} {column + 1} {number}",
                    accepted=solved or not last,
                    reward=reward,
                )
            )
            shown[row][column] = number
        status = EpisodeStatus.SUCCESS if solved else EpisodeStatus.FAILURE
        return PuzzleEpisode(f"latin_{self._seed}_{index}", "latin", difficulty, tuple(steps), status)


__all__ = ["GymConfig", "GymEpisodeStream", "MockGymStream"]

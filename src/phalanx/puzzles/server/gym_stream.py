"""Streams of samples from puzzle episodes: of a server, and made up without one.

How an episode is played and becomes samples is in `episodes`; the connections are in `pool`.
"""

import abc
import asyncio
import collections
import random
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from typing import Any, ClassVar, NamedTuple

from pydantic import Field, field_validator, model_validator

from phalanx.data.moved import HasMoved, refuse_moved
from phalanx.data.samples import EpisodeStatus, Sample
from phalanx.data.stream_base import ClosedOnExit, CountedStream, StreamMetrics, StreamState
from phalanx.puzzles.server.client import PuzzleClient, PuzzleClientConfig, ServerAddress
from phalanx.puzzles.server.episodes import (
    Encode,
    EpisodeStep,
    Policy,
    Prompt,
    PuzzleEpisode,
    StepRewards,
    episode_samples,
    move_prompt,
    require_playable_by_hints,
    rollout_episode,
)
from phalanx.puzzles.server.pool import (
    ConnectionPoolConfig,
    EpisodeSpec,
    PuzzlePool,
    episode_seed,
    episode_specs,
)
from phalanx.puzzles.server.protocol import PuzzleDifficulty, PuzzleGame, game_id


class CollectConfig(ServerAddress):
    """Which puzzles are played, where, and how."""

    max_retries: int = Field(default=12, ge=0)
    """Further attempts to connect, with growing pauses: 12 bridge about 13 seconds without a server."""
    games: tuple[str, ...] = (PuzzleGame.SUDOKU.value,)
    """The games, played in turn; any name that the server knows."""
    difficulties: tuple[PuzzleDifficulty, ...] = (PuzzleDifficulty.EASY,)
    """How hard they are; each round of the games takes the next."""
    seed: int = 0
    """The base seed: episode i is the same puzzle in every run with the same seed, games and difficulties."""
    hints: bool = True
    """Ask for a hint before each move; a policy then sees it, and without a policy it is followed."""
    max_steps: int = Field(default=99, ge=1)
    """Moves after which an episode is ended; the server gives 99 hints."""
    max_invalid_answers: int = Field(default=10, ge=1)
    """Refused moves of a policy, one after another, after which an episode is ended."""
    min_length: int = Field(default=1, ge=1)
    """Samples with fewer tokens are left out."""
    max_length: int = Field(default=8192, ge=1)
    """Samples with more tokens are left out."""
    keep_failures: bool = True
    """Whether samples of puzzles that were not solved are handed out too."""
    pool: ConnectionPoolConfig = ConnectionPoolConfig(ordered=True)
    """The connections."""
    rewards: StepRewards = StepRewards()
    """What each kind of step is worth."""

    @model_validator(mode="before")
    @classmethod
    def _names_ours(cls, given: Any) -> Any:
        moved = {
            "transport": "the server speaks TCP",
            "output_mode": "the server is always asked for JSON",
            "episode_timeout": "max_steps bounds an episode, and deadline the wait for the server",
            "puzzle_types": "say games, by the names that the server knows",
            "difficulty_range": "say difficulties: easy, medium, hard",
            "retry_delay": "pauses grow by themselves; say max_retries and deadline",
        }
        return refuse_moved(cls, given, moved)

    @field_validator("games", mode="after")
    @classmethod
    def _ids(cls, games: tuple[str, ...]) -> tuple[str, ...]:
        if not games:
            raise ValueError("name at least one game")
        return tuple(game_id(game) for game in games)

    @field_validator("difficulties", mode="after")
    @classmethod
    def _some(cls, difficulties: tuple[PuzzleDifficulty, ...]) -> tuple[PuzzleDifficulty, ...]:
        if not difficulties:
            raise ValueError("name at least one difficulty")
        return difficulties

    def client(self) -> PuzzleClientConfig:
        """The settings of each connection."""
        address = {name: getattr(self, name) for name in ServerAddress.model_fields}
        return PuzzleClientConfig(**address, max_retries=self.max_retries, retry_seed=self.seed)


class _Taken(NamedTuple):
    """An episode, and of which spec it is where there is one."""

    spec: EpisodeSpec | None
    episode: PuzzleEpisode


class _EpisodeStream(CountedStream, ClosedOnExit):
    """What both streams share: samples are handed out one by one, and counted as they are.

    A loop that is left in mid-episode loses nothing: the rest comes first when the stream goes on.
    """

    def __init__(
        self, tokenizer: Any, dataset_id: str, limits: tuple[int, int] = (1, 1 << 30), failures: bool = True
    ) -> None:
        super().__init__()
        self._encode = _encoder(tokenizer)
        self._dataset_id = dataset_id
        self._limits = limits
        self._failures = failures
        self._waiting: collections.deque[Sample] = collections.deque()

    @abc.abstractmethod
    async def _next_episode(self) -> "_Taken | None":
        """The next episode; None where there is none to be had now."""

    async def __aiter__(self) -> AsyncIterator[Sample]:
        """The samples, from the first that has not been handed out."""
        try:
            while True:
                while self._waiting:
                    sample = self._waiting.popleft()
                    self._metrics.record_sample(sample)
                    self._state = StreamState.STREAMING
                    yield sample
                if (taken := await self._timed()) is None:
                    return
                self._waiting.extend(self._wanted(taken.episode))
        finally:
            if self._state is StreamState.STREAMING:
                self._state = StreamState.PAUSED

    async def reset(self) -> None:
        """Go back to the first episode, and count from 0."""
        await self.close()
        self._waiting.clear()
        self._metrics = StreamMetrics()
        self._state = StreamState.IDLE

    async def close(self) -> None:
        """Let go of what was opened; here nothing was."""

    async def _timed(self) -> "_Taken | None":
        clock = asyncio.get_running_loop().time
        began = clock()
        self._state = StreamState.STREAMING
        try:
            return await self._next_episode()
        except Exception:
            self._state = StreamState.ERROR
            raise
        finally:
            self._metrics.total_time_seconds += clock() - began

    def _wanted(self, episode: PuzzleEpisode) -> list[Sample]:
        """The samples to hand out; the others are counted."""
        shortest, longest = self._limits
        self._metrics.record_episode(episode.success)
        kept = []
        for sample in episode_samples(episode, self._encode, dataset_id=self._dataset_id):
            if shortest <= sample.length <= longest and (episode.success or self._failures):
                kept.append(sample)
            else:
                self._metrics.record_filtered()
        return kept


class PuzzleSampleStream(HasMoved, _EpisodeStream):
    """Samples of puzzles that a server makes, played over several connections by hints or by a policy.

    An episode's samples come together, after its end, so that each knows whether the puzzle was solved. With
    `pool.ordered` (as is usual) episodes come in order, and two runs with the same settings give the same
    samples, whatever happened to their connections. `tokenizer` is a function from text to tokens, or has an
    `encode`; without one, the tokens are the text's bytes.

    Playing begins with the first sample that is asked for and goes on ahead of the loop, also between two
    loops, until `close` or the end of `async with`.
    """

    moved: ClassVar = {
        "connect": "connections are made when they are needed",
        "disconnect": "await close(), or `async with`",
    }

    def __init__(
        self,
        config: CollectConfig | None = None,
        tokenizer: Any = None,
        *,
        policy: Policy | None = None,
        prompt: Prompt = move_prompt,
        dataset_id: str = "puzzle_arcade",
        max_episodes: int | None = None,
        first_episode: int = 0,
        min_length: int | None = None,
        max_length: int | None = None,
    ) -> None:
        """`min_length` and `max_length` are the config's, and only there: given here they are refused."""
        if min_length is not None or max_length is not None:
            raise ValueError(
                "say min_length and max_length in GymConfig, which other streams of it then share"
            )
        self.config = config or CollectConfig()
        limits = self.config.min_length, self.config.max_length
        super().__init__(tokenizer, dataset_id, limits, self.config.keep_failures)
        if policy is None:
            if not self.config.hints:
                raise ValueError("hints=False needs a policy: there is nothing else to choose the moves")
            require_playable_by_hints(self.config.games)
        self._policy = policy
        self._prompt = prompt
        self._end = None if max_episodes is None else first_episode + max_episodes
        self._first = self._next = first_episode
        self._taken: set[int] = set()
        self._turn = asyncio.Lock()
        self._pool: PuzzlePool | None = None
        self._played: AsyncGenerator[tuple[EpisodeSpec, Any], None] | None = None

    async def episodes(self) -> AsyncGenerator[tuple[EpisodeSpec, list[Sample]], None]:
        """The same, an episode at a time with what it was made of."""
        while (taken := await self._timed()) is not None and taken.spec is not None:
            samples = self._wanted(taken.episode)
            for sample in samples:
                self._metrics.record_sample(sample)
            yield taken.spec, samples

    async def reset(self) -> None:
        """Go back to the first episode, and count from 0."""
        await super().reset()
        self._next = self._first
        self._taken.clear()

    async def close(self) -> None:
        """End what is being played and hang up; closing twice is fine.

        What was played and not handed out is played again when the stream goes on.
        """
        pool, played, self._pool, self._played = self._pool, self._played, None, None
        if pool is not None and played is not None:
            # First the pool: a loop that waits for it ends, and only then can what it waits on be closed.
            await pool.close()
            if not self._turn.locked():
                await played.aclose()
            self._metrics.reconnects += pool.reconnects
            self._metrics.episodes_replayed += pool.episodes_replayed

    async def _next_episode(self) -> _Taken | None:
        # Several loops take turns, each with the next episode.
        async with self._turn:
            if self._played is None:
                self._pool = PuzzlePool(self.config.client(), self.config.pool)
                self._played = self._pool.episodes(self._specs(), self._play)
            try:
                spec, episode = await anext(self._played)
            except StopAsyncIteration:
                if self._played is not None:
                    self._state = StreamState.EXHAUSTED
                await self.close()
                return None
            except BaseException:
                # A generator that was left by an error, or by being canceled, gives nothing more.
                await self.close()
                raise
            self._taken.add(spec.index)
            while self._next in self._taken:
                self._taken.remove(self._next)
                self._next += 1
            return _Taken(spec, episode)

    def _specs(self) -> Iterator[EpisodeSpec]:
        """The episodes that have not been taken."""
        settings, taken = self.config, frozenset(self._taken)
        specs = episode_specs(
            settings.games, settings.difficulties, settings.seed, first=self._next, end=self._end
        )
        return (spec for spec in specs if spec.index not in taken)

    async def _play(self, client: PuzzleClient, spec: EpisodeSpec) -> PuzzleEpisode:
        settings = self.config
        return await rollout_episode(
            client,
            spec,
            policy=self._policy,
            hints=settings.hints,
            max_steps=settings.max_steps,
            max_invalid_answers=settings.max_invalid_answers,
            prompt=self._prompt,
            rewards=settings.rewards,
        )


class MockGymStream(_EpisodeStream):
    """The same without a server: Latin squares of four rows whose empty cells are filled one after another.

    In an episode that fails the last move is a wrong number. Same seed, same samples.
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
            raise ValueError(f"difficulty_range must rise within 0 to 1, got {difficulty_range}")
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
        self._taken = 0

    async def reset(self) -> None:
        """Go back to the first episode, and count from 0."""
        await super().reset()
        self._taken = 0

    async def _next_episode(self) -> _Taken | None:
        if self._taken == self._num_episodes:
            self._state = StreamState.EXHAUSTED
            return None
        self._taken += 1
        return _Taken(None, self._episode(self._taken - 1))

    def _episode(self, index: int) -> PuzzleEpisode:
        draws = random.Random(episode_seed(self._seed, index))
        low, high = self._difficulties
        difficulty = low + (high - low) * draws.random()
        solved = draws.random() < self._success_rate
        numbers, rows = draws.sample(range(1, 5), 4), draws.sample(range(4), 4)
        answer = [[numbers[(row + column) % 4] for column in range(4)] for row in rows]
        empty = sorted(draws.sample(range(16), self._steps))
        shown = [
            [0 if 4 * row + column in empty else answer[row][column] for column in range(4)]
            for row in range(4)
        ]
        steps = []
        for place, cell in enumerate(empty):
            row, column = divmod(cell, 4)
            last = place == len(empty) - 1
            number = answer[row][column]
            if last and not solved:
                number = number % 4 + 1
            picture = "\n".join(" ".join(str(value or ".") for value in line) for line in shown)
            reward = 0.0 if not last else 1.0 if solved else -0.1
            steps.append(
                EpisodeStep(
                    prompt=f"Puzzle: latin\n{picture}\nMove: ",
                    command=f"place {row + 1} {column + 1} {number}",
                    accepted=solved or not last,
                    reward=reward,
                )
            )
            shown[row][column] = number
        status = EpisodeStatus.SUCCESS if solved else EpisodeStatus.FAILURE
        return PuzzleEpisode(f"latin_{self._seed}_{index}", "latin", difficulty, tuple(steps), status)


def _encoder(tokenizer: Any) -> Encode:
    # Here, because `phalanx.data` takes a second to import and many bring a tokenizer of their own.
    from phalanx.data.tokenizers import ByteTokenizer

    chosen = ByteTokenizer() if tokenizer is None else tokenizer
    encode = getattr(chosen, "encode", chosen)
    if not callable(encode):
        raise TypeError(f"a tokenizer is a function from text to tokens, or has an encode; got {chosen!r}")
    return encode

"""Rollouts of episodes on a puzzle server, and streams of token samples from these episodes."""

import abc
import asyncio
import collections
import dataclasses
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, ClassVar, TypeAlias

from pydantic import AfterValidator, Field

from phalanx.config import Config
from phalanx.data.samples import EpisodeStatus, Sample, SampleInfo, SampleOrigin
from phalanx.puzzles.server_client.client import ClosedOnExit, PuzzleClient, PuzzleClientConfig
from phalanx.puzzles.server_client.episode_pool import (
    ConnectionPoolConfig,
    EpisodeSpec,
    PuzzleEpisodePool,
    episode_specs,
)
from phalanx.puzzles.server_client.protocol import (
    CommandResult,
    InvalidCommandError,
    PuzzleDifficulty,
    PuzzleGame,
    PuzzleHint,
    PuzzleObservation,
    allowed_moves,
    game_id,
    nearest_game,
)
from phalanx.puzzles.server_client.telnet import one_line
from phalanx.text.answers import quote
from phalanx.text.env import TextRewardValues

Policy: TypeAlias = Callable[[PuzzleObservation, PuzzleHint | None], str | Awaitable[str | None] | None]
"""Function `policy(observation, hint)` that returns the command of the next move, or None to give up.

The hint is None if `use_hints` is False. The function may be asynchronous. It is called only once per move,
even if the connection is lost and the move is sent again.
"""

Encode: TypeAlias = Callable[[str], Sequence[int]]
"""Function that converts a string to token ids."""

Prompt: TypeAlias = Callable[[str, PuzzleObservation], str]
"""Function `prompt(game, observation)` that returns the prompt for a move, given the id of the game and the
current state of the puzzle."""


@dataclasses.dataclass(frozen=True)
class PuzzleServerRewardValues(TextRewardValues):
    """Rewards for the possible outcomes of a move. A rejected command gets the `invalid` reward."""

    lost: float = -1.0
    """Reward for the move that loses the game."""


@dataclasses.dataclass(frozen=True)
class EpisodeStep:
    """A move in an episode, and its outcome."""

    prompt: str
    """Prompt that describes the puzzle before the move."""
    command: str
    """Command of the move, such as `place 1 2 7`."""
    accepted: bool
    """True if the server accepted the move."""
    reward: float
    """Reward for the move."""
    message: str = ""
    """The server's message about the move."""


@dataclasses.dataclass(frozen=True)
class PuzzleEpisode:
    """A finished episode on a puzzle server."""

    episode_id: str
    """String that identifies the episode in samples."""
    game: str
    """The server's id for the game."""
    difficulty: float
    """Difficulty as a number from 0 to 1: 0.3 for easy, 0.6 for medium and 0.9 for hard."""
    steps: tuple[EpisodeStep, ...]
    """Moves of the episode."""
    status: EpisodeStatus
    """How the episode ended."""
    index: int = 0
    """Index of the episode in its collection, as in `EpisodeSpec`."""

    @property
    def success(self) -> bool:
        """True if the puzzle was solved."""
        return self.status is EpisodeStatus.SUCCESS


class CollectConfig(Config):
    """Settings for collecting episodes from a puzzle server."""

    renamed_settings: ClassVar[Mapping[str, str]] = {
        "host": "client.host",
        "port": "client.port",
        "connect_timeout": "client.connect_timeout",
        "read_timeout": "client.read_timeout",
        "deadline": "client.deadline",
        "max_retries": "client.max_retries",
        "hints": "use_hints",
        "max_refused": "max_consecutive_invalid_answers",
        "min_length": "min_sample_length",
        "max_length": "max_sample_length",
        "max_invalid_answers": "max_consecutive_invalid_answers",
    }

    client: PuzzleClientConfig = PuzzleClientConfig(max_retries=12)
    """Address of the server, timeouts and retries. With the default delays, 12 retries are enough for an
    outage of roughly 8 to 15 seconds."""
    games: tuple[Annotated[str, AfterValidator(game_id)], ...] = Field(("sudoku",), min_length=1)
    """Names of the games, which are played in turn. Any game that the server has is allowed."""
    difficulties: tuple[PuzzleDifficulty, ...] = Field((PuzzleDifficulty.EASY,), min_length=1)
    """Difficulties of the puzzles, used in turn. The difficulty changes after one episode of each game."""
    seed: int = 0
    """Base seed. Episode i is the same puzzle in every run with the same seed, games and difficulties."""
    use_hints: bool = True
    """Ask the server for a hint before each move. The hint is passed to the policy. If there is no policy,
    the hint is followed."""
    max_steps: int = Field(default=99, ge=1)
    """Maximum number of moves per episode. Values above 99 have no effect on episodes that follow hints,
    because the server gives at most 99 hints per puzzle."""
    max_consecutive_invalid_answers: int = Field(default=10, ge=1)
    """An episode ends after this many consecutive invalid moves of a policy."""
    min_sample_length: int = Field(default=1, ge=1)
    """Minimum number of tokens in a sample. Shorter samples are dropped."""
    max_sample_length: int = Field(default=8192, ge=1)
    """Maximum number of tokens in a sample. Longer samples are dropped."""
    keep_failures: bool = True
    """Keep the samples of puzzles that were not solved."""
    pool: ConnectionPoolConfig = ConnectionPoolConfig(ordered=True)
    """Number of connections and order of the episodes."""
    rewards: PuzzleServerRewardValues = PuzzleServerRewardValues()
    """Reward for each possible outcome of a move."""


def move_prompt(game: str, observation: PuzzleObservation) -> str:
    """Return the default prompt: game, difficulty, board, and a line that asks for the move."""
    return f"Puzzle: {game} ({observation.difficulty.value})\n{observation.board}\nMove: "


async def rollout_episode(
    client: PuzzleClient,
    spec: EpisodeSpec,
    config: CollectConfig | None = None,
    *,
    policy: Policy | None = None,
    prompt: Prompt = move_prompt,
) -> PuzzleEpisode:
    """Run one episode. The moves are chosen by a policy or, without a policy, by the server's hints.

    The episode ends if the puzzle is solved or lost, if the policy gives up or there is no hint, after
    `max_steps` moves, or after `max_consecutive_invalid_answers` consecutive invalid moves. Without a policy,
    it ends after the first invalid move, because the next hint would be the same.

    Args:
        client: Client for the server.
        spec: Game, difficulty and seed of the puzzle.
        config: Use of hints, limits on moves, and rewards. Its other settings are ignored. If None, the
            defaults of `CollectConfig` are used.
        policy: Function that chooses the moves. If None, the hints are followed.
        prompt: Function that writes the prompt for each step.
    """
    config = config or CollectConfig()
    if policy is None and not config.use_hints:
        raise ValueError("use_hints=False needs a policy that chooses the moves")
    max_invalid = 1 if policy is None else config.max_consecutive_invalid_answers
    observation = await client.start_puzzle(spec.game, spec.difficulty, spec.seed)
    steps: list[EpisodeStep] = []
    status, num_invalid = EpisodeStatus.SUCCESS, 0
    while not observation.is_complete:
        if len(steps) == config.max_steps:
            status = EpisodeStatus.TIMEOUT
            break
        hint = await client.get_hint() if config.use_hints else None
        if policy is not None:
            choice = policy(observation, hint)
            command = await choice if inspect.isawaitable(choice) else choice
        else:
            command = hint.command if hint is not None and hint.success else None
        if command is None:
            status = EpisodeStatus.FAILURE
            break
        result = await apply_move(client, spec.game, command)
        reward = step_reward(result, config.rewards)
        steps.append(
            EpisodeStep(prompt(spec.game, observation), command, result.success, reward, result.message)
        )
        observation = result.state or observation
        num_invalid = 0 if result.success else num_invalid + 1
        if result.game_over or num_invalid >= max_invalid:
            status = EpisodeStatus.FAILURE
            break
    return PuzzleEpisode(spec.episode_id, spec.game, spec.difficulty.level, tuple(steps), status, spec.index)


def episode_samples(
    episode: PuzzleEpisode, encode: Encode, *, dataset_id: str = "puzzle_arcade"
) -> list[Sample]:
    """Create one sample per move. A sample consists of the prompt, the move and a line break.

    The loss mask is 0 for the prompt and 1 for the move and the line break.

    Args:
        episode: The episode.
        encode: Function that converts a string to token ids.
        dataset_id: Name of the dataset, which is stored in each sample.
    """
    samples = []
    for number, step in enumerate(episode.steps):
        prompt, answer = tuple(encode(step.prompt)), tuple(encode(f"{step.command}\n"))
        info = SampleInfo(
            dataset_id=dataset_id,
            origin=SampleOrigin.ENVIRONMENT,
            episode_id=episode.episode_id,
            episode_status=episode.status,
            step_index=number,
            total_steps=len(episode.steps),
            reward=step.reward,
            difficulty=episode.difficulty,
            success=episode.success,
        )
        mask = (0,) * len(prompt) + (1,) * len(answer)
        samples.append(Sample(f"{episode.episode_id}_step{number}", prompt + answer, mask, info=info))
    return samples


def check_hints_known(games: Sequence[str]) -> None:
    """Raise `ValueError` if there is a game in `games` whose hints cannot be converted to commands."""
    for game in games:
        if game not in list(PuzzleGame):
            raise ValueError(
                f"the hints of {game!r} cannot be converted to commands; pass a policy that chooses the moves"
                f"{nearest_game(game)}"
            )


async def apply_move(client: PuzzleClient, game: str, command: str) -> CommandResult:
    """Send a move and return its result.

    A command that is not a move of the game is not sent, because other commands of the server, such as
    `solve`, could complete the puzzle. In this case, the result has `success=False`.
    """
    try:
        command = one_line(command)
        word = command.split()[0].lower()
        if word not in (moves := allowed_moves(game)):
            raise InvalidCommandError(
                f"{quote(word)} is not a move of {game}; moves begin with {', '.join(sorted(moves))}"
            )
        return await client.send_action(command)
    except InvalidCommandError as error:
        return CommandResult(success=False, code="NOT_SENT", message=str(error), state=client.observation)


def step_reward(result: CommandResult, rewards: PuzzleServerRewardValues) -> float:
    """Return the reward for a move, given its result."""
    if result.game_over:
        return rewards.lost
    if not result.success:
        return rewards.invalid
    return rewards.solved if result.solved else rewards.valid


class StreamStatus(StrEnum):
    """State of a sample stream.

    A stream is `IDLE` before its first sample, `STREAMING` during iteration, `PAUSED` after an iteration has
    been stopped early or canceled, `EXHAUSTED` after its last episode, and `ERROR` after an exception.
    """

    IDLE = "idle"
    STREAMING = "streaming"
    PAUSED = "paused"
    EXHAUSTED = "exhausted"
    ERROR = "error"


@dataclasses.dataclass
class StreamMetrics:
    """Statistics of a sample stream."""

    samples_produced: int = 0
    """Number of samples that the stream yielded."""
    samples_filtered: int = 0
    """Number of samples that were dropped because of their length or outcome."""
    samples_errored: int = 0
    """Number of samples that could not be created."""
    episodes_completed: int = 0
    """Number of episodes that ended."""
    episodes_successful: int = 0
    """Number of episodes in which the puzzle was solved."""
    episodes_failed: int = 0
    """Number of episodes in which the puzzle was not solved."""
    total_time_seconds: float = 0.0
    """Time in seconds that the stream has spent waiting for episodes."""
    total_tokens: int = 0
    """Total number of tokens in all samples."""
    total_loss_tokens: int = 0
    """Total number of tokens that contribute to the loss, in all samples."""
    min_length_seen: int | None = None
    """Number of tokens in the shortest sample. None before the first sample."""
    max_length_seen: int | None = None
    """Number of tokens in the longest sample. None before the first sample."""
    difficulty_sum: float = 0.0
    """Sum of the difficulties of all samples with a known difficulty."""
    difficulty_count: int = 0
    """Number of samples with a known difficulty."""
    reward_sum: float = 0.0
    """Sum of the rewards of all samples with a known reward."""
    reward_count: int = 0
    """Number of samples with a known reward."""
    reconnects: int = 0
    """Number of times that a connection was replaced, because it was lost or too old."""
    episodes_replayed: int = 0
    """Number of times that an episode was restored on a new connection."""

    @property
    def samples_total(self) -> int:
        """Number of samples that were produced or filtered out."""
        return self.samples_produced + self.samples_filtered

    @property
    def filter_rate(self) -> float:
        """Fraction of the samples that were filtered out, or 0 if there are no samples."""
        return _ratio(self.samples_filtered, self.samples_total)

    @property
    def samples_per_second(self) -> float:
        """Number of samples produced per second of `total_time_seconds`."""
        return _ratio(self.samples_produced, self.total_time_seconds)

    @property
    def tokens_per_second(self) -> float:
        """Number of tokens produced per second of `total_time_seconds`."""
        return _ratio(self.total_tokens, self.total_time_seconds)

    @property
    def success_rate(self) -> float:
        """Fraction of the episodes in which the puzzle was solved, or 0 if no episode has ended."""
        return _ratio(self.episodes_successful, self.episodes_completed)

    @property
    def mean_difficulty(self) -> float:
        """Mean difficulty of the samples with a known difficulty, or 0 if there are none."""
        return _ratio(self.difficulty_sum, self.difficulty_count)

    @property
    def mean_reward(self) -> float:
        """Mean reward of the samples with a known reward, or 0 if there are none."""
        return _ratio(self.reward_sum, self.reward_count)

    @property
    def mean_length(self) -> float:
        """Mean number of tokens per sample, or 0 if there are no samples."""
        return _ratio(self.total_tokens, self.samples_produced)

    def record_sample(self, sample: Sample) -> None:
        """Count a sample that was produced."""
        length, info = sample.length, sample.info or SampleInfo()
        self.samples_produced += 1
        self.total_tokens += length
        self.total_loss_tokens += sample.num_loss_tokens
        self.min_length_seen = min(length, self.min_length_seen or length)
        self.max_length_seen = max(length, self.max_length_seen or length)
        if info.difficulty is not None:
            self.difficulty_sum += info.difficulty
            self.difficulty_count += 1
        if info.reward is not None:
            self.reward_sum += info.reward
            self.reward_count += 1

    def record_filtered(self) -> None:
        """Count a sample that was filtered out."""
        self.samples_filtered += 1

    def record_error(self) -> None:
        """Count a sample that could not be created."""
        self.samples_errored += 1

    def record_episode(self, success: bool) -> None:
        """Count a completed episode."""
        self.episodes_completed += 1
        self.episodes_successful += success
        self.episodes_failed += not success

    def to_dict(self) -> dict[str, float]:
        """Return the most important statistics by name, for logging."""
        names = (
            *("samples_produced", "samples_filtered", "filter_rate", "samples_per_second"),
            *("tokens_per_second", "mean_length", "mean_difficulty", "mean_reward", "success_rate"),
            "episodes_completed",
        )
        return {name: getattr(self, name) for name in names}


def _ratio(part: float, total: float) -> float:
    return part / total if total else 0.0


class AbstractEpisodeSampleStream(ClosedOnExit):
    """Base class for asynchronous streams of samples from episodes.

    If an `async for` loop is left in the middle of an episode, the next loop continues with the remaining
    samples.

    Args:
        config: Settings for collecting episodes. This class uses only those that select samples:
            `min_sample_length`, `max_sample_length` and `keep_failures`.
        tokenizer: Function that converts text to token ids, or an object whose `encode` method does so. If
            None, the bytes of the text are used.
        dataset_id: Name of the dataset in the samples.
    """

    def __init__(self, config: CollectConfig, tokenizer: Any, dataset_id: str) -> None:
        # Imported here because the import is slow, and many users pass their own tokenizer.
        from phalanx.data.tokenizers import ByteTokenizer

        tokenizer = ByteTokenizer() if tokenizer is None else tokenizer
        self._encode: Encode = getattr(tokenizer, "encode", tokenizer)
        if not callable(self._encode):
            raise TypeError(f"tokenizer must be a function or have an encode method, got {tokenizer!r}")
        self.config = config
        self.state = StreamStatus.IDLE
        """Current state of the stream."""
        self.metrics = StreamMetrics()
        """Statistics of the stream since its start or the last `reset`."""
        self._dataset_id = dataset_id
        self._queued: collections.deque[Sample] = collections.deque()

    @abc.abstractmethod
    async def _next_episode(self) -> PuzzleEpisode | None:
        """Return the next episode. At the end of the stream, set `state` to EXHAUSTED and return None."""

    async def __aiter__(self) -> AsyncIterator[Sample]:
        """Iterate over the remaining samples."""
        try:
            while True:
                while self._queued:
                    sample = self._queued.popleft()
                    self.metrics.record_sample(sample)
                    self.state = StreamStatus.STREAMING
                    yield sample
                if (episode := await self._wait_for_episode()) is None:
                    return
                self._queued.extend(self._select_samples(episode))
        finally:
            if self.state is StreamStatus.STREAMING:
                self.state = StreamStatus.PAUSED

    async def reset(self) -> None:
        """Restart with the first episode, and reset the metrics."""
        await self.close()
        self._queued.clear()
        self.metrics = StreamMetrics()
        self.state = StreamStatus.IDLE

    async def close(self) -> None:
        """Release connections and other resources. Does nothing by default; subclasses can override it."""

    async def _wait_for_episode(self) -> PuzzleEpisode | None:
        """Wait for the next episode, and update `state` and `metrics`.

        Returns None if there are no more episodes.
        """
        clock = asyncio.get_running_loop().time
        began = clock()
        self.state, state_after = StreamStatus.STREAMING, StreamStatus.ERROR
        try:
            episode = await self._next_episode()
            state_after = self.state
        except asyncio.CancelledError:
            state_after = StreamStatus.PAUSED
            raise
        finally:
            self.state = state_after
            self.metrics.total_time_seconds += clock() - began
        return episode

    def _select_samples(self, episode: PuzzleEpisode) -> list[Sample]:
        """Return the samples of an episode that are not filtered out, and update the statistics."""
        self.metrics.record_episode(episode.success)
        kept = []
        for sample in episode_samples(episode, self._encode, dataset_id=self._dataset_id):
            fits = self.config.min_sample_length <= sample.length <= self.config.max_sample_length
            if fits and (episode.success or self.config.keep_failures):
                kept.append(sample)
            else:
                self.metrics.record_filtered()
        return kept


class PuzzleSampleStream(AbstractEpisodeSampleStream):
    """Asynchronous stream of samples from episodes on a puzzle server.

    The moves are the server's hints, or are chosen by a policy.

    The samples of an episode are yielded after its end, because each of them contains the outcome. With
    `pool.ordered` (the default in `CollectConfig`), episodes are yielded in order of their index, and two
    runs with the same settings give the same samples, even if connections are lost.

    The first request for a sample starts the episodes, which run concurrently on several connections. They
    keep running in the background until `close` is called or the `async with` block ends. At most
    `pool.max_outstanding_episodes` episodes are scheduled, running, or finished but not read yet.

    Args:
        config: Server, games and connections. If None, the defaults of `CollectConfig` are used.
        tokenizer: Function that converts text to token ids, or an object whose `encode` method does so. If
            None, the bytes of the text are used.
        policy: Function that chooses the moves. If None, the hints are followed.
        prompt: Function that writes the prompt for each step.
        dataset_id: Name of the dataset in the samples.
        max_episodes: Number of episodes. None means that the stream does not end.
        first_episode: Index of the first episode.
    """

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
    ) -> None:
        super().__init__(config or CollectConfig(), tokenizer, dataset_id)
        if policy is None:
            if not self.config.use_hints:
                raise ValueError("use_hints=False needs a policy that chooses the moves")
            check_hints_known(self.config.games)
        self._policy = policy
        self._prompt = prompt
        self._end = None if max_episodes is None else first_episode + max_episodes
        self._first = self._next = first_episode
        self._consumed: set[int] = set()
        self._lock = asyncio.Lock()
        self._pool: PuzzleEpisodePool | None = None
        self._running: AsyncGenerator[tuple[EpisodeSpec, PuzzleEpisode], None] | None = None

    async def episodes(self) -> AsyncGenerator[tuple[PuzzleEpisode, list[Sample]], None]:
        """Iterate over the episodes that have not been consumed yet, as pairs of an episode and its samples.

        Samples that are filtered out are not included.
        """
        while (episode := await self._wait_for_episode()) is not None:
            samples = self._select_samples(episode)
            for sample in samples:
                self.metrics.record_sample(sample)
            yield episode, samples

    async def reset(self) -> None:
        """Restart with the first episode, and reset the metrics."""
        await super().reset()
        self._next = self._first
        self._consumed.clear()

    async def close(self) -> None:
        """Cancel running episodes and close all connections. Further calls have no effect.

        If the stream is used again, episodes that have finished but have not been consumed are run again.
        """
        pool, running, self._pool, self._running = self._pool, self._running, None, None
        if pool is not None and running is not None:
            # Close the pool first: this ends a loop that waits for it, and only then can the generator be
            # closed.
            await pool.close()
            if not self._lock.locked():
                await running.aclose()
            self.metrics.reconnects += pool.reconnects
            self.metrics.episodes_replayed += pool.episodes_replayed

    async def _next_episode(self) -> PuzzleEpisode | None:
        # Several loops take turns, each with the next episode.
        async with self._lock:
            if self._running is None:
                self._pool = PuzzleEpisodePool(self.config.client, self.config.pool)
                self._running = self._pool.episodes(self._remaining_specs(), self._run_episode)
            finished = None
            try:
                finished = await anext(self._running, None)
                if finished is None and self._running is not None:  # `close` sets it to None
                    self.state = StreamStatus.EXHAUSTED
            finally:
                # A generator that ended, raised an error or was canceled yields nothing more.
                if finished is None:
                    await self.close()
            if finished is None:
                return None
            spec, episode = finished
            self._consumed.add(spec.index)
            while self._next in self._consumed:
                self._consumed.remove(self._next)
                self._next += 1
            return episode

    def _remaining_specs(self) -> Iterator[EpisodeSpec]:
        """Iterate over the specs of the episodes that have not been consumed."""
        config, consumed = self.config, frozenset(self._consumed)
        specs = episode_specs(config.games, config.difficulties, config.seed, first=self._next, end=self._end)
        return (spec for spec in specs if spec.index not in consumed)

    async def _run_episode(self, client: PuzzleClient, spec: EpisodeSpec) -> PuzzleEpisode:
        return await rollout_episode(client, spec, self.config, policy=self._policy, prompt=self._prompt)

"""Rollouts of episodes on a puzzle server, and streams of token samples from these episodes."""

import asyncio
import collections
import dataclasses
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Annotated, Any, TypeAlias

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

    client: PuzzleClientConfig = PuzzleClientConfig(max_retries=12)
    """Address of the server, timeouts and retries. With the default delays, 12 retries are enough for an
    outage of roughly 8 to 15 seconds."""
    games: tuple[Annotated[str, AfterValidator(game_id)], ...] = Field(("sudoku",), min_length=1)
    """Names of the games. Consecutive episodes go through all games in turn. Any game that the server has is
    allowed."""
    difficulties: tuple[PuzzleDifficulty, ...] = Field((PuzzleDifficulty.EASY,), min_length=1)
    """Difficulties of the puzzles, used in turn. The difficulty changes after one episode of each game."""
    seed: int = 0
    """Base seed. Runs with the same seed, games and difficulties have the same puzzle in each episode."""
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
    """Keep the samples of episodes in which the puzzle was not solved."""
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


class PuzzleSampleStream(ClosedOnExit):
    """Asynchronous stream of samples from episodes on a puzzle server.

    The moves are the server's hints, or are chosen by a policy.

    The samples of an episode are yielded after its end, because each of them contains the outcome. If an
    `async for` loop is left in the middle of an episode, the next loop continues with the remaining samples.

    With `pool.ordered` (the default in `CollectConfig`), episodes are yielded in order of their index, and
    two runs with the same settings give the same samples, even if connections are lost.

    The first request for a sample starts the episodes, which run concurrently on several connections. They
    keep running in the background until `close` is called or the `async with` block ends. At most
    `pool.max_unconsumed_episodes` episodes are scheduled, running, or finished but not read yet.

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
        # Imported here because the import is slow, and many users pass their own tokenizer.
        from phalanx.data.tokenizers import ByteTokenizer

        tokenizer = ByteTokenizer() if tokenizer is None else tokenizer
        self._encode: Encode = getattr(tokenizer, "encode", tokenizer)
        if not callable(self._encode):
            raise TypeError(f"tokenizer must be a function or have an encode method, got {tokenizer!r}")
        self.config = config or CollectConfig()
        if policy is None:
            if not self.config.use_hints:
                raise ValueError("use_hints=False needs a policy that chooses the moves")
            check_hints_known(self.config.games)
        self.pool = PuzzleEpisodePool(self.config.client, self.config.pool)
        """Pool that runs the episodes. It also counts the connections that were replaced."""
        self._policy = policy
        self._prompt = prompt
        self._dataset_id = dataset_id
        self._queued: collections.deque[Sample] = collections.deque()
        self._end = None if max_episodes is None else first_episode + max_episodes
        self._first = self._next = first_episode
        self._consumed: set[int] = set()
        self._lock = asyncio.Lock()
        self._running: AsyncGenerator[tuple[EpisodeSpec, PuzzleEpisode], None] | None = None

    async def episodes(self) -> AsyncGenerator[tuple[PuzzleEpisode, list[Sample]], None]:
        """Iterate over the episodes that have not been consumed yet, as pairs of an episode and its samples.

        Samples that are filtered out are not included.
        """
        while (episode := await self._next_episode()) is not None:
            yield episode, self._select_samples(episode)

    async def __aiter__(self) -> AsyncIterator[Sample]:
        """Iterate over the remaining samples."""
        while True:
            while self._queued:
                yield self._queued.popleft()
            if (episode := await self._next_episode()) is None:
                return
            self._queued.extend(self._select_samples(episode))

    async def reset(self) -> None:
        """Restart with the first episode."""
        await self.close()
        self._queued.clear()
        self._next = self._first
        self._consumed.clear()

    async def close(self) -> None:
        """Cancel running episodes and close all connections. Further calls have no effect.

        If the stream is used again, episodes that have finished but have not been consumed are run again.
        """
        running, self._running = self._running, None
        if running is not None:
            # A generator that a loop waits for cannot be closed, but it ends when its pool is closed.
            await (self.pool.close() if self._lock.locked() else running.aclose())

    async def _next_episode(self) -> PuzzleEpisode | None:
        """Wait for the next episode. Return None if there are no more episodes or the stream is closed."""
        # Several loops take turns, each with the next episode.
        async with self._lock:
            if self._running is None:
                self._running = self.pool.episodes(self._remaining_specs(), self._run_episode)
            finished = None
            try:
                finished = await anext(self._running, None)
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

    def _select_samples(self, episode: PuzzleEpisode) -> list[Sample]:
        """Return the samples of an episode that are not filtered out."""
        if not (episode.success or self.config.keep_failures):
            return []
        samples = episode_samples(episode, self._encode, dataset_id=self._dataset_id)
        shortest, longest = self.config.min_sample_length, self.config.max_sample_length
        return [sample for sample in samples if shortest <= sample.length <= longest]

    def _remaining_specs(self) -> Iterator[EpisodeSpec]:
        """Iterate over the specs of the episodes that have not been consumed."""
        config, consumed = self.config, frozenset(self._consumed)
        specs = episode_specs(config.games, config.difficulties, config.seed, first=self._next, end=self._end)
        return (spec for spec in specs if spec.index not in consumed)

    async def _run_episode(self, client: PuzzleClient, spec: EpisodeSpec) -> PuzzleEpisode:
        return await rollout_episode(client, spec, self.config, policy=self._policy, prompt=self._prompt)

"""Text environments in which a model plays the games of a puzzle server, with one connection per episode."""

import asyncio
import itertools
import random
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any, TypeVar

from pydantic import Field

from phalanx.config import Config
from phalanx.puzzles.server_client.client import PuzzleClient, PuzzleClientConfig
from phalanx.puzzles.server_client.episodes import (
    Prompt,
    PuzzleServerRewardValues,
    apply_move,
    move_prompt,
    step_reward,
)
from phalanx.puzzles.server_client.protocol import (
    CommandResult,
    PuzzleDifficulty,
    PuzzleGame,
    PuzzleObservation,
    game_id,
    move_format,
    random_command,
)
from phalanx.text.answers import extract_answer
from phalanx.text.env import (
    PromptFormat,
    TaskSeed,
    TextEnvironment,
    TextInfo,
    TextStep,
    TextVectorEnvironment,
    TextVectorStep,
    finished_step,
)
from phalanx.text.splits import Split, validate_split

Result = TypeVar("Result")

# A puzzle is only known after the server has generated it, so splits are based on ranges of seeds instead of
# content hashes.
_FIRST_SEEDS: dict[Split, int] = {"test": 1_000_000, "validation": 2_000_000, "train": 3_000_000}
_SEEDS_PER_RUN = 1_000_000


class PuzzleServerEnvConfig(Config):
    """Settings for the `puzzle_server` text environment: its games, connections and limits on episodes.

    `PuzzleClientConfig` has the settings for a single connection, such as timeouts.
    """

    address: str = ""
    """Address of the server as HOST:PORT. It is required to create the environment."""
    games: tuple[str, ...] = ("lights",)
    """Names of the games, optionally with a difficulty, such as `lights` or `lights:medium`."""
    difficulty: str = "easy"
    """Difficulty of the games for which `games` does not specify a difficulty: `easy`, `medium` or `hard`."""
    num_connections: int = Field(default=32, ge=1)
    """Maximum number of episodes that run at the same time, each on its own connection."""
    max_steps: int = Field(default=40, ge=1)
    """An episode is truncated after this many answers, including invalid answers."""
    max_consecutive_invalid_answers: int = Field(default=3, ge=1)
    """An episode is truncated after this many consecutive invalid answers."""

    def client(self) -> PuzzleClientConfig:
        """Return the settings for a client, which are the defaults except for the address.

        Raises:
            ValueError: If `address` does not have the form HOST:PORT.
        """
        host, _, port = self.address.rpartition(":")
        if not host or not port.isdecimal():
            raise ValueError(f"address must be HOST:PORT, such as localhost:8023, got {self.address!r}")
        return PuzzleClientConfig(host=host, port=int(port))


class PuzzleServerVectorEnvironment(TextVectorEnvironment):
    """A batch of episodes on a puzzle server, each with its own connection.

    Use it in a `with` statement, or call `close` to disconnect.

    - **Prompt**: With `prompt_format="full"`, the prompt contains the name of the game, the board and the
      move format. With `compact`, it contains the game, the board and a line that asks for a move, as in the
      samples that `collect` writes. The server does not provide rules.
    - **Answer**: one move as a server command, such as `place 1 2 7`. Other server commands, such as `solve`
      or `hint`, are invalid answers and are not sent.
    - **Reward**: `rewards.solved` for the move that solves the puzzle, `rewards.lost` for the move that loses
      the game, `rewards.invalid` for an invalid or rejected answer, and `rewards.valid` for any other move.
    - **End**: the episode terminates when the puzzle is solved or lost. It is truncated after `max_steps`
      answers or `max_consecutive_invalid_answers` consecutive invalid answers.

    If a connection is lost, its puzzle continues on a new connection. The tasks are named `GAME:DIFFICULTY`.

    Args:
        games: One or several games, optionally with a difficulty, such as `lights` or `lights:medium`.
        difficulty: Difficulty of the games for which `games` does not specify a difficulty.
        client: Address of the server, timeouts and retries. If None, the defaults of `PuzzleClientConfig` are
            used.
        num_connections: Maximum number of episodes that run at the same time.
        max_steps: Maximum number of answers in an episode.
        max_consecutive_invalid_answers: An episode is truncated after this many consecutive invalid answers.
            None means that only `max_steps` limits their number.
        prompt_format: `full` or `compact`.
        prompt: Function that writes the prompt. If it is given, `prompt_format` is ignored.
        rewards: Reward for each possible outcome of a move.
    """

    environments: Sequence["PuzzleServerEnvironment"]
    prompt_suffix = ""
    completion_end = "\n"

    @classmethod
    def from_config(cls, config: PuzzleServerEnvConfig) -> "PuzzleServerVectorEnvironment":
        """Create an environment with compact prompts. It connects when the first episodes start."""
        return cls(
            config.games,
            config.difficulty,
            client=config.client(),
            num_connections=config.num_connections,
            max_steps=config.max_steps,
            max_consecutive_invalid_answers=config.max_consecutive_invalid_answers,
            prompt_format="compact",
        )

    def __init__(
        self,
        games: PuzzleGame | str | Sequence[PuzzleGame | str],
        difficulty: PuzzleDifficulty | str = PuzzleDifficulty.EASY,
        *,
        client: PuzzleClientConfig | None = None,
        num_connections: int = 32,
        max_steps: int = 99,
        max_consecutive_invalid_answers: int | None = None,
        prompt_format: PromptFormat = "full",
        prompt: Prompt | None = None,
        rewards: PuzzleServerRewardValues = PuzzleServerRewardValues(),  # noqa: B008 - frozen
    ) -> None:
        self.games: dict[str, tuple[str, PuzzleDifficulty]] = {}
        names = [games] if isinstance(games, str) else games
        for name in names:
            game, _, own_difficulty = str(name).partition(":")
            task = (game_id(game), PuzzleDifficulty(own_difficulty or difficulty))
            self.games[f"{task[0]}:{task[1].value}"] = task
        if not names or len(self.games) < len(names):
            raise ValueError(f"name one or more different games, got {', '.join(map(str, names)) or 'none'}")
        self.tasks = tuple(self.games)
        self.max_size, self.max_steps, self.rewards = num_connections, max_steps, rewards
        self.expert_batch_size = num_connections
        self.max_consecutive_invalid_answers = (
            max_steps if max_consecutive_invalid_answers is None else max_consecutive_invalid_answers
        )
        self.write_prompt = prompt or (move_prompt if prompt_format == "compact" else _full_prompt)
        self.fingerprint = (
            f"puzzle_server {' '.join(self.tasks)} {max_steps} {self.max_consecutive_invalid_answers}"
        )
        self.client = client or PuzzleClientConfig()
        # One event loop for the lifetime of the connections. It runs only while a call waits for the server.
        self._loop: asyncio.AbstractEventLoop | None = None
        self.connected: list[PuzzleServerEnvironment] = []

    def __enter__(self) -> "PuzzleServerVectorEnvironment":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def first_seed(self, run_seed: int) -> int:
        return _FIRST_SEEDS["train"] + _SEEDS_PER_RUN * run_seed

    def seeds(self, task: str, split: Split | str, first: int = 0) -> Iterator[int]:
        """Iterate over the seeds of a split: all integers from the first seed of the split upward.

        The first seeds of the splits are so far apart that the splits do not overlap in practice.

        Args:
            task: Name of the task. It is only checked, because all tasks have the same seeds.
            split: `train`, `validation` or `test`.
            first: Smallest seed to yield from the train split. Has no effect on the other splits.
        """
        self._check_task(task)
        start = _FIRST_SEEDS[validate_split(split)]
        return itertools.count(max(first, start) if split == "train" else start)

    def start(self, episodes: Sequence[TaskSeed]) -> list[str]:
        self._check_episodes(episodes)
        for row in range(len(self.connected), len(episodes)):
            client = PuzzleClient(self.client, retry_seed=self.client.retry_seed * 1000 + row)
            self.connected.append(PuzzleServerEnvironment(self, client))
        self.environments = self.connected[: len(episodes)]
        return self._reset_all(episodes)

    def step(self, answers: Sequence[str]) -> TextVectorStep:
        self._check_answers(answers)
        pairs = zip(self.environments, answers, strict=True)
        return TextVectorStep.stack(self.run([each.step_async(answer) for each, answer in pairs]))

    def sample_actions(self, rows: Sequence[int], rng: random.Random) -> list[str]:
        """Draw a random command, possibly an illegal move, for the episode at each index in `rows`."""
        environments = [self.environments[row] for row in rows]
        return [random_command(each.game, each.observation, rng) for each in environments]

    def expert_actions(self, rows: Sequence[int]) -> list[str | None]:
        hints = self.run([self.environments[row].hint_async() for row in rows])
        return [next(iter(actions or ()), None) for actions in hints]

    def close(self) -> None:
        """Close all connections. Calling `close` again has no effect."""
        if self._loop is not None:
            self.run([environment.client.disconnect() for environment in self.connected])
            self._loop.close()
            self._loop = None

    def run(self, calls: Sequence[Coroutine[Any, Any, Result]]) -> list[Result]:
        """Run coroutines concurrently and return their results."""

        async def gather() -> list[Result]:
            return await asyncio.gather(*calls)

        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        return self._loop.run_until_complete(gather())

    def _reset_environments(self, episodes: Sequence[TaskSeed]) -> list[str]:
        pairs = zip(self.environments, episodes, strict=True)
        return self.run([each.start(*self.games[task], seed) for each, (task, seed) in pairs])


class PuzzleServerEnvironment(TextEnvironment):
    """Text environment that runs one puzzle from a puzzle server at a time.

    Create it with `make_text_env("puzzle_server:GAME")`.
    """

    def __init__(self, batch: PuzzleServerVectorEnvironment, client: PuzzleClient) -> None:
        self.client = client
        self._batch = batch
        self.game = ""
        """The server's id for the game. Empty before the first episode."""
        self._info, self._num_answers, self._num_invalid = TextInfo(), 0, 0

    @classmethod
    def create(
        cls, game: PuzzleGame | str, difficulty: str = "easy", **settings: Any
    ) -> "PuzzleServerEnvironment":
        """Create an environment with its own connection.

        Args:
            game: Name of the game.
            difficulty: `easy`, `medium` or `hard`.
            settings: Further arguments of `PuzzleServerVectorEnvironment`. `host` and `port` can be given
                instead of `client`.
        """
        address = {name: settings.pop(name) for name in ("host", "port") if name in settings}
        if address:
            settings["client"] = PuzzleClientConfig(**address)
        batch = PuzzleServerVectorEnvironment(game, difficulty, num_connections=1, **settings)
        environment = cls(batch, PuzzleClient(batch.client, retry_seed=batch.client.retry_seed * 1000))
        batch.connected.append(environment)
        return environment

    def reset(self, seed: int) -> str:
        [game] = self._batch.games.values()
        return self._batch.run([self.start(*game, seed)])[0]

    def step(self, answer: str) -> TextStep:
        return self._batch.run([self.step_async(answer)])[0]

    async def start(self, game: str, difficulty: PuzzleDifficulty, seed: int) -> str:
        """Start the puzzle that the server generates from a seed, and return the prompt."""
        await self.client.start_puzzle(game, difficulty, seed)
        self.game = game
        self._info, self._num_answers, self._num_invalid = TextInfo(), 0, 0
        return self.prompt

    async def step_async(self, answer: str) -> TextStep:
        """Send the model's answer to the server, unless it is invalid, and return the outcome."""
        observation, batch, end = self.observation, self._batch, ""
        if self._info.done:
            return finished_step(self._info)
        self._num_answers += 1
        try:
            command = extract_answer(answer)
        except ValueError as exception:
            result, end = CommandResult(success=False, message=str(exception)), "."
        else:
            result = await apply_move(self.client, self.game, command)
        terminated = result.solved or result.game_over
        error = "" if result.success or result.solved else result.message or "it was refused"
        self._num_invalid = self._num_invalid + 1 if error else 0
        exhausted = (
            self._num_answers >= batch.max_steps or self._num_invalid >= batch.max_consecutive_invalid_answers
        )
        self._info = TextInfo(error, result.solved, terminated, exhausted and not terminated)
        outcome = "Solved." if result.solved else "Lost." if terminated else "Done."
        if error and not terminated:
            outcome = f"Not possible: {error}{end}"
        text = f"{outcome}\n\n{(result.state or observation).board}"
        return TextStep(text, step_reward(result, batch.rewards), self._info.done, self._info)

    @property
    def prompt(self) -> str:
        return self._batch.write_prompt(self.game, self.observation)

    def expert_actions(self) -> list[str] | None:
        """Ask the server for a hint, and return a list with the suggested move.

        Returns None if there is no hint that can be followed. The list is empty after the end of the episode.
        """
        return self._batch.run([self.hint_async()])[0]

    async def hint_async(self) -> list[str] | None:
        """Asynchronous version of `expert_actions`."""
        if self._info.done:
            return []
        hint = await self.client.get_hint()
        return [hint.command] if hint.success and hint.command else None

    def close(self) -> None:
        self._batch.close()

    @property
    def observation(self) -> PuzzleObservation:
        """State of the puzzle as last reported by the server."""
        if self.client.observation is None:
            raise ValueError("there is no episode yet; call reset")
        return self.client.observation


def _full_prompt(game: str, observation: PuzzleObservation) -> str:
    return (
        f"This is the puzzle {observation.game} ({observation.difficulty.value}).\n\n"
        f"{observation.board}\n\n"
        f"Answer with one line: {move_format(game)}. Rows and columns count from 1."
    )

"""The games of a puzzle server as text environments: one connection for each episode of a batch.

The protocol is `phalanx.text.env`; that a puzzle outlives its connection is the client's doing.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from phalanx.puzzles.server.client import PuzzleClient, PuzzleClientConfig
from phalanx.puzzles.server.episodes import Prompt, StepRewards, move_outcome, step_reward
from phalanx.puzzles.server.protocol import PuzzleDifficulty, PuzzleGame, PuzzleObservation, game_id
from phalanx.text.env import (
    TextEnvironment,
    TextInfo,
    TextStep,
    TextVectorEnvironment,
    TextVectorStep,
    extract_answer,
    finished_step,
)

Result = TypeVar("Result")

COMMANDS = {
    PuzzleGame.NONOGRAM: "`place ROW COLUMN 1` to fill a cell, `place ROW COLUMN 0` to mark it as empty",
    PuzzleGame.LIGHTS_OUT: "`press ROW COLUMN`",
    PuzzleGame.MASTERMIND: "`guess COLOR COLOR COLOR COLOR`, colors as numbers, as many as the code has",
    PuzzleGame.SLITHERLINK: "`set h ROW COLUMN 1` or `set v ROW COLUMN 1` for a line, with 2 for none",
    PuzzleGame.BRIDGES: "`bridge ROW COLUMN ROW COLUMN COUNT`",
    PuzzleGame.HITORI: "`shade ROW COLUMN`",
    PuzzleGame.SHIKAKU: "`bridge ROW COLUMN ROW COLUMN 0` for a rectangle from corner to corner",
    PuzzleGame.TENTS: "`press ROW COLUMN` to place a tent",
    PuzzleGame.STAR_BATTLE: "`press ROW COLUMN` to place a star",
    PuzzleGame.SOKOBAN: "`move up`, `move down`, `move left` or `move right`",
    PuzzleGame.KNAPSACK: "`select ITEM` or `deselect ITEM`, and `check` when done",
    PuzzleGame.NURIKABE: "`mark ROW COLUMN white` or `mark ROW COLUMN black`",
    PuzzleGame.MINESWEEPER: "`reveal ROW COLUMN` or `flag ROW COLUMN`",
    PuzzleGame.LOGIC_GRID: "`connect person NAME VALUE CATEGORY`",
}
"""How moves are written; in the other games it is `place ROW COLUMN DIGIT`."""


class PuzzleServerVectorEnvironment(TextVectorEnvironment):
    """Puzzles of a server, each on a connection of its own; use it with `with`, or close it.

    They are of one game, unless `begin` is told others.

    Rows and columns are the server's, which count from 1. An episode ends when its puzzle is solved or lost,
    and is truncated after `max_steps` answers, or after `max_invalid_answers` in a row. The server knows
    no rules in a form for models: the text has the game's name, its picture, and how moves are written;
    `prompt` words it otherwise.
    """

    def __init__(
        self,
        game: PuzzleGame | str,
        difficulty: PuzzleDifficulty | str = PuzzleDifficulty.EASY,
        *,
        size: int = 1,
        client: PuzzleClientConfig | None = None,
        max_steps: int = 99,
        max_invalid_answers: int | None = None,
        prompt: Prompt | None = None,
        rewards: StepRewards = StepRewards(),  # noqa: B008 - frozen
    ) -> None:
        self.game, self.difficulty = game_id(game), PuzzleDifficulty(difficulty)
        self.max_steps, self.rewards, self.worded = max_steps, rewards, prompt
        self.max_invalid_answers = max_steps if max_invalid_answers is None else max_invalid_answers
        config = client or PuzzleClientConfig()
        # One loop for the connections' whole life, run only while a call waits for the server.
        self._loop = asyncio.new_event_loop()
        self.games = [
            PuzzleServerEnvironment(self, PuzzleClient(config, retry_seed=config.retry_seed * 1000 + number))
            for number in range(size)
        ]
        super().__init__(self.games)

    def __enter__(self) -> "PuzzleServerVectorEnvironment":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def step(self, answers: Sequence[str]) -> TextVectorStep:
        self._check(answers, "answers")
        asked = zip(self.games[: len(self)], answers, strict=True)
        return TextVectorStep.stack(self.wait([game.ask(answer) for game, answer in asked]))

    def begin(self, puzzles: Sequence[tuple[PuzzleGame | str, PuzzleDifficulty | str, int]]) -> list[str]:
        """Start puzzles by game, difficulty and seed on as many of the connections; the others rest.

        From now on the batch is as large as these are many.
        """
        if not 0 < len(puzzles) <= len(self.games):
            raise ValueError(f"there are {len(self.games)} connections for {len(puzzles)} puzzles")
        self.environments = list(self.games[: len(puzzles)])
        for one, (game, difficulty, _) in zip(self.games, puzzles, strict=False):
            one.game, one.difficulty = game_id(game), PuzzleDifficulty(difficulty)
        return self._start(list(range(len(puzzles))), [seed for *_, seed in puzzles])

    def close(self) -> None:
        """Hang up; doing it twice is no mistake."""
        if not self._loop.is_closed():
            self.wait([game.client.disconnect() for game in self.games])
            self._loop.close()

    def wait(self, calls: Sequence[Coroutine[Any, Any, Result]]) -> list[Result]:
        """What these come to, all at once."""

        async def together() -> list[Result]:
            return await asyncio.gather(*calls)

        return self._loop.run_until_complete(together())

    def _start(self, places: list[int], seeds: list[int]) -> list[str]:
        return self.wait([self.games[n].begin(seed) for n, seed in zip(places, seeds, strict=True)])


class PuzzleServerEnvironment(TextEnvironment):
    """One puzzle of a server; `puzzle_server_environment` makes one by itself."""

    def __init__(self, batch: PuzzleServerVectorEnvironment, client: PuzzleClient) -> None:
        self.client = client
        self.game, self.difficulty = batch.game, batch.difficulty
        self._batch = batch
        self._seen: PuzzleObservation | None = None
        self._info, self._taken, self._refused = TextInfo(), 0, 0

    def reset(self, seed: int) -> str:
        return self._batch.wait([self.begin(seed)])[0]

    def step(self, answer: str) -> TextStep:
        return self._batch.wait([self.ask(answer)])[0]

    async def begin(self, seed: int) -> str:
        """Start the puzzle of a seed."""
        self._seen = await self.client.start_puzzle(self.game, self.difficulty, seed)
        self._info, self._taken, self._refused = TextInfo(), 0, 0
        return self.prompt

    async def ask(self, answer: str) -> TextStep:
        """Take an answer."""
        seen = self.observation
        if self._info.terminated or self._info.truncated:
            return finished_step(self._info)
        self._taken += 1
        truncated = self._taken >= self._batch.max_steps
        try:
            command = extract_answer(answer)
        except ValueError as error:
            self._refused += 1
            truncated = truncated or self._refused >= self._batch.max_invalid_answers
            self._info = TextInfo(str(error), truncated=truncated)
            text = f"Not possible: {error}.\n\n{_picture(seen)}"
            return TextStep(text, self._batch.rewards.invalid, truncated, self._info)
        result = await move_outcome(self.client, command)
        self._seen = result.state or seen
        ended = result.solved or result.game_over
        refused = "" if result.success or result.solved else result.message or "it was refused"
        self._refused = self._refused + 1 if refused else 0
        truncated = truncated or self._refused >= self._batch.max_invalid_answers
        self._info = TextInfo(refused, result.solved, ended, truncated and not ended)
        said = "Solved." if result.solved else "Lost." if ended else "Done."
        if refused and not ended:
            said = f"Not possible: {refused}"
        reward = step_reward(result, self._batch.rewards)
        return TextStep(f"{said}\n\n{_picture(self._seen)}", reward, ended or truncated, self._info)

    @property
    def prompt(self) -> str:
        batch, seen = self._batch, self.observation
        if batch.worded is not None:
            return batch.worded(self.game, seen)
        form = COMMANDS.get(self.game, "`place ROW COLUMN DIGIT`")  # type: ignore[call-overload]
        return (
            f"This is the puzzle {seen.game} ({seen.difficulty.value}).\n\n{_picture(seen)}\n\n"
            f"Answer with one line: {form}. Rows and columns count from 1."
        )

    def expert_actions(self) -> list[str] | None:
        """The server's next hint as an answer, where there is one to follow; asked for move by move."""
        if self._info.terminated or self._info.truncated:
            return []
        [hint] = self._batch.wait([self.client.get_hint()])
        return [hint.command] if hint.success and hint.command else None

    def close(self) -> None:
        self._batch.close()

    @property
    def observation(self) -> PuzzleObservation:
        """The puzzle as the server showed it last."""
        if self._seen is None:
            raise ValueError("there is no episode yet; call reset")
        return self._seen


def puzzle_server_environment(
    game: PuzzleGame | str, difficulty: str = "easy", **settings: Any
) -> PuzzleServerEnvironment:
    """One puzzle at a time of a server; the settings are those of `PuzzleServerVectorEnvironment`."""
    return PuzzleServerVectorEnvironment(game, difficulty, size=1, **settings).games[0]


def _picture(seen: PuzzleObservation) -> str:
    return "\n".join(line.rstrip() for line in seen.grid_display.splitlines())

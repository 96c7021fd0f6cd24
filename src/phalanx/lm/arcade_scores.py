"""How many puzzles of a live server a language model solves, game by game, and what random commands solve.

Puzzles made in process are scored in `puzzle_scores`; games as text environments are in `phalanx.data`.
"""

import dataclasses
import itertools
import random
from collections.abc import Callable, Sequence

from pydantic import Field

from phalanx.config import Config
from phalanx.lm.evaluation import TaskScore
from phalanx.lm.playing import Conversation, LMPolicy, played_by, rollout
from phalanx.lm.tasks import PuzzleServerPromptTokenizer
from phalanx.puzzles.server.client import PuzzleClientConfig
from phalanx.puzzles.server.env import PuzzleServerVectorEnvironment
from phalanx.puzzles.server.episodes import move_prompt
from phalanx.puzzles.server.protocol import PuzzleGame, PuzzleObservation, game_id

_UNKNOWN_SIZE = 9
"""Rows and columns that random commands name where the server does not tell the board."""


class ArcadeEvaluationConfig(Config):
    """What `phalanx eval --arcade` asks of a language model."""

    games: tuple[str, ...] = ()
    """Games by name; all that there are, without a name."""
    difficulty: str = "easy"
    """How hard they are."""
    puzzles: int = Field(default=8, ge=1)
    """How many of each game, and as many connections."""
    first_seed: int = Field(default=1_000_000, ge=0)
    """The seed of the first; far from those that samples are collected with."""
    max_steps: int = Field(default=99, ge=1)
    """Answers after which a puzzle is left."""
    max_new_tokens: int = Field(default=24, ge=1)
    """The longest answer."""

    def names(self) -> tuple[str, ...]:
        """The games as the server calls them."""
        return tuple(game_id(game) for game in self.games or tuple(PuzzleGame))


def score_arcade(
    player: LMPolicy,
    game: str,
    client: PuzzleClientConfig,
    config: ArcadeEvaluationConfig,
    name: str = "model",
) -> TaskScore:
    """Puzzles of a game played greedily, with the prompts that `phalanx train lm --arcade` learns from.

    A refused answer ends an episode: nothing has changed, and a greedy player would say the same again.
    """
    greedy = dataclasses.replace(
        player,
        prompter=PuzzleServerPromptTokenizer(player.prompter),
        sampling=player.sampling.model_copy(update={"temperature": 0.0}),
        max_new_tokens=config.max_new_tokens,
        legal_only=False,
    )
    return _score(game, name, "greedy", client, config, 1, lambda batch: rollout(greedy, batch))


def score_random_commands(
    game: str, client: PuzzleClientConfig, config: ArcadeEvaluationConfig, seed: int = 0
) -> TaskScore:
    """Random commands of the game's form, whose numbers are on the board; some are refused."""
    draws = random.Random(seed)

    def started(batch: PuzzleServerVectorEnvironment) -> list[Conversation]:
        def command(place: int) -> str:
            return random_command(game, batch.games[place].observation, draws)

        return played_by(batch, command)

    return _score(game, "random", "sampled", client, config, config.max_steps, started)


def random_command(game: str, seen: PuzzleObservation, draws: random.Random) -> str:
    """A command as the game takes it; that of Logic Grid, of which the server takes none, has no names."""
    board = seen.grid if isinstance(seen.grid, list) and seen.grid else [[0] * _UNKNOWN_SIZE] * _UNKNOWN_SIZE
    rows, columns = len(board), len(board[0])

    def cell() -> str:
        return f"{draws.randint(1, rows)} {draws.randint(1, columns)}"

    match PuzzleGame(game):
        case PuzzleGame.BINARY | PuzzleGame.NONOGRAM:
            return f"place {cell()} {draws.randint(0, 1)}"
        case PuzzleGame.LIGHTS_OUT | PuzzleGame.TENTS | PuzzleGame.STAR_BATTLE:
            return f"press {cell()}"
        case PuzzleGame.MASTERMIND:
            return "guess " + " ".join(str(draws.randint(1, 6)) for _ in range(4))
        case PuzzleGame.SLITHERLINK:
            return f"set {draws.choice('hv')} {cell()} {draws.randint(1, 2)}"
        case PuzzleGame.BRIDGES:
            return f"bridge {cell()} {cell()} {draws.randint(1, 2)}"
        case PuzzleGame.SHIKAKU:
            return f"bridge {cell()} {cell()} 0"
        case PuzzleGame.HITORI:
            return f"shade {cell()}"
        case PuzzleGame.SOKOBAN:
            return f"move {draws.choice(('up', 'down', 'left', 'right'))}"
        case PuzzleGame.KNAPSACK:
            return draws.choice((f"select {draws.randint(1, 5)}", f"deselect {draws.randint(1, 5)}", "check"))
        case PuzzleGame.NURIKABE:
            return f"mark {cell()} {draws.choice(('white', 'black'))}"
        case PuzzleGame.MINESWEEPER:
            return f"reveal {cell()}"
        case PuzzleGame.LOGIC_GRID:
            return "connect person NAME VALUE CATEGORY"
        case PuzzleGame.HIDATO:
            return f"place {cell()} {draws.randint(1, rows * columns)}"
        case _:
            return f"place {cell()} {draws.randint(1, rows)}"


def _score(
    game: str,
    name: str,
    mode: str,
    client: PuzzleClientConfig,
    config: ArcadeEvaluationConfig,
    max_invalid_answers: int,
    started: Callable[[PuzzleServerVectorEnvironment], Sequence[Conversation]],
) -> TaskScore:
    with PuzzleServerVectorEnvironment(
        game,
        config.difficulty,
        size=config.puzzles,
        client=client,
        max_steps=config.max_steps,
        max_invalid_answers=max_invalid_answers,
        prompt=move_prompt,
    ) as batch:
        texts = batch.reset(list(itertools.islice(itertools.count(config.first_seed), config.puzzles)))
        told = started(batch)
    solved = [one for one in told if one.solved]
    answers = sum(len(one.turns) for one in told)
    return TaskScore(
        f"{game}:{config.difficulty}:arcade",
        name,
        mode,
        len(told),
        len(set(texts)),
        len(solved) / len(told),
        sum(one.legal for one in told) / max(answers, 1),
        sum(len(one.turns) for one in solved) / len(solved) if solved else None,
    )

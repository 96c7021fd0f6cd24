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
from phalanx.puzzles.server.protocol import PuzzleGame, game_id


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
        return played_by(batch, lambda place: batch.sample_actions([place], draws)[0])

    return _score(game, "random", "sampled", client, config, config.max_steps, started)


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
        num_connections=config.puzzles,
        client=client,
        max_steps=config.max_steps,
        max_invalid_answers=max_invalid_answers,
        prompt_format="compact",
    ) as batch:
        texts = batch.reset(list(itertools.islice(itertools.count(config.first_seed), config.puzzles)))
        told = started(batch)
    solved = [one for one in told if one.solved]
    answers = sum(len(one.turns) for one in told)
    return TaskScore(
        f"{game}:{config.difficulty}",
        name,
        mode,
        len(told),
        len(set(texts)),
        len(solved) / len(told),
        sum(one.legal for one in told) / max(answers, 1),
        sum(len(one.turns) for one in solved) / len(solved) if solved else None,
    )

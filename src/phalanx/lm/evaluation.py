"""How well a language model plays: solved, legal moves, moves, pass@k, by kind and difficulty.

Beside it stand an untrained model and random legal moves. What is played is in `episodes`, how in `playing`.
"""

import dataclasses
import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

import jax
from pydantic import Field

from phalanx.arc.evaluation import mean_pass_at_k
from phalanx.config import Config
from phalanx.core.environment import Key
from phalanx.lm.episodes.environments import EnvironmentSource
from phalanx.lm.episodes.puzzles import PuzzleSource
from phalanx.lm.episodes.source import EpisodeId, EpisodeSource
from phalanx.lm.playing import Conversation, LMPolicy, episode_record, play_at_random, played_by, rollout
from phalanx.lm.sampling import SamplingConfig
from phalanx.lm.tasks import PromptTokenizer, Split, TextTask
from phalanx.text.env import TextVectorEnvironment

_BATCH = 64


class PuzzleEvaluationConfig(Config):
    """What `phalanx eval` asks of a language model."""

    tasks: str = ""
    """Puzzles by name, as `sudoku:medium,sokoban::multi`, or `arc`, `proofs` or the id of an environment;
    what it was trained on, without a name."""
    puzzles: int = Field(default=100, ge=1)
    """How many of each."""
    sampling: SamplingConfig = SamplingConfig()
    """How sampled attempts are drawn."""
    max_new_tokens: int = Field(default=64, ge=1)
    """The longest answer."""
    legal_only: bool = False
    """Whether it chooses among legal moves only, where a puzzle is played move by move."""


@dataclasses.dataclass(frozen=True)
class TaskScore:
    """What came of the puzzles of one kind and difficulty."""

    task: str
    player: str
    """`model`, `untrained` or `random`."""
    mode: str
    """`greedy`, or `sampled`."""
    puzzles: int
    different: int
    """How many of them differ: of a small kind there are few."""
    solved_rate: float
    legal_rate: float
    """Share of the answers that were moves, or could be read."""
    moves: float | None
    """Mean over the solved puzzles; none where there are none."""
    pass_at_k: dict[int, float] = dataclasses.field(default_factory=dict)

    def as_record(self, split: str) -> dict[str, Any]:
        """A line of a run's `evaluations.jsonl`."""
        record = {"split": split, **dataclasses.asdict(self)}
        record["pass_at_k"] = {str(k): share for k, share in self.pass_at_k.items()}
        return record


def mean_score(scores: Sequence[TaskScore]) -> TaskScore:
    """The mean over tasks, each of which counts the same."""
    moves = [score.moves for score in scores if score.moves is not None]
    ks = sorted(set[int]().union(*(score.pass_at_k for score in scores)))
    count = len(scores)
    return TaskScore(
        "all",
        scores[0].player,
        scores[0].mode,
        sum(score.puzzles for score in scores),
        sum(score.different for score in scores),
        sum(score.solved_rate for score in scores) / count,
        sum(score.legal_rate for score in scores) / count,
        sum(moves) / len(moves) if moves else None,
        {k: sum(score.pass_at_k[k] for score in scores) / count for k in ks},
    )


Start = Callable[[TextVectorEnvironment, int], list[Conversation]]
"""Plays a batch that has begun, and is told which one it is."""


def played_episodes(
    source: EpisodeSource, episodes: Sequence[EpisodeId], start: Start, at_once: int = _BATCH
) -> list[Conversation]:
    """Conversations about episodes, a batch at a time."""
    batches = enumerate(source.batches(episodes, at_once))
    return [one for number, batch in batches for one in start(batch, number)]


def score_puzzles(
    player: LMPolicy,
    task: TextTask,
    *,
    split: Split = "held-out",
    count: int = 100,
    attempts: int = 0,
    seed: int = 0,
    compact: bool = True,
    name: str = "model",
) -> tuple[list[TaskScore], list[Conversation]]:
    """Scores of greedy episodes and of `attempts` sampled ones; and the greedy conversations."""
    source = PuzzleSource([task], player.prompter, compact=compact)
    return score_episodes(
        player, source, task.name, split=split, count=count, attempts=attempts, seed=seed, name=name
    )


def score_episodes(
    player: LMPolicy,
    source: EpisodeSource,
    task: str,
    *,
    split: Split = "held-out",
    count: int = 100,
    attempts: int = 0,
    seed: int = 0,
    name: str = "model",
) -> tuple[list[TaskScore], list[Conversation]]:
    """`score_puzzles` of any source's task."""
    episodes = _episodes(source, task, split, count)
    player = dataclasses.replace(player, prompter=source.prompter)
    greedy = dataclasses.replace(player, sampling=player.sampling.model_copy(update={"temperature": 0.0}))
    told = played_episodes(source, episodes, lambda batch, _: rollout(greedy, batch))
    scores = [_score(task, name, "greedy", episodes, told)]
    if attempts:
        tried = [
            played_episodes(source, episodes, _drawing(player, jax.random.fold_in(jax.random.key(seed), at)))
            for at in range(attempts)
        ]
        successes = [sum(one.solved for one in each) for each in zip(*tried, strict=True)]
        sampled = _score(task, name, "sampled", episodes, [one for each in tried for one in each])
        asked = [k for k in (1, 2, 4, 8, 16, 32) if k < attempts] + [attempts]
        passes = {k: mean_pass_at_k(attempts, successes, k) for k in asked}
        scores.append(dataclasses.replace(sampled, pass_at_k=passes))
    return scores, told


def _episodes(source: EpisodeSource, task: str, split: Split, count: int) -> list[EpisodeId]:
    return [EpisodeId(task, seed) for seed in itertools.islice(source.seeds(task, split), count)]


def _drawing(player: LMPolicy, key: Key) -> Start:
    return lambda batch, number: rollout(player, batch, jax.random.fold_in(key, number))


def score_random(task: TextTask, *, split: Split = "held-out", count: int = 100, seed: int = 0) -> TaskScore:
    """Random legal moves, move by move: whole answers at random would hardly ever be right."""
    by_move = task._replace(turns="multi")
    source = PuzzleSource([by_move], PromptTokenizer("characters"))
    episodes = _episodes(source, by_move.name, split, count)
    told = played_episodes(source, episodes, lambda batch, number: play_at_random(batch, seed + number))
    return _score(task.name, "random", "sampled", episodes, told)


def score_random_actions(
    source: EnvironmentSource, *, split: Split = "held-out", count: int = 100, seed: int = 0
) -> TaskScore:
    """Random legal actions of an environment."""
    [task] = source.tasks
    episodes, draws = _episodes(source, task, split, count), random.Random(seed)

    def start(batch: TextVectorEnvironment, number: int) -> list[Conversation]:
        drawn: dict[int, str] = {}

        def command(place: int) -> str:
            # Each place is asked once a step, and an action is good for one.
            if place not in drawn:
                drawn.update(enumerate(source.random_actions(batch, draws)))
            return drawn.pop(place)

        return played_by(batch, command)

    return _score(task, "random", "sampled", episodes, played_episodes(source, episodes, start))


def _score(
    task: str, player: str, mode: str, episodes: Sequence[EpisodeId], told: Sequence[Conversation]
) -> TaskScore:
    answers = sum(len(one.turns) for one in told)
    solved = [one for one in told if one.solved]
    return TaskScore(
        task,
        player,
        mode,
        len(episodes),
        len({one.turns[0].prompt for one in told}),
        len(solved) / max(len(told), 1),
        sum(one.legal for one in told) / max(answers, 1),
        sum(len(one.turns) for one in solved) / len(solved) if solved else None,
    )


def evaluation_records(
    player: LMPolicy, source: EpisodeSource | None, count: int, split: Split = "valid"
) -> list[dict[str, Any]]:
    """Lines of `evaluations.jsonl`: all tasks together, then each."""
    if not count or source is None:
        return []
    found = [score_episodes(player, source, task, split=split, count=count)[0][0] for task in source.tasks]
    return [score.as_record(split) for score in (mean_score(found), *found)]


def sampled_conversations(
    player: LMPolicy, source: EpisodeSource | None, update: int
) -> list[dict[str, Any]]:
    """A puzzle of each task and what was said, as the logger takes it."""
    if source is None:
        return []
    tasks = source.tasks
    told = (score_episodes(player, source, task, split="valid", count=1)[1][0] for task in tasks)
    return [
        episode_record(task, one, update, place)
        for place, (task, one) in enumerate(zip(tasks, told, strict=True))
    ]

"""How well a language model plays puzzles: solved, legal moves, moves, pass@k, by kind and difficulty.

Beside it stand an untrained model and random legal moves. How episodes are played is in `playing`.
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from pydantic import Field

from phalanx.agents.arc_evaluation import mean_pass_at_k
from phalanx.agents.lm.generation import SamplingConfig
from phalanx.agents.lm.playing import Conversation, Player, play, play_at_random, summary
from phalanx.agents.lm.tasks import Split, TextTask, puzzles_of
from phalanx.core.config import Config
from phalanx.core.environment import Key
from phalanx.core.text_environment import TextBatch
from phalanx.puzzles.kind import Puzzle

_BATCH = 64


class PuzzleEvaluationConfig(Config):
    """What `phalanx eval` asks of a language model."""

    tasks: str = ""
    """Puzzles by name, as `sudoku:medium,sokoban::multi`; those that it was trained on, without a name."""
    puzzles: int = Field(default=100, ge=1)
    """How many of each."""
    sampling: SamplingConfig = SamplingConfig()
    """How sampled attempts are drawn."""
    max_new_tokens: int = Field(default=64, ge=1)
    """The longest answer."""
    legal_only: bool = False
    """Whether it chooses among legal moves only, where a puzzle is played move by move."""


@dataclasses.dataclass(frozen=True)
class PuzzleScore:
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


def overall(scores: Sequence[PuzzleScore]) -> PuzzleScore:
    """The mean over tasks, each of which counts the same."""
    moves = [score.moves for score in scores if score.moves is not None]
    ks = sorted(set[int]().union(*(score.pass_at_k for score in scores)))
    count = len(scores)
    return PuzzleScore(
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


def played_puzzles(
    task: TextTask,
    puzzles: Sequence[Puzzle],
    start: Callable[[TextBatch, int], list[Conversation]],
    compact: bool,
) -> list[Conversation]:
    """Conversations about puzzles, a batch at a time; `start` plays one, and is told which it is."""
    found = []
    for number, first in enumerate(range(0, len(puzzles), _BATCH)):
        environments = [task.environment(compact=compact) for _ in puzzles[first : first + _BATCH]]
        for environment, puzzle in zip(environments, puzzles[first:], strict=False):
            environment.begin(puzzle)
        found += start(TextBatch(environments), number)
    return found


def score_puzzles(
    player: Player,
    task: TextTask,
    *,
    split: Split = "held-out",
    count: int = 100,
    attempts: int = 0,
    seed: int = 0,
    compact: bool = True,
    name: str = "model",
) -> tuple[list[PuzzleScore], list[Conversation]]:
    """Scores of greedy episodes and of `attempts` sampled ones; and the greedy conversations."""
    puzzles = list(itertools.islice(puzzles_of(task, split), count))
    greedy = dataclasses.replace(player, sampling=player.sampling.model_copy(update={"temperature": 0.0}))
    told = played_puzzles(task, puzzles, lambda batch, _: play(greedy, batch), compact)
    scores = [_score(task, name, "greedy", puzzles, told)]
    if attempts:
        tried = [
            played_puzzles(
                task, puzzles, _drawing(player, jax.random.fold_in(jax.random.key(seed), at)), compact
            )
            for at in range(attempts)
        ]
        successes = [sum(one.solved for one in each) for each in zip(*tried, strict=True)]
        sampled = _score(task, name, "sampled", puzzles, [one for each in tried for one in each])
        asked = [k for k in (1, 2, 4, 8, 16, 32) if k < attempts] + [attempts]
        passes = {k: mean_pass_at_k(attempts, successes, k) for k in asked}
        scores.append(dataclasses.replace(sampled, pass_at_k=passes))
    return scores, told


def _drawing(player: Player, key: Key) -> Callable[[TextBatch, int], list[Conversation]]:
    return lambda batch, number: play(player, batch, jax.random.fold_in(key, number))


def score_random(
    task: TextTask, *, split: Split = "held-out", count: int = 100, seed: int = 0
) -> PuzzleScore:
    """Random legal moves, move by move: whole answers at random would hardly ever be right."""
    puzzles = list(itertools.islice(puzzles_of(task, split), count))
    by_move = task._replace(turns="multi")
    told = played_puzzles(by_move, puzzles, lambda batch, number: play_at_random(batch, seed + number), True)
    return _score(task, "random", "sampled", puzzles, told)


def _score(
    task: TextTask, player: str, mode: str, puzzles: Sequence[Puzzle], told: Sequence[Conversation]
) -> PuzzleScore:
    answers = sum(len(one.turns) for one in told)
    solved = [one for one in told if one.solved]
    return PuzzleScore(
        task.name,
        player,
        mode,
        len(puzzles),
        len({(puzzle.given, puzzle.clues) for puzzle in puzzles}),
        len(solved) / max(len(told), 1),
        sum(one.legal for one in told) / max(answers, 1),
        sum(len(one.turns) for one in solved) / len(solved) if solved else None,
    )


def evaluation_records(
    player: Player, tasks: Sequence[TextTask], count: int, compact: bool, split: Split = "valid"
) -> list[dict[str, Any]]:
    """Lines of `evaluations.jsonl`: all tasks together, then each."""
    if not count or not tasks:
        return []
    found = [score_puzzles(player, task, split=split, count=count, compact=compact)[0][0] for task in tasks]
    return [score.as_record(split) for score in (overall(found), *found)]


def sampled_conversations(
    player: Player, tasks: Sequence[TextTask], compact: bool, update: int
) -> list[dict[str, Any]]:
    """A puzzle of each task and what was said, as the logger takes it."""
    told = (score_puzzles(player, task, split="valid", count=1, compact=compact)[1][0] for task in tasks)
    return [
        summary(task.name, one, update, place)
        for place, (task, one) in enumerate(zip(tasks, told, strict=True))
    ]

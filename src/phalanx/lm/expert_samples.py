"""Solvers' answers to puzzles as token samples: what is asked is read, what is answered is learned.

The puzzles are those of `tasks`; episodes of other environments are in `sources`.
"""

import random
from collections.abc import Iterator, Mapping, Sequence

from phalanx.data.samples import EpisodeStatus, Sample, SampleInfo, SampleOrigin
from phalanx.lm.tasks import PromptTokenizer, Split, TextTask, puzzles_of, split_of
from phalanx.puzzles.env import PuzzleEnvironment

_SEEDS = 2**40
"""Seeds of puzzles that a run's seed has for itself."""


def generate_expert_samples(
    tasks: Sequence[TextTask],
    prompter: PromptTokenizer,
    *,
    seed: int = 0,
    split: Split = "training",
    compact: bool = True,
    wander: float = 0.0,
    demonstrated: bool = True,
    shares: Mapping[str, int] | None = None,
) -> Iterator[Sample]:
    """Samples of each task in turn, without end; the same arguments give the same ones.

    An answer as a whole is a sample; of a puzzle that is played move by move, each move is one, asked from
    where the puzzle stands. With probability `wander` a random legal move is made instead, and not learned,
    so that a model knows its way after mistakes, too. Unless `demonstrated`, moves are random and legal. A
    kind in `shares` has as many samples in each turn.
    """
    streams = [
        _of_task(
            task, prompter, random.Random(f"{seed} {task.name}"), seed, split, compact, wander, demonstrated
        )
        for task in tasks
    ]
    counts = [(shares or {}).get(task.kind, 1) for task in tasks]
    while True:
        for stream, count in zip(streams, counts, strict=True):
            for _ in range(count):
                yield next(stream)


def _of_task(
    task: TextTask,
    prompter: PromptTokenizer,
    draws: random.Random,
    seed: int,
    split: Split,
    compact: bool,
    wander: float,
    demonstrated: bool,
) -> Iterator[Sample]:
    environment = task.environment(prompt_format="compact" if compact else "full")
    if not demonstrated and task.turns == "single":
        raise ValueError("random play is move by move: set data.turns=multi")
    for puzzle in puzzles_of(task, split, first_seed=_SEEDS * seed):
        environment.start(puzzle)
        step = 0
        while not environment.done:
            wandering = draws.random() < wander
            answer = _answer(environment, draws, demonstrated and not wandering)
            if answer is None:
                break
            prompt = environment.prompt
            # A puzzle of the training may lead through a board that is another puzzle's, held out.
            if not wandering and (task.turns == "single" or _may_learn(environment, split)):
                read, learned = prompter.prompt(prompt), prompter.answer(answer)
                yield Sample(
                    f"{task.name}-{split}-{puzzle.seed}-{step}",
                    read + learned,
                    [0] * len(read) + [1] * len(learned),
                    info=SampleInfo(
                        dataset_id=task.name,
                        origin=SampleOrigin.SYNTHETIC,
                        episode_id=f"{task.name}-{puzzle.seed}",
                        episode_status=EpisodeStatus.RUNNING,
                        step_index=step,
                    ),
                )
            environment.step(answer)
            step += 1


def _may_learn(environment: PuzzleEnvironment, split: Split) -> bool:
    return split_of(environment.state_key) in (split, "training")


def _answer(environment: PuzzleEnvironment, draws: random.Random, solver: bool) -> str | None:
    """The solver's next answer, or a random legal one; None where there is none."""
    if solver:
        return next(iter(environment.expert_actions() or ()), None)
    legal = environment.legal_actions()
    return draws.choice(legal) if legal else None

"""Training samples from puzzles: prompts with the answers of a solver, or of a random policy."""

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from phalanx.data.samples import EpisodeStatus, SampleSource, StreamSample
from phalanx.lm.prompt_tokenizer import PromptTokenizer
from phalanx.lm.tasks import Split, TextTask, puzzles_of, split_of
from phalanx.puzzles.env import PuzzleEnvironment

_SEEDS_PER_RUN = 2**40
"""Runs with different seeds use disjoint ranges of puzzle seeds."""


def generate_expert_samples(
    tasks: Sequence[TextTask],
    tokenizer: PromptTokenizer,
    *,
    seed: int = 0,
    split: Split = "training",
    compact: bool = True,
    random_move_prob: float = 0.0,
    behavior_policy: Literal["expert", "random"] = "expert",
    mixture: Mapping[str, int] | None = None,
) -> Iterator[StreamSample]:
    """Yield samples of each task in turn, without end. The loss mask selects the answers.

    A single-turn puzzle gives one sample, a multi-turn puzzle one per move.

    Args:
        tasks: Puzzle tasks.
        tokenizer: Encodes prompts and answers.
        seed: Samples are a function of the seed and the other arguments.
        split: Split of the puzzles.
        compact: Use compact prompts.
        random_move_prob: Probability of a random legal move instead of the expert's. Its sample is omitted.
        behavior_policy: Whose answers to use.
        mixture: Samples of a kind per turn; 1 for kinds that are not listed.
    """
    streams = [
        _task_samples(
            task,
            tokenizer,
            random.Random(f"{seed} {task.name}"),
            seed,
            split,
            compact,
            random_move_prob,
            behavior_policy,
        )
        for task in tasks
    ]
    counts = [(mixture or {}).get(task.kind, 1) for task in tasks]
    while True:
        for stream, count in zip(streams, counts, strict=True):
            for _ in range(count):
                yield next(stream)


def _task_samples(
    task: TextTask,
    tokenizer: PromptTokenizer,
    rng: random.Random,
    seed: int,
    split: Split,
    compact: bool,
    random_move_prob: float,
    behavior_policy: Literal["expert", "random"],
) -> Iterator[StreamSample]:
    environment = task.environment(prompt_format="compact" if compact else "full")
    if behavior_policy == "random" and task.turns == "single":
        raise ValueError("data.behavior_policy=random needs multi-turn puzzles; set env.turns=multi")
    for puzzle in puzzles_of(task, split, first_seed=_SEEDS_PER_RUN * seed):
        environment.start(puzzle)
        step = 0
        while not environment.done:
            is_random_move = rng.random() < random_move_prob
            answer = _next_answer(environment, rng, behavior_policy == "expert" and not is_random_move)
            if answer is None:
                break
            # A puzzle of the training split can reach the initial state of a puzzle of another split.
            is_allowed = task.turns == "single" or split_of(environment.state_key) in (split, "training")
            if is_allowed and not is_random_move:
                prompt_ids = tokenizer.encode_prompt(environment.prompt)
                completion_ids = tokenizer.encode_completion(answer)
                yield StreamSample(
                    input_ids=prompt_ids + completion_ids,
                    loss_mask=[0] * len(prompt_ids) + [1] * len(completion_ids),
                    sample_id=f"{task.name}-{split}-{puzzle.seed}-{step}",
                    dataset_id=task.name,
                    source=SampleSource.SYNTHETIC,
                    episode_id=f"{task.name}-{puzzle.seed}",
                    episode_status=EpisodeStatus.RUNNING,
                    step_index=step,
                )
            environment.step(answer)
            step += 1


def _next_answer(environment: PuzzleEnvironment, rng: random.Random, use_expert: bool) -> str | None:
    if use_expert:
        return next(iter(environment.expert_actions() or ()), None)
    legal_actions = environment.legal_actions()
    return rng.choice(legal_actions) if legal_actions else None

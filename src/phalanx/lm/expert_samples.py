"""Training samples from text environments: prompts with the answers of an expert or a random policy."""

import contextlib
import itertools
import random
from collections.abc import Callable, Generator, Mapping
from typing import Literal

from phalanx.data.samples import EpisodeStatus, Sample, SampleInfo, SampleOrigin
from phalanx.data.tokenizers import Tokenizer
from phalanx.lm.prompt_tokenizer import LMTokenizer
from phalanx.lm.text_rollout import is_usable_state
from phalanx.text.env import TaskSeed, TextVectorEnvironment
from phalanx.text.splits import Split

BehaviorPolicy = Literal["expert", "random"]


def generate_expert_samples(
    make_env: Callable[[], TextVectorEnvironment],
    tokenizer: str | Tokenizer,
    *,
    seed: int = 0,
    split: Split = "train",
    random_move_prob: float = 0.0,
    behavior_policy: BehaviorPolicy = "expert",
    mixture: Mapping[str, int] | None = None,
) -> Generator[Sample, None, None]:
    """Yield samples indefinitely, alternating between the tasks of an environment.

    A sample contains the prompt and the answer of one turn. The loss mask is 1 for the answer. No sample is
    generated for a turn with a random move (see `random_move_prob`), or for a state that `is_usable_state`
    excludes from the split. If the policy has no action for a state, for example because the expert cannot
    solve it, the episode is abandoned. Closing the generator also closes its environments.

    Args:
        make_env: Function that creates the environment. It is called several times, because each task has its
            own environment.
        tokenizer: Tokenizer for prompts and answers, or its name.
        seed: Random seed. The same arguments always give the same samples.
        split: Split of the episodes.
        random_move_prob: Probability of taking a random legal action instead of the expert's action.
        behavior_policy: Policy whose answers are used: `expert` or `random`.
        mixture: For each kind of task, the number of consecutive samples to take from a task before switching
            to the next task. The kind is the part of the task's name before the first colon. The default for
            kinds that are not listed is 1.
    """
    with contextlib.closing(make_env()) as env:
        tasks = env.tasks
    streams = [
        _task_samples(make_env, task, tokenizer, seed, split, random_move_prob, behavior_policy)
        for task in tasks
    ]
    counts = [(mixture or {}).get(task.partition(":")[0], 1) for task in tasks]
    try:
        while True:
            for stream, count in zip(streams, counts, strict=True):
                for _ in range(count):
                    yield next(stream)
    finally:
        for stream in streams:
            stream.close()


def _task_samples(
    make_env: Callable[[], TextVectorEnvironment],
    task: str,
    tokenizer: str | Tokenizer,
    seed: int,
    split: Split,
    random_move_prob: float,
    behavior_policy: BehaviorPolicy,
) -> Generator[Sample, None, None]:
    """Yield the samples of one task. The arguments are those of `generate_expert_samples`."""
    is_single_turn = task.endswith(":single")
    if behavior_policy == "random" and is_single_turn:
        raise ValueError("data.behavior_policy=random needs multi-turn puzzles; set env.turns=multi")
    with contextlib.closing(make_env()) as env:
        prompt_tokenizer, rng = LMTokenizer.for_env(tokenizer, env), random.Random(f"{seed} {task}")
        seeds = env.seeds(task, split, env.first_expert_seed(seed))
        while True:
            block = [TaskSeed(task, one) for one in itertools.islice(seeds, env.expert_batch_size)]
            env.start(block)
            rows, step = list(range(len(block))), 0
            while rows:
                random_rows = [row for row in rows if rng.random() < random_move_prob]
                sampled_rows = rows if behavior_policy == "random" else random_rows
                expert_rows = [row for row in rows if row not in sampled_rows]
                actions = dict(zip(expert_rows, env.expert_actions(expert_rows), strict=True))
                if not is_single_turn:
                    actions |= _sample_actions(env, sampled_rows, rng)
                rows = [row for row in rows if actions.get(row) is not None]
                prompts, state_keys = env.prompts, env.state_keys()
                for row in rows:
                    answer = actions[row]
                    assert answer is not None
                    if row in random_rows or not is_usable_state(state_keys[row], split):
                        continue
                    prompt_ids = prompt_tokenizer.encode_prompt(prompts[row])
                    completion_ids = prompt_tokenizer.encode_completion(answer)
                    yield Sample(
                        f"{task}-{split}-{block[row].seed}-{step}",
                        prompt_ids + completion_ids,
                        [0] * len(prompt_ids) + [1] * len(completion_ids),
                        info=SampleInfo(
                            dataset_id=task,
                            origin=SampleOrigin.SYNTHETIC,
                            episode_id=f"{task}-{block[row].seed}",
                            episode_status=EpisodeStatus.RUNNING,
                            step_index=step,
                        ),
                    )
                if rows:
                    dones = env.step([actions.get(row) or "" for row in range(len(block))]).dones
                    rows = [row for row in rows if not dones[row]]
                step += 1


def _sample_actions(env: TextVectorEnvironment, rows: list[int], rng: random.Random) -> dict[int, str | None]:
    """Sample a legal action for each given row. Rows without legal actions are not in the result."""
    legal_actions = zip(rows, env.legal_actions(rows), strict=True)
    rows = [row for row, actions in legal_actions if actions is None or actions]
    return dict(zip(rows, env.sample_actions(rows, rng), strict=True)) if rows else {}

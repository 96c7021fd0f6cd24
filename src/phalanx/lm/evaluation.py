"""Evaluation of text policies: success rate, valid actions and pass@k by task, with baselines."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax
from pydantic import Field

from phalanx.arc.evaluation import mean_pass_at_k
from phalanx.config import Config
from phalanx.core.environment import Key
from phalanx.lm.episodes.puzzles import PuzzleSource
from phalanx.lm.episodes.source import EpisodeId, EpisodeSource
from phalanx.lm.sampling import SamplingConfig
from phalanx.lm.tasks import Split, TextTask
from phalanx.lm.text_policy import LMPolicy, RandomTextPolicy, TextPolicy
from phalanx.lm.text_rollout import Conversation, rollout
from phalanx.lm.transcript import episode_record

_BATCH_SIZE = 64


class TextEvalConfig(Config):
    """Settings of `phalanx eval` for language models."""

    renamed_settings: ClassVar[Mapping[str, str]] = {
        "tasks": "env",
        "puzzles": "num_episodes",
        "max_new_tokens": "max_completion_length",
        "legal_only": "legal_actions_only",
    }

    env: str = ""
    """Environment spec, such as `sudoku:medium,sokoban::multi`, `arc` or `proofs`. Empty uses the
    environment that the model was trained on."""
    num_episodes: int = Field(default=100, ge=1)
    """Episodes per task."""
    sampling: SamplingConfig = SamplingConfig()
    """Sampling of the attempts that pass@k counts. The success rate is always greedy."""
    max_completion_length: int = Field(default=64, ge=1)
    """Maximum number of tokens of an answer."""
    legal_actions_only: bool = False
    """Restrict generation to legal actions in multi-turn environments."""


@dataclasses.dataclass(frozen=True)
class TaskScore:
    """Results of one policy on one task."""

    task: str
    policy: str
    """Name of the policy: `model`, `untrained` or `random`."""
    mode: str
    """`greedy` or `sampled`."""
    num_episodes: int
    num_distinct: int
    """Number of different first prompts. Small tasks have few."""
    success_rate: float
    valid_action_rate: float
    """Fraction of answers that were valid actions."""
    mean_turns: float | None
    """Mean number of turns of solved episodes; None if none was solved."""
    pass_at_k: dict[int, float] = dataclasses.field(default_factory=dict)

    def as_record(self, split: str) -> dict[str, Any]:
        """Convert to a record of `evaluations.jsonl`."""
        record = {"split": split, **dataclasses.asdict(self)}
        record["pass_at_k"] = {str(k): rate for k, rate in self.pass_at_k.items()}
        return record


def mean_score(scores: Sequence[TaskScore]) -> TaskScore:
    """Average the scores of one policy over tasks, with equal weights."""
    turns = [score.mean_turns for score in scores if score.mean_turns is not None]
    ks = sorted(set[int]().union(*(score.pass_at_k for score in scores)))
    count = len(scores)
    return TaskScore(
        task="all",
        policy=scores[0].policy,
        mode=scores[0].mode,
        num_episodes=sum(score.num_episodes for score in scores),
        num_distinct=sum(score.num_distinct for score in scores),
        success_rate=sum(score.success_rate for score in scores) / count,
        valid_action_rate=sum(score.valid_action_rate for score in scores) / count,
        mean_turns=sum(turns) / len(turns) if turns else None,
        pass_at_k={k: sum(score.pass_at_k[k] for score in scores) / count for k in ks},
    )


def rollout_episodes(
    policy: TextPolicy,
    source: EpisodeSource,
    episodes: Sequence[EpisodeId],
    key: Key | None = None,
    batch_size: int = _BATCH_SIZE,
) -> list[Conversation]:
    """Run episodes in batches. The first batch uses `key`, batch `n` uses `jax.random.fold_in(key, n)`."""
    conversations: list[Conversation] = []
    for index, env in enumerate(source.batches(episodes, batch_size)):
        batch_key = jax.random.fold_in(key, index) if key is not None and index else key
        conversations += rollout(policy, env, batch_key)
    return conversations


def evaluate_policy(
    policy: TextPolicy,
    source: EpisodeSource,
    task: str,
    *,
    split: Split = "held-out",
    num_episodes: int = 100,
    num_samples: int = 0,
    seed: int = 0,
    name: str = "model",
) -> list[TaskScore]:
    """Evaluate a policy on the first episodes of a task's split.

    A language model is evaluated greedily. With `num_samples`, each episode is also attempted that many times
    with the policy's sampling settings, and a second score reports pass@k.
    """
    episodes = _first_episodes(source, task, split, num_episodes)
    if not isinstance(policy, LMPolicy):
        return [_score(task, name, "sampled", rollout_episodes(policy, source, episodes))]
    policy = dataclasses.replace(policy, tokenizer=source.tokenizer)
    scores = [_score(task, name, "greedy", rollout_episodes(_greedy(policy), source, episodes))]
    if num_samples:
        key = jax.random.key(seed)
        attempts = [
            rollout_episodes(policy, source, episodes, jax.random.fold_in(key, attempt))
            for attempt in range(num_samples)
        ]
        num_solved = [sum(one.solved for one in each) for each in zip(*attempts, strict=True)]
        score = _score(task, name, "sampled", list(itertools.chain.from_iterable(attempts)))
        ks = [k for k in (1, 2, 4, 8, 16, 32) if k < num_samples] + [num_samples]
        pass_at_k = {k: mean_pass_at_k(num_samples, num_solved, k) for k in ks}
        scores.append(dataclasses.replace(score, num_episodes=num_episodes, pass_at_k=pass_at_k))
    return scores


def evaluate_random_policy(
    source: EpisodeSource, task: str, *, split: Split = "held-out", num_episodes: int = 100, seed: int = 0
) -> TaskScore:
    """Evaluate random legal actions on a task.

    A single-turn puzzle is replaced by its multi-turn variant: a random complete answer would almost never
    be correct.
    """
    multi_turn, name = source, task
    if isinstance(source, PuzzleSource):
        puzzle_task = TextTask(*task.split(":"))._replace(turns="multi")
        multi_turn, name = PuzzleSource([puzzle_task], source.tokenizer), puzzle_task.name
    [score] = evaluate_policy(
        RandomTextPolicy(seed), multi_turn, name, split=split, num_episodes=num_episodes, name="random"
    )
    return dataclasses.replace(score, task=task)


def evaluation_records(
    policy: LMPolicy, source: EpisodeSource | None, num_episodes: int, split: Split = "valid"
) -> list[dict[str, Any]]:
    """Evaluate greedily on all tasks. Return records for `evaluations.jsonl`: the mean, then each task."""
    if not num_episodes or source is None:
        return []
    scores = [
        evaluate_policy(policy, source, task, split=split, num_episodes=num_episodes)[0]
        for task in source.tasks
    ]
    return [score.as_record(split) for score in (mean_score(scores), *scores)]


def sample_conversations(policy: LMPolicy, source: EpisodeSource | None, update: int) -> list[dict[str, Any]]:
    """Run one validation episode of each task greedily. Return records for the logger."""
    if source is None:
        return []
    policy = dataclasses.replace(_greedy(policy), tokenizer=source.tokenizer)
    records = []
    for index, task in enumerate(source.tasks):
        [conversation] = rollout_episodes(policy, source, _first_episodes(source, task, "valid", 1))
        records.append(episode_record(task, conversation, update, index))
    return records


def _greedy(policy: LMPolicy) -> LMPolicy:
    sampling = policy.sampling.model_copy(update={"temperature": 0.0})
    return dataclasses.replace(policy, sampling=sampling)


def _first_episodes(source: EpisodeSource, task: str, split: Split, count: int) -> list[EpisodeId]:
    return [EpisodeId(task, seed) for seed in itertools.islice(source.seeds(task, split), count)]


def _score(task: str, policy: str, mode: str, conversations: Sequence[Conversation]) -> TaskScore:
    num_turns = sum(len(conversation.turns) for conversation in conversations)
    solved = [conversation for conversation in conversations if conversation.solved]
    return TaskScore(
        task=task,
        policy=policy,
        mode=mode,
        num_episodes=len(conversations),
        num_distinct=len({conversation.turns[0].prompt for conversation in conversations}),
        success_rate=len(solved) / max(len(conversations), 1),
        valid_action_rate=sum(conversation.num_valid for conversation in conversations) / max(num_turns, 1),
        mean_turns=sum(len(conversation.turns) for conversation in solved) / len(solved) if solved else None,
    )

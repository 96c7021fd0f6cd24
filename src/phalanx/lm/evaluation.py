"""Evaluation of text policies and baselines: success rate, fraction of valid actions and pass@k per task."""

import contextlib
import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from pydantic import Field

from phalanx.config import Config, Section
from phalanx.core.evaluation import DictEvaluationResult
from phalanx.lm.model import LanguageModel
from phalanx.lm.prompt_tokenizer import LMTokenizer
from phalanx.lm.sampling import SamplingConfig
from phalanx.lm.text_policy import LMPolicy, RandomTextPolicy, TextPolicy
from phalanx.lm.text_rollout import Conversation, rollout
from phalanx.lm.transcript import episode_record
from phalanx.statistics import mean_pass_at_k
from phalanx.text.env import PromptFormat, TaskSeed, TextVectorEnvironment
from phalanx.text.names import TextEnvConfig, make_text_vector_env
from phalanx.text.splits import Split

_BATCH_SIZE = 64


class TextEvalConfig(Config):
    """Settings for evaluating language models with `phalanx eval`."""

    env: TextEnvConfig = TextEnvConfig()
    """Environment to evaluate in. By default, `phalanx eval` uses the environment that the model was trained
    in."""
    split: Split = "test"
    """Split of the episodes: `train`, `validation` or `test`."""
    episodes_per_task: int = Field(default=100, ge=1)
    """Number of episodes per task."""
    num_sampled_attempts: int = Field(default=8, ge=0)
    """Number of sampled attempts per episode for estimating pass@k, in addition to the greedy attempt. 0
    disables pass@k."""
    sampling_seed: int = 0
    """Random seed for the sampled attempts and the two baselines: an untrained model and random actions."""
    pass_at_k_sampling: SamplingConfig = SamplingConfig()
    """Sampling parameters for the pass@k attempts. The success rate is always measured with greedy
    decoding."""
    max_completion_length: int = Field(default=64, ge=1)
    """Maximum number of tokens per answer."""
    legal_actions_only: bool = False
    """Generate only legal actions. Has an effect only in environments that list the legal actions, such as
    multi-turn puzzles."""

    @classmethod
    def section_types(cls, values: Mapping[str, Any]) -> dict[str, Section]:
        env = values.get("env")
        return {"env": TextEnvConfig.fields_for(str(env.get("id", "")) if isinstance(env, Mapping) else "")}


@dataclasses.dataclass(frozen=True)
class PolicyScore:
    """Results of one policy on one task."""

    task: str
    """Name of the task, or `all` for the mean over tasks."""
    policy: str
    """Name of the policy: `model`, `untrained` or `random`."""
    mode: str
    """`greedy` for greedy decoding, or `sampled` for sampled completions and random actions."""
    num_episodes: int
    """Number of episodes. Repeated attempts at an episode are not counted."""
    num_distinct: int
    """Number of distinct initial prompts. It can be smaller than `num_episodes` if a task has few initial
    states."""
    success_rate: float
    """Fraction of episodes that were solved. With several sampled attempts per episode, the fraction of
    attempts that solved their episode."""
    valid_action_rate: float
    """Fraction of answers that were valid actions."""
    mean_turns: float | None
    """Mean number of turns per solved episode. None if no episode was solved."""
    pass_at_k: dict[int, float] = dataclasses.field(default_factory=dict)
    """Estimates of pass@k, by k. Empty for greedy and baseline scores."""

    def as_record(self, split: str) -> dict[str, Any]:
        """Convert the score to a record for `evaluations.jsonl`."""
        record = {"split": split, **dataclasses.asdict(self)}
        record["pass_at_k"] = {str(k): rate for k, rate in self.pass_at_k.items()}
        return record


@dataclasses.dataclass(frozen=True)
class TextEvalResult:
    """Results of the model and the baselines, either on one task or averaged over all tasks."""

    split: str
    scores: tuple[PolicyScore, ...]
    """Scores of the model with greedy decoding, of the model with sampling (only if
    `num_sampled_attempts` is positive), and of the baselines, in this order."""

    def as_record(self) -> dict[str, Any]:
        """Return the model's greedy score as a record for `evaluations.jsonl`.

        The record also contains the model's pass@k and the success rates of the baselines.
        """
        first, *others = self.scores
        record = first.as_record(self.split)
        record["baselines"] = {score.policy: score.success_rate for score in others if not score.pass_at_k}
        for score in others:
            record["pass_at_k"] |= {str(k): rate for k, rate in score.pass_at_k.items()}
        return record

    def describe(self) -> list[str]:
        """Return the results as lines of text: a single line with all scores."""
        return [f"{self.scores[0].task}: " + "; ".join(map(_describe_score, self.scores))]


def _describe_score(score: PolicyScore) -> str:
    if score.policy == "random":
        valid = "" if score.valid_action_rate == 1 else f" ({score.valid_action_rate:.0%} valid)"
        return f"random actions{valid} {score.success_rate:.0%}"
    if score.pass_at_k:
        return "sampled " + ", ".join(f"pass@{k} {rate:.0%}" for k, rate in score.pass_at_k.items())
    solved = f"{score.policy} solved {score.success_rate:.0%}"
    if score.policy == "untrained":
        return solved
    turns = "" if score.mean_turns is None else f", {score.mean_turns:.1f} turns when solved"
    return f"{solved}, {score.valid_action_rate:.0%} valid actions{turns}, {score.num_distinct} distinct"


def evaluate_language_model(
    policy: LMPolicy, settings: TextEvalConfig, prompt_format: PromptFormat = "compact"
) -> list[TextEvalResult]:
    """Evaluate a language model and two baselines: an untrained model of the same size, and random actions.

    Args:
        policy: The language model. Its settings for sampling, answer length and legal actions are replaced by
            those in `settings`.
        settings: Settings for the environment, the episodes and sampling.
        prompt_format: Format of the prompts that the model was trained on.

    Returns:
        One result per task, followed by the mean over tasks.
    """
    if not settings.env.id:
        raise ValueError("the model was not trained in a text environment; choose one, such as --env sudoku")
    env = settings.env.make(prompt_format)
    policy = dataclasses.replace(
        policy,
        sampling=settings.pass_at_k_sampling,
        max_new_tokens=settings.max_completion_length,
        legal_actions_only=settings.legal_actions_only,
    )
    untrained = LanguageModel(policy.model.config, key=jax.random.key(settings.sampling_seed))
    policies: dict[str, TextPolicy] = {
        "model": policy,
        "untrained": dataclasses.replace(policy, model=untrained),
        "random": RandomTextPolicy(settings.sampling_seed),
    }
    with contextlib.closing(env):
        scores = evaluate_policy(
            policies,
            env,
            split=settings.split,
            num_episodes=settings.episodes_per_task,
            num_samples=settings.num_sampled_attempts,
            seed=settings.sampling_seed,
        )
    rows = [tuple(row) for _, row in itertools.groupby(scores, key=lambda score: score.task)]
    rows.append(tuple(mean_score(column) for column in zip(*rows, strict=True)))
    return [TextEvalResult(settings.split, row) for row in rows]


def mean_score(scores: Sequence[PolicyScore]) -> PolicyScore:
    """Average the scores of one policy over tasks, with equal weights. Episode counts are summed."""
    turns = [score.mean_turns for score in scores if score.mean_turns is not None]
    ks = sorted(set[int]().union(*(score.pass_at_k for score in scores)))
    count = len(scores)
    return PolicyScore(
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


def evaluate_policy(
    policies: Mapping[str, TextPolicy],
    env: TextVectorEnvironment,
    *,
    split: Split = "test",
    num_episodes: int = 100,
    num_samples: int = 0,
    seed: int = 0,
) -> list[PolicyScore]:
    """Evaluate policies on the first episodes of a split, task by task.

    Language models are evaluated with greedy decoding. For tasks with single-turn puzzles, the random policy
    is evaluated on the multi-turn variant of the task, because a random complete solution is almost never
    correct.

    Args:
        policies: Policies by name.
        env: The environment.
        split: Split of the episodes.
        num_episodes: Number of episodes per task.
        num_samples: Number of sampled attempts per episode for estimating pass@k of the first policy. If
            positive, the result contains an additional score with pass@k for each task. Ignored if the first
            policy is not a language model.
        seed: Seed for the sampled attempts.

    Returns:
        The scores of all policies on the first task, then on the next task, and so on.
    """
    scores = []
    for task in env.tasks:
        for index, (name, policy) in enumerate(policies.items()):
            task_env, task_name = env, task
            if isinstance(policy, RandomTextPolicy) and task.endswith(":single"):
                task_name = task.removesuffix("single") + "multi"
                task_env = make_text_vector_env(task_name)
            episodes = _first_episodes(task_env, task_name, split, num_episodes)
            if not isinstance(policy, LMPolicy):
                conversations = rollout(policy, task_env, episodes, batch_size=_BATCH_SIZE)
                scores.append(_score(task, name, "sampled", conversations))
                continue
            policy = _adapt(policy, env)
            conversations = rollout(_greedy(policy), env, episodes, batch_size=_BATCH_SIZE)
            scores.append(_score(task, name, "greedy", conversations))
            if num_samples and index == 0:
                keys = [jax.random.fold_in(jax.random.key(seed), attempt) for attempt in range(num_samples)]
                attempts = [rollout(policy, env, episodes, key, _BATCH_SIZE) for key in keys]
                num_solved = [sum(one.solved for one in each) for each in zip(*attempts, strict=True)]
                score = _score(task, name, "sampled", list(itertools.chain.from_iterable(attempts)))
                ks = [k for k in (1, 2, 4, 8, 16, 32) if k < num_samples] + [num_samples]
                pass_at_k = {k: mean_pass_at_k(num_samples, num_solved, k) for k in ks}
                scores.append(dataclasses.replace(score, num_episodes=len(episodes), pass_at_k=pass_at_k))
    return scores


def evaluation_records(
    policy: LMPolicy, env: TextVectorEnvironment | None, num_episodes: int, split: Split = "validation"
) -> list[DictEvaluationResult]:
    """Evaluate a language model on all tasks with greedy decoding, during training.

    Args:
        policy: The language model.
        env: The environment. If it is None, the result is empty.
        num_episodes: Number of episodes per task. If it is 0, the result is empty.
        split: Split of the episodes.

    Returns:
        The mean over tasks, followed by one result per task.
    """
    if not num_episodes or env is None:
        return []
    scores = evaluate_policy({"model": policy}, env, split=split, num_episodes=num_episodes)
    return [DictEvaluationResult(score.as_record(split)) for score in (mean_score(scores), *scores)]


def sample_conversations(
    policy: LMPolicy, env: TextVectorEnvironment | None, update: int
) -> list[dict[str, Any]]:
    """Run one validation episode per task with greedy decoding, and return the conversations as records.

    Args:
        policy: The language model.
        env: The environment. If it is None, the result is empty.
        update: Number of updates so far, which is stored in the records.

    Returns:
        One record per task for `ExperimentLogger.log_episode_summary`.
    """
    if env is None:
        return []
    policy, records = _greedy(_adapt(policy, env)), []
    for index, task in enumerate(env.tasks):
        [conversation] = rollout(policy, env, _first_episodes(env, task, "validation", 1))
        records.append(episode_record(task, conversation, update, index))
    return records


def _adapt(policy: LMPolicy, env: TextVectorEnvironment) -> LMPolicy:
    """Return the policy with a tokenizer that uses the environment's prompt suffix and stop token."""
    return dataclasses.replace(policy, tokenizer=LMTokenizer.for_env(policy.tokenizer.tokenizer, env))


def _greedy(policy: LMPolicy) -> LMPolicy:
    sampling = policy.sampling.model_copy(update={"temperature": 0.0})
    return dataclasses.replace(policy, sampling=sampling)


def _first_episodes(env: TextVectorEnvironment, task: str, split: Split, count: int) -> list[TaskSeed]:
    return [TaskSeed(task, seed) for seed in itertools.islice(env.seeds(task, split), count)]


def _score(task: str, policy: str, mode: str, conversations: Sequence[Conversation]) -> PolicyScore:
    num_turns = sum(len(conversation.turns) for conversation in conversations)
    solved = [conversation for conversation in conversations if conversation.solved]
    return PolicyScore(
        task=task,
        policy=policy,
        mode=mode,
        num_episodes=len(conversations),
        num_distinct=len({conversation.turns[0].prompt for conversation in conversations}),
        success_rate=len(solved) / max(len(conversations), 1),
        valid_action_rate=sum(conversation.num_valid for conversation in conversations) / max(num_turns, 1),
        mean_turns=sum(len(conversation.turns) for conversation in solved) / len(solved) if solved else None,
    )

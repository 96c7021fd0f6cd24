"""Group Relative Policy Optimization (Shao et al., 2024, arXiv:2402.03300) for text environments.

Each update samples `num_prompts` starting points, such as puzzles. The model attempts each of them
`num_generations` times, and the rewards are compared within each group of attempts. Names follow TRL's
`GRPOConfig`.

Some settings select variants from other papers. `importance_sampling_level="sequence"` is GSPO (Zheng et al.,
2025, arXiv:2507.18071). `advantage_granularity="turn"` compares each answer with all answers to the same
prompt, as in GiGPO (Feng et al., 2025, arXiv:2505.10978). `epsilon_high > epsilon` and averaging the loss
over tokens are from DAPO (Yu et al., 2025, arXiv:2503.14476).
"""

import collections
import concurrent.futures
import itertools
import time
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax  # type: ignore[import-untyped]
from jaxtyping import Array, Bool, Float, Int32, PyTree
from pydantic import Field, model_validator

from phalanx.config import Config
from phalanx.core.environment import Key
from phalanx.core.evaluation import EvaluationResult
from phalanx.data.collation import collate
from phalanx.data.packing import PackingConfig, assign_packs
from phalanx.data.plans.batch_plan import BatchSpec
from phalanx.data.samples import Sample
from phalanx.lm.evaluation import (
    TextEvalConfig,
    evaluate_language_model,
    evaluation_records,
    sample_conversations,
)
from phalanx.lm.model import LanguageModel, LanguageModelConfig, model_structure, token_logps
from phalanx.lm.prompt_tokenizer import LMTokenizer
from phalanx.lm.sampling import MASKED_LOGIT, SamplingConfig
from phalanx.lm.text_policy import LMPolicy, Turn
from phalanx.lm.text_rollout import Conversation, is_usable_state, rollout
from phalanx.logging.config import LoggingConfig
from phalanx.text.env import TaskSeed, TextVectorEnvironment
from phalanx.text.names import TextEnvConfig
from phalanx.training.algorithm import Algorithm, TrainState, UpdateResult, jit_method
from phalanx.training.config import CheckpointConfig, RunConfig, TextEvaluationConfig, TextRunConfig
from phalanx.training.optimizer import OptimizerConfig, make_optimizer
from phalanx.training.text_task_curriculum import TaskCurriculum, TaskCurriculumConfig

_PENDING_ROLLOUTS = "pending_rollouts"
"""Name of a subfolder of the run folder, which is only used with `async_rollouts`. For each checkpoint, the
subfolder contains one file with the rollouts that the next update trains on."""


class GRPOConfig(TextRunConfig):
    """Configuration for GRPO."""

    preset_group = "grpo"

    seed: int = Field(default=0, ge=0)
    """Seed for the initial model, the starting points and the sampled tokens."""
    num_updates: int = Field(default=100, ge=1)
    """Number of updates. Each update trains on new rollouts."""
    env: TextEnvConfig = TextEnvConfig(id="lights_out::multi")
    """Text environment. If `env.id` names exactly one environment, and this environment has settings of its
    own (for example a JAX environment or `puzzle_server`), they are also set in this section."""
    tokenizer: str = "characters"
    """Tokenizer for prompts and completions: `bytes`, `characters`, the path of a `tokenizer.json`, or a name
    on the Hugging Face Hub."""
    max_completion_length: int = Field(default=64, ge=1)
    """Maximum number of generated tokens per answer."""
    legal_actions_only: bool = False
    """Generate only legal actions. Has an effect only in environments that list the legal actions, such as
    multi-turn puzzles."""

    num_prompts: int = Field(default=16, ge=1)
    """Number of starting points, such as puzzles, that are sampled per update. Each of them is attempted
    `num_generations` times, so an update consists of `num_prompts * num_generations` rollouts."""
    num_generations: int = Field(default=8, ge=2)
    """Number of attempts per starting point, which form a group."""
    num_iterations: int = Field(default=1, ge=1)
    """Number of optimizer steps per update. Each step uses all completions of the update."""
    epsilon: float = Field(default=0.2, gt=0)
    """Lower clipping threshold. The importance ratio is clipped to `[1 - epsilon, 1 + epsilon_high]`. Unlike
    in TRL, the default of `epsilon_high` does not depend on this value."""
    epsilon_high: float = Field(default=0.28, gt=0)
    """Upper clipping threshold. A value above `epsilon` allows unlikely tokens to become likely faster."""
    beta: float = Field(default=0.0, ge=0)
    """Weight of the KL divergence from the initial model. If 0, the forward pass of the initial model is
    skipped."""
    importance_sampling_level: Literal["token", "sequence"] = "token"
    """Level of the importance ratios. With `token`, each token has its own ratio, and the loss is a mean over
    tokens. With `sequence`, all tokens of a completion share the geometric mean of their ratios, and the loss
    is a mean over completions."""
    scale_rewards: bool = True
    """Divide each advantage by the standard deviation of the rewards in its group. If `advantage_granularity`
    is `turn`, the returns of all turns with the same prompt are used instead of the rewards."""
    advantage_granularity: Literal["episode", "turn"] = "episode"
    """Granularity of the advantages. With `episode`, all turns of an attempt have the same advantage, which
    depends on the total reward of the attempt. With `turn`, the advantage of a turn depends on how its return
    compares with the returns of all turns of the update that have the same prompt."""
    gamma: float = Field(default=1.0, gt=0, le=1)
    """Discount factor per turn. Only used if `advantage_granularity` is `turn`."""
    negative_advantage_weight: float = Field(default=1.0, ge=0, le=1)
    """Factor by which negative advantages are multiplied. With 0, the model does not learn from answers that
    are worse than the average of their group. For a task with a single solution, this does not change the
    direction of the expected gradient. It makes the gradient less noisy, because negative advantages also
    make the correct tokens of a wrong answer less likely."""
    max_trained_generations: int = Field(default=0, ge=0)
    """Maximum number of distinct completions per prompt to train on. If there are more, those with the
    highest and the lowest advantages are used. 0 means no limit."""
    max_length: int = Field(default=192, ge=16)
    """Length of packed rows in tokens. Must be at least the combined length of any prompt and its
    completion."""
    microbatch_size: int = Field(default=16, ge=1)
    """Number of rows per forward and backward pass. An optimizer step sums the gradients of all
    microbatches."""
    async_rollouts: bool = False
    """Run the rollouts of the next update while training on the current ones. The rollouts are then
    sampled with parameters that are one update old. The importance ratio corrects for this difference."""

    sampling: SamplingConfig = SamplingConfig()
    """Settings for sampling completions. The temperature must be above 0."""
    curriculum: TaskCurriculumConfig = TaskCurriculumConfig()
    """Settings for how often each task is sampled and how many starting points are retried."""
    model: LanguageModelConfig = LanguageModelConfig(vocab_size=98)
    """Architecture of the language model. With `--init-from`, the architecture is copied from the run that
    provides the initial parameters."""
    optimizer: OptimizerConfig = OptimizerConfig(learning_rate=3e-4, lr_schedule="constant", b2=0.98)
    """Settings for the optimizer and the learning rate."""
    evaluation: TextEvaluationConfig = TextEvaluationConfig(every=20)
    """Settings for evaluations on episodes of the validation split."""
    checkpoint: CheckpointConfig = CheckpointConfig(every=20)
    """Settings for checkpoints."""
    logging: LoggingConfig = LoggingConfig(log_frequency=1, sample_frequency=20)
    """Settings for logging metrics and sampled episodes."""

    @classmethod
    def inherit(cls, source: RunConfig) -> dict[str, Any]:
        """Return the source run's settings for the model, tokenizer, prompt format and environment.

        The environment is left out if the source run has no text environment or uses `puzzle_server`.
        """
        if not isinstance(source, TextRunConfig):
            raise ValueError(
                f"GRPO starts from a run of sft or grpo, but this one has a {type(source).__name__}"
            )
        values = source.model_dump()
        inherited = {name: values[name] for name in ("model", "tokenizer", "prompt_format")}
        if source.trained_env is not None and source.env.id not in ("", "puzzle_server"):
            inherited["env"] = values["env"]
        return inherited

    @model_validator(mode="after")
    def _check_optimizer(self) -> "GRPOConfig":
        self.optimizer.check_supported("adamw", "adagrad", "muon")
        return self


class GRPOState(TrainState):
    """Training state for GRPO, with the parameters of the reference model."""

    ref_params: PyTree
    """Initial parameters, which are the reference for the KL divergence."""


# Advantages


def group_advantages(
    rewards: Float[np.ndarray, "prompts generations"], scale_rewards: bool = True
) -> Float[np.ndarray, "prompts generations"]:
    """Compute group-relative advantages.

    A row of `rewards` is a group. The advantage is the reward minus the mean reward of the group. If
    `scale_rewards` is true, the advantage is divided by the standard deviation of the group's rewards.

    >>> group_advantages(np.array([[1.0, 0.0], [1.0, 1.0]])).round(3).tolist()
    [[1.0, -1.0], [0.0, 0.0]]
    """
    advantages = rewards - rewards.mean(axis=1, keepdims=True)
    # Rounding errors in a group with equal rewards would be scaled up.
    advantages[np.abs(advantages) < 1e-9] = 0.0
    if not scale_rewards:
        return advantages
    return advantages / (rewards.std(axis=1, keepdims=True) + 1e-6)


def turn_advantages(
    prompts: Sequence[Sequence[Hashable]],
    rewards: Sequence[Sequence[float]],
    gamma: float = 1.0,
    scale_rewards: bool = True,
) -> list[list[float]]:
    """Compute the advantages of turns by comparing the returns of all turns with the same prompt.

    If a prompt occurs only once, the advantage is 0.

    Args:
        prompts: For each attempt, the prompt of each turn.
        rewards: For each attempt, the reward of each turn.
        gamma: Discount factor per turn.
        scale_rewards: Divide an advantage by the standard deviation of the returns that were compared.

    Returns:
        For each attempt, the advantage of each turn.

    >>> turn_advantages([["a", "b"], ["a"]], [[0.0, 1.0], [0.0]], scale_rewards=False)
    [[0.5, 0.0], [-0.5]]
    """
    turns_by_prompt: dict[Hashable, list[tuple[int, int]]] = collections.defaultdict(list)
    returns: list[list[float]] = []
    for attempt, (attempt_prompts, attempt_rewards) in enumerate(zip(prompts, rewards, strict=True)):
        for turn, prompt in enumerate(attempt_prompts):
            turns_by_prompt[prompt].append((attempt, turn))
        # The return of a turn is the discounted sum of its reward and all later ones.
        backward = itertools.accumulate(
            reversed(attempt_rewards), lambda later, reward: reward + gamma * later
        )
        returns.append([*backward][::-1])
    advantages = [[0.0] * len(attempt) for attempt in rewards]
    for turns in turns_by_prompt.values():
        group = np.array([[returns[attempt][turn] for attempt, turn in turns]])
        for (attempt, turn), advantage in zip(turns, group_advantages(group, scale_rewards)[0], strict=True):
            advantages[attempt][turn] = float(advantage)
    return advantages


# Completions and packing


class Completion(NamedTuple):
    """A sampled completion with its log-probabilities and advantage."""

    prompt_ids: Sequence[int]
    completion_ids: Sequence[int]
    old_logps: Sequence[float]
    """Log-probability of each completion token when it was sampled."""
    advantage: float
    allowed_token_ids: Sequence[Sequence[int]] = ()
    """For each completion token, the ids of all tokens that could be sampled at its position. Empty if all
    tokens of the vocabulary could be sampled."""
    weight: float = 1.0
    """Weight in the loss: the number of identical sampled completions that this object represents. If
    `merge_duplicates` removes completions because there are too many, the weights of the others increase."""


def merge_duplicates(completions: Sequence[Completion], max_per_prompt: int = 0) -> list[Completion]:
    """Merge identical completions of a prompt into one, with their mean advantage and total weight.

    If a prompt has more than `max_per_prompt` distinct completions, only those with the highest and the
    lowest advantages are kept. If `max_per_prompt` is 0, all distinct completions are kept. The weights of
    the kept completions are scaled up to preserve two sums: the total weight of the completions with a
    positive advantage, and the total weight of all other completions.

    >>> [one] = merge_duplicates([Completion([5], [6], [-1.0], 1.0), Completion([5], [6], [-1.0], 0.0)])
    >>> one.advantage, one.weight
    (0.5, 2.0)
    """
    duplicates: dict[Any, list[Completion]] = collections.defaultdict(list)
    for completion in completions:
        duplicates[tuple(completion.prompt_ids), tuple(completion.completion_ids)].append(completion)
    by_prompt: dict[Any, list[Completion]] = collections.defaultdict(list)
    for (prompt_ids, _), equal in duplicates.items():
        weight = sum(completion.weight for completion in equal)
        advantage = sum(completion.advantage * completion.weight for completion in equal) / weight
        by_prompt[prompt_ids].append(equal[0]._replace(advantage=advantage, weight=weight))
    return [kept for group in by_prompt.values() for kept in _keep_extremes(group, max_per_prompt)]


def _keep_extremes(group: list[Completion], max_count: int) -> list[Completion]:
    if not max_count or len(group) <= max_count:
        return group
    ordered = sorted(group, key=lambda completion: -completion.advantage)
    positive = [completion for completion in ordered if completion.advantage > 0]
    others = [completion for completion in reversed(ordered) if completion.advantage <= 0]
    num_positive = min(len(positive), max(-(-max_count // 2), max_count - len(others)))
    kept: list[Completion] = []
    for side, count in ((positive, num_positive), (others, max_count - num_positive)):
        total = sum(completion.weight for completion in side)
        scale = total / max(sum(completion.weight for completion in side[:count]), 1)
        kept += [completion._replace(weight=completion.weight * scale) for completion in side[:count]]
    return kept


def pack_completions(
    completions: Sequence[Completion], max_length: int, num_rows: int, vocab_size: int = 0
) -> list[dict[str, np.ndarray]]:
    """Pack prompts with their completions into microbatches of `num_rows` rows.

    The last microbatch may have empty rows.

    Args:
        completions: Completions of at most `max_length` tokens, including their prompts.
        max_length: Length of a row in tokens.
        num_rows: Number of rows per microbatch.
        vocab_size: Size of the vocabulary. Required only if a completion has `allowed_token_ids`.

    Returns:
        The arrays of each microbatch by name, with shape `[rows, tokens]`: the arrays of a `TokenBatch`, and
        `old_logps`, `advantages` and `weight`. `loss_mask` selects the completion tokens. If a completion has
        `allowed_token_ids`, there is also `token_mask` with shape `[rows, tokens, vocab]`, which is true for
        the tokens of the vocabulary that could be sampled at each position.
    """
    if not completions:
        return []
    has_token_mask = any(completion.allowed_token_ids for completion in completions)
    samples, lengths = [], []
    for index, completion in enumerate(completions):
        num_prompt, num_completion = len(completion.prompt_ids), len(completion.completion_ids)
        is_completion = np.repeat(np.array([0, 1], np.int8), [num_prompt, num_completion])
        columns: dict[str, np.ndarray] = {
            "old_logps": np.pad(np.asarray(completion.old_logps, np.float32), (num_prompt, 0)),
            "advantages": is_completion * np.float32(completion.advantage),
            "weight": is_completion * np.float32(completion.weight),
        }
        if has_token_mask:
            columns["token_mask"] = np.ones((num_prompt + num_completion, vocab_size), bool)
            for row, token_ids in zip(
                columns["token_mask"][num_prompt:], completion.allowed_token_ids, strict=False
            ):
                row[:] = False
                row[token_ids] = True
        input_ids = [*completion.prompt_ids, *completion.completion_ids]
        samples.append(Sample(str(index), input_ids, is_completion, columns))
        lengths.append(len(input_ids))
    if max(lengths) > max_length:
        raise ValueError(
            f"a prompt with its completion has {max(lengths)} tokens, more than max_length={max_length}; "
            f"set max_length={max(lengths)}"
        )
    layout = assign_packs(lengths, PackingConfig(max_length=max_length))
    microbatches = []
    for first in range(0, len(layout), num_rows):
        rows = layout.slice_rows(first, min(first + num_rows, len(layout)))
        spec = BatchSpec(0, first // num_rows, 0, packed=True, layout=rows, samples=samples)
        microbatches.append(collate(spec, num_rows=num_rows).arrays())
    return microbatches


# Loss


def completion_logps(
    model: LanguageModel, batch: Mapping[str, Array], temperature: Float[Array, ""]
) -> Float[Array, "rows targets"]:
    """Compute the log-probability of every token except the first one of each row, at the given temperature.

    If the batch has a `token_mask`, tokens that it excludes have probability 0, as when the completions were
    sampled.
    """
    logits = model(batch["input_ids"], batch["segment_ids"], batch["position_ids"])[:, :-1]
    if "token_mask" in batch:
        # The completions were sampled from legal actions only, so their probabilities are relative to these.
        logits = jnp.where(batch["token_mask"][:, 1:], logits, MASKED_LOGIT)
    return token_logps(logits / temperature, batch["input_ids"][:, 1:])


def grpo_loss(
    logps: Float[Array, "rows tokens"],
    old_logps: Float[Array, "rows tokens"],
    ref_logps: Float[Array, "rows tokens"] | None,
    advantages: Float[Array, "rows tokens"],
    completion_mask: Float[Array, "rows tokens"],
    weight: Float[Array, "rows tokens"],
    segment_ids: Int32[Array, "rows tokens"],
    num_items: Float[Array, ""],
    *,
    epsilon: float,
    epsilon_high: float,
    beta: float,
    importance_sampling_level: Literal["token", "sequence"] = "token",
) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
    """Compute the GRPO loss of a microbatch and its metrics.

    The loss and all metrics except `logp_diff_max` are sums divided by `num_items`, so the values of several
    microbatches can be added.

    Args:
        logps: Log-probabilities under the current parameters.
        old_logps: Log-probabilities recorded when the tokens were sampled.
        ref_logps: Log-probabilities under the reference parameters. Only used if `beta` is not 0.
        advantages: Advantage of the completion that each token belongs to.
        completion_mask: 1 for completion tokens, 0 for prompts and padding.
        weight: Weight of the completion that each token belongs to (`Completion.weight`).
        segment_ids: Index of each token's segment within its row, counted from 1. A segment is a prompt with
            its completion. Padding has index 0.
        num_items: Total number of completion tokens (if `importance_sampling_level` is `token`) or
            completions (if it is `sequence`) in the optimizer step.
        epsilon: Lower clipping threshold for the importance ratio.
        epsilon_high: Upper clipping threshold for the importance ratio.
        beta: Weight of the KL divergence.
        importance_sampling_level: Whether importance ratios are per `token` or per `sequence`.
    """
    is_completion = completion_mask > 0
    logp_diff = jnp.where(is_completion, logps - old_logps, 0.0)
    log_ratio, token_weight = logp_diff, weight * completion_mask / num_items
    if importance_sampling_level == "sequence":
        mean_diff, lengths = _completion_means(logp_diff, completion_mask, segment_ids)
        log_ratio = jnp.where(is_completion, mean_diff, 0.0)
        token_weight = jnp.where(is_completion, weight / jnp.maximum(lengths, 1), 0.0) / num_items
    ratio = jnp.exp(log_ratio)
    clipped_ratio = jnp.clip(ratio, 1 - epsilon, 1 + epsilon_high)
    objective = jnp.minimum(ratio * advantages, clipped_ratio * advantages)
    metrics = {
        "policy_loss": -jnp.sum(token_weight * objective),
        "clip_fraction": jnp.sum(token_weight * (ratio * advantages > clipped_ratio * advantages)),
        "logp_diff_max": jnp.max(jnp.abs(logp_diff)),
        "mean_logp": jnp.sum(token_weight * logps),
    }
    loss = metrics["policy_loss"]
    if beta and ref_logps is not None:
        # Schulman's k3 estimator: unbiased and non-negative.
        ref_diff = jnp.where(is_completion, ref_logps - logps, 0.0)
        metrics["kl"] = jnp.sum(token_weight * (jnp.exp(ref_diff) - ref_diff - 1))
        loss = loss + beta * metrics["kl"]
    return loss, metrics | {"loss": loss}


def _completion_means(
    values: Float[Array, "rows tokens"],
    completion_mask: Float[Array, "rows tokens"],
    segment_ids: Int32[Array, "rows tokens"],
) -> tuple[Float[Array, "rows tokens"], Float[Array, "rows tokens"]]:
    """Compute the mean of `values` over each completion, and the length of each completion in tokens.

    Both are repeated for every token of the completion. Tokens outside `completion_mask` do not count.
    """
    rows, tokens = values.shape
    completion_ids = (segment_ids + jnp.arange(rows)[:, None] * (tokens + 1)).reshape(-1)

    def sum_by_completion(x: Array) -> Array:
        sums = jax.ops.segment_sum(x.reshape(-1), completion_ids, num_segments=rows * (tokens + 1))
        return sums[completion_ids].reshape(rows, tokens)

    lengths = sum_by_completion(completion_mask)
    return sum_by_completion(values * completion_mask) / jnp.maximum(lengths, 1), lengths


# Algorithm


class RolloutBatch(NamedTuple):
    """Rollouts of one update, with `num_generations` attempts from each starting point."""

    episodes: list[TaskSeed]
    """Starting point of each group of attempts."""
    conversations: list[list[Conversation]]
    """For each starting point, the conversations of all attempts."""

    @property
    def all_conversations(self) -> list[Conversation]:
        """Conversations of all groups as one list."""
        return [conversation for group in self.conversations for conversation in group]

    @property
    def rewards(self) -> Float[np.ndarray, "prompts generations"]:
        """Total reward of each conversation."""
        return np.array([[one.total_reward for one in group] for group in self.conversations])

    @property
    def solved(self) -> Bool[np.ndarray, "prompts generations"]:
        """True for conversations that solved their task."""
        return np.array([[one.solved for one in group] for group in self.conversations])

    def to_json(self) -> dict[str, Any]:
        """Convert the rollouts to a dictionary of JSON-compatible values."""
        groups = [[(one.turns, one.solved) for one in group] for group in self.conversations]
        return {"episodes": self.episodes, "conversations": groups}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "RolloutBatch":
        """Create an instance from a value that `to_json` returned."""
        conversations = [
            [Conversation([Turn(*turn) for turn in turns], solved) for turns, solved in group]
            for group in record["conversations"]
        ]
        return cls([TaskSeed(*episode) for episode in record["episodes"]], conversations)


class GRPO(Algorithm[GRPOState]):
    """Trains a language model on the rewards of a text environment.

    A resumed run gives the same results as an uninterrupted run, even with `async_rollouts`: the parameters
    used for an update's rollouts do not depend on timing, and rollouts that have not been trained on are
    saved with every checkpoint.
    """

    name = "grpo"
    config_type = GRPOConfig
    unit = "completion_tokens"

    def __init__(self, config: GRPOConfig, environment: TextVectorEnvironment | None = None) -> None:
        super().__init__(config)
        if config.sampling.temperature <= 0:
            raise ValueError("GRPO needs sampled completions; set sampling.temperature above 0")
        if environment is None:
            environment = config.env.make(config.prompt_format)
        self.environment = environment
        self.tokenizer = LMTokenizer.for_env(config.tokenizer, environment)
        config.model.check_vocab_size(self.tokenizer.tokenizer.vocab_size)
        self._structure = model_structure(config.model)
        self._optimizer = make_optimizer(config.optimizer, config.num_updates * config.num_iterations)
        self._curriculum = TaskCurriculum(environment, config.curriculum, config.seed)
        self._pending: RolloutBatch | None = None
        """Rollouts for the next update, if `async_rollouts` is set. None before the first update and without
        `async_rollouts`."""

    def init(self, key: Key, params: PyTree | None = None) -> GRPOState:
        """Create the initial state. If `params` is given, training starts from these parameters."""
        if params is None:
            params = eqx.filter(LanguageModel(self.config.model, key=key), eqx.is_array)
        ref_params = jax.tree.map(jnp.copy, params)
        return GRPOState(params, self._optimizer.init(params), jnp.int32(0), ref_params)

    @property
    def _program_key(self) -> tuple[Any, ...]:
        # The compiled programs do not depend on the environment.
        algorithm, _, settings = super()._program_key
        return algorithm, settings

    def model(self, params: PyTree) -> LanguageModel:
        """Return the language model with the given parameters."""
        model: LanguageModel = eqx.combine(params, self._structure)
        return model

    def policy(self, state: GRPOState) -> LMPolicy:
        """Return the language model as a policy with the same sampling settings as in training."""
        return self._lm_policy(state.params)

    @classmethod
    def evaluation_type(cls, config: Any, env: str | None = None) -> type[Config]:
        return TextEvalConfig

    def update(self, state: GRPOState) -> tuple[GRPOState, UpdateResult]:
        """Run rollouts, compute advantages and train on the completions."""
        start_time, step, num_prompts = time.process_time(), int(state.step), self.config.num_prompts
        batch = self._pending or self._rollout(state.params, self._curriculum.sample(step, num_prompts), step)
        retry_fraction = self._curriculum.num_retries(batch.episodes) / len(batch.episodes)
        self._curriculum.record(batch.episodes, batch.solved)
        completions, pending = self._completions(batch), None
        with concurrent.futures.ThreadPoolExecutor(1, "phalanx-rollout") as executor:
            if self.config.async_rollouts:
                # A training step reuses the memory of the parameters, so the rollouts get a copy.
                params = jax.tree.map(jnp.copy, state.params)
                episodes = self._curriculum.sample(step + 1, num_prompts)
                pending = executor.submit(self._rollout, params, episodes, step + 1)
            state, metrics = self.train_step(state, completions)
            self._pending = None if pending is None else pending.result()

        conversations = batch.all_conversations
        turns = [turn for conversation in conversations for turn in conversation.turns]
        is_informative = np.any(group_advantages(batch.rewards, scale_rewards=False) != 0, axis=1)
        metrics |= {
            "frac_reward_zero_std": 1 - float(np.mean(is_informative)),
            "cpu_seconds": time.process_time() - start_time,
            "valid_action_rate": float(np.mean([not turn.error for turn in turns])),
            "completion_length": float(np.mean([len(turn.completion_ids) for turn in turns])),
            "retry_fraction": retry_fraction,
        }
        for task, rate in self._curriculum.success_rates.items():
            kind_and_difficulty = "_".join(task.split(":")[:2])
            metrics[f"success_rate_{kind_and_difficulty}"] = rate
        episodes_log = {
            "episode_returns": batch.rewards.reshape(-1).astype(np.float32),
            "episode_lengths": np.array([len(one.turns) for one in conversations], np.int32),
            "success_mask": batch.solved.reshape(-1),
        }
        counts = {
            "completion_tokens": sum(len(turn.completion_ids) for turn in turns),
            "episodes": len(conversations),
        }
        return state, UpdateResult(metrics, episodes_log, counts)

    def _rollout(self, params: PyTree, episodes: list[TaskSeed], step: int) -> RolloutBatch:
        """Run `num_generations` attempts from each of the given starting points."""
        size, key = self.config.num_generations, jax.random.fold_in(jax.random.key(self.config.seed), step)
        attempts = [episode for episode in episodes for _ in range(size)]
        conversations = rollout(self._lm_policy(params), self.environment, attempts, key)
        groups = [conversations[first : first + size] for first in range(0, len(conversations), size)]
        return RolloutBatch(episodes, groups)

    def _completions(self, batch: RolloutBatch) -> list[Completion]:
        """Convert the turns of all conversations to completions with advantages."""
        config, conversations = self.config, batch.all_conversations
        if config.advantage_granularity == "turn":
            prompts = [[turn.prompt for turn in one.turns] for one in conversations]
            rewards = [[turn.reward for turn in one.turns] for one in conversations]
            advantages = turn_advantages(prompts, rewards, config.gamma, config.scale_rewards)
        else:
            by_attempt = group_advantages(batch.rewards, config.scale_rewards)
            advantages = [
                [float(advantage)] * len(one.turns)
                for one, advantage in zip(conversations, by_attempt.flat, strict=True)
            ]
        return [
            Completion(turn.prompt_ids, turn.completion_ids, turn.logps, advantage, turn.allowed_token_ids)
            for one, turn_values in zip(conversations, advantages, strict=True)
            for turn, advantage in zip(one.turns, turn_values, strict=True)
            if is_usable_state(turn.state_key, "train")
        ]

    def train_step(
        self, state: GRPOState, completions: Sequence[Completion]
    ) -> tuple[GRPOState, dict[str, Any]]:
        """Take `num_iterations` optimizer steps on the given completions. `state` must not be used afterward.

        The loss of a step is a mean over the tokens of all completions or, if `importance_sampling_level` is
        `sequence`, over all completions. Completions with advantage 0 count toward the denominator of the
        mean, but the model is not run on them unless `beta` is above 0. For identical completions, the loss
        is computed only once.

        Returns:
            The new state and the metrics.
        """
        config = self.config
        trained = [
            completion
            if completion.advantage > 0
            else completion._replace(advantage=completion.advantage * config.negative_advantage_weight)
            for completion in merge_duplicates(completions, config.max_trained_generations)
        ]
        trained = [completion for completion in trained if completion.advantage or config.beta]
        microbatches = pack_completions(
            trained, config.max_length, config.microbatch_size, config.model.vocab_size
        )
        per_token = config.importance_sampling_level == "token"
        num_items = jnp.float32(
            sum(len(completion.completion_ids) if per_token else 1 for completion in completions)
        )
        params, opt_state = state.params, state.opt_state
        iterations: list[dict[str, float]] = []
        for _ in range(config.num_iterations if microbatches else 0):
            gradients, parts = jax.tree.map(jnp.zeros_like, params), []
            for microbatch in microbatches:
                gradients, part = self._add_gradients(
                    gradients, params, state.ref_params, microbatch, num_items
                )
                parts.append({name: float(value) for name, value in part.items()})
            params, opt_state, gradient_norm = self._apply_gradients(params, opt_state, gradients)
            sums = {name: sum(part[name] for part in parts) for name in parts[0]}
            sums["logp_diff_max"] = max(part["logp_diff_max"] for part in parts)
            iterations.append(sums | {"gradient_norm": float(gradient_norm)})
        metrics: dict[str, Any] = {
            # Before the first step, any difference is due to rounding, unless the sampler and the learner
            # disagree.
            "sampling_logp_diff_max": iterations[0]["logp_diff_max"] if iterations else 0.0,
            "gradient_steps": len(iterations),
            "trained_tokens": sum(len(one.prompt_ids) + len(one.completion_ids) for one in trained),
        }
        for name in iterations[0] if iterations else ():
            metrics[name] = float(np.mean([iteration[name] for iteration in iterations]))
        return GRPOState(params, opt_state, state.step + 1, state.ref_params), metrics

    def loss(
        self, params: PyTree, ref_params: PyTree, batch: Mapping[str, Any], num_items: Float[Array, ""]
    ) -> tuple[Float[Array, ""], dict[str, Array]]:
        """Compute `grpo_loss` for a microbatch that `pack_completions` returned."""
        config, temperature = self.config, jnp.float32(self.config.sampling.temperature)
        logps = completion_logps(self.model(params), batch, temperature)
        ref_logps = None
        if config.beta:
            ref_logps = jax.lax.stop_gradient(completion_logps(self.model(ref_params), batch, temperature))
        # The values of a token are at its own index, but `logps` starts with the second token.
        targets = {name: array[:, 1:] for name, array in batch.items()}
        return grpo_loss(
            logps,
            targets["old_logps"],
            ref_logps,
            targets["advantages"],
            targets["loss_mask"].astype(jnp.float32),
            targets["weight"],
            targets["segment_ids"],
            num_items,
            epsilon=config.epsilon,
            epsilon_high=config.epsilon_high,
            beta=config.beta,
            importance_sampling_level=config.importance_sampling_level,
        )

    @jit_method(donate=("gradients",))
    def _add_gradients(
        self,
        gradients: PyTree,
        params: PyTree,
        ref_params: PyTree,
        batch: Mapping[str, Any],
        num_items: Float[Array, ""],
    ) -> tuple[PyTree, dict[str, Array]]:
        def loss(params: PyTree) -> tuple[Array, dict[str, Array]]:
            return self.loss(params, ref_params, batch, num_items)

        gradient, metrics = jax.grad(loss, has_aux=True)(params)
        return jax.tree.map(jnp.add, gradients, gradient), metrics

    @jit_method(donate=("params", "opt_state"))
    def _apply_gradients(
        self, params: PyTree, opt_state: PyTree, gradients: PyTree
    ) -> tuple[PyTree, PyTree, Float[Array, ""]]:
        updates, opt_state = self._optimizer.update(gradients, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, optax.tree.norm(gradients)

    def _lm_policy(self, params: PyTree) -> LMPolicy:
        config = self.config
        return LMPolicy(
            self.model(params),
            self.tokenizer,
            config.sampling,
            config.max_completion_length,
            config.legal_actions_only,
        )

    def evaluate(self, state: GRPOState, settings: Config, final: bool) -> Sequence[EvaluationResult]:
        """Evaluate the model.

        During training, validation episodes are run with greedy decoding. With `phalanx eval`, `settings` is
        a `TextEvalConfig`, which determines the episodes and the decoding.
        """
        if isinstance(settings, TextEvalConfig):
            return evaluate_language_model(self.policy(state), settings, self.config.prompt_format)
        num_episodes = self.config.evaluation.num_episodes
        return evaluation_records(self.policy(state), self.environment, num_episodes)

    def sample_episodes(self, state: GRPOState, key: Key, update: int) -> list[dict[str, Any]]:
        """Run one validation episode for each task and return the records."""
        return sample_conversations(self.policy(state), self.environment, update)

    def fingerprint(self) -> str:
        return self.environment.fingerprint

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the curriculum and the pending rollouts."""
        pending = None if self._pending is None else self._pending.to_json()
        return {"curriculum": self._curriculum.state_dict(), "pending_rollouts": pending}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._curriculum.load_state_dict(state["curriculum"])
        pending = state["pending_rollouts"]
        self._pending = None if pending is None else RolloutBatch.from_json(pending)

    def close(self) -> None:
        self.environment.close()

"""One step of GRPO: group-relative advantages, packed rows of what was written, the clipped loss.

Shao et al. 2024, "DeepSeekMath"; with `level="sequence"` the ratio is that of a whole answer (Zheng et al.
2025, "Group Sequence Policy Optimization"); with `credit="turn"` a move is compared with the others of its
board (Feng et al. 2025, "Group-in-Group Policy Optimization"). Where answers come from is in `grpo`.
"""

import functools
from collections.abc import Hashable, Sequence
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax  # type: ignore[import-untyped]
from jaxtyping import Array, Bool, Float, Float32, Int32, PyTree
from pydantic import Field

from phalanx.config import Config
from phalanx.core.environment import Key
from phalanx.data.packing import pack_lengths
from phalanx.lm.model import LanguageModel, LanguageModelConfig, token_logps
from phalanx.training.algorithm import TrainState
from phalanx.training.lm.config import OptimizerConfig
from phalanx.training.lm.update import LMTrainer

_NEVER = -1e30


class GRPOConfig(Config):
    """How a model learns from the rewards of its own answers."""

    groups: int = Field(default=16, ge=1)
    """Puzzles of an update."""
    group_size: int = Field(default=8, ge=2)
    """Attempts at each; what they have in common teaches nothing."""
    epochs: int = Field(default=1, ge=1)
    """Steps of an update, each on all of its answers."""
    clip: float = Field(default=0.2, gt=0)
    """How far below 1 the ratio of probabilities moves the loss."""
    clip_high: float = Field(default=0.28, gt=0)
    """How far above 1; more than below lets unlikely answers become likely."""
    kl: float = Field(default=0.0, ge=0)
    """Weight of the divergence from the model that the training began with."""
    level: Literal["token", "sequence"] = "token"
    """Whether each token has a ratio and counts by itself, or each answer as a whole."""
    scale: bool = True
    """Whether advantages are divided by the rewards' deviation in their group."""
    credit: Literal["episode", "turn"] = "episode"
    """Whether all answers of an attempt have the advantage of its whole reward over its group's, or each that
    of what came after it over what came after other answers to the same prompt, in any attempt."""
    discount: float = Field(default=1.0, gt=0, le=1)
    """What a reward is worth one answer earlier, where credit goes by turn."""
    negative: float = Field(default=1.0, ge=0, le=1)
    """What advantages below zero are multiplied by. Where a puzzle has one solution, 0 leaves a puzzle's mean
    gradient its direction and takes away the noise of wrong answers, most of whose tokens are right."""
    learned: int = Field(default=0, ge=0)
    """The most different answers to a prompt that are learned from, best and worst in turn; 0 for all."""
    width: int = Field(default=192, ge=16)
    """Width of a packed row."""
    rows: int = Field(default=16, ge=1)
    """Rows that are computed at once; a step adds up the gradients of all."""


class GRPOState(TrainState):
    """Arrays of the model, optimizer state, step and the reference model."""

    reference: PyTree
    """Arrays of the model that the run started from."""


class Completion(NamedTuple):
    """Something that was written, and what came of it."""

    read: Sequence[int]
    written: Sequence[int]
    log_probs: Sequence[float]
    advantage: float
    allowed: Sequence[Sequence[int]] = ()
    """The tokens that could be written at each place; empty where all could."""
    times: float = 1.0
    """How many equal answers it stands for."""


class PackedCompletions(NamedTuple):
    """Answers in packed rows; what is about a token stands in the place of that token."""

    input_ids: Int32[np.ndarray, "rows width"]
    segment_ids: Int32[np.ndarray, "rows width"]
    position_ids: Int32[np.ndarray, "rows width"]
    written: Float32[np.ndarray, "rows width"]
    """1 where the model wrote the token."""
    log_probs: Float32[np.ndarray, "rows width"]
    advantages: Float32[np.ndarray, "rows width"]
    times: Float32[np.ndarray, "rows width"]
    """How many equal answers the token's stands for."""
    allowed: Bool[np.ndarray, "rows width vocabulary"] | None = None
    """Which tokens could be written in a place; None where all could everywhere."""


def group_advantages(
    rewards: Float[np.ndarray, "groups size"], scale: bool = True
) -> Float[np.ndarray, "groups size"]:
    """How much better each attempt was than its group; zero where all were alike.

    >>> group_advantages(np.array([[1.0, 0.0], [1.0, 1.0]])).round(3).tolist()
    [[1.0, -1.0], [0.0, 0.0]]
    """
    centered = rewards - rewards.mean(axis=1, keepdims=True)
    # What rounding leaves of a group that is all alike would be scaled up.
    centered[np.abs(centered) < 1e-9] = 0.0
    if not scale:
        return centered
    return centered / (rewards.std(axis=1, keepdims=True) + 1e-6)


def turn_advantages(
    prompts: Sequence[Sequence[Hashable]],
    rewards: Sequence[Sequence[float]],
    discount: float = 1.0,
    scale: bool = True,
) -> list[list[float]]:
    """How much better what came after each answer was than after the others to the same prompt.

    Both are by attempt and turn. What nobody else was asked is compared with nothing, and teaches nothing.

    >>> turn_advantages([["a", "b"], ["a"]], [[0.0, 1.0], [0.0]], scale=False)
    [[0.5, 0.0], [-0.5]]
    """
    returns = [discounted_returns(each, discount) for each in rewards]
    found: dict[Hashable, list[tuple[int, int]]] = {}
    for attempt, asked in enumerate(prompts):
        for turn, prompt in enumerate(asked):
            found.setdefault(prompt, []).append((attempt, turn))
    advantages = [[0.0] * len(each) for each in rewards]
    for places in found.values():
        group = np.array([[returns[attempt][turn] for attempt, turn in places]])
        for (attempt, turn), advantage in zip(places, group_advantages(group, scale)[0], strict=True):
            advantages[attempt][turn] = float(advantage)
    return advantages


def discounted_returns(rewards: Sequence[float], discount: float) -> list[float]:
    """What came after each turn, with its own reward.

    >>> _returns([0.0, 0.0, 1.0], 0.5)
    [0.25, 0.5, 1.0]
    """
    found, after = [0.0] * len(rewards), 0.0
    for turn in reversed(range(len(rewards))):
        found[turn] = after = rewards[turn] + discount * after
    return found


def merge_duplicates(answers: Sequence[Completion], most: int = 0) -> list[Completion]:
    """Equal answers to the same prompt as one, with the mean of their advantages and as heavy as all of them.

    Where a prompt has more than `most` different ones (0: any number), the best and the worst of them are
    taken in turn, and weigh as much as all of their sign did.

    >>> [one] = distinct_answers([Answer([5], [6], [-1.0], 1.0), Answer([5], [6], [-1.0], 0.0)])
    >>> one.advantage, one.times
    (0.5, 2.0)
    """
    alike: dict[tuple[tuple[int, ...], tuple[int, ...]], list[Completion]] = {}
    for answer in answers:
        alike.setdefault((tuple(answer.read), tuple(answer.written)), []).append(answer)
    asked: dict[tuple[int, ...], list[Completion]] = {}
    for (read, _), same in alike.items():
        times = sum(answer.times for answer in same)
        mean = sum(answer.advantage * answer.times for answer in same) / times
        asked.setdefault(read, []).append(same[0]._replace(advantage=mean, times=times))
    return [answer for group in asked.values() for answer in _keep_extremes(group, most)]


def _keep_extremes(group: list[Completion], most: int) -> list[Completion]:
    if not most or len(group) <= most:
        return group
    ordered = sorted(group, key=lambda answer: -answer.advantage)
    better = [answer for answer in ordered if answer.advantage > 0]
    worse = [answer for answer in reversed(ordered) if answer.advantage <= 0]
    kept_better = min(len(better), max(-(-most // 2), most - len(worse)))
    kept: list[Completion] = []
    for side, count in ((better, kept_better), (worse, most - kept_better)):
        weight = sum(answer.times for answer in side) / max(sum(answer.times for answer in side[:count]), 1)
        kept += [answer._replace(times=answer.times * weight) for answer in side[:count]]
    return kept


def pack_completions(
    answers: Sequence[Completion], width: int, rows: int, vocab_size: int = 0
) -> list[PackedCompletions]:
    """Answers packed into batches of so many rows; the last ones may be empty.

    `vocab_size` is needed where answers were chosen among some only.
    """
    lengths = [len(answer.read) + len(answer.written) for answer in answers]
    if not answers:
        return []
    if max(lengths) > width:
        raise ValueError(
            f"an answer of {max(lengths)} tokens does not fit into a row; set grpo.width to that"
        )
    bins = pack_lengths(lengths, width)
    count = -(-(int(bins.max()) + 1) // rows) * rows
    whole, real = (count, width), np.float32
    allowed = np.ones((*whole, vocab_size), bool) if any(answer.allowed for answer in answers) else None
    made = PackedCompletions(
        input_ids=np.zeros(whole, np.int32),
        segment_ids=np.zeros(whole, np.int32),
        position_ids=np.zeros(whole, np.int32),
        written=np.zeros(whole, real),
        log_probs=np.zeros(whole, real),
        advantages=np.zeros(whole, real),
        times=np.zeros(whole, real),
        allowed=allowed,
    )
    filled, segments = [0] * count, [0] * count
    for answer, length, row in zip(answers, lengths, bins.tolist(), strict=True):
        place, middle, end = filled[row], filled[row] + len(answer.read), filled[row] + length
        filled[row], segments[row] = end, segments[row] + 1
        made.input_ids[row, place:end] = [*answer.read, *answer.written]
        made.segment_ids[row, place:end] = segments[row]
        made.position_ids[row, place:end] = np.arange(length)
        made.written[row, middle:end] = 1
        made.log_probs[row, middle:end] = answer.log_probs
        made.advantages[row, middle:end] = answer.advantage
        made.times[row, middle:end] = answer.times
        for at, tokens in enumerate(answer.allowed, middle):
            assert allowed is not None
            allowed[row, at] = False
            allowed[row, at, tokens] = True
    return [jax.tree.map(lambda array, at=at: array[at : at + rows], made) for at in range(0, count, rows)]


def completion_logps(
    model: LanguageModel, batch: PackedCompletions, temperature: Float[Array, ""]
) -> Float[Array, "rows rest"]:
    """Of every token but a row's first, given those before it in its segment."""
    tokens = jnp.asarray(batch.input_ids)
    logits = model(tokens, jnp.asarray(batch.segment_ids), jnp.asarray(batch.position_ids))[:, :-1]
    if batch.allowed is not None:
        # What was drawn among legal moves is learned among them: how likely all others are is not moved.
        logits = jnp.where(jnp.asarray(batch.allowed)[:, 1:], logits, _NEVER)
    return token_logps(logits / temperature, tokens[:, 1:])


class GRPOTrainer:
    """A model's structure and how its arrays learn from answers."""

    def __init__(
        self, model: LanguageModelConfig, optimizer: OptimizerConfig, grpo: GRPOConfig, temperature: float
    ) -> None:
        if temperature <= 0:
            raise ValueError("GRPO learns from answers that were drawn: sampling.temperature must be above 0")
        self.config, self.temperature = grpo, temperature
        self._plain = LMTrainer(model, optimizer)
        self._optimizer, self._schedule = optimizer.optimizer(), optimizer.schedule()

    def start(self, key: Key, params: PyTree | None = None) -> GRPOState:
        """Create the initial state of a new model, or of one with these parameters, and its reference."""
        learner = self._plain.start(key, params)
        return GRPOState(learner.params, learner.opt_state, learner.step, copy_params(learner.params))

    def model(self, arrays: PyTree) -> LanguageModel:
        """The model of these arrays."""
        return self._plain.with_arrays(arrays)

    def update(self, learner: GRPOState, answers: Sequence[Completion]) -> tuple[GRPOState, dict[str, Any]]:
        """Steps on all answers, as often as the config says; the learner's arrays are used up.

        A step is one of the optimizer's, on the mean over everything that was written: answers that teach
        nothing count, but are not computed, equal ones are computed once, and rows that are nearly empty
        weigh as little as they hold.
        """
        told = merge_duplicates(answers, self.config.learned)
        told = [
            answer
            if answer.advantage > 0
            else answer._replace(advantage=answer.advantage * self.config.negative)
            for answer in told
        ]
        told = [answer for answer in told if answer.advantage or self.config.kl]
        batches = pack_completions(told, self.config.width, self.config.rows, self._plain.config.vocab_size)
        by_token = self.config.level == "token"
        count = jnp.float32(sum(len(answer.written) if by_token else 1 for answer in answers))
        arrays, optimizer = learner.params, learner.opt_state
        found: list[dict[str, float]] = []
        for _ in range(self.config.epochs if batches else 0):
            total = self._zeros(arrays)
            gap, summed = 0.0, dict[str, float]()
            for batch in batches:
                total, metrics = self._added(total, arrays, learner.reference, batch, count)
                gap = max(gap, float(metrics.pop("largest_gap")))
                summed = {name: summed.get(name, 0.0) + float(value) for name, value in metrics.items()}
            arrays, optimizer, norm = self._apply(arrays, optimizer, total)
            found.append(summed | {"largest_gap": gap, "gradient_norm": float(norm)})
        means: dict[str, Any] = {
            name: float(np.mean([each[name] for each in found])) for name in (found or [{}])[0]
        }
        # The first step's ratios are 1, but for rounding, if what learns computes as what wrote.
        means["first_gap"] = found[0]["largest_gap"] if found else 0.0
        means["gradient_steps"] = len(found)
        means["learned_tokens"] = sum(len(answer.read) + len(answer.written) for answer in told)
        return GRPOState(arrays, optimizer, learner.step + 1, learner.reference), means

    @functools.partial(jax.jit, static_argnums=0)
    def _zeros(self, arrays: PyTree) -> PyTree:
        return jax.tree.map(jnp.zeros_like, arrays)

    @functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
    def _added(
        self,
        total: PyTree,
        arrays: PyTree,
        reference: PyTree,
        batch: PackedCompletions,
        count: Float[Array, ""],
    ) -> tuple[PyTree, dict[str, Array]]:
        """A gradient, and with it that of a batch."""

        def loss(arrays: PyTree) -> tuple[Array, dict[str, Array]]:
            return self.loss(arrays, reference, batch, count)

        gradient, metrics = jax.grad(loss, has_aux=True)(arrays)
        return jax.tree.map(jnp.add, total, gradient), metrics

    @functools.partial(jax.jit, static_argnums=0, donate_argnums=(1, 2))
    def _apply(
        self, arrays: PyTree, optimizer: PyTree, gradient: PyTree
    ) -> tuple[PyTree, PyTree, Float[Array, ""]]:
        changes, optimizer = self._optimizer.update(gradient, optimizer, arrays)
        return optax.apply_updates(arrays, changes), optimizer, optax.tree.norm(gradient)

    def loss(
        self, arrays: PyTree, reference: PyTree, batch: PackedCompletions, count: Float[Array, ""]
    ) -> tuple[Array, dict[str, Array]]:
        """A batch's part of the clipped loss and what there is to say of it.

        All parts are sums over `count`, which is of all batches together: tokens that were written, or
        answers where an answer counts as a whole.
        """
        settings, temperature = self.config, jnp.float32(self.temperature)
        now = completion_logps(self.model(arrays), batch, temperature)
        written, before = jnp.asarray(batch.written)[:, 1:], jnp.asarray(batch.log_probs)[:, 1:]
        advantages = jnp.asarray(batch.advantages)[:, 1:]
        gap = jnp.where(written > 0, now - before, 0.0)
        times = jnp.asarray(batch.times)[:, 1:]
        weights = times * written / count
        ratio_of = gap
        if settings.level == "sequence":
            mean, lengths = _means_of_answers(gap, written, jnp.asarray(batch.segment_ids)[:, 1:])
            # The value is the answer's, the gradient reaches each of its tokens alike.
            ratio_of = jnp.where(written > 0, mean, 0.0)
            weights = jnp.where(written > 0, times / jnp.maximum(lengths, 1), 0.0) / count
        ratio = jnp.exp(ratio_of)
        clipped = jnp.clip(ratio, 1 - settings.clip, 1 + settings.clip_high)
        gain = jnp.minimum(ratio * advantages, clipped * advantages)
        metrics = {
            "policy_loss": -jnp.sum(weights * gain),
            "clipped_share": jnp.sum(weights * (ratio * advantages > clipped * advantages)),
            "largest_gap": jnp.max(jnp.abs(gap)),
            "token_log_prob": jnp.sum(weights * now),
        }
        total = metrics["policy_loss"]
        if settings.kl:
            there = jax.lax.stop_gradient(completion_logps(self.model(reference), batch, temperature))
            apart = jnp.where(written > 0, there - now, 0.0)
            # Never negative, and right in the mean (Schulman 2020, "Approximating KL divergence").
            metrics["kl"] = jnp.sum(weights * (jnp.exp(apart) - apart - 1))
            total = total + settings.kl * metrics["kl"]
        return total, metrics | {"loss": total}


def _means_of_answers(
    values: Float[Array, "rows width"],
    written: Float[Array, "rows width"],
    segments: Int32[Array, "rows width"],
) -> tuple[Float[Array, "rows width"], Float[Array, "rows width"]]:
    """For each token the mean over its answer's written tokens, and how many those are."""
    rows, width = values.shape
    places = (segments + jnp.arange(rows)[:, None] * (width + 1)).reshape(-1)

    def summed(numbers: Array) -> Array:
        sums = jax.ops.segment_sum(numbers.reshape(-1), places, num_segments=rows * (width + 1))
        return sums[places].reshape(rows, width)

    lengths = summed(written)
    return summed(values * written) / jnp.maximum(lengths, 1), lengths


@eqx.filter_jit
def copy_params(arrays: PyTree) -> PyTree:
    """The same arrays in memory of their own."""
    return jax.tree.map(jnp.copy, eqx.filter(arrays, eqx.is_array))

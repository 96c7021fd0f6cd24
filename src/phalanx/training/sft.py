"""Supervised fine-tuning of a language model on packed rows.

The training data is a batch plan, a file of samples, or an expert's answers in a text environment. The loss
is the mean cross-entropy of the tokens that the loss mask selects.
"""

import contextlib
import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax  # type: ignore[import-untyped]
from jaxtyping import Array, Float, Int32, PyTree
from pydantic import Field, model_validator

from phalanx.config import Config
from phalanx.core.backends import is_cpu_only
from phalanx.core.environment import Key
from phalanx.core.evaluation import DictEvaluationResult, EvaluationResult
from phalanx.data.batch_files import BatchReader
from phalanx.data.collation import TOKEN_ARRAYS, SampleLike, TokenBatch, collate
from phalanx.data.packed_dataset import find_chat_template
from phalanx.data.packing import OverlongPolicy, PackingConfig
from phalanx.data.plans.batch_plan import BatchPlan, BatchPlanBuilder, BatchSpec, Plan
from phalanx.data.plans.batching_config import BatchingConfig
from phalanx.data.plans.plan_files import load_batch_plan
from phalanx.data.plans.stream_sources import IterableSource, ShuffledDatasetSource, StreamSource
from phalanx.data.plans.streaming_plan import StreamingPlan, StreamingPlanConfig
from phalanx.data.samples import Sample, TokenDataset, load_samples
from phalanx.data.tokenization import (
    TokenizeConfig,
    check_tokenizer_hash,
    tokenize_dataset,
    tokenize_rows,
)
from phalanx.data.tokenizers import load_tokenizer
from phalanx.lm.evaluation import (
    TextEvalConfig,
    evaluate_language_model,
    evaluation_records,
    sample_conversations,
)
from phalanx.lm.expert_samples import generate_expert_samples
from phalanx.lm.flops import measured_peak_flops, train_flops
from phalanx.lm.model import LanguageModel, LanguageModelConfig, model_structure, token_logps
from phalanx.lm.prompt_tokenizer import LMTokenizer
from phalanx.lm.text_policy import LMPolicy
from phalanx.logging.config import LoggingConfig
from phalanx.text.env import TextVectorEnvironment
from phalanx.text.names import TextEnvConfig
from phalanx.text.registry import group_members
from phalanx.text.splits import Split
from phalanx.training.algorithm import (
    Algorithm,
    DataExhausted,
    TrainResult,
    TrainState,
    UpdateResult,
    jit_method,
)
from phalanx.training.config import CheckpointConfig, TextEvaluationConfig, TextRunConfig
from phalanx.training.optimizer import OptimizerConfig, lr_schedule, make_optimizer

_MIN_MICROBATCH_TOKENS = 1024
"""Minimum number of tokens in a microbatch. On the CPU, batches are divided into microbatches for speed. The
activations of a complete batch do not fit in the cache, and their memory is newly allocated in every update,
so the operating system has to clear it each time."""


class SFTDataConfig(Config):
    """Settings for the training data. Set at most one of `plan` and `samples`.

    If neither is set, samples are generated in the text environment given by `env`.
    """

    plan: str = ""
    """Path of a batch plan, as written by `phalanx data plan build`, or of a folder of batch files, as
    written by `phalanx data export`. Empty if there is no plan."""
    planned_dataset: str = ""
    """Path of the dataset that the plan was built for. Not needed if `plan` is a folder of batch files."""
    samples: str = ""
    """Path of a file of samples. They are sequences of tokens, such as those that `phalanx puzzles collect`
    writes, or texts, which are encoded with `tokenizer`. Empty if there is no such file."""
    behavior_policy: Literal["expert", "random"] = "expert"
    """Policy whose answers are trained on: the environment's expert, or random legal actions."""
    random_move_prob: float = Field(default=0.0, ge=0, le=1)
    """Probability of taking a random legal action instead of the expert's action. Random actions are not
    trained on, but lead to states that the expert would not reach."""
    puzzle_weights: dict[str, int] = Field(default={})
    """Relative number of samples per kind of puzzle. With `{sokoban: 2}`, for example, there are two Sokoban
    samples for each sample of any other kind. Kinds that are not listed have the value 1. Kinds that `env`
    does not include are ignored."""
    token_budget: int = Field(default=4096, ge=16)
    """Number of tokens per batch, including padding. A batch has `token_budget // max_length` rows, at least
    one. Not used with a plan, which has its own token budget."""
    max_length: int = Field(default=512, ge=8)
    """Length of a row in tokens. Longer samples are skipped."""
    packing: bool = True
    """Pack several samples into a row. If false, every sample has its own row."""
    packs_per_buffer: int = Field(default=64, ge=1)
    """Number of rows that are packed and shuffled together. A larger buffer leaves less padding and shuffles
    better, but takes longer to fill before the first update."""
    num_eval_samples: int = Field(default=64, ge=0)
    """Number of samples that are used for evaluation only. Not used with a plan."""
    repeat: bool = True
    """Train on a file of samples repeatedly, in a different order each time. If false, training ends after
    one pass."""

    @model_validator(mode="after")
    def _check_sources(self) -> "SFTDataConfig":
        if self.plan and self.samples:
            raise ValueError("set data.plan or data.samples, not both")
        if self.planned_dataset and not self.plan:
            raise ValueError("data.planned_dataset requires data.plan")
        if any(count < 1 for count in self.puzzle_weights.values()):
            raise ValueError(f"puzzle_weights must be at least 1, got {self.puzzle_weights}")
        return self

    def __hash__(self) -> int:
        return hash(self.model_dump_json())

    def batching_config(self, seed: int) -> BatchingConfig:
        """Return the settings for a batch plan over a fixed set of samples.

        There are at most two bucket edges, so that few batch shapes are compiled.
        """
        edges = {max(8, self.max_length // 4), max(8, self.max_length // 2)} - {self.max_length}
        return BatchingConfig.predictable(
            token_budget=max(self.token_budget, self.max_length),
            bucket_edges=tuple(sorted(edges)),
            max_sample_length=self.max_length,
            seed=seed,
        )

    def packing_config(self) -> PackingConfig | None:
        """Return the packing settings, or None if every sample has its own row."""
        if not self.packing:
            return None
        return PackingConfig(max_length=self.max_length, overlong=OverlongPolicy.SKIP)

    def streaming_config(self, seed: int) -> StreamingPlanConfig:
        """Return the settings for a streaming plan, which batches a stream of samples."""
        return StreamingPlanConfig(
            packing=self.packing_config(),
            unpacked_row_length=None if self.packing else self.max_length,
            unpacked_overlong=None if self.packing else OverlongPolicy.SKIP,
            packs_per_batch=max(1, self.token_budget // self.max_length),
            packs_per_buffer=self.packs_per_buffer,
            seed=seed,
        )


class SFTConfig(TextRunConfig):
    """Configuration for supervised fine-tuning."""

    preset_group = "sft"

    seed: int = Field(default=0, ge=0)
    """Seed for the initial model, the order of samples and the episodes."""
    num_updates: int = Field(default=300, ge=1)
    """Number of updates. Training ends earlier if a plan has fewer batches."""
    env: TextEnvConfig = TextEnvConfig()
    """Text environment in which samples are generated, unless `data` has a plan or a file of samples. If
    `env.id` names exactly one environment, and this environment has settings of its own (for example a JAX
    environment or `puzzle_server`), they are also set in this section."""
    tokenizer: str = "bytes"
    """Tokenizer for the samples: `bytes`, `characters`, the path of a `tokenizer.json`, or a name on the
    Hugging Face Hub. With a plan or batch files, it must be the tokenizer that they were created with."""
    model: LanguageModelConfig = LanguageModelConfig()
    """Architecture of the language model."""
    data: SFTDataConfig = SFTDataConfig()
    """Settings for the training data."""
    optimizer: OptimizerConfig = OptimizerConfig(
        learning_rate=2e-3, warmup_steps=20, weight_decay=0.01, b2=0.98
    )
    """Settings for the optimizer and the learning rate."""
    evaluation: TextEvaluationConfig = TextEvaluationConfig(every=50)
    """Settings for evaluations on held-out samples and episodes."""
    checkpoint: CheckpointConfig = CheckpointConfig(every=100)
    """Settings for checkpoints."""
    logging: LoggingConfig = LoggingConfig(log_frequency=1, sample_frequency=0)
    """Settings for logging metrics and sampled episodes."""

    @property
    def trained_env(self) -> TextEnvConfig | None:
        return None if self.data.plan or self.data.samples else self.env


# Loss and gradients


class LossSums(NamedTuple):
    """Sums over the tokens that the loss mask selects. The sums of several batches can be added."""

    loss: Float[Array, ""]
    """Sum of the tokens' cross-entropy losses in nats."""
    num_correct: Float[Array, ""]
    """Number of correctly predicted tokens. A prediction is correct if no other token has a higher
    probability."""
    num_tokens: Int32[Array, ""]


TokenArrays = Mapping[str, Array | np.ndarray]
"""Arrays `input_ids`, `loss_mask`, `segment_ids` and `position_ids` of a `TokenBatch`, with shape
`[rows, tokens]`."""


def sft_loss(model: LanguageModel, batch: TokenArrays) -> LossSums:
    """Compute the cross-entropy of the tokens that the loss mask selects.

    Each token is predicted from the earlier tokens of its segment (sample). The first token of a segment is
    therefore never counted.
    """
    input_ids, loss_mask, segment_ids, position_ids = (jnp.asarray(batch[name]) for name in TOKEN_ARRAYS)
    logits = model(input_ids, segment_ids, position_ids)
    # Targets are rolled, because slicing would copy the logits. The last token of a row is excluded.
    targets, loss_mask, next_segment_ids = (
        jnp.roll(array, -1, axis=1) for array in (input_ids, loss_mask, segment_ids)
    )
    is_last = jnp.arange(input_ids.shape[1]) == input_ids.shape[1] - 1
    mask = (loss_mask > 0) & (next_segment_ids == segment_ids) & (segment_ids > 0) & ~is_last
    logps = token_logps(logits, targets)
    # A comparison with the maximum, because argmax is slow on XLA's CPU backend.
    is_correct = (logps >= jnp.max(logits, axis=-1) - jax.nn.logsumexp(logits, axis=-1)) & mask
    loss = -jnp.sum(jnp.where(mask, logps, 0.0))
    return LossSums(loss, jnp.sum(is_correct).astype(jnp.float32), mask.sum().astype(jnp.int32))


def loss_and_grads(params: PyTree, structure: LanguageModel, batch: TokenArrays) -> tuple[PyTree, LossSums]:
    """Compute the gradients of the summed loss of a batch, one microbatch at a time.

    Args:
        params: Parameters of the model.
        structure: Model without its parameters.
        batch: Arrays of a batch.

    Returns:
        The gradients, and the `LossSums` of the batch.
    """

    def loss(params: PyTree, batch: TokenArrays) -> tuple[Array, LossSums]:
        sums = sft_loss(eqx.combine(params, structure), batch)
        return sums.loss, sums

    gradient = jax.grad(loss, has_aux=True)
    num_microbatches = _num_microbatches(*batch["input_ids"].shape)
    if num_microbatches == 1:
        return gradient(params, batch)
    microbatches = jax.tree.map(lambda x: jnp.reshape(x, (num_microbatches, -1, *x.shape[1:])), batch)

    def add(total: PyTree, microbatch: TokenArrays) -> tuple[PyTree, None]:
        return jax.tree.map(jnp.add, total, gradient(params, microbatch)), None

    zeros = jax.tree.map(jnp.zeros_like, params), LossSums(jnp.zeros(()), jnp.zeros(()), jnp.int32(0))
    return jax.lax.scan(add, zeros, microbatches)[0]


def _num_microbatches(rows: int, tokens: int) -> int:
    """Return the number of microbatches that a batch is divided into.

    On a single CPU device, it is the largest number of equal microbatches that have at least
    `_MIN_MICROBATCH_TOKENS` tokens each. Otherwise, it is 1.
    """
    if not is_cpu_only() or jax.device_count() > 1:
        return 1
    counts = (
        count
        for count in range(2, rows + 1)
        if rows % count == 0 and rows // count * tokens >= _MIN_MICROBATCH_TOKENS
    )
    return max(counts, default=1)


# Algorithm


@dataclasses.dataclass(frozen=True)
class SFTData:
    """Batches to train on, and samples to evaluate on.

    `SFTData()` has no batches. It is sufficient for an `SFT` instance that only loads a trained model or
    calls `train_step` with other batches.
    """

    plan: Plan | None = None
    """Plan of the batches. None if there are no batches."""
    get_batch: Callable[[BatchSpec], TokenBatch] = collate
    """Function that returns the arrays of a batch, given its entry in the plan."""
    eval_samples: Sequence[Sample] = ()
    """Samples that are used for evaluation only."""

    @classmethod
    def from_plan(
        cls, plan: BatchPlan, samples: Mapping[str, SampleLike], eval_samples: Sequence[Sample] = ()
    ) -> "SFTData":
        """Create the data from a batch plan and its samples.

        Args:
            plan: Batch plan.
            samples: Samples by id.
            eval_samples: Samples that are used for evaluation only.
        """
        return cls(plan, lambda spec: collate(spec, samples, num_rows=_num_rows(spec, plan)), eval_samples)


def _num_rows(spec: BatchSpec, plan: BatchPlan) -> int:
    """Return the number of rows that a batch is padded to.

    All batches whose rows have the same length get the same number of rows, so that an update is compiled
    once per row length.
    """
    return max(spec.num_rows, plan.meta.batching.token_budget // max(spec.max_length, 1))


class SFT(Algorithm[TrainState]):
    """Trains a language model on batches of tokens.

    Args:
        config: Settings for the run.
        data: Batches to train on. If None, the data that the config describes is opened.
    """

    name = "sft"
    config_type = SFTConfig
    unit = "tokens"
    headline = ("loss",)

    def __init__(self, config: SFTConfig, data: SFTData | None = None) -> None:
        super().__init__(config)
        self._structure = model_structure(config.model)
        self._tokenizer = LMTokenizer(config.tokenizer)
        if data is not None:
            self.data = data

    # The data and everything that depends on it are created on first use, because an evaluation needs none of
    # it.
    @functools.cached_property
    def data(self) -> SFTData:
        """Batches to train on."""
        return open_data(self.config)

    @functools.cached_property
    def num_updates(self) -> int:
        """Number of updates. A plan with fewer batches limits it."""
        config, plan = self.config, self.data.plan
        if plan is None or plan.num_batches is None:
            return int(config.num_updates)
        return min(config.num_updates, -(-plan.num_batches // config.optimizer.grad_accum_steps))

    @functools.cached_property
    def _batches(self) -> Any:
        return iter(()) if self.data.plan is None else self.data.plan.batches()

    @functools.cached_property
    def _eval_batches(self) -> Any:
        return eval_batches(self.data.eval_samples, self.config)

    @functools.cached_property
    def _optimizer(self) -> optax.GradientTransformation:
        return make_optimizer(self.config.optimizer, self.num_updates)

    @classmethod
    def evaluation_type(cls, config: Any, env: str | None = None) -> type[Config]:
        return TextEvalConfig

    @functools.cached_property
    def text_env(self) -> TextVectorEnvironment | None:
        """Text environment for evaluation. None if the model is trained on a plan or a file of samples."""
        env = self.config.trained_env
        return None if env is None or not env.id else env.make(self.config.prompt_format)

    def init(self, key: Key, params: PyTree | None = None) -> TrainState:
        """Create the initial state. If `params` is given, training starts from these parameters."""
        if params is None:
            params = eqx.filter(LanguageModel(self.config.model, key=key), eqx.is_array)
        return TrainState(params, self._optimizer.init(params), jnp.int32(0))

    @property
    def _program_key(self) -> tuple[Any, ...]:
        # The schedule depends on the number of updates, which a plan can limit.
        return (*super()._program_key, self.num_updates)

    def policy(self, state: TrainState) -> LMPolicy:
        """Return the language model as a greedy policy for text environments."""
        return LMPolicy(eqx.combine(state.params, self._structure), self._tokenizer)

    def update(self, state: TrainState) -> tuple[TrainState, UpdateResult]:
        """Take one optimizer step on the next `grad_accum_steps` batches.

        Raises:
            DataExhausted: If there are no more batches.
        """
        specs = itertools.islice(self._batches, self.config.optimizer.grad_accum_steps)
        batches = [self.data.get_batch(spec) for spec in specs]
        if not batches:
            raise DataExhausted
        peak_flops = measured_peak_flops(self.config.model.dtype)
        start_time = time.perf_counter()
        state, metrics = self.train_step(state, batches)
        jax.block_until_ready(metrics["loss"])
        flops = sum(train_flops(self.config.model, batch.segment_ids) for batch in batches)
        mfu = flops / (time.perf_counter() - start_time) / peak_flops
        counts = {
            "tokens": sum(batch.real_tokens for batch in batches),
            "num_slots": sum(batch.padded_tokens for batch in batches),
        }
        return state, UpdateResult({**metrics, "mfu": mfu}, counts=counts)

    def train_step(
        self, state: TrainState, batches: Sequence[TokenBatch]
    ) -> tuple[TrainState, dict[str, Array]]:
        """Take one optimizer step on several batches, as if they were one batch.

        `state` must not be used afterward.

        Returns:
            The new state and the metrics.
        """
        total = None
        for batch in batches:
            total = self._add_gradients(total, state.params, _token_arrays(batch))
        return self._apply_gradients(state, total)

    @jit_method(donate=("total",))
    def _add_gradients(
        self, total: tuple[PyTree, LossSums] | None, params: PyTree, batch: TokenArrays
    ) -> tuple[PyTree, LossSums]:
        added = loss_and_grads(params, self._structure, batch)
        return added if total is None else jax.tree.map(jnp.add, total, added)

    @jit_method(donate=("state",))
    def _apply_gradients(
        self, state: TrainState, total: tuple[PyTree, LossSums]
    ) -> tuple[TrainState, dict[str, Array]]:
        gradients, sums = total
        num_tokens = jnp.maximum(sums.num_tokens, 1)
        gradients = jax.tree.map(lambda leaf: leaf / num_tokens, gradients)
        updates, opt_state = self._optimizer.update(gradients, state.opt_state, state.params)
        params: Any = optax.apply_updates(state.params, updates)
        metrics = {
            "loss": sums.loss / num_tokens,
            "mean_token_accuracy": sums.num_correct / num_tokens,
            "num_loss_tokens": sums.num_tokens,
            "gradient_norm": optax.tree.norm(gradients),
            "learning_rate": lr_schedule(self.config.optimizer, self.num_updates)(state.step),
        }
        return TrainState(params, opt_state, state.step + 1), metrics

    def evaluate(self, state: TrainState, settings: Config, final: bool) -> Sequence[EvaluationResult]:
        """Evaluate the model.

        During training, the loss on evaluation samples is computed, and validation episodes are run with
        greedy decoding. With `phalanx eval`, `settings` is a `TextEvalConfig`, which determines the episodes
        and the decoding.
        """
        if isinstance(settings, TextEvalConfig):
            return evaluate_language_model(self.policy(state), settings, self.config.prompt_format)
        num_episodes = self.config.evaluation.num_episodes
        episodes = evaluation_records(self.policy(state), self.text_env, num_episodes)
        if not self._eval_batches:
            return episodes
        sums = [self._eval_loss(state.params, _token_arrays(batch)) for batch in self._eval_batches]
        loss, num_correct, num_tokens = np.asarray(jax.device_get(sums), np.float64).sum(axis=0).tolist()
        record = {
            "split": "validation",
            "mode": "next token",
            "loss": loss / max(num_tokens, 1),
            "mean_token_accuracy": num_correct / max(num_tokens, 1),
        }
        return [DictEvaluationResult(record), *episodes]

    @jit_method
    def _eval_loss(self, params: PyTree, batch: TokenArrays) -> LossSums:
        return sft_loss(eqx.combine(params, self._structure), batch)

    def sample_episodes(self, state: TrainState, key: Key, update: int) -> list[dict[str, Any]]:
        """Run one validation episode for each task, and return one record per episode."""
        return sample_conversations(self.policy(state), self.text_env, update)

    def fingerprint(self) -> str:
        return "" if self.data.plan is None else self.data.plan.fingerprint

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the training data."""
        return {} if self.data.plan is None else self._batches.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if self.data.plan is not None:
            self._batches.load_state_dict(state)

    def close(self) -> None:
        """Close environments and their connections."""
        if (data := self.__dict__.get("data")) is not None and isinstance(data.plan, StreamingPlan):
            data.plan.close()
        if (env := self.__dict__.get("text_env")) is not None:
            env.close()

    def summarize(self, result: TrainResult) -> list[str]:
        padding = 1 - result.counts.get("tokens", 0) / max(result.counts.get("num_slots", 0), 1)
        lines = super().summarize(result)
        losses = [record for record in result.evaluations if record["mode"] == "next token"]
        if losses:
            first, last = losses[0], losses[-1]
            lines = [
                f"Loss on evaluation samples: {first['loss']:.3f} at update {first['step']}, "
                f"{last['loss']:.3f} at update {last['step']}; "
                f"token accuracy {last['mean_token_accuracy']:.1%}"
            ]
        return [*lines, f"Padding: {padding:.1%} of all tokens"]


def _token_arrays(batch: TokenBatch) -> dict[str, Any]:
    """Return the arrays of a batch that the loss needs, by name."""
    return {name: getattr(batch, name) for name in TOKEN_ARRAYS}


def eval_batches(samples: Sequence[Sample], config: SFTConfig) -> list[TokenBatch]:
    """Collate evaluation samples into batches. Samples longer than `data.max_length` are skipped."""
    if not samples:
        return []
    plan, dataset = _plan_samples(samples, config)
    data = SFTData.from_plan(plan, dataset)
    return [data.get_batch(spec) for spec in plan.iter_epoch(0)]


def _plan_samples(samples: Sequence[Sample], config: SFTConfig) -> tuple[BatchPlan, TokenDataset]:
    """Create a dataset of samples and a one-epoch batch plan for it. Returns the plan and the dataset."""
    dataset, batching = TokenDataset.from_samples(samples), config.data.batching_config(config.seed)
    builder = BatchPlanBuilder(
        dataset.lengths, batching, dataset.content_hash, packing=config.data.packing_config()
    )
    return builder.build(), dataset


# Data


def open_data(config: SFTConfig) -> SFTData:
    """Open the training data that a config describes. Files are read and validated."""
    if config.data.plan:
        return _open_plan(config)
    return _open_samples(config) if config.data.samples else _open_env(config)


def _open_plan(config: SFTConfig) -> SFTData:
    """Open a batch plan with its dataset, or a folder of batch files."""
    data, path = config.data, Path(config.data.plan)
    tokenizer = load_tokenizer(config.tokenizer)
    if not data.planned_dataset:
        if not (path / "manifest.json").is_file():
            raise ValueError(
                f"{path} is not a folder of batch files; set data.planned_dataset to the dataset that the "
                f"plan was built for, or write batch files with `phalanx data export`"
            )
        reader = BatchReader(path)
        # The settings of the tokenization may be any: only the tokenizer itself is used from here on.
        written_with = reader.manifest.tokenizer_hash.partition("-")[0]
        check_tokenizer_hash(
            written_with, tokenizer.tokenizer_hash, where=str(path), tokenizer=config.tokenizer
        )
        config.model.check_vocab_size(1 + reader.largest_token())
        plan = reader.plan
        return SFTData(
            plan, lambda spec: reader.get_batch(spec.epoch, spec.index).pad_rows(_num_rows(spec, plan))
        )
    plan = load_batch_plan(path)
    tokenize = TokenizeConfig()
    chat = find_chat_template(data.planned_dataset, config.tokenizer, tokenize)
    tokenizer_hash = tokenize.tokenizer_hash(tokenizer, chat)
    check_tokenizer_hash(
        plan.meta.tokenizer_hash, tokenizer_hash, where=str(path), tokenizer=config.tokenizer
    )
    dataset = tokenize_dataset(data.planned_dataset, tokenizer, tokenize, chat=chat)
    config.model.check_vocab_size(1 + int(dataset.tokens.max(initial=0)))
    return SFTData.from_plan(plan, dataset)


def _open_samples(config: SFTConfig) -> SFTData:
    """Open a file of samples. The first `num_eval_samples` samples are used for evaluation only."""
    data = config.data
    samples = [sample for sample in _load_samples(config) if sample.length <= data.max_length]
    if not samples:
        raise ValueError(f"{data.samples} has no sample of at most data.max_length={data.max_length} tokens")
    if len(samples) <= data.num_eval_samples:
        raise ValueError(
            f"{data.samples} has {len(samples)} samples, but data.num_eval_samples="
            f"{data.num_eval_samples}; set it lower"
        )
    config.model.check_vocab_size(1 + max(int(sample.input_ids.max()) for sample in samples))
    eval_samples = samples[: data.num_eval_samples]
    train_samples = samples[data.num_eval_samples :]
    if not data.repeat:
        return SFTData.from_plan(*_plan_samples(train_samples, config), eval_samples)
    dataset = TokenDataset.from_samples(train_samples)
    source = ShuffledDatasetSource(
        dataset.lengths, dataset, seed=config.seed, dataset_hash=dataset.content_hash
    )
    return _stream_data(source, config, eval_samples)


def _load_samples(config: SFTConfig) -> list[Sample]:
    """Read a file of tokenized samples, or tokenize a file of texts."""
    path = Path(config.data.samples)
    if path.suffix == ".npz":
        return load_samples(path)
    with path.open(encoding="utf-8") as file:
        is_tokenized = '"sample_id"' in file.readline()
    if path.suffix == ".jsonl" and is_tokenized:
        return load_samples(path)
    chat = find_chat_template(path, config.tokenizer, TokenizeConfig())
    return list(tokenize_rows(path, load_tokenizer(config.tokenizer), chat=chat))


def _stream_data(source: StreamSource, config: SFTConfig, eval_samples: Sequence[Sample]) -> SFTData:
    plan = StreamingPlan({"samples": source}, config.data.streaming_config(config.seed))
    num_rows = plan.config.packs_per_batch
    return SFTData(plan, lambda spec: collate(spec, num_rows=num_rows), eval_samples)


def _open_env(config: SFTConfig) -> SFTData:
    """Open a stream of samples that are generated in the environment.

    Evaluation samples come from the environment's validation split.
    """
    data, env = config.data, config.env
    config.model.check_vocab_size(load_tokenizer(config.tokenizer).vocab_size)
    if not env.id:
        raise ValueError("no training data: choose an environment (--env), or set data.plan or data.samples")
    tasks = env.make().tasks  # raises if the spec is wrong
    known = {task.partition(":")[0] for task in tasks} | set(group_members("puzzles"))
    if unknown := data.puzzle_weights.keys() - known:
        raise ValueError(f"data.puzzle_weights has {sorted(unknown)[0]!r}, which is not a kind of puzzle")

    def samples(split: Split, start: int = 0) -> Generator[Sample, None, None]:
        stream = generate_expert_samples(
            functools.partial(env.make, config.prompt_format),
            config.tokenizer,
            seed=config.seed,
            split=split,
            random_move_prob=data.random_move_prob,
            behavior_policy=data.behavior_policy,
            mixture=data.puzzle_weights,
        )
        with contextlib.closing(stream):
            yield from itertools.islice(stream, start, None)

    stream = samples("validation")
    fitting = (sample for sample in stream if sample.length <= data.max_length)
    eval_samples = list(itertools.islice(fitting, data.num_eval_samples))
    stream.close()
    settings = (env.model_dump_json(), config.tokenizer, config.prompt_format, data.behavior_policy)
    source = IterableSource(
        functools.partial(samples, "train"),
        fingerprint=f"{settings} {data.random_move_prob} {data.puzzle_weights} {config.seed}",
    )
    return _stream_data(source, config, eval_samples)

"""Supervised fine-tuning of a language model on packed rows.

The data is a batch plan, a file of samples, or the answers of an expert in a text environment. The loss is
the mean cross-entropy of the tokens that the loss mask selects.
"""

import functools
import hashlib
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

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
from phalanx.core.evaluation import EpisodeEvaluationConfig
from phalanx.data.batch_files import BatchReader
from phalanx.data.collation import collate_microbatch
from phalanx.data.offline_stream import OfflineDatasetStream
from phalanx.data.packing_config import PackingConfig
from phalanx.data.plans.batching_config import BatchingConfig
from phalanx.data.plans.builder import BatchPlanBuilder
from phalanx.data.plans.plan_files import load_batch_plan
from phalanx.data.readers import iterate_samples, tokenize_samples
from phalanx.data.samples import StreamSample
from phalanx.data.tokenizers import load_tokenizer
from phalanx.lm.evaluation import evaluation_records, sample_conversations
from phalanx.lm.expert_samples import generate_expert_samples
from phalanx.lm.flops import measured_peak_flops, train_flops
from phalanx.lm.model import LanguageModel, LanguageModelConfig, model_structure, token_logps
from phalanx.lm.prompt_tokenizer import PromptTokenizer
from phalanx.lm.text_policy import LMPolicy
from phalanx.logging.config import LoggingConfig
from phalanx.registry import group_members
from phalanx.text.env import TextVectorEnvironment
from phalanx.text.splits import Split
from phalanx.training.algorithm import Algorithm, TrainResult, TrainState, UpdateResult, jit_method
from phalanx.training.config import CheckpointConfig, RunConfig
from phalanx.training.optimizer import OptimizerConfig, lr_schedule, make_optimizer
from phalanx.training.sft_data import (
    BatchSource,
    PlannedBatches,
    StreamedBatches,
    TokenBatch,
    iterate_async,
    token_batch,
)
from phalanx.training.text_env import TrainingEnvConfig, make_preset_environment

_MIN_MICROBATCH_TOKENS = 1024
"""On the CPU, a batch is processed in microbatches of at least this many tokens: the activations of a
complete batch exceed the cache, and the system would clear that much memory in every update."""


class SFTDataConfig(Config):
    """Training data. Set at most one of `plan` and `samples`; with neither, samples come from `env`."""

    renamed_settings: ClassVar[Mapping[str, str]] = {
        "play": "behavior_policy",
        "wander": "random_move_prob",
        "shares": "mixture",
        "packed": "packing",
        "held_out": "num_eval_samples",
    }
    removed_settings: ClassVar[Mapping[str, str]] = {
        "source": "was removed; set data.plan or data.samples, or neither to use env",
        "path": "was removed; set data.plan or data.samples",
        "overlap": "was removed; every sample of a stream is used once",
        "buffer_size": "was removed; data.window_size samples are kept",
    }

    plan: str = ""
    """Folder of a batch plan, or of batch files created from one."""
    dataset: str = ""
    """Dataset that the plan was built for. Not needed if `plan` is a folder of batch files."""
    samples: str = ""
    """File of samples, as `phalanx puzzles collect` writes it."""
    behavior_policy: Literal["expert", "random"] = "expert"
    """Whose answers are trained on: those of the environment's expert, or random legal actions."""
    random_move_prob: float = Field(default=0.0, ge=0, le=1)
    """Probability of a random legal action instead of the expert's. It is not trained on, but shows the model
    states that the expert would not reach."""
    mixture: dict[str, int] = Field(default={})
    """Samples of a puzzle kind for each sample of other kinds, such as `{sokoban: 2}`. Kinds that `env` does
    not include are ignored."""
    token_budget: int = Field(default=4096, ge=16)
    """Tokens per batch, including padding."""
    max_length: int = Field(default=512, ge=8)
    """Length of packed rows. Longer samples are skipped."""
    packing: bool = True
    """Pack several samples into a row."""
    window_size: int = Field(default=256, ge=1)
    """Samples of a stream that are shuffled and packed together."""
    num_eval_samples: int = Field(default=64, ge=0)
    """Samples of a stream that are used for evaluation only."""
    repeat: bool = True
    """Read a file of samples repeatedly instead of once."""

    @model_validator(mode="after")
    def _check_sources(self) -> "SFTDataConfig":
        if self.plan and self.samples:
            raise ValueError("set data.plan or data.samples, not both")
        if self.dataset and not self.plan:
            raise ValueError("data.dataset requires data.plan")
        if any(count < 1 for count in self.mixture.values()):
            raise ValueError(f"the counts of a mixture must be at least 1, got {self.mixture}")
        return self

    def __hash__(self) -> int:
        return hash(self.model_dump_json())

    def batching_config(self, seed: int) -> BatchingConfig:
        """Return the batching of a stream. Few bucket edges, so that few shapes are compiled."""
        edges = {max(8, self.max_length // 4), max(8, self.max_length // 2)} - {self.max_length}
        return BatchingConfig.predictable(
            token_budget=max(self.token_budget, self.max_length),
            bucket_edges=tuple(sorted(edges)),
            overflow_max=self.max_length,
            seed=seed,
        )

    def packing_config(self) -> PackingConfig | None:
        """Return the packing of a stream; None if each sample has its own row."""
        return PackingConfig(max_length=self.max_length) if self.packing else None


class SFTConfig(RunConfig):
    """Configuration for supervised fine-tuning."""

    preset_group = "sft"
    renamed_settings: ClassVar[Mapping[str, str]] = {
        "data.environment": "env.id",
        "data.difficulty": "env.difficulty",
        "data.turns": "env.turns",
        "data.address": "env.address",
        "data.games": "env.games",
        "data.connections": "env.num_connections",
        "data.tokenizer": "tokenizer",
        "data.compact": "prompt_format",
        "optimizer.num_updates": "num_updates",
        "evaluation.puzzles": "evaluation.num_episodes",
    }

    seed: int = Field(default=0, ge=0)
    """Seed of the initial model, the order of samples and the episodes."""
    num_updates: int = Field(default=300, ge=1)
    """Number of updates. Fewer if the plan has fewer batches."""
    env: TrainingEnvConfig = TrainingEnvConfig(id="arc")
    """Text environment whose expert answers are trained on, unless `data` names a plan or a file."""
    tokenizer: str = "bytes"
    """Tokenizer of the samples. For a plan, the one that its lengths were computed with."""
    prompt_format: Literal["compact", "full"] = "compact"
    """`compact` prompts have few characters and no rules, for small models. Environments with only one format
    ignore this setting."""
    model: LanguageModelConfig = LanguageModelConfig()
    """Architecture."""
    data: SFTDataConfig = SFTDataConfig()
    """Training data."""
    optimizer: OptimizerConfig = OptimizerConfig(
        learning_rate=2e-3, warmup_steps=20, weight_decay=0.01, b2=0.98
    )
    """Optimizer and learning rate."""
    evaluation: EpisodeEvaluationConfig = EpisodeEvaluationConfig(every=50)
    """Evaluation on samples and episodes that are not trained on."""
    checkpoint: CheckpointConfig = CheckpointConfig(every=100)
    """Checkpoints."""
    logging: LoggingConfig = LoggingConfig(log_frequency=1, sample_frequency=0)
    """Logging."""


# Loss and gradients


class LossSums(NamedTuple):
    """Sums over the tokens that the loss mask selects. Those of several batches can be added."""

    loss: Float[Array, ""]
    """Cross-entropy in nats."""
    num_correct: Float[Array, ""]
    """Tokens that are the model's most likely ones."""
    num_tokens: Int32[Array, ""]


def sft_loss(model: LanguageModel, batch: TokenBatch) -> LossSums:
    """Compute the cross-entropy of the selected tokens, given the earlier tokens of their segments.

    The first token of a segment is never counted.
    """
    input_ids, loss_mask, segment_ids, position_ids = map(jnp.asarray, batch)
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


def loss_and_grads(params: PyTree, structure: LanguageModel, batch: TokenBatch) -> tuple[PyTree, LossSums]:
    """Compute the gradients of the summed loss, and the sums, in microbatches."""

    def microbatch_grads(params: PyTree, batch: TokenBatch) -> tuple[PyTree, LossSums]:
        def loss(params: PyTree) -> tuple[Array, LossSums]:
            sums = sft_loss(eqx.combine(params, structure), batch)
            return sums.loss, sums

        gradients, sums = jax.grad(loss, has_aux=True)(params)
        return gradients, sums

    num_microbatches = _num_microbatches(*batch.input_ids.shape)
    if num_microbatches == 1:
        return microbatch_grads(params, batch)
    microbatches = jax.tree.map(lambda x: jnp.reshape(x, (num_microbatches, -1, *x.shape[1:])), batch)
    compute = jax.jit(microbatch_grads, inline=True)  # traced once for `eval_shape` and the loop
    first = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), microbatches)
    shapes = jax.eval_shape(compute, params, first)

    def add(total: tuple[PyTree, LossSums], microbatch: TokenBatch) -> tuple[tuple[PyTree, LossSums], None]:
        return jax.tree.map(jnp.add, total, compute(params, microbatch)), None

    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    total: tuple[PyTree, LossSums] = jax.lax.scan(add, zeros, microbatches)[0]
    return total


def _num_microbatches(rows: int, tokens: int) -> int:
    """Return the largest number of equal microbatches with at least `_MIN_MICROBATCH_TOKENS` tokens each."""
    if not is_cpu_only() or jax.device_count() > 1:
        return 1
    counts = (
        count
        for count in range(2, rows + 1)
        if rows % count == 0 and rows // count * tokens >= _MIN_MICROBATCH_TOKENS
    )
    return max(counts, default=1)


# Algorithm


class SFT(Algorithm[TrainState]):
    """Trains a language model on batches of tokens.

    Args:
        config: The configuration.
        data: Batches to train on. None opens the data that the config describes.
    """

    name = "sft"
    config_type = SFTConfig
    unit = "tokens"
    headline = ("loss",)

    def __init__(self, config: SFTConfig, data: BatchSource | None = None) -> None:
        self.data = open_data(config) if data is None else data
        num_updates = config.num_updates
        if self.data.num_batches is not None:
            num_updates = min(num_updates, -(-self.data.num_batches // config.optimizer.grad_accum_steps))
        super().__init__(config)
        self.num_updates = num_updates
        self._structure = model_structure(config.model)
        self._optimizer = make_optimizer(config.optimizer, num_updates)
        self._learning_rate = lr_schedule(config.optimizer, num_updates)
        self._eval_batches = eval_batches(self.data.eval_samples, config)
        self._tokenizer = PromptTokenizer(config.tokenizer)

    @functools.cached_property
    def text_env(self) -> TextVectorEnvironment | None:
        """Text environment for evaluation; None if the model is not trained on one."""
        env = trained_env(self.config)
        return None if env is None else env.make(self.config.prompt_format)

    def init(self, key: Key, params: PyTree | None = None) -> TrainState:
        """Create the initial state, from the parameters of another run if `params` is given."""
        if params is None:
            params = eqx.filter(LanguageModel(self.config.model, key=key), eqx.is_array)
        return TrainState(params, self._optimizer.init(params), jnp.int32(0))

    def with_seed(self, seed: int) -> "SFT":
        return type(self)(self.config.model_copy(update={"seed": seed}))

    @property
    def _compilation_key(self) -> tuple[Any, ...]:
        # The schedule depends on the number of updates, which a plan can limit.
        return (*super()._compilation_key, self.num_updates)

    def policy(self, state: TrainState) -> LanguageModel:
        model: LanguageModel = eqx.combine(state.params, self._structure)
        return model

    def update(self, state: TrainState) -> tuple[TrainState, UpdateResult]:
        """Train on the next batches. Raises `StopIteration` at the end of the data."""
        next_batches = (self.data.next() for _ in range(self.config.optimizer.grad_accum_steps))
        batches = [batch for batch in next_batches if batch is not None]
        if not batches:
            raise StopIteration
        peak_flops = measured_peak_flops(self.config.model.dtype)
        start_time = time.perf_counter()
        state, metrics = self.train_step(state, batches)
        jax.block_until_ready(metrics["loss"])
        flops = sum(train_flops(self.config.model, np.asarray(batch.segment_ids)) for batch in batches)
        mfu = flops / (time.perf_counter() - start_time) / peak_flops
        counts = {
            "tokens": sum(batch.num_tokens for batch in batches),
            "num_slots": sum(batch.num_slots for batch in batches),
        }
        return state, UpdateResult({**metrics, "mfu": mfu}, counts=counts)

    def train_step(
        self, state: TrainState, batches: Sequence[TokenBatch]
    ) -> tuple[TrainState, dict[str, Array]]:
        """Take one optimizer step on several batches, as if they were one. `state` must not be used
        afterward."""
        if len(batches) == 1:
            return self._train_on_batch(state, batches[0])
        total = self._gradients(state.params, batches[0])
        for batch in batches[1:]:
            total = self._add_gradients(total, state.params, batch)
        return self._train_on_gradients(state, total)

    @jit_method(donate=("state",))
    def _train_on_batch(self, state: TrainState, batch: TokenBatch) -> tuple[TrainState, dict[str, Array]]:
        return self._apply_gradients(state, loss_and_grads(state.params, self._structure, batch))

    @jit_method
    def _gradients(self, params: PyTree, batch: TokenBatch) -> tuple[PyTree, LossSums]:
        return loss_and_grads(params, self._structure, batch)

    @jit_method(donate=("total",))
    def _add_gradients(
        self, total: tuple[PyTree, LossSums], params: PyTree, batch: TokenBatch
    ) -> tuple[PyTree, LossSums]:
        added: tuple[PyTree, LossSums] = jax.tree.map(
            jnp.add, total, loss_and_grads(params, self._structure, batch)
        )
        return added

    @jit_method(donate=("state",))
    def _train_on_gradients(
        self, state: TrainState, total: tuple[PyTree, LossSums]
    ) -> tuple[TrainState, dict[str, Array]]:
        return self._apply_gradients(state, total)

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
            "learning_rate": self._learning_rate(state.step),
        }
        return TrainState(params, opt_state, state.step + 1), metrics

    def evaluate(self, state: TrainState, update: int, final: bool) -> list[dict[str, Any]]:
        """Compute the loss on evaluation samples and run greedy episodes of the validation split."""
        num_episodes = self.config.evaluation.num_episodes
        episodes = evaluation_records(self._lm_policy(state), self.text_env, num_episodes)
        return [*self._loss_records(state), *episodes]

    @jit_method
    def eval_loss(self, params: PyTree, batch: TokenBatch) -> LossSums:
        """Compute the loss of a batch without training."""
        return sft_loss(eqx.combine(params, self._structure), batch)

    def _loss_records(self, state: TrainState) -> list[dict[str, Any]]:
        if not self._eval_batches:
            return []
        sums = [self.eval_loss(state.params, batch) for batch in self._eval_batches]
        total = max(sum(float(one.num_tokens) for one in sums), 1.0)
        return [
            {
                "split": "test",
                "mode": "next token",
                "loss": sum(float(one.loss) for one in sums) / total,
                "mean_token_accuracy": sum(float(one.num_correct) for one in sums) / total,
            }
        ]

    def sample_episodes(self, state: TrainState, key: Key, update: int) -> list[dict[str, Any]]:
        """Run one validation episode of each task."""
        return sample_conversations(self._lm_policy(state), self.text_env, update)

    def _lm_policy(self, state: TrainState) -> LMPolicy:
        return LMPolicy(self.policy(state), self._tokenizer)

    def data_fingerprint(self) -> str:
        return self.data.fingerprint

    def save_host_state(self, folder: Path, update: int, kept: Sequence[int]) -> dict[str, Any]:
        """Return the position in the data."""
        return self.data.save(folder, update, min(kept, default=update))

    def restore_host_state(self, folder: Path, saved: Mapping[str, Any]) -> None:
        self.data.restore(folder, saved)

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


def trained_env(config: SFTConfig) -> TrainingEnvConfig | None:
    """Return the text environment that a model is trained on, or None if it cannot be evaluated in one."""
    data, env = config.data, config.env
    if data.plan or data.samples or env.is_puzzle_server:
        return None
    if data.behavior_policy == "random" and env.is_jax:
        return None  # trained on episode tokens, not on text
    return env


def eval_batches(samples: Sequence[StreamSample], config: SFTConfig) -> list[TokenBatch]:
    """Pack evaluation samples. Samples that are too long are skipped."""
    data = config.data
    by_id = {sample.sample_id: sample for sample in samples if sample.length <= data.max_length}
    if not by_id:
        return []
    lengths = {sample_id: sample.length for sample_id, sample in by_id.items()}
    packing, batching = PackingConfig(max_length=data.max_length), data.batching_config(config.seed)
    plan = BatchPlanBuilder(lengths, batching, packing=packing).build_now(num_epochs=1)
    batches = (collate_microbatch(spec, by_id, packing=packing) for spec in plan.iter_epoch(0))
    return [token_batch(batch, batching.token_budget) for batch in batches]


# Data

_Stream = Callable[[int], Iterator[StreamSample]]


def open_data(config: SFTConfig) -> BatchSource:
    """Open the data that a config describes. Files are read and checked."""
    data = config.data
    if data.plan:
        batches, vocab_size = _open_plan(config)
        _check_vocab_size(vocab_size, config)
        return batches
    stream, vocab_size, fingerprint = _open_samples(config) if data.samples else _open_env(config)
    _check_vocab_size(vocab_size, config)
    return StreamedBatches(
        stream,
        fingerprint,
        window_size=data.window_size,
        batching=data.batching_config(config.seed),
        packing=data.packing_config(),
        num_eval_samples=data.num_eval_samples,
    )


def _check_vocab_size(vocab_size: int, config: SFTConfig) -> None:
    # Compiled code would not raise: a gather returns NaN for unknown ids.
    if vocab_size > config.model.vocab_size:
        raise ValueError(
            f"the samples have tokens up to {vocab_size - 1}, but model.vocab_size is "
            f"{config.model.vocab_size}; set model.vocab_size={vocab_size}"
        )


def _open_plan(config: SFTConfig) -> tuple[PlannedBatches, int]:
    """Return the batches of a plan and the required vocabulary size."""
    data, folder = config.data, Path(config.data.plan)
    if not data.dataset:
        if not (folder / "manifest.json").is_file():
            raise ValueError(
                f"{folder} is not a folder of batch files; set data.dataset to the dataset that the plan was "
                f"built for, or create batch files with `phalanx data batch generate`"
            )
        return PlannedBatches.from_files(folder), 1 + BatchReader(folder).largest_token()
    plan = load_batch_plan(folder)
    tokenizer = load_tokenizer(config.tokenizer)
    if plan.meta.tokenizer_hash and plan.meta.tokenizer_hash != tokenizer.tokenizer_hash:
        raise ValueError(
            f"{folder} was built with tokenizer {plan.meta.tokenizer_hash}, but {config.tokenizer!r} is "
            f"{tokenizer.tokenizer_hash}; set tokenizer to the one that the lengths were computed with"
        )
    samples = {
        sample.sample_id: sample
        for sample in tokenize_samples(iterate_samples(Path(data.dataset)), tokenizer)
    }
    vocab_size = 1 + max((max(sample.input_ids) for sample in samples.values()), default=0)
    return PlannedBatches.from_plan(plan, samples), vocab_size


def _open_samples(config: SFTConfig) -> tuple[_Stream, int, str]:
    """Return the stream of a file of samples, the required vocabulary size and a fingerprint."""
    data = config.data
    tokenizer = load_tokenizer(config.tokenizer)
    samples = tuple(OfflineDatasetStream(data.samples, max_length=data.max_length, tokenizer=tokenizer))
    if not samples:
        raise ValueError(f"{data.samples} has no sample of at most data.max_length={data.max_length} tokens")
    if data.repeat and len(samples) <= data.num_eval_samples:
        raise ValueError(
            f"{data.samples} has {len(samples)} samples, but data.num_eval_samples="
            f"{data.num_eval_samples}; set it lower"
        )

    def open_stream(first: int) -> Iterator[StreamSample]:
        # Evaluation samples come first and are not repeated.
        repeated = samples[data.num_eval_samples :] if data.repeat else ()
        return itertools.islice(itertools.chain(samples, itertools.cycle(repeated)), first, None)

    vocab_size = 1 + max(max(sample.input_ids) for sample in samples)
    return open_stream, vocab_size, f"samples {len(samples)}-{_hash_samples(samples)}"


def _hash_samples(samples: tuple[StreamSample, ...]) -> str:
    digest = hashlib.sha256()
    for sample in samples:
        digest.update(np.asarray(sample.input_ids, np.int32).tobytes())
        digest.update(np.asarray(sample.loss_mask, np.uint8).tobytes())
    return digest.hexdigest()[:16]


def _open_env(config: SFTConfig) -> tuple[_Stream, int, str]:
    """Return the stream of an environment's answers, the required vocabulary size and a fingerprint."""
    data, env = config.data, config.env
    if env.is_puzzle_server:
        return _open_puzzle_server(config)
    if env.is_jax and data.behavior_policy == "random":
        return _open_episode_tokens(config)
    if env.is_jax and env.id not in ("arc", "proofs"):
        raise ValueError(f"env.id={env.id} has no expert as text; use arc, proofs or puzzles")
    samples = _expert_samples(config) if env.is_jax else _puzzle_samples(config)

    def open_stream(first: int) -> Iterator[StreamSample]:
        evaluation = itertools.islice(samples("validation"), data.num_eval_samples)
        stream = itertools.chain(evaluation, samples("train"))
        return itertools.islice(stream, first, None)

    settings = [config.tokenizer, data.behavior_policy, config.prompt_format, data.random_move_prob]
    fingerprint = " ".join(map(str, ["env", env.id, env.difficulty, env.turns, *settings, data.mixture]))
    return open_stream, load_tokenizer(config.tokenizer).vocab_size, f"{fingerprint} {config.seed}"


def _puzzle_samples(config: SFTConfig) -> Callable[[Split], Iterator[StreamSample]]:
    data, env = config.data, config.env
    env.make()  # raises if the spec is wrong
    if unknown := data.mixture.keys() - set(group_members("puzzles")):
        raise ValueError(f"data.mixture has {sorted(unknown)[0]!r}, which is not a kind of puzzle")

    def samples(split: Split) -> Iterator[StreamSample]:
        generated = generate_expert_samples(
            functools.partial(env.make, config.prompt_format),
            config.tokenizer,
            seed=config.seed,
            split=split,
            random_move_prob=data.random_move_prob,
            behavior_policy=data.behavior_policy,
            mixture=data.mixture,
        )
        return (sample for sample in generated if sample.length <= data.max_length)

    return samples


def _expert_samples(config: SFTConfig) -> Callable[[Split], Iterator[StreamSample]]:
    """Return the answers of the expert of ARC or proofs."""
    from phalanx.training.sft_experts import arc_samples, proof_samples

    environment = make_preset_environment(config.env.id)

    def samples(split: Split) -> Iterator[StreamSample]:
        if config.env.id == "arc":
            generated = arc_samples(
                environment,
                config.tokenizer,
                seed=config.seed,
                split=split,
                prompt_format=config.prompt_format,
            )
        else:
            generated = proof_samples(environment, config.tokenizer, seed=config.seed, split=split)
        return (sample for sample in generated if sample.length <= config.data.max_length)

    return samples


def _open_episode_tokens(config: SFTConfig) -> tuple[_Stream, int, str]:
    """Return random episodes of ARC or proofs in the tokens of their episode tokenizer."""
    from phalanx.lm.episode_stream import EnvironmentStream

    environment = make_preset_environment(config.env.id)

    def open_stream(first: int) -> Iterator[StreamSample]:
        stream = EnvironmentStream(environment, seed=config.seed)
        fitting = (sample for sample in stream if sample.length <= config.data.max_length)
        return itertools.islice(fitting, first, None)

    vocab_size = EnvironmentStream(environment).tokenizer.vocab_size
    return open_stream, vocab_size, f"env {config.env.id} random {config.seed}"


def _open_puzzle_server(config: SFTConfig) -> tuple[_Stream, int, str]:
    from phalanx.puzzles.server.client import PuzzleClientConfig
    from phalanx.puzzles.server.episodes import CollectConfig, PuzzleSampleStream
    from phalanx.puzzles.server.pool import ConnectionPoolConfig
    from phalanx.puzzles.server.protocol import PuzzleDifficulty

    env, tokenizer = config.env, load_tokenizer(config.tokenizer)
    host, _, port = env.address.rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError(f"env.address must be HOST:PORT, such as localhost:8023, got {env.address!r}")
    settings = CollectConfig(
        client=PuzzleClientConfig(host=host, port=int(port), max_retries=12, retry_seed=config.seed),
        games=env.games,
        difficulties=(PuzzleDifficulty(env.difficulty),),
        seed=config.seed,
        max_length=config.data.max_length,
        pool=ConnectionPoolConfig(connections=env.num_connections, ordered=True),
    )

    def open_stream(first: int) -> Iterator[StreamSample]:
        return itertools.islice(iterate_async(PuzzleSampleStream(settings, tokenizer)), first, None)

    fingerprint = f"puzzle_server {','.join(env.games)} {env.difficulty} {config.seed}"
    return open_stream, tokenizer.vocab_size, fingerprint

"""Training a language model as a run: its config, folder, logs, checkpoints, and what it has learned.

What an update is, is in `lm_update`; where batches come from, in `lm_batches` and `lm_sources`.
"""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
from pydantic import Field

from phalanx.agents.lm.batches import BatchSource, TokenBatch, token_batch
from phalanx.agents.lm.model import LanguageModel, LanguageModelConfig
from phalanx.agents.lm.update import LMLearner, LMTrainer, OptimiserConfig
from phalanx.agents.training import CheckpointConfig, count_parameters
from phalanx.core.config import Config, load_config
from phalanx.logs import ExperimentLogger, LineFile, LoggingConfig
from phalanx.logs.records import as_json
from phalanx.runs import folder as runs
from phalanx.runs.checkpoints import Checkpoints
from phalanx.runs.safeguards import Stop, config_digest, newest_checkpoint, reported, stop_on_interrupt
from phalanx.streams.types import StreamSample
from phalanx.tokens import BatchingConfig, BatchPlanBuilder, PackingConfig
from phalanx.tokens.batches.collation import collate_microbatch

PRESETS = "train/lm"
"""Where the presets of this training live."""
KIND = "lm"


class LMDataConfig(Config):
    """Where the tokens come from, and how they are batched. A plan decides its batches by itself."""

    source: Literal["plan", "arcade", "env", "samples"] = "env"
    """A batch plan, a puzzle server, an environment of Phalanx's own, or a file of samples."""
    path: str = ""
    """Of the plan or the samples."""
    dataset: str = ""
    """The dataset that the plan names the samples of; empty where the plan's folder holds batch files."""
    tokenizer: str = "bytes"
    """What the plan's lengths were counted with."""
    address: str = "localhost:8023"
    """HOST:PORT of the puzzle server."""
    games: tuple[str, ...] = ("binary",)
    """Puzzles to play."""
    difficulty: str = "easy"
    """How hard they are."""
    connections: int = Field(default=4, ge=1)
    """Puzzles that are played at once."""
    environment: Literal["arc", "proofs"] = "arc"
    """Which environment is played, by random legal actions."""
    token_budget: int = Field(default=4096, ge=16)
    """Tokens of a batch, padding included."""
    max_length: int = Field(default=512, ge=8)
    """Width of a packed row; longer samples are left out."""
    packed: bool = True
    """Whether short samples share a row."""
    window_size: int = Field(default=256, ge=1)
    """Samples of a stream that are planned together."""
    overlap: int = Field(default=0, ge=0)
    """Samples of a window that come again in the next."""
    buffer_size: int = Field(default=4096, ge=1)
    """Samples of a stream that are kept."""
    held_out: int = Field(default=64, ge=0)
    """A stream's first samples, which are only measured on."""
    repeat: bool = True
    """Whether a file of samples is read again when it ends."""

    def batching(self, seed: int) -> BatchingConfig:
        """Few widths, so that few updates are compiled."""
        edges = tuple(
            sorted({max(8, self.max_length // 4), max(8, self.max_length // 2)} - {self.max_length})
        )
        return BatchingConfig(
            token_budget=max(self.token_budget, self.max_length),
            bucket_edges=edges,
            overflow_max=self.max_length,
            seed=seed,
        )

    def packing(self) -> PackingConfig | None:
        """None where every sample has a row of its own."""
        return PackingConfig(max_length=self.max_length) if self.packed else None


class LMTrainingConfig(Config):
    """Everything that shapes the training of a language model."""

    seed: int = Field(default=0, ge=0)
    """Of the model, the order of the samples and the episodes."""
    model: LanguageModelConfig = LanguageModelConfig()
    """Its size."""
    data: LMDataConfig = LMDataConfig()
    """What it reads."""
    optimiser: OptimiserConfig = OptimiserConfig()
    """How it learns."""
    evaluate_every: int = Field(default=50, ge=0)
    """Updates between measurements on held-out samples; 0 for none but the first and the last."""
    checkpoint: CheckpointConfig = CheckpointConfig(every=100)
    """When it is saved."""
    logging: LoggingConfig = LoggingConfig(
        batched_logging_enabled=True, sampling_enabled=False, log_frequency=1
    )
    """What is written of it."""


def load_lm_training(preset: str | Path | None = None, overrides: tuple[str, ...] = ()) -> LMTrainingConfig:
    """A config: the defaults, then a preset, then overrides."""
    return load_config(LMTrainingConfig, preset, overrides, group=PRESETS)


@dataclasses.dataclass(frozen=True)
class LMProgress:
    """How far a training is, for a display."""

    update: int
    num_updates: int
    seconds: float
    loss: float
    tokens_per_second: float


@dataclasses.dataclass(frozen=True)
class LMOutcome:
    """How a training ended."""

    run: Path
    update: int
    interrupted: bool
    seconds: float
    losses: list[float]
    """Of this call's updates."""
    evaluations: list[dict[str, Any]]
    real_tokens: int
    """Tokens read so far, padding not counted."""
    padded_tokens: int
    """Padding counted."""
    model: LanguageModel


Show = Callable[[LMProgress], None]


def train_lm(
    config: LMTrainingConfig,
    source: BatchSource,
    folder: Path,
    *,
    held_out: Sequence[StreamSample] = (),
    resume: bool = False,
    handlers: runs.MakeHandlers = runs.files_only,
    show: Show = lambda progress: None,
) -> LMOutcome:
    """Train to the end, or until Ctrl-C, which saves and stops; a second Ctrl-C stops at once.

    A new run refuses a folder that holds something; `resume` goes on from the newest checkpoint, to the same
    numbers as a run that was never interrupted.
    """
    updates = config.optimiser.num_updates
    if source.num_batches is not None:
        updates = min(updates, source.num_batches)
    optimiser = config.optimiser.model_copy(update={"num_updates": updates})
    trainer = LMTrainer(config.model, optimiser)
    standing = _Standing(trainer.start(jax.random.key(config.seed)))
    if resume:
        runs.check_same_config(folder, runs.read_config(folder, LMTrainingConfig), config)
    else:
        size = {"num_parameters": count_parameters(standing.learner.arrays)}
        runs.create_run(folder, config, {"kind": KIND, **size})
    with Checkpoints(folder, keep=config.checkpoint.keep) as checkpoints, contextlib.ExitStack() as stack:
        if resume:
            standing = _restore(checkpoints, folder, config, source, standing)
        logger = stack.enter_context(ExperimentLogger(config.logging, handlers(folder, config)))
        measured = held_out_batches(held_out, config)
        wanted = stack.enter_context(stop_on_interrupt())
        run = _Run(config, folder, source, trainer, checkpoints, logger, show, standing, measured)
        return run.go(wanted, updates)


def load_language_model(run: Path) -> tuple[LMTrainingConfig, LanguageModel]:
    """A run's config and the model of its newest checkpoint."""
    config = runs.read_config(run, LMTrainingConfig)
    trainer = LMTrainer(config.model, config.optimiser)
    with Checkpoints(run, keep=config.checkpoint.keep) as checkpoints:
        step, _ = newest_checkpoint(checkpoints, run, config)
        learner = checkpoints.restore(step, trainer.start(jax.random.key(config.seed)))
    return config, trainer.model(learner)


def held_out_batches(samples: Sequence[StreamSample], config: LMTrainingConfig) -> list[TokenBatch]:
    """Samples packed as the training's are; those that are too long are left out."""
    data = config.data
    kept = {sample.sample_id: sample for sample in samples if sample.length <= data.max_length}
    if not kept:
        return []
    lengths = {name: sample.length for name, sample in kept.items()}
    packing = PackingConfig(max_length=data.max_length)
    batching = data.batching(config.seed)
    plan = BatchPlanBuilder(lengths, batching, packing=packing).build_now(num_epochs=1)
    batches = (collate_microbatch(spec, kept, packing=packing) for spec in plan.iter_epoch(0))
    return [token_batch(batch, batching.token_budget) for batch in batches]


@dataclasses.dataclass
class _Standing:
    """Where a training stands."""

    learner: LMLearner
    seconds: float = 0.0
    real_tokens: int = 0
    padded_tokens: int = 0


@dataclasses.dataclass
class _Run:
    config: LMTrainingConfig
    folder: Path
    source: BatchSource
    trainer: LMTrainer
    checkpoints: Checkpoints
    logger: ExperimentLogger
    show: Show
    standing: _Standing
    held_out: list[TokenBatch]
    losses: list[float] = dataclasses.field(default_factory=list)
    evaluations: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    def go(self, wanted: Stop, updates: int) -> LMOutcome:
        standing, every = self.standing, self.config.evaluate_every
        update = int(standing.learner.update)
        if update == 0:
            self._evaluate(0)
        ended = False
        while update < updates and not wanted.asked:
            batch = self.source.next()
            if batch is None:
                ended = True
                break
            update += 1
            self._step(batch, update, updates)
            if update < updates and every and update % every == 0:
                self._evaluate(update)
            if update < updates and update % self.config.checkpoint.every == 0:
                self._save(update, "running")
        finished = ended or update == updates
        if finished:
            self._evaluate(update)
        self._save(update, "finished" if finished else "interrupted")
        return LMOutcome(
            self.folder,
            update,
            not finished,
            standing.seconds,
            self.losses,
            self.evaluations,
            standing.real_tokens,
            standing.padded_tokens,
            self.trainer.model(standing.learner),
        )

    def _step(self, batch: TokenBatch, update: int, updates: int) -> None:
        standing = self.standing
        began = time.perf_counter()
        standing.learner, told = self.trainer.update(standing.learner, batch)
        metrics = {name: float(value) for name, value in jax.device_get(told).items()}
        lasted = time.perf_counter() - began
        standing.seconds += lasted
        standing.real_tokens += batch.real_tokens
        standing.padded_tokens += batch.padded_tokens
        self.losses.append(metrics["loss"])
        rate = batch.real_tokens / lasted
        self.logger.log_batch_step(
            {
                "update_step": update,
                **metrics,
                "real_tokens": standing.real_tokens,
                "padded_tokens": standing.padded_tokens,
                "tokens_per_second": rate,
                "seconds": standing.seconds,
            }
        )
        self.show(LMProgress(update, updates, standing.seconds, metrics["loss"], rate))

    def _evaluate(self, update: int) -> None:
        if not self.held_out:
            return
        found = [self.trainer.measure(self.standing.learner, batch) for batch in self.held_out]
        weights = np.array([float(one.tokens) for one in found])
        total = max(weights.sum(), 1.0)
        line = {
            "split": "held-out",
            "mode": "next token",
            "loss": float(np.dot(weights, [float(one.loss) for one in found]) / total),
            "token_accuracy": float(np.dot(weights, [float(one.accuracy) for one in found]) / total),
            "timestamp": time.time(),
            "step": update,
        }
        self.evaluations.append(line)
        with (
            reported("an evaluation could not be written"),
            contextlib.closing(LineFile(self.folder / runs.EVALUATIONS)) as file,
        ):
            file.write_line(as_json(line))

    def _save(self, update: int, status: str) -> None:
        standing, keep = self.standing, self.config.checkpoint
        counts = {"real_tokens": standing.real_tokens, "padded_tokens": standing.padded_tokens}
        about = {"updates": update, "seconds": standing.seconds, **counts, "status": status}
        with reported(f"checkpoint {update} could not be saved"):
            facts = {
                "seconds": standing.seconds,
                **counts,
                "config": config_digest(self.config),
                "data": self.source.fingerprint,
                "source": self.source.save(self.folder, update),
            }
            self.checkpoints.save(update, standing.learner, facts)
            self.source.forget(self.folder, update - keep.every * keep.keep)
        with reported(f"{runs.FACTS} could not be written"):
            runs.write_facts(self.folder, about)


def _restore(
    checkpoints: Checkpoints, folder: Path, config: LMTrainingConfig, source: BatchSource, like: _Standing
) -> _Standing:
    step, facts = newest_checkpoint(checkpoints, folder, config)
    if facts["data"] != source.fingerprint:
        raise ValueError(f"the data has changed since checkpoint {step} of {folder} was saved")
    source.restore(folder, facts["source"])
    learner = checkpoints.restore(step, like.learner)
    counts = int(facts["real_tokens"]), int(facts["padded_tokens"])
    return _Standing(learner, float(facts["seconds"]), *counts)

"""Training a knowledge-graph embedding as a run: its config, folder, logs, checkpoints, and the best epoch.

The models and what an epoch does are in `phalanx.proofs.kge.training`; the command is in `phalanx.cli`.
"""

import contextlib
import dataclasses
import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree
from pydantic import Field

from phalanx.agents.training import CheckpointConfig, count_parameters
from phalanx.core.config import Config, load_config
from phalanx.logs import ExperimentLogger, LineFile, LoggingConfig
from phalanx.logs.records import as_json
from phalanx.proofs.kge.config import KGEConfig
from phalanx.proofs.kge.files import save_kge
from phalanx.proofs.kge.scoring import KGE, Validation, calibrated, validate
from phalanx.proofs.kge.training import KGELearner, KGETrainer
from phalanx.proofs.knowledge.data import GENERATED, DataHandler
from phalanx.proofs.knowledge.vocabulary import IndexManager
from phalanx.runs import folder as runs
from phalanx.runs.checkpoints import Checkpoints
from phalanx.runs.safeguards import Stop, config_digest, newest_checkpoint, reported, stop_on_interrupt

PRESETS = "train/kge"
"""Where the presets of this training live."""
KIND = "kge"
MODEL = "kge"
"""The folder in a run that holds its best embedding, as `load_kge` reads it."""


class KGEEvaluationConfig(Config):
    """When an embedding is measured on validation queries; the best one is kept."""

    every: int = Field(default=10, ge=1)
    """Epochs between evaluations; the last epoch is always evaluated."""
    max_queries: int = Field(default=1000, ge=1)
    """Validation queries that are ranked at most."""


class KGETrainingConfig(Config):
    """Everything that shapes the training of an embedding."""

    dataset: str = GENERATED
    """The folder of a knowledge base; `generated` for the built-in one."""
    kge: KGEConfig = KGEConfig()
    """The model and how it learns."""
    evaluation: KGEEvaluationConfig = KGEEvaluationConfig()
    """How it is measured."""
    checkpoint: CheckpointConfig = CheckpointConfig(every=20, keep=1)
    """When it is saved, in epochs."""
    logging: LoggingConfig = LoggingConfig(
        batched_logging_enabled=True, sampling_enabled=False, log_frequency=1
    )
    """What is written of it."""


def load_kge_training(preset: str | Path | None = None, overrides: tuple[str, ...] = ()) -> KGETrainingConfig:
    """A config: the defaults, then a preset, then overrides."""
    return load_config(KGETrainingConfig, preset, overrides, group=PRESETS)


class KGEData(NamedTuple):
    """A knowledge base as the training of an embedding sees it: (relation, head, tail) triples."""

    index_manager: IndexManager
    train: np.ndarray
    """int32 [triples, 3]."""
    valid: np.ndarray
    """Queries to choose the best epoch by; held out of the training triples where there are none."""
    known: np.ndarray
    """All that is true by any split: no wrong answer in an evaluation. Training does not see it."""

    @classmethod
    def read(cls, dataset: str) -> "KGEData":
        """From a folder, or the built-in knowledge base; facts that leak queries are left out."""
        handler = DataHandler(
            path=None if dataset == GENERATED else dataset, on_leak="drop"
        ).with_validation()
        numbers = IndexManager(handler)
        train, valid = numbers.encode_atoms(handler.facts), numbers.encode_atoms(handler.valid_queries)
        return cls(numbers, train, valid, numbers.encode_atoms(tuple(sorted(handler.known))))

    @property
    def digest(self) -> str:
        """Changes with the names and the triples."""
        names = "\n".join((*self.index_manager.predicates, "", *self.index_manager.constants))
        return hashlib.sha256(names.encode() + self.train.tobytes() + self.valid.tobytes()).hexdigest()[:16]


@dataclasses.dataclass(frozen=True)
class KGEProgress:
    """How far a training is, for a display."""

    epoch: int
    num_epochs: int
    seconds: float
    loss: float
    best_mrr_100: float | None
    """On validation queries, against 100 candidates; None before the first evaluation."""


@dataclasses.dataclass(frozen=True)
class KGEOutcome:
    """How a training ended."""

    run: Path
    epoch: int
    interrupted: bool
    seconds: float
    best: KGE
    """The embedding that did best on the validation queries, calibrated on them."""
    best_epoch: int
    validation: Validation
    """The best embedding's."""
    learner: KGELearner
    """As the last epoch left it."""


Show = Callable[[KGEProgress], None]


def train_kge(
    config: KGETrainingConfig,
    folder: Path,
    *,
    resume: bool = False,
    handlers: runs.MakeHandlers = runs.files_only,
    show: Show = lambda progress: None,
    data: KGEData | None = None,
) -> KGEOutcome:
    """Train to the end, or until Ctrl-C, which saves and stops; a second Ctrl-C stops at once.

    A new run refuses a folder that holds something; `resume` goes on from the newest checkpoint, to the same
    numbers as a run that was never interrupted. The best embedding is in the folder's `kge`.
    """
    data = KGEData.read(config.dataset) if data is None else data
    numbers = data.index_manager
    trainer = KGETrainer(config.kge, data.train, numbers.num_predicates, numbers.num_constants)
    standing = _Standing.start(trainer)
    if resume:
        runs.check_same_config(folder, runs.read_config(folder, KGETrainingConfig), config)
    else:
        size = {"num_parameters": count_parameters(standing.learner.kge.model)}
        runs.create_run(folder, config, {"kind": KIND, **size, "num_triples": len(trainer.examples)})
    with Checkpoints(folder, keep=config.checkpoint.keep) as checkpoints, contextlib.ExitStack() as stack:
        if resume:
            standing = _restore(checkpoints, folder, config, data, standing)
        logger = stack.enter_context(ExperimentLogger(config.logging, handlers(folder, config)))
        wanted = stack.enter_context(stop_on_interrupt())
        return _Run(config, folder, data, trainer, checkpoints, logger, show, standing).go(wanted)


@dataclasses.dataclass
class _Standing:
    """Where a training stands: the last embedding, the best, and how good that is."""

    learner: KGELearner
    best: PyTree
    best_epoch: int = 0
    validation: Validation | None = None
    seconds: float = 0.0

    @classmethod
    def start(cls, trainer: KGETrainer) -> "_Standing":
        learner = trainer.start()
        return cls(learner, _copy(learner.kge))

    def arrays(self) -> dict[str, PyTree]:
        """What a checkpoint holds."""
        return {"learner": self.learner, "best": self.best}


@dataclasses.dataclass
class _Run:
    config: KGETrainingConfig
    folder: Path
    data: KGEData
    trainer: KGETrainer
    checkpoints: Checkpoints
    logger: ExperimentLogger
    show: Show
    standing: _Standing

    def go(self, wanted: Stop) -> KGEOutcome:
        config, standing = self.config, self.standing
        epochs, epoch = config.kge.epochs, int(standing.learner.epoch)
        while epoch < epochs and not wanted.asked:
            began = time.perf_counter()
            standing.learner, mean_loss = self.trainer.run_epoch(standing.learner)
            loss = float(mean_loss)
            lasted = time.perf_counter() - began
            standing.seconds += lasted
            epoch += 1
            due = epoch == epochs or epoch % config.evaluation.every == 0
            figures = self._evaluate(epoch) if due else {}
            rate = len(self.trainer.examples) / lasted
            self.logger.log_batch_step(
                {
                    "update_step": epoch,
                    "loss": loss,
                    **figures,
                    "triples_per_second": rate,
                    "seconds": standing.seconds,
                }
            )
            best = standing.validation
            self.show(KGEProgress(epoch, epochs, standing.seconds, loss, best.mrr_100 if best else None))
            if epoch < epochs and epoch % config.checkpoint.every == 0:
                self._save(epoch, "running")
        self._save(epoch, "finished" if epoch == epochs else "interrupted")
        if standing.validation is None:
            # After saving: the run that goes on from here must not know what was measured out of turn.
            self._evaluate(epoch)
        return self._finish(epoch)

    def _evaluate(self, epoch: int) -> dict[str, float]:
        """The figures of an epoch; the best embedding so far is kept."""
        standing = self.standing
        kge, data = standing.learner.kge, self.data
        figures = validate(kge, data.valid, data.known, self.config.evaluation.max_queries)
        if standing.validation is None or figures.mrr_100 > standing.validation.mrr_100:
            standing.best, standing.best_epoch, standing.validation = _copy(kge), epoch, figures
        line = {"split": "valid", "mode": "kge", **figures._asdict(), "timestamp": time.time(), "step": epoch}
        with (
            reported("an evaluation could not be written"),
            contextlib.closing(LineFile(self.folder / runs.EVALUATIONS)) as file,
        ):
            file.write_line(as_json(line))
        return figures._asdict()

    def _save(self, epoch: int, status: str) -> None:
        standing, best = self.standing, self.standing.validation
        facts = {
            "epoch": epoch,
            "seconds": standing.seconds,
            "best_epoch": standing.best_epoch,
            "validation": None if best is None else list(best),
            "config": config_digest(self.config),
            "data": self.data.digest,
        }
        with reported(f"checkpoint {epoch} could not be saved"):
            self.checkpoints.save(epoch, standing.arrays(), facts)
        about: dict[str, Any] = {"updates": epoch, "seconds": standing.seconds, "status": status}
        if best is not None:
            about |= {"best_epoch": standing.best_epoch, **best._asdict()}
        with reported(f"{runs.FACTS} could not be written"):
            runs.write_facts(self.folder, about)

    def _finish(self, epoch: int) -> KGEOutcome:
        standing, data, config = self.standing, self.data, self.config
        assert standing.validation is not None
        best = calibrated(standing.best, data.valid, data.known, config.kge.seed)
        facts = {
            "dataset": config.dataset,
            "epoch": standing.best_epoch,
            "seconds": round(standing.seconds, 1),
            **standing.validation._asdict(),
        }
        with reported(f"the embedding could not be written to {self.folder / MODEL}"):
            save_kge(self.folder / MODEL, best, config.kge, data.index_manager, facts)
        return KGEOutcome(
            self.folder,
            epoch,
            epoch < config.kge.epochs,
            standing.seconds,
            best,
            standing.best_epoch,
            standing.validation,
            standing.learner,
        )


def _copy(kge: KGE) -> KGE:
    """Arrays of its own: the next epoch uses up those that it is given."""
    return jax.tree.map(jnp.copy, kge)


def _restore(
    checkpoints: Checkpoints, folder: Path, config: KGETrainingConfig, data: KGEData, like: _Standing
) -> _Standing:
    step, facts = newest_checkpoint(checkpoints, folder, config)
    if facts["data"] != data.digest:
        raise ValueError(f"{config.dataset} has changed since checkpoint {step} of {folder} was saved")
    # Orbax ties arrays to a device, and an epoch would be compiled again for such.
    restored = checkpoints.restore(step, like.arrays())
    arrays = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)), restored)
    found = facts["validation"]
    return _Standing(
        arrays["learner"],
        arrays["best"],
        int(facts["best_epoch"]),
        None if found is None else Validation(*found),
        float(facts["seconds"]),
    )

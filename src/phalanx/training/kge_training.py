"""Training a knowledge-graph embedding: its config, its data, and the best epoch by validation.

The models and what an epoch does are in `phalanx.kg.kge`; the run around the epochs is `phalanx.training`'.
"""

import hashlib
import math
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from pydantic import Field

from phalanx.core.environment import Key
from phalanx.core.evaluation import EvaluationConfig
from phalanx.kg.evaluation import (
    KnownAnswers,
    count_ranks,
    expected_sampled_mrr,
    mean_reciprocal_rank,
    select_evenly,
)
from phalanx.kg.kge.embedding import KGE, RUN_FOLDER as MODEL, calibrate, save_kge
from phalanx.kg.knowledge_base import GENERATED, KnowledgeBase
from phalanx.kg.vocabulary import Vocabulary
from phalanx.logging.config import LoggingConfig
from phalanx.training.algorithm import Algorithm, TrainResult, TrainState, UpdateResult
from phalanx.training.config import CheckpointConfig, RunConfig
from phalanx.training.kge import KGEConfig, KGETrainer, KGETrainState
from phalanx.training.run import count_parameters


class Validation(NamedTuple):
    """Filtered mean reciprocal ranks of the validation queries, ties `realistic`."""

    mrr: float
    """Among all entities."""
    mrr_100: float
    """Among 100 random entities: the expectation over all samples."""


class KGEEvaluationConfig(EvaluationConfig):
    """When an embedding is measured on validation queries; the best one is kept."""

    every: int = Field(default=10, ge=1)
    """Epochs between evaluations; the last epoch is always evaluated."""
    max_queries: int = Field(default=1000, ge=1)
    """Validation queries that are ranked at most."""


class KGETrainingConfig(RunConfig):
    """Everything that shapes the training of an embedding."""

    preset_group = "train/kge"

    dataset: str = GENERATED
    """The folder of a knowledge base; `generated` for the built-in one."""
    kge: KGEConfig = KGEConfig()
    """The model and how it learns."""
    evaluation: KGEEvaluationConfig = KGEEvaluationConfig()
    """How it is measured."""
    checkpoint: CheckpointConfig = CheckpointConfig(every=20, keep=1)
    """When it is saved, in epochs."""
    logging: LoggingConfig = LoggingConfig(log_frequency=1, sample_frequency=0)
    """What is written of it."""


load_kge_training = KGETrainingConfig.load
"""A config: the defaults, then a preset, then overrides."""


class KGEData(NamedTuple):
    """A knowledge base as the training of an embedding sees it: (relation, head, tail) triples."""

    vocabulary: Vocabulary
    train: np.ndarray
    """int32 [triples, 3]."""
    valid: np.ndarray
    """Queries to choose the best epoch by; held out of the training triples where there are none."""
    known: np.ndarray
    """All that is true by any split: no wrong answer in an evaluation. Training does not see it."""

    @classmethod
    def read(cls, dataset: str) -> "KGEData":
        """From a folder, or the built-in knowledge base; facts that leak queries are left out."""
        base = KnowledgeBase.load(dataset, on_leak="drop").binary().with_validation()
        return cls(base.vocabulary, base.triples("train"), base.triples("valid"), base.known_triples)

    @property
    def digest(self) -> str:
        """Changes with the names and the triples."""
        names = "\n".join((*self.vocabulary.predicates, "", *self.vocabulary.entities))
        return hashlib.sha256(names.encode() + self.train.tobytes() + self.valid.tobytes()).hexdigest()[:16]


class Best(NamedTuple):
    """The embedding that did best on the validation queries so far."""

    kge: KGE
    epoch: Any
    mrr: Any
    """NaN before the first evaluation."""
    mrr_100: Any

    @classmethod
    def of(cls, kge: KGE, epoch: int, figures: Validation) -> "Best":
        """Arrays of its own: the next epoch uses up those that it is given. Figures keep all their digits."""
        numbers = (np.asarray(epoch, np.int64), *(np.asarray(figure, np.float64) for figure in figures))
        return cls(jax.tree.map(jnp.copy, kge), *numbers)

    @property
    def figures(self) -> dict[str, Any]:
        """Of the evaluation that made it the best; none before there was one."""
        if math.isnan(self.mrr_100):
            return {}
        return {"best_epoch": int(self.epoch), "mrr": float(self.mrr), "mrr_100": float(self.mrr_100)}


class KGEState(TrainState):
    """The newest embedding, its optimizer state and step, and the best embedding so far."""

    best: Best


class KGETraining(Algorithm[KGEState]):
    """An embedding; the data are read and checked here. The best one is written to the run's `kge`."""

    name = "kge"
    config_type = KGETrainingConfig
    unit = "triples"
    num_updates_setting = "kge.epochs"
    headline = ("loss", "mrr_100")

    def __init__(self, config: KGETrainingConfig, data: KGEData | None = None) -> None:
        super().__init__(config)
        self.data = KGEData.read(config.dataset) if data is None else data
        numbers = self.data.vocabulary
        self._trainer = KGETrainer(config.kge, self.data.train, numbers.num_predicates, numbers.num_entities)
        self._measured: Validation | None = None
        self.result: Best | None = None
        """What `export` wrote, calibrated on the validation queries."""

    @property
    def seed(self) -> int:
        return self.config.kge.seed

    def init(self, key: Key, params: KGE | None = None) -> KGEState:
        """The seed in the config decides, not the key."""
        state = self._trainer.start(params)
        best = Best.of(state.params, 0, Validation(math.nan, math.nan))
        return KGEState(state.params, state.opt_state, state.step, best)

    def update(self, state: KGEState) -> tuple[KGEState, UpdateResult]:
        """One epoch, and the evaluation that is due after it."""
        trained, loss = self._trainer.run_epoch(KGETrainState(state.params, state.opt_state, state.step))
        epoch, best = int(trained.step), state.best
        metrics: dict[str, Any] = {"loss": loss}
        self._measured = None
        if epoch == self.num_updates or epoch % self.config.evaluation.every == 0:
            self._measured = self._validate(trained.params)
            metrics |= self._measured._asdict()
            if not self._measured.mrr_100 <= best.mrr_100:
                best = Best.of(trained.params, epoch, self._measured)
        counts = {"triples": len(self._trainer.examples)}
        return KGEState(trained.params, trained.opt_state, trained.step, best), UpdateResult(
            metrics, counts=counts
        )

    def policy(self, state: KGEState) -> KGE:
        """The best embedding so far."""
        return state.best.kge

    def evaluate(self, state: KGEState, update: int, final: bool) -> list[dict[str, Any]]:
        """What the update has just measured."""
        if self._measured is None:
            return []
        return [{"split": "valid", "mode": "kge", **self._measured._asdict()}]

    def metadata(self, state: KGEState) -> dict[str, Any]:
        sizes = {"num_parameters": count_parameters(state.params.model)}
        return {**sizes, "num_triples": len(self._trainer.examples), **state.best.figures}

    def data_fingerprint(self) -> str:
        return self.data.digest

    def export(self, state: KGEState, folder: Path) -> None:
        best, data, config = state.best, self.data, self.config
        if not best.figures:
            # Not in the checkpoint: the run that goes on must not know what was measured out of turn.
            kge = state.params
            best = Best.of(kge, int(state.step), self._validate(kge))
        self.result = best._replace(kge=calibrate(best.kge, data.valid, data.known, config.kge.seed))
        figures = {"mrr": float(best.mrr), "mrr_100": float(best.mrr_100)}
        facts = {"dataset": config.dataset, "epoch": int(best.epoch), **figures}
        save_kge(folder / MODEL, self.result.kge, config.kge.model_settings, data.vocabulary, facts)

    def summarize(self, result: TrainResult) -> list[str]:
        best = self.result
        if best is None:
            return []
        return [
            f"Validation MRR, filtered: {best.mrr_100:.4f} against 100 candidates, {best.mrr:.4f} against "
            f"all entities (epoch {best.epoch}, the best); embedding {result.run_dir / MODEL}"
        ]

    def _validate(self, kge: KGE) -> Validation:
        queries = select_evenly(self.data.valid, self.config.evaluation.max_queries)
        counts = count_ranks(kge, queries, KnownAnswers(self.data.known, kge.num_entities))
        return Validation(mean_reciprocal_rank(counts, "realistic"), expected_sampled_mrr(counts, 100))

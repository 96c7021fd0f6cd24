"""Training a language model: batches from a source, and the loss on held-out samples.

What an update is, is in `update`; where batches come from, in `batches` and `sources`.
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from phalanx.core.environment import Key
from phalanx.data.collation import collate
from phalanx.data.packing import PackingConfig
from phalanx.data.plans.batch_plan import BatchPlanBuilder
from phalanx.data.samples import Sample
from phalanx.lm.episodes.opening import local_source
from phalanx.lm.evaluation import evaluation_records, sampled_conversations
from phalanx.lm.flops import measured_peak_flops, train_flops
from phalanx.lm.model import LanguageModel
from phalanx.lm.playing import LMPolicy
from phalanx.lm.tasks import PromptTokenizer
from phalanx.training.algorithm import Algorithm, TrainResult, UpdateResult
from phalanx.training.checkpoints import Which, check_metadata, open_checkpoint
from phalanx.training.lm.batches import BatchSource, TokenArrays, token_arrays
from phalanx.training.lm.config import LMTrainingConfig
from phalanx.training.lm.sources import open_source, played_name
from phalanx.training.lm.update import LMTrainer, SFTState
from phalanx.training.run_dir import read_config


class LMTraining(Algorithm[SFTState]):
    """A language model and the source of its batches, which the config names unless one is given."""

    name = "lm"
    config_type = LMTrainingConfig
    unit = "real_tokens"
    num_updates_setting = "optimizer.num_updates"
    headline = ("loss",)

    def __init__(self, config: LMTrainingConfig, source: BatchSource | None = None) -> None:
        self.source = open_source(config) if source is None else source
        updates = config.optimizer.num_updates
        if self.source.num_batches is not None:
            updates = min(updates, -(-self.source.num_batches // config.optimizer.accumulate))
        super().__init__(config)
        self.num_updates = updates
        optimizer = config.optimizer.model_copy(update={"num_updates": updates})
        self._trainer = LMTrainer(config.model, optimizer)
        self._held_out = held_out_batches(self.source.held_out, config)
        self._prompter, played = PromptTokenizer(config.data.tokenizer), played_name(config.data)
        self._played = None
        """What it learns to answer, where that is something to play."""
        if played:
            self._played = local_source(played, self._prompter, compact=config.data.compact)
        self._peak = measured_peak_flops(config.model.dtype)

    def init(self, key: Key, params: PyTree | None = None) -> SFTState:
        return self._trainer.start(key, params)

    def with_seed(self, seed: int) -> "LMTraining":
        return type(self)(self.config.model_copy(update={"seed": seed}))

    def update(self, state: SFTState) -> tuple[SFTState, UpdateResult]:
        """One step on the next batch; a source that has ended stops the training."""
        taken = (self.source.next() for _ in range(self.config.optimizer.accumulate))
        batches = [batch for batch in taken if batch is not None]
        if not batches:
            raise StopIteration
        began = time.perf_counter()
        state, metrics = self._trainer.update_on(state, batches)
        jax.block_until_ready(metrics["loss"])
        flops = sum(train_flops(self.config.model, np.asarray(batch.segment_ids)) for batch in batches)
        share = flops / (time.perf_counter() - began) / self._peak
        counts = {
            "real_tokens": sum(batch.real_tokens for batch in batches),
            "padded_tokens": sum(batch.padded_tokens for batch in batches),
        }
        return state, UpdateResult({**metrics, "peak_share": share}, counts=counts)

    def policy(self, state: SFTState) -> LanguageModel:
        """The model."""
        return self._trainer.model(state)

    def evaluate(self, state: SFTState, update: int, final: bool) -> list[dict[str, Any]]:
        """The loss on held-out samples, where there are any; and puzzles played, where they are learned."""
        settings = self.config.evaluation
        played = evaluation_records(self._player(state), self._played, settings.puzzles)
        return [*self._measured(state), *played]

    def sample_episodes(self, state: SFTState, key: Key, update: int) -> list[dict[str, Any]]:
        """A puzzle of each kind, where puzzles are learned, and what the model said."""
        return sampled_conversations(self._player(state), self._played, update)

    def _player(self, state: SFTState) -> LMPolicy:
        return LMPolicy(self.policy(state), self._prompter)

    def _measured(self, state: SFTState) -> list[dict[str, Any]]:
        if not self._held_out:
            return []
        found = [self._trainer.measure(state, batch) for batch in self._held_out]
        weights = np.array([float(one.tokens) for one in found])
        total = max(weights.sum(), 1.0)
        return [
            {
                "split": "held-out",
                "mode": "next token",
                "loss": float(np.dot(weights, [float(one.loss) for one in found]) / total),
                "token_accuracy": float(np.dot(weights, [float(one.accuracy) for one in found]) / total),
            }
        ]

    def data_fingerprint(self) -> str:
        return self.source.fingerprint

    def save_host_state(self, folder: Path, update: int, kept: Sequence[int]) -> dict[str, Any]:
        """Where the source stands."""
        return self.source.save(folder, update, min(kept, default=update))

    def restore_host_state(self, folder: Path, saved: Mapping[str, Any]) -> None:
        self.source.restore(folder, saved)

    def summarize(self, result: TrainResult) -> list[str]:
        padding = 1 - result.counts.get("real_tokens", 0) / max(result.counts.get("padded_tokens", 0), 1)
        told = f"{padding:.1%} of the batches was padding"
        if not result.evaluations:
            return [*super().summarize(result), told.capitalize()]
        measured = [line for line in result.evaluations if line["mode"] == "next token"]
        if not measured:
            return [*super().summarize(result), told.capitalize()]
        first, last = measured[0], measured[-1]
        return [
            f"Loss on held-out samples: {first['loss']:.3f} at update {first['step']}, {last['loss']:.3f} at "
            f"{last['step']}; {last['token_accuracy']:.1%} of the tokens that count are right; {told}"
        ]


def load_language_model(run: str | Path, which: Which = "newest") -> tuple[LMTrainingConfig, LanguageModel]:
    """A run's config and the model of its newest checkpoint, or another; its source is not opened."""
    config = read_config(run, LMTrainingConfig)
    trainer = LMTrainer(config.model, config.optimizer)
    with open_checkpoint(Path(run), which) as (checkpoints, step, facts):
        check_metadata(Path(run), step, facts, config)
        learner = checkpoints.restore(step, trainer.start(jax.random.key(config.seed)))
    return config, trainer.model(learner)


def held_out_batches(samples: Sequence[Sample], config: LMTrainingConfig) -> list[TokenArrays]:
    """Samples packed as the training's are; those that are too long are left out."""
    data = config.data
    kept = {sample.sample_id: sample for sample in samples if sample.length <= data.max_length}
    if not kept:
        return []
    lengths = {name: sample.length for name, sample in kept.items()}
    packing = PackingConfig(max_length=data.max_length)
    batching = data.batching(config.seed)
    plan = BatchPlanBuilder(lengths, batching, packing=packing).build()
    budget = batching.token_budget
    return [token_arrays(collate(spec, kept), budget) for spec in plan.iter_epoch(0)]

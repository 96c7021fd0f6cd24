"""The settings of a language model's training: its data, its optimizer, and the run around them.

The model's own are in `model`.
"""

from typing import Literal

import jax
import optax  # type: ignore[import-untyped]
from jaxtyping import PyTree
from optax.contrib import MuonDimensionNumbers, muon  # type: ignore[import-untyped]
from pydantic import Field

from phalanx.config import Config
from phalanx.data.packing import PackingConfig
from phalanx.data.plans.batching_config import BatchingConfig
from phalanx.lm.model import LanguageModelConfig
from phalanx.logging.config import LoggingConfig
from phalanx.training.config import CheckpointConfig, EvaluationConfig, RunConfig


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
    environment: str = "arc"
    """`arc`, `proofs`, or puzzles by name, as `sudoku,sokoban:easy:multi`; `puzzles` are all kinds."""
    play: Literal["solver", "random"] = "solver"
    """Whose answers are learned: a solver's, or random legal ones."""
    turns: Literal["single", "multi"] = "single"
    """Whether a puzzle is answered as a whole or move by move, where its name does not say."""
    compact: bool = True
    """Whether puzzles are asked in few characters and without rules, for small models."""
    wander: float = Field(default=0.0, ge=0, le=1)
    """Share of the moves that are random and not learned from, so that a model sees boards off the way."""
    shares: str = ""
    """Samples of a kind for each one of those that are not named, as `hitori=2,sokoban=2`."""
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
        return BatchingConfig.predictable(
            token_budget=max(self.token_budget, self.max_length),
            bucket_edges=edges,
            overflow_max=self.max_length,
            seed=seed,
        )

    def packing(self) -> PackingConfig | None:
        """None where every sample has a row of its own."""
        return PackingConfig(max_length=self.max_length) if self.packed else None


class OptimizerConfig(Config):
    """How a language model learns."""

    method: Literal["adamw", "muon"] = "adamw"
    """Muon (Jordan et al. 2024) orthogonalizes the steps of the blocks' matrices; the rest moves by AdamW."""
    num_updates: int = Field(default=300, ge=1)
    """Updates in all; fewer where a plan has fewer batches."""
    learning_rate: float = Field(default=2e-3, gt=0)
    """The highest, reached after the warm-up."""
    warmup: int = Field(default=20, ge=0)
    """Updates over which it rises."""
    learning_rate_end: float = Field(default=1e-4, ge=0)
    """What it falls to."""
    fall: Literal["cosine", "linear", "constant"] = "cosine"
    """How it falls, if it does."""
    accumulate: int = Field(default=1, ge=1)
    """Batches of an update: it moves as it would on one batch with all their rows."""
    weight_decay: float = Field(default=0.01, ge=0)
    """Pulls matrices, but not scales and biases, toward zero."""
    clip: float = Field(default=1.0, gt=0)
    """The greatest norm of a gradient."""

    def schedule(self) -> optax.Schedule:
        """The learning rate by update."""
        warmup = min(self.warmup, self.num_updates - 1)
        top, end, rest = self.learning_rate, self.learning_rate_end, self.num_updates - warmup
        falls = {
            "cosine": lambda: optax.cosine_decay_schedule(top, rest, end / top),
            "linear": lambda: optax.linear_schedule(top, end, rest),
            "constant": lambda: optax.constant_schedule(top),
        }
        rise = optax.linear_schedule(top / max(self.warmup, 1), top, warmup)
        return optax.join_schedules([rise, falls[self.fall]()], [warmup])

    def optimizer(self) -> optax.GradientTransformation:
        """AdamW or Muon, with clipping."""

        def matrices(parameters: PyTree) -> PyTree:
            return jax.tree.map(lambda leaf: leaf.ndim > 1, parameters)

        if self.method == "muon":
            moves = muon(
                self.schedule(),
                adam_b2=0.98,
                weight_decay=self.weight_decay,
                weight_decay_mask=matrices,
                adam_weight_decay=self.weight_decay,
                muon_weight_dimension_numbers=_stacked_matrices,
                # Steps as large as AdamW's, so that learning rates mean the same.
                consistent_rms=0.2,
            )
        else:
            moves = optax.adamw(self.schedule(), b2=0.98, weight_decay=self.weight_decay, mask=matrices)
        return optax.chain(optax.clip_by_global_norm(self.clip), moves)


def _stacked_matrices(parameters: PyTree) -> PyTree:
    """Which axes of an array are a matrix's: the last two of the blocks', whose first is the depth."""
    return jax.tree.map(lambda leaf: MuonDimensionNumbers(1, 2) if leaf.ndim == 3 else None, parameters)


class LMEvaluationConfig(EvaluationConfig):
    """When a language model is measured on held-out samples, and plays."""

    every: int = Field(default=50, ge=0)
    """Updates between evaluations; 0 for none but the first and the last."""
    puzzles: int = Field(default=20, ge=0)
    """Puzzles of each kind that it plays then, none of them to learn from; where it learns puzzles."""


class LMTrainingConfig(RunConfig):
    """Everything that shapes the training of a language model."""

    preset_group = "train/lm"

    seed: int = Field(default=0, ge=0)
    """Of the model, the order of the samples and the episodes."""
    model: LanguageModelConfig = LanguageModelConfig()
    """Its size."""
    data: LMDataConfig = LMDataConfig()
    """What it reads."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """How it learns."""
    evaluation: LMEvaluationConfig = LMEvaluationConfig()
    """When it is measured on held-out samples."""
    checkpoint: CheckpointConfig = CheckpointConfig(every=100)
    """When it is saved."""
    logging: LoggingConfig = LoggingConfig(
        batched_logging_enabled=True, sampling_enabled=False, log_frequency=1
    )
    """What is written of it."""


load_lm_training = LMTrainingConfig.load
"""A config: the defaults, then a preset, then overrides."""

"""The settings of cloning.

What they do is in `training`; whom a policy learns from is in `expert` and `episode_files`.
"""

from pathlib import Path
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int32
from pydantic import Field

from phalanx.arc.config import ArcConfig
from phalanx.arc.datasets import GENERATED
from phalanx.arc.networks.stem_and_heads import ArcNetworkConfig
from phalanx.arc.operations import NUM_OPERATIONS, Operation
from phalanx.config import Config
from phalanx.training.arc_training import ArcEvaluationConfig
from phalanx.training.config import RunConfig


class CloningConfig(Config):
    """How a policy learns from what an expert does in the states that it reaches itself (DAgger)."""

    episodes: Path | None = None
    """A `.jsonl` file of episodes, as `phalanx play arc --out` writes it, to learn from in the planner's
    place."""
    num_updates: int = Field(default=100, ge=1)
    """Updates in the whole training."""
    fresh_tasks: int = Field(default=128, ge=1)
    """Tasks in each update: new ones where they are generated, drawn from the data set where they are not."""
    augment: bool = False
    """Whether tasks of a data set come turned, mirrored and recolored, drawn anew in every update."""
    num_envs: int = Field(default=256, ge=1)
    """Episodes that are played side by side."""
    num_steps: int = Field(default=8, ge=1)
    """Steps of each of them in one update; each is labeled with what the expert would do."""
    epochs: int = Field(default=2, ge=1)
    """How many times an update goes through its steps."""
    minibatch: int = Field(default=256, ge=1)
    """Steps in a gradient step, at most."""
    expert_share: float = Field(default=1.0, ge=0, le=1)
    """The share of steps that the expert carries out itself at the start; the policy does the rest."""
    expert_share_end: float = Field(default=0.1, ge=0, le=1)
    """That share from `expert_until` on; 1 at both ends is plain cloning."""
    expert_until: float = Field(default=0.2, ge=0, le=1)
    """The part of the training over which the share goes linearly from one to the other."""
    learning_rate: float = Field(default=3e-3, gt=0)
    """Adam's step at the start."""
    learning_rate_end: float = Field(default=1e-4, ge=0)
    """Adam's step at the end; it goes there along a cosine."""
    max_gradient_norm: float = Field(default=1.0, gt=0)
    """Gradients are scaled down to this length."""

    @property
    def steps_per_update(self) -> int:
        """Labeled steps in one update."""
        return self.num_envs * self.num_steps

    def expert_share_at(self, update: int) -> float:
        """The share of steps that the expert carries out in an update, counted from 0."""
        progress = min(1.0, update / (self.expert_until * self.num_updates)) if self.expert_until else 1.0
        return self.expert_share + (self.expert_share_end - self.expert_share) * progress

    def learning_rate_at(self, update: Int32[Array, ""]) -> Float[Array, ""]:
        """Adam's step in an update, counted from 0."""
        cosine = 0.5 + 0.5 * jnp.cos(jnp.pi * jnp.clip(update / self.num_updates, 0.0, 1.0))
        return self.learning_rate_end + (self.learning_rate - self.learning_rate_end) * cosine


class CloningTrainingConfig(RunConfig):
    """Everything that shapes a training by cloning; the tasks' own seed is `arc.dataset.seed`."""

    preset_group = "train/bc"

    seed: int = 0
    """Of the network, the tasks' order, the episodes and the shuffling."""
    arc: ArcConfig = ArcConfig()
    """The environment and its tasks."""
    network: ArcNetworkConfig = ArcNetworkConfig()
    """What acts."""
    cloning: CloningConfig = CloningConfig()
    """How it learns."""
    evaluation: ArcEvaluationConfig = ArcEvaluationConfig()
    """How it is measured."""

    def model_post_init(self, context: Any) -> None:
        """A policy that cannot hand its grid in would learn to solve nothing."""
        allowed = self.arc.action.allowed_operations or range(NUM_OPERATIONS)
        if Operation.SUBMIT not in allowed:
            raise ValueError("a cloned policy hands its grid in: add 34 to arc.action.allowed_operations")
        if self.cloning.augment and self.arc.dataset.source == GENERATED:
            raise ValueError("generated tasks are new in every update: leave cloning.augment out")
        if self.cloning.augment and self.arc.grid_shape[0] != self.arc.grid_shape[1]:
            raise ValueError("tasks are turned by cloning.augment, so the canvas must be square")


load_cloning = CloningTrainingConfig.load
"""A config: the preset `default` unless another is named, then overrides."""

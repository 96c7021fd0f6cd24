"""Training on ARC: its config, and how environment, network, evaluation and pictures are put together.

What every training with PPO has is in `ppo.training`; the commands are in `phalanx.cli`.
"""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import jax
from pydantic import Field

from phalanx.arc.config import ArcConfig
from phalanx.arc.env import ArcEnvironment
from phalanx.arc.evaluation import ArcEvaluationConfig
from phalanx.arc.networks import create_network
from phalanx.arc.networks.stem_and_heads import ArcNetworkConfig
from phalanx.training.bc import BC, BCConfig, BCState
from phalanx.training.checkpoints import Which
from phalanx.training.config import RunConfig
from phalanx.training.distributed import DeviceMesh
from phalanx.training.loading import initial_policy, restore_policy
from phalanx.training.ppo import PPO, PPOState, PPOTrainingConfig
from phalanx.training.run_dir import read_config, read_metadata


class ArcTrainingConfig(PPOTrainingConfig):
    """Everything that shapes a training on ARC; the tasks' own seed is `arc.dataset.seed`."""

    preset_group = "train/arc"

    arc: ArcConfig = ArcConfig()
    """The environment and its tasks."""
    network: ArcNetworkConfig = ArcNetworkConfig()
    """What acts."""
    evaluation: ArcEvaluationConfig = ArcEvaluationConfig()
    """How it is measured."""


load_arc_training = ArcTrainingConfig.load
"""A config: the preset `default` unless another is named, then overrides."""


class ArcTraining(PPO):
    """PPO on ARC tasks; they are read and checked here."""

    name = "arc"
    config_type = ArcTrainingConfig
    score_name = "Success rate on held-out tasks"

    def __init__(self, config: ArcTrainingConfig, *, mesh: DeviceMesh | None = None) -> None:
        super().__init__(
            config,
            ArcEnvironment.create(config.arc),
            functools.partial(create_network, config.network, config.arc),
            max_episode_steps=config.arc.episode.max_episode_steps,
            mesh=mesh,
        )
        self.environment.held_out(config.evaluation)  # fails now if the tasks do not exist

    def evaluate(self, state: PPOState, update: int, final: bool) -> list[dict[str, Any]]:
        results = self.environment.evaluate(self.policy(state), self.config.evaluation, final)
        return [result.as_record() for result in results]

    def metadata(self, state: PPOState) -> dict[str, Any]:
        return self.environment.metadata()

    def data_fingerprint(self) -> str:
        return self.environment.fingerprint()

    def export(self, state: PPOState, folder: Path) -> None:
        self.environment.export_policy(self.policy(state), folder, self.config.evaluation)


class CloningTrainingConfig(RunConfig):
    """Everything that shapes a training by cloning; the tasks' own seed is `arc.dataset.seed`."""

    preset_group = "train/bc"
    renamed_settings: ClassVar[Mapping[str, str]] = {
        "cloning.fresh_tasks": "arc.dataset.tasks_per_update",
        "cloning.augment": "arc.dataset.augment",
    }

    seed: int = 0
    """Of the network, the tasks' order, the episodes and the shuffling."""
    num_seeds: int = Field(default=1, ge=1)
    """Number of runs, with the seeds `seed`, `seed + 1`, ..."""
    arc: ArcConfig = ArcConfig()
    """The environment and its tasks."""
    network: ArcNetworkConfig = ArcNetworkConfig()
    """What acts."""
    cloning: BCConfig = BCConfig()
    """How it learns."""
    evaluation: ArcEvaluationConfig = ArcEvaluationConfig()
    """How it is measured."""


load_cloning = CloningTrainingConfig.load
"""A config: the preset `default` unless another is named, then overrides."""


class CloningTraining(BC):
    """Behavior cloning on ARC tasks."""

    config_type = CloningTrainingConfig
    score_name = "Success rate on held-out tasks"

    def __init__(self, config: CloningTrainingConfig) -> None:
        # An agent submits: neither training nor evaluation ends an episode because its grid is correct.
        episode = config.arc.episode.model_copy(update={"require_submit": True, "mode": "training"})
        self.arc = config.arc.model_copy(update={"episode": episode})
        super().__init__(
            config,
            ArcEnvironment.create(self.arc),
            functools.partial(create_network, config.network, self.arc),
            max_episode_steps=self.arc.episode.max_episode_steps,
            mesh=DeviceMesh(jax.devices()[:1]),
        )
        self.environment.held_out(config.evaluation)  # fails now if the tasks do not exist

    def evaluate(self, state: BCState, update: int, final: bool) -> list[dict[str, Any]]:
        results = self.environment.evaluate(self.policy(state), self.config.evaluation, final)
        return [result.as_record() for result in results]

    def data_fingerprint(self) -> str:
        recorded = "" if self.recorded is None else self.recorded.fingerprint
        return self.environment.fingerprint() + recorded

    def export(self, state: BCState, folder: Path) -> None:
        self.environment.export_policy(self.policy(state), folder, self.config.evaluation)


def arc_training_of(run: Path) -> Any:
    """The algorithm of a run of `train arc` or `train bc`, with its config."""
    if read_metadata(run).get("algorithm") == CloningTraining.name:
        return CloningTraining(read_config(run, CloningTraining.config_type))
    return ArcTraining(read_config(run, ArcTrainingConfig), mesh=DeviceMesh(jax.devices()[:1]))


def load_arc_policy(run: Path, which: Which = "newest", *, untrained: bool = False) -> tuple[Any, Any]:
    """The config of a run on ARC, and the network of a checkpoint or the untrained one."""
    training = arc_training_of(run)
    if untrained:
        return training.config, initial_policy(training)
    return training.config, restore_policy(training, run, which)

"""Training on ARC: its config, and how environment, network, evaluation and pictures are put together.

What every training with PPO has is in `ppo.training`; the commands are in `phalanx.cli`.
"""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

import jax
from pydantic import Field

from phalanx.arc.browser.export import export_agent
from phalanx.arc.config import ArcConfig
from phalanx.arc.datasets import GENERATED
from phalanx.arc.env import ArcEnvironment
from phalanx.arc.evaluation import ArcResult, copy_solves, evaluate_arc
from phalanx.arc.networks import create_network
from phalanx.arc.networks.stem_and_heads import ArcNetworkConfig
from phalanx.arc.pair_dataset import canvas_note
from phalanx.arc.task_files import load_tasks
from phalanx.core.evaluation import EvaluationConfig
from phalanx.training.algorithm import TrainResult
from phalanx.training.bc import BC, BCConfig, BCState
from phalanx.training.checkpoints import Which
from phalanx.training.config import RunConfig
from phalanx.training.distributed import DeviceMesh
from phalanx.training.loading import initial_policy, restore_policy
from phalanx.training.ppo import PPO, PPOState, PPOTrainingConfig
from phalanx.training.run_dir import read_config, read_metadata


class ArcEvaluationConfig(EvaluationConfig):
    """On which tasks a policy is measured, and when."""

    split: str = "evaluation"
    """The split of `arc.dataset.source` that is held out; generated ones have other seeds there."""
    num_tasks: int = Field(default=200, ge=1)
    """How many tasks to generate, for the generated source."""
    attempts: int = Field(default=8, ge=0)
    """Sampled attempts at each pair in the last evaluation, for pass@k; 0 for none."""
    pass_at: tuple[int, ...] = (1, 8)
    """Which pass@k are told."""


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


@runtime_checkable
class TrainedOnArc(Protocol):
    """The config of any training on ARC."""

    @property
    def arc(self) -> ArcConfig:
        """The environment and its tasks."""

    @property
    def evaluation(self) -> ArcEvaluationConfig:
        """How a policy is measured."""


def examined(config: TrainedOnArc, split: str | None) -> ArcEnvironment:
    """Tasks whose answers are handed in: those of a split, or those of the training where it is None."""
    arc, dataset = config.arc, config.arc.dataset
    if split is not None:
        dataset = dataset.model_copy(update={"split": split, "num_tasks": config.evaluation.num_tasks})
    environment = arc.episode.model_copy(update={"mode": "evaluation"})
    return ArcEnvironment.create(arc.model_copy(update={"dataset": dataset, "episode": environment}))


def held_out(config: TrainedOnArc) -> ArcEnvironment:
    """Tasks that the training never sees, answered by handing in."""
    return examined(config, config.evaluation.split)


def baselines(environment: ArcEnvironment) -> dict[str, dict[str, float]]:
    """The share of its tasks that are right if every input is handed in as it is, and if nothing is."""
    tasks = environment.task_buffer
    return {"baselines": {"copy_input": sum(map(copy_solves, tasks)) / len(tasks), "do_nothing": 0.0}}


def told_beside(examined: ArcEnvironment, *others: ArcEnvironment) -> list[str]:
    """What belongs beside a figure: what takes no skill, and how many tasks of data sets fit the canvas."""
    copied = baselines(examined)["baselines"]["copy_input"]
    told = [f"Handing the input in: {copied:.1%}; never handing in: 0.0%"]
    for environment in (*others, examined):
        data = environment.config.dataset
        if data.source != GENERATED:
            every = load_tasks(data.source, data.split, families=data.families)
            note = f"{data.source}, {data.split}: {canvas_note(every, environment.config.grid_shape)}"
            told += [note] * (note not in told)
    return told


class ArcTraining(PPO):
    """PPO on ARC tasks; they are read and checked here."""

    name = "arc"
    config_type = ArcTrainingConfig
    score_name = "Handed in right on held-out tasks"

    def __init__(self, config: ArcTrainingConfig, *, mesh: DeviceMesh | None = None) -> None:
        self._unseen = held_out(config)
        super().__init__(
            config,
            ArcEnvironment.create(config.arc),
            functools.partial(create_network, config.network, config.arc),
            max_episode_steps=config.arc.episode.max_episode_steps,
            mesh=mesh,
        )

    def evaluate(self, state: PPOState, update: int, final: bool) -> list[dict[str, Any]]:
        network, settings = self.policy(state), self.config.evaluation
        results = [evaluate_arc(self._unseen, network)]
        if final and settings.attempts:
            results.append(sampled(self._unseen, network, settings))
        return [result.as_record("held-out") | baselines(self._unseen) for result in results]

    def summarize(self, result: TrainResult) -> list[str]:
        return super().summarize(result) + told_beside(self._unseen, self.environment)

    def metadata(self, state: PPOState) -> dict[str, Any]:
        families = {task.family for task in self.environment.task_buffer if task.family}
        return {"families": sorted(families)}

    def data_fingerprint(self) -> str:
        return self.environment.task_buffer.fingerprint

    def export(self, state: PPOState, folder: Path) -> None:
        export_agent(self.policy(state), self.config.arc, self._unseen.task_buffer, folder)


def sampled(
    environment: ArcEnvironment, network: Any, settings: ArcEvaluationConfig, seed: int = 0
) -> ArcResult:
    """Several sampled attempts at each pair."""
    pass_at = tuple(k for k in settings.pass_at if k <= settings.attempts)
    return evaluate_arc(
        environment,
        network,
        mode="sampled",
        attempts=settings.attempts,
        pass_at=pass_at,
        seed=seed,
    )


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
    score_name = "Handed in right on held-out tasks"

    def __init__(self, config: CloningTrainingConfig) -> None:
        # An agent submits: neither training nor evaluation ends an episode because its grid is correct.
        episode = config.arc.episode.model_copy(update={"require_submit": True, "mode": "training"})
        self.arc = config.arc.model_copy(update={"episode": episode})
        self._unseen = held_out(config.model_copy(update={"arc": self.arc}))
        super().__init__(
            config,
            ArcEnvironment.create(self.arc),
            functools.partial(create_network, config.network, self.arc),
            max_episode_steps=self.arc.episode.max_episode_steps,
            mesh=DeviceMesh(jax.devices()[:1]),
        )

    def evaluate(self, state: BCState, update: int, final: bool) -> list[dict[str, Any]]:
        network, settings = self.policy(state), self.config.evaluation
        results = [evaluate_arc(self._unseen, network)]
        if final and settings.attempts:
            results.append(sampled(self._unseen, network, settings))
        return [result.as_record("held-out") | baselines(self._unseen) for result in results]

    def summarize(self, result: TrainResult) -> list[str]:
        return super().summarize(result) + told_beside(self._unseen, self.environment)

    def data_fingerprint(self) -> str:
        recorded = "" if self.recorded is None else self.recorded.fingerprint
        return self.environment.task_buffer.fingerprint + recorded

    def export(self, state: BCState, folder: Path) -> None:
        export_agent(self.policy(state), self.arc, self._unseen.task_buffer, folder)


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

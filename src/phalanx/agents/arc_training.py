"""Training on ARC: its config, and how environment, network, evaluation and pictures are put together.

Running it is in `training`; the commands are in `phalanx.cli`.
"""

import functools
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
from pydantic import Field

from phalanx.agents.arc_evaluation import Evaluation, evaluate_arc, measure_arc
from phalanx.agents.evaluation import watch
from phalanx.agents.networks.arc import create_arc_network
from phalanx.agents.networks.arc_distributions import MakeArcDistribution
from phalanx.agents.networks.arc_layers import ArcNetworkConfig
from phalanx.agents.ppo.config import PPOConfig
from phalanx.agents.ppo.rollouts import Game
from phalanx.agents.ppo.update import PPO
from phalanx.agents.training import CheckpointConfig, Experiment, load_network
from phalanx.arc.config import ArcConfig
from phalanx.arc.environment import ArcEnvironment, legal_ids
from phalanx.core.config import Config, load_config
from phalanx.core.environment import Key
from phalanx.logs import LoggingConfig
from phalanx.runs.folder import read_config

PRESETS = "train/arc"
"""Where the presets of this training live."""


class ArcEvaluationConfig(Config):
    """On which tasks a policy is measured, and when."""

    every: int = Field(default=20, ge=0)
    """Updates between evaluations; 0 for none but the first and the last."""
    split: str = "evaluation"
    """The split of `arc.dataset.source` that is held out; generated ones have other seeds there."""
    num_tasks: int = Field(default=200, ge=1)
    """How many tasks to generate, for the generated source."""
    attempts: int = Field(default=8, ge=0)
    """Sampled attempts at each pair in the last evaluation, for pass@k; 0 for none."""
    pass_at: tuple[int, ...] = (1, 8)
    """Which pass@k are told."""


class ArcTrainingConfig(Config):
    """Everything that shapes a training on ARC."""

    seed: int = 0
    """Of the network, the episodes and the shuffling; the tasks' own is `arc.dataset.seed`."""
    num_seeds: int = Field(default=1, ge=1)
    """Trainings at once, each from a seed of its own."""
    arc: ArcConfig = ArcConfig()
    """The environment and its tasks."""
    network: ArcNetworkConfig = ArcNetworkConfig()
    """What acts."""
    ppo: PPOConfig = PPOConfig()
    """How it learns."""
    evaluation: ArcEvaluationConfig = ArcEvaluationConfig()
    """How it is measured."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """When it is saved."""
    logging: LoggingConfig = LoggingConfig(batched_logging_enabled=True)
    """What is written of it."""


def load_arc_training(preset: str | Path | None = None, overrides: tuple[str, ...] = ()) -> ArcTrainingConfig:
    """A config: the preset `default` unless another is named, then overrides."""
    return load_config(ArcTrainingConfig, "default" if preset is None else preset, overrides, group=PRESETS)


def held_out(config: ArcTrainingConfig) -> ArcEnvironment:
    """The test pairs of tasks that the training never sees; target and score are hidden from the policy."""
    arc = config.arc
    dataset = arc.dataset.model_copy(
        update={"split": config.evaluation.split, "num_tasks": config.evaluation.num_tasks}
    )
    environment = arc.environment.model_copy(update={"mode": "evaluation"})
    return ArcEnvironment.create(arc.model_copy(update={"dataset": dataset, "environment": environment}))


def arc_game(environment: ArcEnvironment) -> Game:
    """An ARC environment and how a policy's choices are read in it."""
    return Game(environment, MakeArcDistribution(legal_ids(environment.config)), measure_arc)


def arc_experiment(config: ArcTrainingConfig) -> Experiment:
    """The training that a config describes; tasks are read and checked here."""
    environment, unseen = ArcEnvironment.create(config.arc), held_out(config)
    game = arc_game(environment)
    make_network = functools.partial(_make_network, config)
    shape = eqx.filter_eval_shape(make_network, jax.random.key(0))
    structure = eqx.filter(shape, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct), inverse=True)
    steps = config.arc.environment.max_episode_steps
    settings = config.evaluation

    def evaluate(network: Any, update: int, last: bool) -> list[dict[str, Any]]:
        runs = [evaluate_arc(unseen, game.distribution, network)]
        if last and settings.attempts:
            runs.append(sampled(unseen, game, network, settings))
        return [run.as_record(update, 0, "held-out") for run in runs]

    def show(network: Any, key: Key, update: int) -> list[dict[str, Any]]:
        return watch(game, network, key, config.logging.num_samples, steps, episode_num=update)

    families = sorted({task.family for task in environment.task_buffer if task.family})
    return Experiment(
        kind="arc",
        config=config,
        ppo=PPO(game, config.ppo, structure),
        make_network=make_network,
        evaluate=evaluate,
        watch=show,
        evaluate_every=settings.every,
        facts={"families": families},
    )


def sampled(
    environment: ArcEnvironment, game: Game, network: Any, settings: ArcEvaluationConfig, seed: int = 0
) -> Evaluation:
    """Several sampled attempts at each pair."""
    pass_at = tuple(k for k in settings.pass_at if k <= settings.attempts)
    return evaluate_arc(
        environment,
        game.distribution,
        network,
        mode="sampled",
        attempts=settings.attempts,
        pass_at=pass_at,
        seed=seed,
    )


def load_arc_policy(run: Path) -> tuple[ArcTrainingConfig, Any]:
    """A run's config and the network of its newest checkpoint."""
    config = read_config(run, ArcTrainingConfig)
    experiment = arc_experiment(config)
    return config, load_network(run, experiment.ppo, experiment.make_network, config)


def _make_network(config: ArcTrainingConfig, key: Key) -> Any:
    return create_arc_network(config.network, config.arc, key)

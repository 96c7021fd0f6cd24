"""The training that both sides of a comparison run: one network, one PPO, one task, two environments.

The environments are in `phalanx_training_runner.py` and `jaxarc_training_runner.py`; how they are driven is
in `protocol.py`. Phalanx must be importable before this file is.
"""

import argparse
import functools
import statistics
from typing import Any

import jax
import protocol
from timed_training import TimedParts, TimedTraining, count_parameters, median_parts

from phalanx.arc import ActionConfig, ArcConfig, DatasetConfig, EpisodeConfig
from phalanx.arc.networks import ArcNetworkConfig, create_network
from phalanx.core import Environment
from phalanx.training.distributed import DeviceMesh
from phalanx.training.optimizer import OptimizerConfig
from phalanx.training.ppo import PPO, PPOConfig

OPERATIONS = tuple(range(35))
"""The operations that both environments have, with the same ids."""

NETWORKS = {
    # Sees patches of 6x6 cells and chooses a row and a column: little work, so that the environment shows.
    "small": ArcNetworkConfig(
        kind="conv",
        hidden_dim=16,
        num_layers=1,
        patch_size=6,
        color_encoding="bits",
        selection_head="category_axes",
    ),
    # Sees every cell and weighs every cell for every operation: nearly all of the work.
    "large": ArcNetworkConfig(kind="conv", hidden_dim=32, num_layers=3, patch_size=1, selection_head="cells"),
}
_PART_REPEATS = 3
_CHUNK = 256
"""Observations that go through the network together; of 64, 256 and all, the fastest for the small one."""


def parse_arguments(description: str, **extra: dict[str, Any]) -> argparse.Namespace:
    """The workload and the network; `--steps` are those of each environment in one update."""
    return protocol.parse_arguments(
        description,
        network={"default": "small", "choices": sorted(NETWORKS)},
        epochs={"type": int, "default": 1},
        minibatches={"type": int, "default": 8},
        **extra,
    )


def arc_config(arguments: argparse.Namespace) -> ArcConfig:
    """Phalanx's environment; of JaxARC's it says what the network needs to know."""
    return ArcConfig(
        episode=EpisodeConfig(max_episode_steps=arguments.max_episode_steps, require_submit=True),
        dataset=DatasetConfig(max_grid_height=arguments.grid[0], max_grid_width=arguments.grid[1]),
        action=ActionConfig(selection_format=arguments.format, allowed_operations=OPERATIONS),
    )


def make_ppo(arguments: argparse.Namespace, environment: Environment) -> PPO:
    """The training."""
    arc = arc_config(arguments)
    make_network = functools.partial(create_network, NETWORKS[arguments.network], arc)
    config = PPOConfig(
        num_envs=arguments.batch,
        num_steps=arguments.steps,
        update_epochs=arguments.epochs,
        num_minibatches=arguments.minibatches,
        microbatch_size=_CHUNK,
        # All gradients are computed and applied, but the policy stays the nearly uniform one it starts as:
        # both sides go on playing the same kinds of episodes, however long each has been measured.
        optimizer=OptimizerConfig(learning_rate=1e-9, lr_schedule="constant", max_grad_norm=0.5, eps=1e-5),
    )
    return PPO(config, environment, make_network, DeviceMesh(jax.devices()[:1]))


def serve(arguments: argparse.Namespace, environment: Environment, **conditions: Any) -> None:
    """Compile, time the parts, then time whole updates whenever the comparison asks."""
    training = TimedTraining(make_ppo(arguments, environment), seed=arguments.seed)
    timed = TimedParts(training)
    updates = max(1, round(arguments.seconds / timed.time(1).whole))
    parts = median_parts([timed.time(updates) for _ in range(_PART_REPEATS)])
    # How many episodes end is the same on both sides if they play the same game.
    ended = [float(training.update().episodes["episode_mask"].mean()) for _ in range(_PART_REPEATS)]
    protocol.serve(
        training.update,
        training.steps_per_update,
        arguments.seconds,
        network=arguments.network,
        num_parameters=count_parameters(training.state.params),
        num_steps=arguments.steps,
        epochs=arguments.epochs,
        minibatches=arguments.minibatches,
        compile_seconds=round(training.compile_seconds, 2),
        parts_update_seconds=round(parts.whole, 5),
        **parts.shares(),
        episodes_ended_a_step=round(statistics.mean(ended), 5),
        **conditions,
    )

"""PPO updates of Phalanx in any environment with ARC grids, shared by both sides of the comparison."""

import functools

import jax

from phalanx.arc.networks import create_network
from phalanx.core import Environment
from phalanx.training.config import EnvConfig
from phalanx.training.device_mesh import create_mesh
from phalanx.training.ppo import PPO, PPOConfig

NETWORKS = {
    "small": ("network.kind=conv", "network.hidden_dim=16", "network.num_layers=1", "network.patch_size=6",
              "network.color_encoding=bits", "network.selection_head=category_axes"),
    "large": ("network.kind=conv", "network.hidden_dim=32", "network.num_layers=3", "network.patch_size=1",
              "network.selection_head=cells"),
}  # fmt: skip
"""Settings of a small network, which processes patches of 6x6 cells, and of a large network, which processes
all cells and has one logit for each operation and cell."""

SMOKE_OVERRIDES = (
    "num_envs=4",
    "num_steps=2",
    "num_minibatches=1",
    "network.kind=conv",
    "network.hidden_dim=4",
    "network.num_layers=1",
    "env.dataset.max_grid_height=5",
    "env.dataset.max_grid_width=5",
    "env.dataset.families=[fill_enclosed]",
    "env.dataset.num_generated_tasks=8",
)
"""Settings of PPO on ARC for smoke tests. All suites use the same, so that it is compiled only once."""


def load_config(network: str, size: int, num_envs: int, num_steps: int) -> PPOConfig:
    """Return the settings of `phalanx train ppo --env arc` with another canvas, network and batch size."""
    overrides = (
        f"env.dataset.max_grid_height={size}",
        f"env.dataset.max_grid_width={size}",
        "env.episode.max_episode_steps=100",
        # All operations that both environments have.
        f"env.action.allowed_operations={list(range(35))}",
        "env.observation.input_grid=false",
        f"num_envs={num_envs}",
        f"num_steps={num_steps}",
        *NETWORKS[network],
    )
    return PPOConfig.load("arc", list(overrides))


class PPOUpdates:
    """A training run that takes one update per call of `run`.

    Args:
        config: Settings of PPO, the network and the environment.
        environment: Environment to train in.
    """

    def __init__(self, config: PPOConfig, environment: Environment) -> None:
        network = functools.partial(create_network, config.network, config.env.settings)
        # Without the name of the environment, PPO does not require a `phalanx.arc.ArcEnvironment`.
        config = config.model_copy(update={"env": EnvConfig()})
        # A single device, as JAX has on a CPU by default.
        self.ppo = PPO(config, environment, network, create_mesh(jax.devices()[:1]))
        self.state = self.ppo.init(jax.random.key(0))
        self.num_parameters = sum(leaf.size for leaf in jax.tree.leaves(self.state.params))

    def run(self) -> None:
        """Collect a rollout and take all gradient steps of an update."""
        self.state, result = self.ppo.update(self.state)
        jax.block_until_ready((self.state, result))

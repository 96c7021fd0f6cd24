"""An algorithm of your own in one file: REINFORCE on small ARC puzzles, trained by Phalanx's own run loop.

The class below says how to start, how to update and what was learned. Folder, logs, evaluations, checkpoints,
signals, seeds, trackers and the report come with the run:

phalanx train custom examples/reinforce.py --out runs/reinforce           (half a minute of CPU time)
phalanx train custom examples/reinforce.py num_updates=200 learning_rate=0.002 --seeds 2
phalanx train custom examples/reinforce.py --out runs/reinforce --resume
"""

import functools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree
from pydantic import Field

from phalanx.arc import (
    ActionConfig,
    ArcConfig,
    ArcEnvironment,
    ArcNetworkConfig,
    DatasetConfig,
    EpisodeConfig,
    RewardConfig,
    create_arc_network,
    evaluate_arc,
)
from phalanx.core import record_episodes
from phalanx.training import Algorithm, RunConfig, UpdateResult

PUZZLES = ArcConfig(
    dataset=DatasetConfig(max_grid_height=3, max_grid_width=3, families=("fill_enclosed",), num_tasks=200),
    episode=EpisodeConfig(max_episode_steps=3),
    action=ActionConfig(selection_format="point", allowed_operations=tuple(range(10))),
    reward=RewardConfig(similarity_weight=4.0, step_penalty=-0.02, success_bonus=1.0),
)


class ReinforceConfig(RunConfig):
    """Every field is a setting that the command line takes as KEY=VALUE."""

    seed: int = 0
    """Of the network and the episodes."""
    num_seeds: int = Field(default=1, ge=1)
    """Trainings at once."""
    num_updates: int = Field(default=40, ge=1)
    """Gradient steps."""
    num_envs: int = Field(default=128, ge=2)
    """Episodes in each of them."""
    learning_rate: float = Field(default=0.01, gt=0)
    """Adam's."""
    entropy_coefficient: float = Field(default=0.02, ge=0)
    """What keeps the policy from settling too soon."""
    arc: ArcConfig = PUZZLES
    """The environment and its tasks."""
    network: ArcNetworkConfig = ArcNetworkConfig(kind="color_equivariant", hidden_dim=8, num_layers=2)
    """What acts."""


class Learner(NamedTuple):
    """Everything that changes: what a checkpoint holds."""

    network: PyTree
    optimizer: PyTree
    key: Array


class Reinforce(Algorithm[Learner]):
    """Makes actions likelier by how much more than the batch's mean came after them (Williams, 1992)."""

    kind = "reinforce"
    config_type = ReinforceConfig

    def __init__(self, config: ReinforceConfig) -> None:
        super().__init__(config, num_updates=config.num_updates, seed=config.seed, num_seeds=config.num_seeds)
        self.environment = ArcEnvironment.create(config.arc)
        self.make_network = functools.partial(create_arc_network, config.network, config.arc)
        self.structure = eqx.filter(self.make_network(jax.random.key(0)), eqx.is_array, inverse=True)
        self.optimizer = optax.adam(config.learning_rate)
        self.steps = config.arc.episode.max_episode_steps

    def start(self, key: Array) -> Learner:
        network_key, key = jax.random.split(key)
        arrays = eqx.filter(self.make_network(network_key), eqx.is_array)
        return Learner(arrays, self.optimizer.init(arrays), key)

    def policy(self, learner: Learner) -> Any:
        return eqx.combine(learner.network, self.structure)

    def update(self, learner: Learner) -> tuple[Learner, UpdateResult]:
        """Pure, so that the run may compile it, and `vmap` it over the seeds."""
        key, play_key = jax.random.split(learner.key)
        (observations, actions, rewards, running), measures = self._play(self.policy(learner), play_key)
        to_go = jnp.cumsum(rewards[::-1], axis=0)[::-1]
        advantages = to_go - to_go.mean(axis=1, keepdims=True)

        def loss(arrays: PyTree) -> tuple[Array, Array]:
            network = eqx.combine(arrays, self.structure)

            def one(observation: PyTree, action: PyTree) -> tuple[Array, Array]:
                policy, _ = network(observation)
                return policy.log_prob(action), policy.entropy()

            log_probs, entropies = jax.vmap(jax.vmap(one))(observations, actions)
            entropy = jnp.mean(entropies, where=running)
            policy_loss = -jnp.mean(log_probs * advantages, where=running)
            return policy_loss - self.config.entropy_coefficient * entropy, entropy

        (total, entropy), gradient = jax.value_and_grad(loss, has_aux=True)(learner.network)
        changes, optimizer = self.optimizer.update(gradient, learner.optimizer)
        after = Learner(optax.apply_updates(learner.network, changes), optimizer, key)
        metrics = {"total_loss": total, "entropy": entropy, "gradient_norm": optax.tree.norm(gradient)}
        lengths = running.sum(axis=0)
        episodes = {"episode_returns": to_go[0], "episode_lengths": lengths, **measures}
        return after, UpdateResult(metrics, episodes, counts={"environment_steps": lengths.sum()})

    def _play(self, network: Any, key: Array) -> tuple[tuple, dict[str, Array]]:
        """An episode of each environment, [time, batch]; a finished one stays as it is and earns nothing."""
        reset_key, *keys = jax.random.split(key, 1 + self.steps)
        count = self.config.num_envs

        def step(carry: tuple, key: Array) -> tuple[tuple, tuple]:
            states, observations = carry
            running = ~self.environment.is_done(states)

            def act(observation: PyTree, key: Array) -> PyTree:
                return network(observation)[0].sample(key)

            actions = jax.vmap(act)(observations, jax.random.split(key, count))
            states, seen, rewards, _, info = self.environment.batch_step(states, actions)
            return (states, seen), (observations, actions, rewards, running, self.environment.measures(info))

        start = self.environment.batch_reset(jax.random.split(reset_key, count))
        _, (*played, measures) = jax.lax.scan(step, start, jnp.stack(keys))
        ends = jnp.sum(played[3], axis=0) - 1
        return tuple(played), {name: found[ends, jnp.arange(count)] for name, found in measures.items()}

    def evaluate(self, learner: Learner, update: int, last: bool) -> list[dict[str, Any]]:
        scores = evaluate_arc(self.environment, self.policy(learner))
        return [scores.as_record("training")]

    def sample_episodes(self, learner: Learner, key: Array, update: int) -> list[dict[str, Any]]:
        play = (self.environment, self.policy(learner), key)
        return record_episodes(*play, self.config.logging.num_samples, self.steps, episode_num=update)

    def data_fingerprint(self) -> str:
        return self.environment.task_buffer.fingerprint

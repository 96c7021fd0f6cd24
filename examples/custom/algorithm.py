"""An algorithm of your own in one file: REINFORCE on small ARC puzzles, trained by Phalanx's own run loop.

The class below creates the initial state and updates it. Folder, logs, evaluations, checkpoints,
signals, seeds, trackers and the report come with the run:

phalanx train custom examples/custom/algorithm.py --out runs/reinforce           (half a minute of CPU time)
phalanx train custom examples/custom/algorithm.py num_updates=200 learning_rate=0.002 --seeds 2
phalanx train custom examples/custom/algorithm.py --out runs/reinforce --resume
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree
from pydantic import Field

from phalanx.arc import (
    ActionConfig,
    ArcConfig,
    ArcEnvironment,
    ArcEvaluation,
    ArcNetworkConfig,
    DatasetConfig,
    EpisodeConfig,
    RewardConfig,
    create_network,
)
from phalanx.training import PolicyAlgorithm, RunConfig, TrainState, UpdateResult, jit_method

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


class ReinforceState(TrainState):
    """Parameters, optimizer state, step and the key of the next update: the contents of a checkpoint."""

    key: Array


class Reinforce(PolicyAlgorithm[ReinforceState]):
    """Makes actions likelier by how much more than the batch's mean came after them (Williams, 1992)."""

    name = "reinforce"
    config_type = ReinforceConfig

    def __init__(self, config: ReinforceConfig) -> None:
        self.steps = config.arc.episode.max_episode_steps
        super().__init__(
            config,
            ArcEnvironment.create(config.arc),
            functools.partial(create_network, config.network, config.arc),
            max_episode_steps=self.steps,
        )
        self.optimizer = optax.adam(config.learning_rate)

    def init(self, key: Array, params: PyTree | None = None) -> ReinforceState:
        params_key, key = jax.random.split(key)
        params = self.init_params(params_key) if params is None else params
        return ReinforceState(params, self.optimizer.init(params), jnp.int32(0), key)

    @jit_method(donate=("state",))
    def update(self, state: ReinforceState) -> tuple[ReinforceState, UpdateResult]:
        key, play_key = jax.random.split(state.key)
        (observations, actions, rewards, running), measures = self._play(self.policy(state), play_key)
        to_go = jnp.cumsum(rewards[::-1], axis=0)[::-1]
        advantages = to_go - to_go.mean(axis=1, keepdims=True)

        def loss(arrays: PyTree) -> tuple[Array, Array]:
            network = self.network(arrays)

            def one(observation: PyTree, action: PyTree) -> tuple[Array, Array]:
                policy, _ = network(observation)
                return policy.log_prob(action), policy.entropy()

            log_probs, entropies = jax.vmap(jax.vmap(one))(observations, actions)
            entropy = jnp.mean(entropies, where=running)
            policy_loss = -jnp.mean(log_probs * advantages, where=running)
            return policy_loss - self.config.entropy_coefficient * entropy, entropy

        (total, entropy), gradient = jax.value_and_grad(loss, has_aux=True)(state.params)
        changes, optimizer = self.optimizer.update(gradient, state.opt_state)
        params = optax.apply_updates(state.params, changes)
        after = ReinforceState(params, optimizer, state.step + 1, key)
        metrics = {"total_loss": total, "entropy": entropy, "gradient_norm": optax.tree.norm(gradient)}
        lengths = running.sum(axis=0)
        episodes = {"episode_returns": to_go[0], "episode_lengths": lengths, **measures}
        return after, UpdateResult(metrics, episodes, counts={"env_steps": lengths.sum()})

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
            return (states, seen), (
                observations,
                actions,
                rewards,
                running,
                self.environment.episode_metrics(info),
            )

        start = self.environment.batch_reset(jax.random.split(reset_key, count))
        _, (*played, measures) = jax.lax.scan(step, start, jnp.stack(keys))
        ends = jnp.sum(played[3], axis=0) - 1
        return tuple(played), {name: found[ends, jnp.arange(count)] for name, found in measures.items()}

    def evaluate(self, state: ReinforceState, update: int, final: bool) -> list[dict[str, Any]]:
        return [ArcEvaluation(self.environment).evaluate(self.policy(state)).as_record()]

    def data_fingerprint(self) -> str:
        return self.environment.task_buffer.fingerprint

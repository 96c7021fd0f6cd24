"""Implement an algorithm in one file: REINFORCE, which `phalanx train` runs in any environment.

The class creates the initial state and updates it. The environment, its network and its evaluation come from
the settings. Run folders, logs, checkpoints, resuming, seeds and reports are provided by the run loop.

phalanx train examples/custom/algorithm.py --config examples/custom/reinforce.yaml --out runs/reinforce
phalanx train examples/custom/algorithm.py --env arc num_updates=200 lr=0.002 --seeds 2
phalanx train examples/custom/algorithm.py --out runs/reinforce --resume
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree
from pydantic import Field

from phalanx.core import batch_metrics, is_done
from phalanx.training import (
    OptimizerConfig,
    PolicyAlgorithm,
    PolicyRunConfig,
    TrainState,
    UpdateResult,
    jit_method,
)


class ReinforceConfig(PolicyRunConfig):
    """Configuration for REINFORCE. Every field is a setting that the command line takes as KEY=VALUE."""

    num_updates: int = Field(default=40, ge=1)
    """Number of gradient steps."""
    num_envs: int = Field(default=128, ge=2)
    """Episodes per update."""
    num_steps: int = Field(default=3, ge=1)
    """Maximum number of steps in an episode."""
    ent_coef: float = Field(default=0.02, ge=0)
    """Weight of the entropy bonus."""
    optimizer: OptimizerConfig = OptimizerConfig(learning_rate=0.01, lr_schedule="constant")
    """Adam. Only the learning rate is used."""


class ReinforceState(TrainState):
    """Parameters, optimizer state, step and the key of the next update: the contents of a checkpoint."""

    key: Array


class Reinforce(PolicyAlgorithm[ReinforceState]):
    """REINFORCE (Williams, 1992), with the mean return of the batch as the baseline."""

    name = "reinforce"
    config_type = ReinforceConfig

    def __init__(self, config: ReinforceConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self.optimizer = optax.adam(config.optimizer.learning_rate)

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
            return policy_loss - self.config.ent_coef * entropy, entropy

        (total, entropy), gradient = jax.value_and_grad(loss, has_aux=True)(state.params)
        changes, optimizer = self.optimizer.update(gradient, state.opt_state)
        params = optax.apply_updates(state.params, changes)
        after = ReinforceState(params, optimizer, state.step + 1, key)
        metrics = {"loss": total, "entropy": entropy, "gradient_norm": optax.tree.norm(gradient)}
        lengths = running.sum(axis=0)
        episodes = {"episode_returns": to_go[0], "episode_lengths": lengths, **measures}
        return after, UpdateResult(metrics, episodes, counts={"env_steps": lengths.sum()})

    def _play(self, network: Any, key: Array) -> tuple[tuple, dict[str, Array]]:
        """Run one episode per environment. Arrays are [time, batch]; finished episodes have reward 0."""
        reset_key, *keys = jax.random.split(key, 1 + self.config.num_steps)
        count = self.config.num_envs

        def step(carry: tuple, key: Array) -> tuple[tuple, tuple]:
            states, observations = carry
            running = ~is_done(states)

            def act(observation: PyTree, key: Array) -> PyTree:
                return network(observation)[0].sample(key)

            actions = jax.vmap(act)(observations, jax.random.split(key, count))
            states, seen, rewards, _, _ = self.environment.batch_step(states, actions)
            measures = batch_metrics(self.environment, states)
            return (states, seen), (observations, actions, rewards, running, measures)

        start = self.environment.batch_reset(jax.random.split(reset_key, count))
        _, (*played, measures) = jax.lax.scan(step, start, jnp.stack(keys))
        ends = jnp.sum(played[3], axis=0) - 1
        return tuple(played), {name: found[ends, jnp.arange(count)] for name, found in measures.items()}

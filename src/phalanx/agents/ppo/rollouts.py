"""Playing a policy in a batch of environments: what PPO learns from.

The learning itself is in `update`; whole episodes, to measure or to show, are in `evaluation`.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int32, PyTree

from phalanx.agents.networks.distributions import MakeDistribution
from phalanx.core.autoreset import AutoReset, AutoResetState
from phalanx.core.batching import map_where
from phalanx.core.environment import Environment, Key

Network = Callable[[PyTree], tuple[PyTree, Float[Array, ""]]]
"""From one observation to the parameters of its distribution and its value."""

Episodes = dict[str, Array]
"""By the logger's names: `episode_mask` (where an episode ended), `episode_returns`, `episode_lengths`, and
what the environment measures; [time, batch], once steps are put together."""

_VALUE_CHUNK = 256
"""Terminal observations valued at a time: enough to keep the network's products busy."""


class RolloutState(eqx.Module):
    """A batch of environments in the middle of their episodes."""

    environments: AutoResetState
    observations: PyTree
    env_ids: Int32[Array, " batch"]
    """The number of each in the whole batch."""
    returns: Float[Array, " batch"]
    """Rewards of the running episodes so far."""
    lengths: Int32[Array, " batch"]
    """Steps of the running episodes so far."""


class Rollout(eqx.Module):
    """Steps of a batch of environments, time first, once they are put together."""

    observations: PyTree
    actions: PyTree
    log_probs: Float[Array, "*time batch"]
    values: Float[Array, "*time batch"]
    next_values: Float[Array, "*time batch"]
    """Of the observations that the steps led to, before any reset; 0 where an episode has terminated."""
    rewards: Float[Array, "*time batch"]
    terminated: Bool[Array, "*time batch"]
    done: Bool[Array, "*time batch"]


def start_rollouts(environment: Environment, key: Key, env_ids: Int32[Array, " batch"]) -> RolloutState:
    """Environments at the start of their first episodes; each draws from its own number's key."""
    states, observations = AutoReset(environment, "same_step").reset(keys_for(key, env_ids))
    return RolloutState(
        states,
        observations,
        env_ids,
        jnp.zeros(env_ids.shape, jnp.float32),
        jnp.zeros(env_ids.shape, jnp.int32),
    )


def keys_for(key: Key, env_ids: Int32[Array, " batch"]) -> Array:
    """A key for each environment, whichever device or batch it is in."""
    return jax.vmap(jax.random.fold_in, (None, 0))(key, env_ids)


def collect(
    environment: Environment,
    distribution: MakeDistribution,
    network: Network,
    start: RolloutState,
    key: Key,
    num_steps: int,
    chunk: int | None = None,
) -> tuple[RolloutState, Rollout, Episodes]:
    """Play `num_steps` steps of each environment; the network sees `chunk` of them at a time."""
    keys = jax.vmap(jax.random.split, (0, None), 1)(keys_for(key, start.env_ids), num_steps)
    auto_reset = AutoReset(environment, "same_step")

    def step(before: RolloutState, keys: Array) -> tuple[RolloutState, tuple[Rollout, Any, Episodes]]:
        actions, log_probs, values = sample_actions(distribution, network, before.observations, keys, chunk)
        states, observations, rewards, done, info = auto_reset.step(before.environments, actions)
        returns, lengths = before.returns + rewards, before.lengths + 1
        episodes = {"episode_mask": done, "episode_returns": returns, "episode_lengths": lengths}
        seen = Rollout(
            before.observations, actions, log_probs, values, values, rewards, info.terminated, done
        )
        after = RolloutState(
            states,
            observations,
            before.env_ids,
            jnp.where(done, 0.0, returns),
            jnp.where(done, 0, lengths),
        )
        return after, (seen, info.final_observation, episodes | environment.measures(info.info))

    end, (rollout, finals, episodes) = jax.lax.scan(step, start, keys)
    last_values = jax.vmap(network)(end.observations)[1]
    next_values = _next_values(network, rollout, finals, last_values)
    return end, dataclasses.replace(rollout, next_values=next_values), episodes


def sample_actions(
    distribution: MakeDistribution,
    network: Network,
    observations: PyTree,
    keys: Array,
    chunk: int | None = None,
) -> tuple[PyTree, Float[Array, " batch"], Float[Array, " batch"]]:
    """Sampled actions, their log-probabilities, and the values of the observations."""

    def one(seen: tuple[PyTree, Key]) -> tuple[PyTree, Array, Array]:
        observation, key = seen
        parameters, value = network(observation)
        policy = distribution(parameters, observation)
        action = policy.sample(key)
        return action, policy.log_prob(action), value

    return jax.lax.map(one, (observations, keys), batch_size=chunk or keys.shape[0])


def _next_values(
    network: Network, rollout: Rollout, finals: PyTree, last_values: Float[Array, " batch"]
) -> Float[Array, "time batch"]:
    """The next step's values, but for truncated episodes those of the observation at which they were cut."""
    following = jnp.concatenate([rollout.values[1:], last_values[None]])
    following = jnp.where(rollout.terminated, 0.0, following)
    truncated = rollout.done & ~rollout.terminated
    flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), finals)
    values = map_where(
        lambda observation: network(observation)[1],
        truncated.reshape(-1),
        flat,
        following.reshape(-1),
        _VALUE_CHUNK,
    )
    return values.reshape(following.shape)

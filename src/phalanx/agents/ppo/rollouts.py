"""Playing a policy in a batch of environments: what PPO learns from.

The learning itself is in `ppo`; whole episodes for people to look at are in `evaluation`.
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
from phalanx.core.environment import Environment, Key, TransitionInfo

Network = Callable[[PyTree], tuple[PyTree, Float[Array, ""]]]
"""From one observation to the parameters of its distribution and its value."""
Measure = Callable[[TransitionInfo], dict[str, Array]]
"""What an environment's info says of finished episodes: `success_mask`, `similarity_scores`, ..."""

_VALUE_CHUNK = 256
"""Terminal observations valued at a time: enough to keep the network's products busy."""


@dataclasses.dataclass(frozen=True)
class Game:
    """What is played and how a policy's choices are read: the static half of a training."""

    environment: Environment
    distribution: MakeDistribution
    measure: Measure

    @property
    def auto_reset(self) -> AutoReset:
        """The environment, without end."""
        return AutoReset(self.environment, "same_step")


class Players(eqx.Module):
    """A batch of environments in the middle of their episodes; each knows its number in the whole batch."""

    environments: AutoResetState
    observations: PyTree
    numbers: Int32[Array, " batch"]
    returns: Float[Array, " batch"]
    """Rewards of the running episodes so far."""
    lengths: Int32[Array, " batch"]
    """Steps of the running episodes so far."""


class Episodes(eqx.Module):
    """What ended when: the values count where `done`. Time first, once steps are put together."""

    done: Bool[Array, "*time batch"]
    returns: Float[Array, "*time batch"]
    lengths: Int32[Array, "*time batch"]
    measures: dict[str, Array]


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


def start_players(game: Game, key: Key, numbers: Int32[Array, " batch"]) -> Players:
    """Environments at the start of their first episodes; each draws from its own number's key."""
    states, observations = game.auto_reset.reset(keys_for(key, numbers))
    return Players(
        states,
        observations,
        numbers,
        jnp.zeros(numbers.shape, jnp.float32),
        jnp.zeros(numbers.shape, jnp.int32),
    )


def keys_for(key: Key, numbers: Int32[Array, " batch"]) -> Array:
    """A key for each environment, whichever device or batch it is in."""
    return jax.vmap(jax.random.fold_in, (None, 0))(key, numbers)


def collect(
    game: Game, network: Network, players: Players, key: Key, num_steps: int, chunk: int | None = None
) -> tuple[Players, Rollout, Episodes]:
    """Play `num_steps` steps of each environment; the network looks at `chunk` of them at a time."""
    keys = jax.vmap(jax.random.split, (0, None), 1)(keys_for(key, players.numbers), num_steps)

    def step(players: Players, keys: Array) -> tuple[Players, tuple[Rollout, Any, Episodes]]:
        actions, log_probs, values = choose(game, network, players.observations, keys, chunk)
        states, observations, rewards, done, info = game.auto_reset.step(players.environments, actions)
        returns, lengths = players.returns + rewards, players.lengths + 1
        episodes = Episodes(done, returns, lengths, game.measure(info.info))
        seen = Rollout(
            players.observations, actions, log_probs, values, values, rewards, info.terminated, done
        )
        after = Players(
            states,
            observations,
            players.numbers,
            jnp.where(done, 0.0, returns),
            jnp.where(done, 0, lengths),
        )
        return after, (seen, info.final_observation, episodes)

    players, (rollout, finals, episodes) = jax.lax.scan(step, players, keys)
    last_values = jax.vmap(network)(players.observations)[1]
    next_values = _next_values(network, rollout, finals, last_values)
    return players, dataclasses.replace(rollout, next_values=next_values), episodes


def choose(
    game: Game, network: Network, observations: PyTree, keys: Array, chunk: int | None = None
) -> tuple[PyTree, Float[Array, " batch"], Float[Array, " batch"]]:
    """Sampled actions, their log-probabilities, and the values of the observations."""

    def one(seen: tuple[PyTree, Key]) -> tuple[PyTree, Array, Array]:
        observation, key = seen
        parameters, value = network(observation)
        distribution = game.distribution(parameters, observation)
        action = distribution.sample(key)
        return action, distribution.log_prob(action), value

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

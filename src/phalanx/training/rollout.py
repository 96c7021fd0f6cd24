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

from phalanx.core.autoreset import AutoReset, AutoResetState
from phalanx.core.environment import Environment, Key
from phalanx.core.vector import map_where
from phalanx.nn.policy_network import PolicyNetwork

Episodes = dict[str, Array]
"""By the logger's names: `episode_mask` (where an episode ended), `episode_returns`, `episode_lengths`, and
what the environment measures; [time, batch], once steps are put together."""

_VALUE_CHUNK = 32
"""Terminal observations valued at a time: a group of environments has few of them."""


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


def map_shards(function: Callable[[PyTree], PyTree], rows: PyTree, groups: int, axis: int = 0) -> PyTree:
    """`function` of each of equal parts of a batch, one after the other, put together again.

    Every group is computed by the same instructions in the same shapes, however many there are: its bits do
    not depend on which other groups this process has.
    """

    def split(leaf: Array) -> Array:
        parts = leaf.reshape(*leaf.shape[:axis], groups, -1, *leaf.shape[axis + 1 :])
        return jnp.moveaxis(parts, axis, 0)

    def join(leaf: Array) -> Array:
        parts = jnp.moveaxis(leaf, 0, axis)
        return parts.reshape(*leaf.shape[1 : axis + 1], -1, *leaf.shape[axis + 2 :])

    return jax.tree.map(join, map_groups(function, jax.tree.map(split, rows)))


def map_groups(function: Callable[[PyTree], PyTree], rows: PyTree) -> PyTree:
    """`jax.lax.map` over the leading axis, as a loop also where it has a single row.

    XLA would dissolve a loop of one round in what surrounds it, and fuse and round its numbers otherwise.
    """
    groups = jax.tree.leaves(rows)[0].shape[0]
    # It is traced once for its shapes and for the loop, and is part of the loop's own program.
    function = jax.jit(function, inline=True)

    def row(number: Any) -> PyTree:
        return jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(leaf, number, keepdims=False), rows)

    def one(number: Array, results: PyTree) -> PyTree:
        return jax.tree.map(
            lambda every, new: jax.lax.dynamic_update_index_in_dim(every, new, number, 0),
            results,
            function(row(number)),
        )

    first = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), rows)
    shapes = jax.eval_shape(function, first)
    nothing = jax.tree.map(lambda leaf: jnp.zeros((groups, *leaf.shape), leaf.dtype), shapes)
    return jax.lax.fori_loop(0, jax.lax.optimization_barrier(jnp.int32(groups)), one, nothing)


def collect(
    environment: Environment,
    network: PolicyNetwork,
    start: RolloutState,
    key: Key,
    num_steps: int,
    chunk: int | None = None,
    groups: int = 1,
) -> tuple[RolloutState, Rollout, Episodes]:
    """Play `num_steps` steps of each environment; the network sees `chunk` of a group's at a time."""
    keys = jax.vmap(jax.random.split, (0, None), 1)(keys_for(key, start.env_ids), num_steps)
    auto_reset = AutoReset(environment, "same_step")

    def step(before: RolloutState, keys: Array) -> tuple[RolloutState, tuple[Rollout, Any, Episodes]]:
        actions, log_probs, values = sample_actions(network, before.observations, keys, chunk, groups)
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
    last_values = map_shards(jax.vmap(lambda observation: network(observation)[1]), end.observations, groups)

    def worth(group: tuple[Any, ...]) -> Array:
        return _next_values(network, *group)

    played = (rollout.values, rollout.terminated, rollout.done, finals, last_values[None])
    next_values = map_shards(worth, played, groups, axis=1)
    return end, dataclasses.replace(rollout, next_values=next_values), episodes


def sample_actions(
    network: PolicyNetwork,
    observations: PyTree,
    keys: Array,
    chunk: int | None = None,
    groups: int = 1,
) -> tuple[PyTree, Float[Array, " batch"], Float[Array, " batch"]]:
    """Sampled actions, their log-probabilities, and the values of the observations."""

    def one(seen: tuple[PyTree, Key]) -> tuple[PyTree, Array, Array]:
        observation, key = seen
        policy, value = network(observation)
        action = policy.sample(key)
        return action, policy.log_prob(action), value

    size = keys.shape[0] // groups
    return map_shards(
        lambda group: jax.lax.map(one, group, batch_size=min(chunk or size, size)),
        (observations, keys),
        groups,
    )


def _next_values(
    network: PolicyNetwork,
    values: Float[Array, "time batch"],
    terminated: Bool[Array, "time batch"],
    done: Bool[Array, "time batch"],
    finals: PyTree,
    last_values: Float[Array, "1 batch"],
) -> Float[Array, "time batch"]:
    """The next step's values, but for truncated episodes those of the observation at which they were cut."""
    following = jnp.concatenate([values[1:], last_values])
    following = jnp.where(terminated, 0.0, following)
    truncated = done & ~terminated
    flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), finals)
    worth = map_where(
        lambda observation: network(observation)[1],
        truncated.reshape(-1),
        flat,
        following.reshape(-1),
        _VALUE_CHUNK,
    )
    return worth.reshape(following.shape)

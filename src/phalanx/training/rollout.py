"""Fixed-length rollouts. When an episode ends, its environment is reset automatically.

The environments can be divided into shards that are computed separately, so that the results of a shard do
not depend on the other shards.
"""

import functools
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int32, PyTree

from phalanx.core.autoreset import AutoReset, AutoResetState
from phalanx.core.environment import Environment, Key
from phalanx.nn.policy_network import PolicyNetwork

Episodes = dict[str, Array]
"""Episode statistics by name, as `ExperimentLogger.log_batch_step` expects them: `episode_mask` (true where
an episode ended), `episode_returns`, `episode_lengths`, and statistics that the environment adds."""


class RolloutState(eqx.Module):
    """State of a batch of environments between two rollouts, usually in the middle of episodes."""

    environments: AutoResetState
    observations: PyTree
    env_ids: Int32[Array, " batch"]
    """Index of each environment among the environments of all devices and processes."""
    returns: Float[Array, " batch"]
    """Sum of the rewards in the current episode of each environment."""
    lengths: Int32[Array, " batch"]
    """Number of steps in the current episode of each environment."""


class Rollout(eqx.Module):
    """Transitions of a batch of environments. The arrays have the axes `[time, batch, ...]`."""

    observations: PyTree
    actions: PyTree
    log_probs: Float[Array, "*time batch"]
    values: Float[Array, "*time batch"]
    next_observations: PyTree
    """Observation after each step, before any reset."""
    rewards: Float[Array, "*time batch"]
    terminated: Bool[Array, "*time batch"]
    done: Bool[Array, "*time batch"]


@functools.partial(jax.jit, static_argnums=0)
def init_rollout(environment: Environment, key: Key, env_ids: Int32[Array, " batch"]) -> RolloutState:
    """Reset the environments.

    The key of each environment is derived from `key` and the environment's entry in `env_ids`, so its
    episodes do not depend on the other environments.
    """
    states, observations = AutoReset(environment, "same_step").reset(keys_for(key, env_ids))
    return RolloutState(
        states,
        observations,
        env_ids,
        jnp.zeros(env_ids.shape, jnp.float32),
        jnp.zeros(env_ids.shape, jnp.int32),
    )


def keys_for(key: Key, env_ids: Int32[Array, " batch"]) -> Array:
    """Derive a key for each environment by folding its index into `key`."""
    return jax.vmap(jax.random.fold_in, (None, 0))(key, env_ids)


def map_shards(function: Callable[[PyTree], PyTree], batch: PyTree, num_shards: int, axis: int = 0) -> PyTree:
    """Apply a function to equal parts (shards) of a batch, one after the other, and concatenate the results.

    Every shard is computed by the same instructions with the same shapes. The result of a shard is therefore
    bit-identical no matter how many other shards are on this device.

    Args:
        function: Function that takes one shard and returns a pytree of arrays, which are concatenated along
            `axis`.
        batch: Pytree of arrays.
        num_shards: Number of shards, which must divide the size of the axis.
        axis: Axis along which the arrays are divided.
    """

    def split(leaf: Array) -> Array:
        parts = leaf.reshape(*leaf.shape[:axis], num_shards, -1, *leaf.shape[axis + 1 :])
        return jnp.moveaxis(parts, axis, 0)

    def join(leaf: Array) -> Array:
        parts = jnp.moveaxis(leaf, 0, axis)
        return parts.reshape(*leaf.shape[1 : axis + 1], -1, *leaf.shape[axis + 2 :])

    return jax.tree.map(join, map_rows(function, jax.tree.map(split, batch)))


def map_rows(function: Callable[[PyTree], PyTree], rows: PyTree) -> PyTree:
    """Apply a function to each row like `jax.lax.map`, but in a loop that XLA does not inline.

    XLA would inline a loop with a single iteration and fuse it with the surrounding code, which changes
    rounding.
    """
    count = jax.tree.leaves(rows)[0].shape[0]
    # `jit` caches the trace, so that the function is traced only once for `eval_shape` and the loop.
    function = jax.jit(function, inline=True)

    def one(index: Array, results: PyTree) -> PyTree:
        row = jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(leaf, index, keepdims=False), rows)
        return jax.tree.map(
            lambda every, new: jax.lax.dynamic_update_index_in_dim(every, new, index, 0),
            results,
            function(row),
        )

    row_shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), rows)
    shapes = jax.eval_shape(function, row_shapes)
    zeros = jax.tree.map(lambda leaf: jnp.zeros((count, *leaf.shape), leaf.dtype), shapes)
    # The barrier hides the number of iterations from XLA.
    return jax.lax.fori_loop(0, jax.lax.optimization_barrier(jnp.int32(count)), one, zeros)


def collect_rollout(
    environment: Environment,
    network: PolicyNetwork,
    start: RolloutState,
    key: Key,
    num_steps: int,
    microbatch_size: int | None = None,
    num_shards: int = 1,
) -> tuple[RolloutState, Rollout, Episodes]:
    """Run `num_steps` steps in each environment.

    Args:
        environment: Environment. This function adds auto-reset.
        network: Policy network, which samples the actions.
        start: State to start from.
        key: Key for this rollout, from which a key for each environment is derived.
        num_steps: Number of steps per environment.
        microbatch_size: Maximum number of observations that the network processes together. None means all
            observations of a shard.
        num_shards: Number of shards into which the environments are divided. Shards are computed separately.

    Returns:
        The new state, the transitions and the episode statistics, with arrays of shape `[time, batch, ...]`.
    """
    keys = jax.vmap(jax.random.split, (0, None), 1)(keys_for(key, start.env_ids), num_steps)
    auto_reset = AutoReset(environment, "same_step")
    shard_size = len(start.env_ids) // num_shards

    def sample_action(row: tuple[PyTree, Key]) -> tuple[PyTree, Array, Array]:
        observation, key = row
        pi, value = network(observation)
        action = pi.sample(key)
        return action, pi.log_prob(action), value

    def sample_actions(shard: tuple[PyTree, Array]) -> tuple[PyTree, Array, Array]:
        return jax.lax.map(sample_action, shard, batch_size=min(microbatch_size or shard_size, shard_size))

    def step(before: RolloutState, keys: Array) -> tuple[RolloutState, tuple[Rollout, Episodes]]:
        actions, log_probs, values = map_shards(sample_actions, (before.observations, keys), num_shards)
        states, observations, rewards, done, info = auto_reset.step(before.environments, actions)
        returns, lengths = before.returns + rewards, before.lengths + 1
        episodes = {"episode_mask": done, "episode_returns": returns, "episode_lengths": lengths}
        steps = Rollout(
            before.observations,
            actions,
            log_probs,
            values,
            info.final_observation,
            rewards,
            info.terminated,
            done,
        )
        after = RolloutState(
            states, observations, before.env_ids, jnp.where(done, 0.0, returns), jnp.where(done, 0, lengths)
        )
        return after, (steps, episodes | environment.episode_metrics(info.info))

    end, (rollout, episodes) = jax.lax.scan(step, start, keys)
    return end, rollout, episodes

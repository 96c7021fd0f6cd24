"""Fixed-length rollouts. When an episode ends, its environment is reset automatically."""

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
    """Index of each environment among the environments of all devices."""
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


@jax.jit
def init_rollout(environment: Environment, key: Key, env_ids: Int32[Array, " batch"]) -> RolloutState:
    """Reset the environments.

    The key of each environment is derived from `key` and the environment's entry in `env_ids`, so its
    episodes do not depend on the other environments.
    """
    states, observations = AutoReset(environment, "same_step").reset(keys_for(key, env_ids))
    zeros = jnp.zeros_like(env_ids)
    return RolloutState(states, observations, env_ids, zeros.astype(jnp.float32), zeros)


def keys_for(key: Key, env_ids: Int32[Array, " batch"]) -> Array:
    """Derive a key for each environment by folding its index into `key`."""
    return jax.vmap(jax.random.fold_in, (None, 0))(key, env_ids)


def collect_rollout(
    environment: Environment,
    network: PolicyNetwork,
    start: RolloutState,
    key: Key,
    num_steps: int,
    microbatch_size: int | None = None,
) -> tuple[RolloutState, Rollout, Episodes]:
    """Run `num_steps` steps in each environment.

    Args:
        environment: Environment. This function adds auto-reset.
        network: Policy network, which samples the actions.
        start: State to start from.
        key: Key for this rollout, from which a key for each environment is derived.
        num_steps: Number of steps per environment.
        microbatch_size: Maximum number of observations that the network processes together. None means all
            observations.

    Returns:
        The new state, the transitions and the episode statistics, with arrays of shape `[time, batch, ...]`.
    """
    keys = jax.vmap(jax.random.split, (0, None), 1)(keys_for(key, start.env_ids), num_steps)
    auto_reset = AutoReset(environment, "same_step")
    batch_size = min(microbatch_size or len(start.env_ids), len(start.env_ids))

    def sample_action(row: tuple[PyTree, Key]) -> tuple[PyTree, Array, Array]:
        observation, key = row
        pi, value = network(observation)
        action = pi.sample(key)
        return action, pi.log_prob(action), value

    def step(before: RolloutState, keys: Array) -> tuple[RolloutState, tuple[Rollout, Episodes]]:
        seen = before.observations
        actions, log_probs, values = jax.lax.map(sample_action, (seen, keys), batch_size=batch_size)
        states, observations, rewards, done, info = auto_reset.step(before.environments, actions)
        ends = info.final_observation, rewards, info.terminated, done
        returns, lengths = before.returns + rewards, before.lengths + 1
        episodes = {"episode_mask": done, "episode_returns": returns, "episode_lengths": lengths}
        returns, lengths = jnp.where(done, 0, returns), jnp.where(done, 0, lengths)
        after = RolloutState(states, observations, before.env_ids, returns, lengths)
        return after, (Rollout(seen, actions, log_probs, values, *ends), episodes | info.metrics)

    end, (rollout, episodes) = jax.lax.scan(step, start, keys)
    return end, rollout, episodes

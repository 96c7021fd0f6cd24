"""Rollouts of a policy that reads states: `batch_policy_rollout` and the value features that go with it.

Rollouts that PPO learns from, with auto-reset and values, are in `ppo.rollouts`.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32, PyTree

from phalanx.arc.state import ArcState
from phalanx.core.environment import Environment, EnvironmentConfigLike, Key
from phalanx.core.vector import environment_of
from phalanx.nn.policy_network import PolicyNetwork
from phalanx.training.rollout import keys_for

PolicyFunction = Callable[[Any], Mapping[str, Any]]
"""From a batch of states to its `actions` and their `log_probs`."""


def batch_policy_rollout(
    policy_fn: PolicyFunction,
    batch_states: PyTree,
    config: Environment | EnvironmentConfigLike,
    num_steps: int = 10,
) -> dict[str, Any]:
    """Let a policy play `num_steps` steps of each environment: states, actions, rewards, dones, log_probs.

    Everything is stacked [steps, batch, ...]; `states` are those that the actions were chosen in, and of the
    type of `batch_states`. Finished environments stay finished and earn nothing more.

    All steps are one compiled call, so the policy must be one that JAX can trace. The call is kept for the
    next time for a function, and for an Equinox module or a partial of a function, whose arrays may change.
    """
    if num_steps < 1:
        raise ValueError(f"num_steps must be at least 1, got {num_steps}")
    if isinstance(policy_fn, functools.partial):
        # A pytree, where the standard library's has no notion of which of its arguments are arrays.
        policy_fn = jax.tree_util.Partial(policy_fn.func, *policy_fn.args, **policy_fn.keywords)
    return _rollout(policy_fn, batch_states, environment_of(config, batch_states), num_steps)


@eqx.filter_jit
def _rollout(
    policy_fn: PolicyFunction, batch_states: PyTree, environment: Environment, num_steps: int
) -> dict[str, Any]:
    def step(states: PyTree, _: None) -> tuple[PyTree, dict[str, Any]]:
        output = policy_fn(states)
        if not isinstance(output, Mapping) or not {"actions", "log_probs"} <= set(output):
            got = sorted(output) if isinstance(output, Mapping) else type(output).__name__
            raise TypeError(f"policy_fn must return a dict with 'actions' and 'log_probs', got {got}")
        after, _, rewards, dones, _info = environment.batch_step(states, output["actions"])
        return after, {
            "states": states,
            "actions": output["actions"],
            "rewards": rewards,
            "dones": dones,
            "log_probs": output["log_probs"],
        }

    return jax.lax.scan(step, batch_states, None, length=num_steps)[1]


def compute_batch_values(value_fn: Callable[[dict[str, Array]], Any], batch_states: ArcState) -> Any:
    """What a value function makes of the features of a batch of states."""
    return value_fn(extract_state_features(batch_states))


def extract_state_features(batch_states: ArcState) -> dict[str, Array]:
    """Working grid, target grid, similarity and step count of each state."""
    return {
        "working_grid": batch_states.working_grid,
        "target_grid": batch_states.target_grid,
        "similarity": batch_states.similarity_score,
        "step_count": batch_states.step_count,
    }


def step_count_of(states: Any) -> Int32[Array, " batch"]:
    """Steps taken, by the name that ARC's states have for it."""
    return states.step_count


class NetworkPolicy(eqx.Module):
    """A trained network as a `policy_fn` for `batch_policy_rollout`: greedy, or drawing with a key.

    A `policy_fn` sees states only, so what is drawn follows from the key, the environment's place in the
    batch and the steps that its state has taken: `clock` says where a state keeps those. It also gives the
    `values` of the states.
    """

    network: PolicyNetwork
    environment: Environment
    key: Key | None = None
    clock: Callable[[Any], Int32[Array, " batch"]] = eqx.field(static=True, default=step_count_of)

    def __call__(self, states: PyTree) -> dict[str, Any]:
        clock = self.clock(states)
        keys = None
        if self.key is not None:
            rows = keys_for(self.key, jnp.arange(clock.shape[0], dtype=jnp.int32))
            keys = jax.vmap(jax.random.fold_in)(rows, clock)

        def one(state: PyTree, key: Key | None) -> tuple[PyTree, Float[Array, ""], Float[Array, ""]]:
            observation = self.environment.observe(state)
            distribution, value = self.network(observation)
            action = distribution.mode() if key is None else distribution.sample(key)
            return action, distribution.log_prob(action), value

        actions, log_probs, values = jax.vmap(one)(states, keys)
        return {"actions": actions, "log_probs": log_probs, "values": values}

"""Phalanx environments with gymnax's `reset` and `step`, for loops in the manner of PureJaxRL.

Gymnax itself is not needed. Batches that start anew in formation are `phalanx.core.autoreset`.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree

from phalanx.core.environment import (
    Environment,
    EnvironmentConfigLike,
    Key,
    Keys,
    TransitionInfo,
    as_environment,
)
from phalanx.core.spaces import Discrete, Space, check_integer_dtypes
from phalanx.core.vector import broadcast_unbatched
from phalanx.integrations.environments import MASK, info_fields, legal_rows


class EnvParams(eqx.Module):
    """Nothing: a Phalanx environment holds its settings itself. It is here because gymnax hands it round."""


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class GymnaxEnv:
    """One environment as gymnax knows it; pure functions, for `jit`, `vmap` and `scan`.

    `reset(key, params)` gives observation and state. `step(key, state, action, params)` gives observation,
    state, reward, done and info, or with `values=6`, as gymnax does from version 1 on, observation, state,
    reward, terminated, truncated and info. It starts the next episode, from `key`, as soon as one has ended;
    `step_env` is the same and does not.

    `info` is a dictionary: what the environment told (`terminated`, `truncated`, ...), `discount`, which is 0
    only after termination, `final_observation`, which is the one before any reset, and for environments that
    have one the `action_mask` of the returned state. Observations, actions and spaces are the environment's
    own.
    """

    environment: Environment
    values: int = 5

    def __post_init__(self) -> None:
        if self.values not in (5, 6):
            raise ValueError(f"a step has 5 or 6 values, got values={self.values!r}")

    @classmethod
    def create(
        cls, environment: Environment | EnvironmentConfigLike, task: Any = None, *, values: int = 5
    ) -> "GymnaxEnv":
        """From an environment, or from a config and a task."""
        return cls(as_environment(environment, task), values)

    @property
    def name(self) -> str:
        """The environment's class."""
        return type(self.environment).__name__

    @property
    def default_params(self) -> EnvParams:
        """What to hand round."""
        return EnvParams()

    @property
    def num_actions(self) -> int:
        """How many actions there are, where an action is one number."""
        space = self.environment.action_space
        if not isinstance(space, Discrete):
            raise TypeError(f"an action of {self.name} is not one number; see action_space(params)")
        return space.n

    def action_space(self, params: EnvParams | None = None) -> Space:
        """What `step` takes."""
        return self.environment.action_space

    def observation_space(self, params: EnvParams | None = None) -> Space:
        """What one observation looks like."""
        return self.environment.observation_space

    def reset(self, key: Key, params: EnvParams | None = None) -> tuple[PyTree, PyTree]:
        """Start an episode: observation and state."""
        return self.reset_env(key, params)

    def reset_env(self, key: Key, params: EnvParams | None = None) -> tuple[PyTree, PyTree]:
        """The same."""
        state, observation = self.environment.reset(key)
        return observation, state

    def step(
        self, key: Key, state: PyTree, action: PyTree, params: EnvParams | None = None
    ) -> tuple[Any, ...]:
        """One transition, and the start of the next episode where it was the last.

        Under `vmap` it is one step of the batch, in which only those that have ended are started anew.
        """
        check_integer_dtypes(self.environment.action_space, action)
        return _auto_step(self)(key, state, action)

    def step_env(
        self, key: Key, state: PyTree, action: PyTree, params: EnvParams | None = None
    ) -> tuple[Any, ...]:
        """One transition; a finished state stays as it is."""
        check_integer_dtypes(self.environment.action_space, action)
        state, observation, reward, done, told = self.environment.step(state, action)
        info = self._info(told, observation)
        return observation, state, reward, *self._ends(done, info), _masked(info, self.action_mask(state))

    def get_obs(self, state: PyTree, params: EnvParams | None = None, key: Key | None = None) -> PyTree:
        """The observation that belongs to a state."""
        return self.environment.observe(state)

    def is_terminal(self, state: PyTree, params: EnvParams | None = None) -> Bool[Array, "*batch"]:
        """Whether the episode has ended, in either way."""
        return self.environment.is_done(state)

    def action_mask(self, state: PyTree, params: EnvParams | None = None) -> Bool[Array, " actions"] | None:
        """Which actions are legal in a state; None where all of them always are."""
        return self.environment.legal_actions(state)

    def _step_batch(self, keys: Keys, states: PyTree, actions: PyTree) -> tuple[Any, ...]:
        states, observations, rewards, dones, told = self.environment.batch_step(states, actions)
        info = self._info(told, observations)
        states, observations = jax.lax.cond(
            jnp.any(dones),
            lambda: self.environment.batch_reset_where(dones, keys, states, observations),
            lambda: (states, observations),
        )
        info = _masked(info, legal_rows(self.environment, states))
        return observations, states, rewards, *self._ends(dones, info), info

    def _info(self, told: TransitionInfo, observation: PyTree) -> dict[str, Any]:
        info = info_fields(told)
        info["discount"] = jnp.where(info["terminated"], jnp.float32(0), jnp.float32(1))
        return {**info, "final_observation": observation}

    def _ends(self, done: Bool[Array, "*batch"], info: dict[str, Any]) -> tuple[Array, ...]:
        return (done,) if self.values == 5 else (info["terminated"], info["truncated"])


def _masked(info: dict[str, Any], mask: Bool[Array, "*batch actions"] | None) -> dict[str, Any]:
    return info if mask is None else {**info, MASK: mask}


@functools.lru_cache(maxsize=64)
def _auto_step(env: GymnaxEnv) -> Callable[..., tuple[Any, ...]]:
    """`step`, with a rule for `vmap`: else every environment would be started anew in every step."""

    @jax.custom_batching.custom_vmap
    def step(key: Key, state: PyTree, action: PyTree) -> tuple[Any, ...]:
        state, observation, reward, done, told = env.environment.step(state, action)
        info = env._info(told, observation)
        observation, state = jax.lax.cond(done, lambda: env.reset_env(key), lambda: (observation, state))
        return observation, state, reward, *env._ends(done, info), _masked(info, env.action_mask(state))

    @step.def_vmap
    def _(axis_size: int, batched: Any, *given: Any) -> tuple[Any, Any]:
        results = env._step_batch(*broadcast_unbatched(given, tuple(batched), axis_size))
        return results, jax.tree.map(lambda _: True, results)

    return step

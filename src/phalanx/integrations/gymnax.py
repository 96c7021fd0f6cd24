"""Adapter with the gymnax interface, for training loops in the style of PureJaxRL.

It does not require gymnax to be installed.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from phalanx.extras import require_extra

with require_extra(__name__, "jax", "jax", "equinox"):
    import equinox as eqx
    import jax
    import jax.numpy as jnp

import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from phalanx.core.environment import Environment, Key, Keys, info_fields, is_done
from phalanx.core.spaces import Box, Composite, Discrete, Space, check_integer_dtypes
from phalanx.core.vector import broadcast_unbatched

MASK = "action_mask"


class EnvParams(eqx.Module):
    """Empty parameters, which gymnax passes to every method.

    The settings of a Phalanx environment are part of the environment.
    """


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class GymnaxEnv:
    """Adapter that gives an environment gymnax's methods, as pure functions for `jit`, `vmap` and `scan`.

    `reset(key, params)` returns observation and state. `step(key, state, action, params)` returns
    observation, state, reward, done and info. When an episode ends, `step` starts the next episode from
    `key`. In contrast, `step_env` never starts a new episode.

    `info` is a dictionary with the fields of the environment's info (`terminated`, `truncated`, ...),
    `discount` (0 after termination, otherwise 1), `final_observation` (the observation before any reset) and,
    if the environment restricts the legal actions, `action_mask` (the mask of the returned state).
    Observations, actions and spaces are those of the environment.

    Args:
        environment: Environment to adapt.
        step_values: Number of values that `step` returns. With 5, it returns the values described above. With
            6, it returns `terminated` and `truncated` instead of `done`, as in gymnax 1.0.
    """

    environment: Environment
    step_values: int = 5

    def __post_init__(self) -> None:
        if self.step_values not in (5, 6):
            raise ValueError(f"step_values must be 5 or 6, got {self.step_values!r}")

    @property
    def name(self) -> str:
        """Name of the environment's class."""
        return type(self.environment).__name__

    @property
    def default_params(self) -> EnvParams:
        """Parameters to pass to the other methods. They are empty."""
        return EnvParams()

    @property
    def num_actions(self) -> int:
        """Number of actions. Raises `TypeError` if an action is not a single integer."""
        space = self.environment.action_space
        if not isinstance(space, Discrete):
            raise TypeError(f"an action of {self.name} is not a single integer; see action_space(params)")
        return space.n

    def action_space(self, params: EnvParams | None = None) -> Space:
        """Return the space of one action."""
        return self.environment.action_space

    def observation_space(self, params: EnvParams | None = None) -> Space:
        """Return the space of one observation."""
        return self.environment.observation_space

    def state_space(self, params: EnvParams | None = None) -> Space:
        """Return a space with the shapes and dtypes of the arrays in a state."""
        state, _ = jax.eval_shape(self.environment.reset, jax.ShapeDtypeStruct((2,), jnp.uint32))
        space = _shape_space(state)
        assert space is not None
        return space

    def reset_env(self, key: Key, params: EnvParams | None = None) -> tuple[PyTree, PyTree]:
        """Start an episode. Returns the observation and the state."""
        state, observation = self.environment.reset(key)
        return observation, state

    reset = reset_env

    def step(
        self, key: Key, state: PyTree, action: PyTree, params: EnvParams | None = None
    ) -> tuple[Any, ...]:
        """Take a step. If the episode ends, start the next one.

        The class docstring lists the returned values. Under `vmap`, the batch takes one step, and only the
        episodes that have ended are reset.
        """
        check_integer_dtypes(self.environment.action_space, action)
        return _autoreset_step(self)(key, state, action)

    def step_env(
        self, key: Key, state: PyTree, action: PyTree, params: EnvParams | None = None
    ) -> tuple[Any, ...]:
        """Take a step without auto-reset. A state whose episode has ended stays unchanged."""
        check_integer_dtypes(self.environment.action_space, action)
        state, observation, reward, done, info = self.environment.step(state, action)
        flags = state.terminated, state.truncated
        mask = self.action_mask(state)
        return self._result(state, observation, reward, done, flags, info, observation, mask)

    def get_obs(self, state: PyTree, params: EnvParams | None = None, key: Key | None = None) -> PyTree:
        """Return the observation of a state."""
        return self.environment.observe(state)

    def is_terminal(self, state: PyTree, params: EnvParams | None = None) -> Bool[Array, "*batch"]:
        """Return whether the episode has ended, by termination or truncation."""
        ended: Array = is_done(state)
        return ended

    def is_terminated(self, state: PyTree, params: EnvParams | None = None) -> Bool[Array, ""]:
        """Return whether the episode has terminated."""
        return state.terminated

    def is_truncated(self, state: PyTree, params: EnvParams | None = None) -> Bool[Array, ""]:
        """Return whether the episode was truncated."""
        return state.truncated

    def discount(self, state: PyTree, params: EnvParams | None = None) -> Float[Array, ""]:
        """Return 0 if the episode has terminated, otherwise 1."""
        return jnp.where(self.is_terminated(state), jnp.float32(0), jnp.float32(1))

    def action_mask(self, state: PyTree, params: EnvParams | None = None) -> Bool[Array, " actions"] | None:
        """Return the mask of legal actions, or None if all actions are always legal."""
        return self.environment.legal_actions(state)

    def _step_batch(self, keys: Keys, states: PyTree, actions: PyTree) -> tuple[Any, ...]:
        states, final, rewards, dones, info = self.environment.batch_step(states, actions)
        flags = states.terminated, states.truncated
        states, observations = jax.lax.cond(
            jnp.any(dones),
            lambda: self.environment.batch_reset_where(dones, keys, states, final),
            lambda: (states, final),
        )
        masks = jax.vmap(self.environment.legal_actions)(states)
        return self._result(states, observations, rewards, dones, flags, info, final, masks)

    def _result(
        self,
        state: PyTree,
        observation: PyTree,
        reward: Array,
        done: Array,
        flags: tuple[Array, Array],
        step_info: Any,
        final_observation: PyTree,
        mask: Bool[Array, "*batch actions"] | None,
    ) -> tuple[Any, ...]:
        """Return the tuple that `step` returns, given the results of the environment's step.

        `flags` says whether the episode has terminated and whether it was truncated.
        """
        info = info_fields(step_info)
        info["terminated"], info["truncated"] = flags
        info["discount"] = jnp.where(flags[0], jnp.float32(0), jnp.float32(1))
        info["final_observation"] = final_observation
        if mask is not None:
            info[MASK] = mask
        ended = (done,) if self.step_values == 5 else flags
        return observation, state, reward, *ended, info


def _shape_space(value: Any) -> Space | None:
    """Return a space that matches the shapes and dtypes of the arrays in a value.

    Return None if the value contains no arrays.
    """
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            value = jax.eval_shape(jax.random.key_data, value)
        shape, dtype = value.shape, value.dtype
        if dtype == np.bool_:
            return Box(0, 1, shape, np.bool_)
        if np.issubdtype(dtype, np.integer):
            return Box(int(np.iinfo(dtype).min), int(np.iinfo(dtype).max), shape, dtype)
        return Box(-np.inf, np.inf, shape, dtype)
    fields = dataclasses.fields(value) if dataclasses.is_dataclass(value) else ()
    names = [field.name for field in fields] or list(getattr(value, "_fields", ()))
    spaces = {name: _shape_space(getattr(value, name)) for name in names}
    found = {name: space for name, space in spaces.items() if space is not None}
    return Composite.of(type(value), found) if found else None


@functools.lru_cache(maxsize=64)
def _autoreset_step(env: GymnaxEnv) -> Callable[..., tuple[Any, ...]]:
    """Return a `step` function with auto-reset and a custom batching rule for `jax.vmap`.

    With the default batching rule, a reset would be computed for every environment in every step.
    """

    @jax.custom_batching.custom_vmap
    def step(key: Key, state: PyTree, action: PyTree) -> tuple[Any, ...]:
        state, final, reward, done, info = env.environment.step(state, action)
        flags = state.terminated, state.truncated
        observation, state = jax.lax.cond(done, lambda: env.reset_env(key), lambda: (final, state))
        return env._result(state, observation, reward, done, flags, info, final, env.action_mask(state))

    @step.def_vmap
    def _(axis_size: int, batched: Any, *args: Any) -> tuple[Any, Any]:
        results = env._step_batch(*broadcast_unbatched(args, tuple(batched), axis_size))
        return results, jax.tree.map(lambda _: True, results)

    return step

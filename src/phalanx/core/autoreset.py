"""Auto-reset of a batch: finished episodes are reset in the same step or in the next one."""

import dataclasses
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from phalanx.core.environment import Environment, Key, Keys, TransitionInfo
from phalanx.core.vector import map_where

Mode = Literal["same_step", "next_step"]


class AutoResetState(eqx.Module):
    """States of the environments, and the key from which each one's next episodes are drawn."""

    states: PyTree
    keys: Keys


class AutoResetInfo(eqx.Module):
    """Info of a step with auto-reset."""

    info: TransitionInfo
    """Info of the environment. Ignore it where next-step mode has just reset an environment."""
    final_observation: PyTree
    """Observation before any reset: the terminal observation where an episode has ended."""
    reset_mask: Bool[Array, " batch"]
    """Environments whose returned observation is the first of a new episode."""
    terminated: Bool[Array, " batch"]
    """Episodes that terminated in this step."""
    truncated: Bool[Array, " batch"]
    """Episodes that were truncated in this step."""


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class AutoReset:
    """Steps a batch and resets finished episodes, with one of Gymnasium's two modes.

    `same_step`: a step that ends an episode returns the first observation of the next episode; the terminal
    observation is in `info.final_observation`. `next_step`: the terminal observation is returned with `done`,
    and the next step ignores the action and starts the next episode, with reward 0 and `done` False.

    Each environment draws its episodes from its own key, so they do not depend on the rest of the batch. The
    methods are pure functions that can be used inside `jit` and `scan`.
    """

    environment: Environment
    mode: Mode = "same_step"

    def __post_init__(self) -> None:
        if self.mode not in ("same_step", "next_step"):
            raise ValueError(f"mode must be 'same_step' or 'next_step', got {self.mode!r}")

    def reset(self, keys: Keys) -> tuple[AutoResetState, PyTree]:
        """Start one environment per key."""
        next_keys, episode_keys = jax.vmap(_split)(keys)
        states, observations = self.environment.batch_reset(episode_keys)
        return AutoResetState(states, next_keys), observations

    def step(
        self, state: AutoResetState, actions: PyTree
    ) -> tuple[AutoResetState, PyTree, Float[Array, " batch"], Bool[Array, " batch"], AutoResetInfo]:
        """Step every environment and reset those whose episode has ended."""
        states, observations, rewards, dones, info = self.environment.batch_step(state.states, actions)
        mask, *flags = self._reset_mask_and_flags(state.states, dones, info.terminated, info.truncated)
        after, new_observations = self.reset_where(mask, AutoResetState(states, state.keys), observations)
        dones, terminated, truncated = flags
        auto_info = AutoResetInfo(info, observations, mask, terminated, truncated)
        return after, new_observations, rewards, dones, auto_info

    def _reset_mask_and_flags(
        self, before: PyTree, *flags: Bool[Array, " batch"]
    ) -> tuple[Bool[Array, " batch"], ...]:
        """Return the environments to reset after a step, and the step's flags; `done` is the first."""
        if self.mode == "same_step":
            return flags[0], *flags
        # Stepping a finished state changes nothing, with reward 0, so only its flags have to be cleared.
        mask = self.environment.is_done(before)
        return mask, *(flag & ~mask for flag in flags)

    def reset_where(
        self, mask: Bool[Array, " batch"], state: AutoResetState, observations: PyTree
    ) -> tuple[AutoResetState, PyTree]:
        """Start the next episode of every environment in the mask."""

        def reset(state: AutoResetState, observations: PyTree) -> tuple[AutoResetState, PyTree]:
            next_keys, episode_keys = map_where(_split, mask, state.keys, (state.keys, state.keys), shared=())
            states, new = self.environment.batch_reset_where(mask, episode_keys, state.states, observations)
            return AutoResetState(states, next_keys), new

        def keep(state: AutoResetState, observations: PyTree) -> tuple[AutoResetState, PyTree]:
            return state, observations

        if jax.device_count() > 1:
            # Testing whether any episode has ended would synchronize all devices in every step.
            return reset(state, observations)
        return jax.lax.cond(jnp.any(mask), reset, keep, state, observations)


def _split(key: Key) -> tuple[Key, Key]:
    """Return the key for later episodes and the key of the next one."""
    next_key, episode_key = jax.random.split(key)
    return next_key, episode_key

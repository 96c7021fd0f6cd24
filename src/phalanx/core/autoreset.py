"""Auto-reset layer, which starts a new episode in each environment of a batch whose episode has ended."""

import dataclasses
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from phalanx.core.environment import Environment, Key, Keys, is_done
from phalanx.core.vector import batch_metrics, map_where

Mode = Literal["same_step", "next_step"]


class AutoResetState(eqx.Module):
    """States of a batch of environments, and the PRNG keys for their next episodes."""

    states: PyTree
    keys: Keys


class AutoResetInfo(eqx.Module):
    """Info returned by `AutoReset.step`."""

    info: PyTree
    """Info returned by the environment itself. In `next_step` mode, ignore it where `reset_mask` is True."""
    final_observation: PyTree
    """Observation after the step but before any reset. Where an episode has ended, this is the terminal
    observation."""
    reset_mask: Bool[Array, " batch"]
    """True for environments whose returned observation is the first observation of a new episode."""
    terminated: Bool[Array, " batch"]
    """True for episodes that terminated in this step."""
    truncated: Bool[Array, " batch"]
    """True for episodes that were truncated in this step."""
    metrics: dict[str, Array]
    """Result of the environment's `metrics` for the states after the step but before any reset."""


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class AutoReset:
    """Steps a batch of environments and resets those that are done.

    The `same_step` and `next_step` modes correspond to those of Gymnasium's vector environments.

    In `same_step` mode, a step that ends an episode returns the first observation of the next episode, and
    the terminal observation is in `info.final_observation`. In `next_step` mode, a step that ends an episode
    returns the terminal observation. The following step ignores the action and starts the next episode, with
    reward 0 and `done` False.

    Each environment draws its episodes from its own key, so its episodes do not depend on the rest of the
    batch. The methods are pure functions that can be used inside `jit` and `scan`.
    """

    environment: Environment
    mode: Mode = "same_step"

    def __post_init__(self) -> None:
        if self.mode not in ("same_step", "next_step"):
            raise ValueError(f"mode must be 'same_step' or 'next_step', got {self.mode!r}")

    def reset(self, keys: Keys) -> tuple[AutoResetState, PyTree]:
        """Start one episode per key. Returns the state and the first observations."""
        next_keys, episode_keys = jax.vmap(_split)(keys)
        states, observations = self.environment.batch_reset(episode_keys)
        return AutoResetState(states, next_keys), observations

    def step(
        self, state: AutoResetState, actions: PyTree
    ) -> tuple[AutoResetState, PyTree, Float[Array, " batch"], Bool[Array, " batch"], AutoResetInfo]:
        """Step every environment. Environments whose episode has ended are reset according to `mode`.

        Returns:
            The new state, observations, rewards, dones and info.
        """
        states, observations, rewards, dones, info = self.environment.batch_step(state.states, actions)
        terminated, truncated = states.terminated, states.truncated
        mask, *flags = self._reset_mask_and_flags(state.states, dones, terminated, truncated)
        after, new_observations = self.reset_where(mask, AutoResetState(states, state.keys), observations)
        dones, terminated, truncated = flags
        metrics = batch_metrics(self.environment, states)
        auto_info = AutoResetInfo(info, observations, mask, terminated, truncated, metrics)
        return after, new_observations, rewards, dones, auto_info

    def _reset_mask_and_flags(
        self, before: PyTree, *flags: Bool[Array, " batch"]
    ) -> tuple[Bool[Array, " batch"], ...]:
        """Return the mask of environments to reset after a step, followed by the flags that the step returns.

        In next-step mode, all flags are False for environments that are reset, because their step only starts
        a new episode.

        Args:
            before: States before the step.
            flags: Flags that the environment's own step returned. The first one is `done`.
        """
        if self.mode == "same_step":
            return flags[0], *flags
        # Stepping a finished state changes nothing, with reward 0, so only its flags have to be cleared.
        mask = is_done(before)
        return mask, *(flag & ~mask for flag in flags)

    def reset_where(
        self, mask: Bool[Array, " batch"], state: AutoResetState, observations: PyTree
    ) -> tuple[AutoResetState, PyTree]:
        """Start a new episode in each environment for which `mask` is True. Other environments do not change.

        Returns:
            The new state, and the observations of all environments.
        """

        def reset(state: AutoResetState, observations: PyTree) -> tuple[AutoResetState, PyTree]:
            next_keys, episode_keys = map_where(_split, mask, state.keys, (state.keys, state.keys), shared=())
            states, new = self.environment.batch_reset_where(mask, episode_keys, state.states, observations)
            return AutoResetState(states, next_keys), new

        if jax.device_count() > 1:
            # Testing whether any episode has ended would synchronize all devices in every step.
            return reset(state, observations)
        return jax.lax.cond(jnp.any(mask), reset, lambda *unchanged: unchanged, state, observations)


def _split(key: Key) -> tuple[Key, Key]:
    """Split the key of an environment into two keys: `next_key`, to be split again, and `episode_key`.

    `episode_key` starts the next episode. `next_key` replaces the key of the environment.
    """
    next_key, episode_key = jax.random.split(key)
    return next_key, episode_key

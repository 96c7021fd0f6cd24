"""Auto-reset as a layer over a batch: finished environments start anew and the terminal observation is kept.

Environments never reset themselves; single episodes that stay finished are in `episodes`.
"""

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
    """The environments' states, and for each the key from which its coming episodes are drawn."""

    states: PyTree
    keys: Keys


class AutoResetInfo(eqx.Module):
    """What happened in a step of an auto-reset batch."""

    info: TransitionInfo
    """The environment's own info; of the ignored step, in environments that next-step mode has just reset."""
    final_observation: PyTree
    """The observation before any reset: the terminal one wherever an episode has ended."""
    reset_mask: Bool[Array, " batch"]
    """Environments whose returned observation is the first of a new episode."""
    terminated: Bool[Array, " batch"]
    """Episodes that ended in this step by reaching an end."""
    truncated: Bool[Array, " batch"]
    """Episodes that ended in this step by being cut off."""


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class AutoReset:
    """Steps a batch for ever, with Gymnasium's two meanings of auto-reset.

    `same_step`: a step that ends an episode returns the next episode's first observation, and the terminal
    one in `info.final_observation`. `next_step`: the terminal observation is returned with `done`; the step
    after it ignores the action, starts the next episode and pays 0, with `done` False.

    Each environment draws its episodes from its own key, so an environment's fate does not depend on the
    batch it is in. The functions are pure; put them inside your own `jit` or `scan`.
    """

    environment: Environment
    mode: Mode = "same_step"

    def __post_init__(self) -> None:
        if self.mode not in ("same_step", "next_step"):
            raise ValueError(f"mode must be 'same_step' or 'next_step', got {self.mode!r}")

    def reset(self, keys: Keys) -> tuple[AutoResetState, PyTree]:
        """Start a batch of environments, one for each key."""
        kept, episode_keys = jax.vmap(_split)(keys)
        states, observations = self.environment.batch_reset(episode_keys)
        return AutoResetState(states, kept), observations

    def step(
        self, state: AutoResetState, actions: PyTree
    ) -> tuple[AutoResetState, PyTree, Float[Array, " batch"], Bool[Array, " batch"], AutoResetInfo]:
        """Step every environment, and start anew those that have ended."""
        states, observations, rewards, dones, info = self.environment.batch_step(state.states, actions)
        mask, *flags = self._ended(state.states, dones, info.terminated, info.truncated)
        after, fresh = self.restart(mask, AutoResetState(states, state.keys), observations)
        dones, terminated, truncated = flags
        return after, fresh, rewards, dones, AutoResetInfo(info, observations, mask, terminated, truncated)

    def _ended(self, before: PyTree, *flags: Bool[Array, " batch"]) -> tuple[Bool[Array, " batch"], ...]:
        """Whom to start anew after a step from these states, and its flags (the first is `done`)."""
        if self.mode == "same_step":
            return flags[0], *flags
        # Stepping a finished state is a no-op that pays 0, so only its flags have to be taken back.
        mask = self.environment.is_done(before)
        return mask, *(flag & ~mask for flag in flags)

    def restart(
        self, mask: Bool[Array, " batch"], state: AutoResetState, observations: PyTree
    ) -> tuple[AutoResetState, PyTree]:
        """Start the next episode of every environment that the mask names; the others go on."""

        def renew(state: AutoResetState, observations: PyTree) -> tuple[AutoResetState, PyTree]:
            kept, episode_keys = map_where(_split, mask, state.keys, (state.keys, state.keys), shared=())
            states, fresh = self.environment.batch_reset_where(mask, episode_keys, state.states, observations)
            return AutoResetState(states, kept), fresh

        def keep(state: AutoResetState, observations: PyTree) -> tuple[AutoResetState, PyTree]:
            return state, observations

        if jax.device_count() > 1:
            # Whether any episode has ended anywhere would make every device wait for all at every step.
            return renew(state, observations)
        return jax.lax.cond(jnp.any(mask), renew, keep, state, observations)


def _split(key: Key) -> tuple[Key, Key]:
    """What an environment keeps, and the key of its new episode."""
    kept, episode_key = jax.random.split(key)
    return kept, episode_key

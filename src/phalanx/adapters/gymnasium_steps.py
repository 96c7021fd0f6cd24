"""The compiled calls behind Gymnasium's `reset` and `step`: JAX arrays in and out, auto-reset included.

NumPy arrays and Gymnasium's classes are in `gymnasium`.
"""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree, UInt32

from phalanx.adapters.batch_environment import blank_batch
from phalanx.adapters.gymnasium_spaces import built_actions
from phalanx.core.autoreset import AutoReset, AutoResetState, Mode
from phalanx.core.environment import Environment, TransitionInfo


class Running(eqx.Module):
    """Where a batch of environments stands, as JAX arrays; the keys are those of the coming episodes."""

    auto: AutoResetState
    observations: PyTree


def not_begun(environment: Environment, count: int) -> Running:
    """A batch to begin from."""
    states, observations = blank_batch(environment, count)
    return Running(AutoResetState(states, jnp.zeros((count, 2), jnp.uint32)), observations)


class Outcome(eqx.Module):
    """What a step of a batch gives besides where it then stands."""

    rewards: Float[Array, " batch"]
    terminated: Bool[Array, " batch"]
    truncated: Bool[Array, " batch"]
    info: TransitionInfo
    terminal: PyTree
    """The observations before any reset, in same-step mode."""


@functools.partial(jax.jit, static_argnums=0)
def begin(
    environment: Environment,
    chosen: Bool[Array, " batch"],
    sown: Bool[Array, " batch"],
    fresh: UInt32[Array, "batch 2"],
    running: Running,
) -> Running:
    """New episodes for the chosen, from fresh keys where seeds were sown, as `AutoReset` would draw them."""
    keys = jnp.where(sown[:, None], fresh, running.auto.keys)
    drawn = jax.vmap(jax.random.split)(keys)
    kept = jnp.where(chosen[:, None], drawn[:, 0], keys)
    states, observations = environment.batch_reset_where(
        chosen, drawn[:, 1], running.auto.states, running.observations
    )
    return Running(AutoResetState(states, kept), observations)


@functools.partial(jax.jit, static_argnums=(0, 1))
def advance(
    environment: Environment, mode: Mode | None, running: Running, given: PyTree
) -> tuple[Running, Outcome]:
    actions = built_actions(environment.action_space, given)
    if mode is None:
        states, seen, rewards, _, info = environment.batch_step(running.auto.states, actions)
        after = Running(AutoResetState(states, running.auto.keys), seen)
        return after, Outcome(rewards, info.terminated, info.truncated, info, None)
    auto, seen, rewards, _, told = AutoReset(environment, mode).step(running.auto, actions)
    terminal = told.final_observation if mode == "same_step" else None
    return Running(auto, seen), Outcome(rewards, told.terminated, told.truncated, told.info, terminal)

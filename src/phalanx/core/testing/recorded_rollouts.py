"""Compiled rollouts with recorded states, shared by the conformance checks."""

import dataclasses
from collections.abc import Iterable
from functools import lru_cache, partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PyTree

from phalanx.core.autoreset import AutoReset, AutoResetState
from phalanx.core.environment import Environment, Key, Keys
from phalanx.core.testing.tree_diff import take
from phalanx.core.vector import select_rows


class ConformanceError(AssertionError):
    """Raised if an environment violates the protocol. `failures` has one message per violation."""

    def __init__(self, title: str, failures: Iterable[str]) -> None:
        self.failures = tuple(failures)
        super().__init__("\n  - ".join([title, *self.failures]))


class StepResult(eqx.Module):
    """Values returned by `step` or `batch_step`."""

    states: PyTree
    observations: PyTree
    rewards: PyTree
    dones: PyTree
    infos: PyTree


class RecordedStep(eqx.Module):
    """Steps of a rollout. The leaves have shape `[steps, ...]` or, for a batch, `[steps, batch, ...]`."""

    before: PyTree
    """States before the step."""
    actions: PyTree
    after: StepResult


class RecordedAutoResetStep(eqx.Module):
    """Results of the same steps with and without auto-reset."""

    raw: StepResult
    """Results without auto-reset."""
    raw_observations: PyTree
    """Observations of the states after the step without auto-reset."""
    auto: StepResult
    """Results with auto-reset."""


@partial(jax.jit, static_argnums=1)
def rollout_keys(keys: Keys, num_steps: int) -> tuple[Keys, PyTree]:
    """Create the keys of a rollout. This is compiled separately from the rollouts.

    Args:
        keys: One key per environment.
        num_steps: Number of steps.

    Returns:
        Reset keys of shape `[batch]` and step keys of shape `[steps, batch]`.
    """
    split = jax.vmap(lambda key: jax.random.split(key, num_steps + 1), out_axes=1)(keys)
    return split[0], split[1:]


@partial(jax.jit, static_argnums=0)
def rollout_one(environment: Environment, key: Key, step_keys: PyTree) -> tuple[PyTree, RecordedStep]:
    """Run one environment with random legal actions. Returns the first observation and the recorded steps."""
    state, first = environment.reset(key)

    def one(state: PyTree, key: Key) -> tuple[PyTree, RecordedStep]:
        action = environment.sample_action(key, state)
        after = StepResult(*environment.step(state, action))
        return after.states, RecordedStep(state, action, after)

    return first, jax.lax.scan(one, state, step_keys)[1]


@partial(jax.jit, static_argnums=0)
def rollout_batch(
    environment: Environment, keys: Keys, step_keys: PyTree, invalid: Bool[Array, "steps batch"] | None = None
) -> tuple[PyTree, RecordedStep]:
    """Run a batch of environments with random legal actions, or invalid actions where `invalid` is True.

    Returns:
        The first observations and the recorded steps.
    """
    states, first = environment.batch_reset(keys)

    def one(states: PyTree, inputs: tuple[Any, Any]) -> tuple[PyTree, RecordedStep]:
        keys, use_invalid = inputs
        actions = jax.vmap(environment.sample_action)(keys, states)
        if use_invalid is not None:
            actions = select_rows(use_invalid, jax.vmap(environment.invalid_action)(keys, states), actions)
        after = StepResult(*environment.batch_step(states, actions))
        return after.states, RecordedStep(states, actions, after)

    return first, jax.lax.scan(one, states, (step_keys, invalid))[1]


@dataclasses.dataclass(frozen=True)
class _EitherMode(AutoReset):
    """Auto-reset layer whose mode is a traced boolean, so that one compiled program serves both modes."""

    next_step: Any = False

    def _reset_mask_and_flags(
        self, before: PyTree, *flags: Bool[Array, " batch"]
    ) -> tuple[Bool[Array, " batch"], ...]:
        modes = (AutoReset(self.environment, mode) for mode in ("next_step", "same_step"))
        by_mode = (layer._reset_mask_and_flags(before, *flags) for layer in modes)
        return jax.tree.map(partial(jnp.where, self.next_step), *by_mode)


@partial(jax.jit, static_argnums=0)
def rollout_auto_reset(
    environment: Environment, next_step: Bool[Array, ""], states: PyTree, keys: Keys, step_keys: PyTree
) -> RecordedStep:
    """Run a batch with auto-reset and random legal actions, and return the recorded steps.

    Args:
        environment: The environment.
        next_step: Whether to use next-step mode instead of same-step mode.
        states: Recorded states, of which those of the first step are the initial states.
        keys: One key per environment, from which the episodes after the first one are drawn.
        step_keys: Keys of the random actions.
    """
    layer = _EitherMode(environment, next_step=next_step)

    def one(state: AutoResetState, keys: Keys) -> tuple[AutoResetState, RecordedStep]:
        actions = jax.vmap(environment.sample_action)(keys, state.states)
        after, *rest = layer.step(state, actions)
        return after, RecordedStep(state.states, actions, StepResult(after.states, *rest))

    return jax.lax.scan(one, AutoResetState(take(states, 0), keys), step_keys)[1]


@partial(jax.jit, static_argnums=0)
def observe_states(environment: Environment, states: PyTree) -> tuple[PyTree, Bool[Array, "steps batch"]]:
    """Return the observations and done flags of recorded states."""
    return jax.vmap(jax.vmap(environment.observe))(states), jax.vmap(environment.is_done)(states)


@partial(jax.jit, static_argnums=0)
def comparable_states(environment: Environment, states: PyTree) -> PyTree:
    """Return `comparable_state` of recorded states."""
    return jax.vmap(jax.vmap(environment.comparable_state))(states)


@partial(jax.jit, static_argnums=0)
def by_vmap(
    environment: Environment, keys: PyTree, states: PyTree, actions: PyTree
) -> tuple[Any, StepResult]:
    """Call `vmap(reset)` and `vmap(step)` with the keys, states and actions of each recorded step."""

    def one(given: tuple[Any, Any, Any]) -> tuple[Any, StepResult]:
        keys, states, actions = given
        return jax.vmap(environment.reset)(keys), StepResult(*jax.vmap(environment.step)(states, actions))

    return jax.lax.map(one, (keys, states, actions))


@partial(jax.jit, static_argnums=0)
def by_batch(
    environment: Environment,
    keys: PyTree,
    states: PyTree,
    actions: PyTree,
    mask: Bool[Array, "steps batch"],
    observations: PyTree,
) -> tuple[Any, StepResult, Any]:
    """Call `batch_reset`, `batch_step` and `batch_reset_where` with the arguments of each recorded step."""

    def one(given: tuple[Any, Any, Any, Any, Any]) -> tuple[Any, StepResult, Any]:
        keys, states, actions, mask, observations = given
        return (
            environment.batch_reset(keys),
            StepResult(*environment.batch_step(states, actions)),
            environment.batch_reset_where(mask, keys, states, observations),
        )

    return jax.lax.map(one, (keys, states, actions, mask, observations))


@partial(jax.jit, static_argnums=0)
def by_batch_of_one(
    environment: Environment, key: Key, states: PyTree, actions: PyTree
) -> tuple[Any, StepResult]:
    """Call `batch_reset` and `batch_step` with batches of size 1 along a rollout of one environment."""

    def one(given: tuple[Any, Any]) -> StepResult:
        states, actions = take(given, None)
        return take(StepResult(*environment.batch_step(states, actions)), 0)

    return take(environment.batch_reset(key[None]), 0), jax.lax.map(one, (states, actions))


def raise_if_failed(rule: str, found: list[str]) -> bool:
    """Raise `ConformanceError` with the first five messages, or return True if there are none."""
    if found:
        rest = [f"... and {len(found) - 5} more"] if len(found) > 5 else []
        raise ConformanceError(rule, found[:5] + rest)
    return True


def keys_from(seed: int, batch_size: int) -> Keys:
    """Create one PRNG key per environment from a seed."""
    return jax.random.split(jax.random.PRNGKey(seed), batch_size)


@lru_cache(maxsize=16)
def has_invalid(environment: Environment) -> bool:
    """Return whether an environment has invalid actions."""
    key = jax.random.PRNGKey(0)
    state, _ = jax.eval_shape(environment.reset, key)
    return jax.eval_shape(environment.invalid_action, key, state) is not None


def record_rollout(
    environment: Environment, keys: Keys, num_steps: int, invalid: Any = False
) -> tuple[Any, Any]:
    """Run a batch with random actions. Returns the first observations and the recorded steps.

    Args:
        environment: The environment.
        keys: One key per environment.
        num_steps: Number of steps.
        invalid: Flags of shape `[steps, batch]` that select invalid actions. They are ignored if the
            environment has no invalid actions.
    """
    # Flags are passed even if none is True, so that all rollouts of one size share a compilation.
    flags = np.broadcast_to(invalid, (num_steps, len(keys))) if has_invalid(environment) else None
    return rollout_batch(environment, *rollout_keys(keys, num_steps), flags)


def first_wrong(wrong: np.ndarray) -> str:
    """Describe the step and environment of the first True flag in an array of shape `[steps, batch]`."""
    step, index = np.argwhere(wrong)[0]
    return f"environment {index} at step {step}"


def sample_indices(num_steps: int, batch_size: int) -> list[tuple[int, int]]:
    """Return pairs of a step and an environment: up to 32 steps of a rollout, with all environments.

    The steps are evenly spaced and include the first and the last one.
    """
    times = np.unique(np.linspace(0, num_steps - 1, 32).astype(int))
    return [(int(time), index) for time in times for index in range(batch_size)]

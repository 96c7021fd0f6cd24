"""Compiled rollouts with recorded states, shared by the conformance checks."""

import dataclasses
from collections.abc import Callable, Iterable
from functools import cached_property, partial, wraps
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PyTree

from phalanx.core.autoreset import AutoReset, AutoResetState
from phalanx.core.environment import Environment, Key, Keys, is_done
from phalanx.core.spaces import masked_choice, masked_size, replace_choice
from phalanx.core.spec import EnvSpec
from phalanx.core.testing.tree_diff import take, to_host
from phalanx.core.vector import select_rows


class ConformanceError(AssertionError):
    """Raised if an environment does not behave as `Environment` requires.

    The `failures` attribute contains one message per violation.
    """

    def __init__(self, title: str, failures: Iterable[str]) -> None:
        self.failures = tuple(failures)
        super().__init__("\n  - ".join([title, *self.failures]))


@dataclasses.dataclass(frozen=True)
class InconclusiveCheck:
    """Result of a check that could not be completed because no episode terminated. It is falsy."""

    reason: str

    def __bool__(self) -> bool:
        return False


Violations = list[str] | InconclusiveCheck | None
"""One message per violation, or `InconclusiveCheck`, or None if the environment lacks the checked
capability."""


class StepResult(eqx.Module):
    """Values returned by `step` or `batch_step`."""

    states: PyTree
    observations: PyTree
    rewards: PyTree
    dones: PyTree
    infos: PyTree


class RolloutSteps(eqx.Module):
    """Steps of a rollout. The leaves have shape `[steps, ...]` or, for a batch, `[steps, batch, ...]`."""

    before: PyTree
    """State before each step."""
    actions: PyTree
    after: StepResult


# Compiled separately from the rollouts.
@partial(jax.jit, static_argnums=1)
def _split_keys(keys: Keys, num_steps: int) -> tuple[Keys, PyTree]:
    split = jax.vmap(lambda key: jax.random.split(key, num_steps + 1), out_axes=1)(keys)
    return split[0], split[1:]


@partial(jax.jit, static_argnums=0)
def _rollout_one(environment: Environment, key: Key, step_keys: PyTree) -> tuple[PyTree, RolloutSteps]:
    state, first = environment.reset(key)

    def one(state: PyTree, key: Key) -> tuple[PyTree, RolloutSteps]:
        action = environment.sample_action(key, state)
        after = StepResult(*environment.step(state, action))
        return after.states, RolloutSteps(state, action, after)

    return first, jax.lax.scan(one, state, step_keys)[1]


@partial(jax.jit, static_argnums=(0, 1))
def _rollout_batch(
    environment: Environment,
    invalid_action: Callable[[Any, Any], Any],
    keys: Keys,
    step_keys: PyTree,
    invalid: Bool[Array, "steps batch"] | None,
) -> tuple[PyTree, RolloutSteps]:
    states, first = environment.batch_reset(keys)

    def one(states: PyTree, inputs: tuple[Any, Any]) -> tuple[PyTree, RolloutSteps]:
        keys, use_invalid = inputs
        actions = jax.vmap(environment.sample_action)(keys, states)
        if use_invalid is not None:
            actions = select_rows(use_invalid, jax.vmap(invalid_action)(keys, states), actions)
        after = StepResult(*environment.batch_step(states, actions))
        return after.states, RolloutSteps(states, actions, after)

    return first, jax.lax.scan(one, states, (step_keys, invalid))[1]


@dataclasses.dataclass(frozen=True)
class _EitherMode(AutoReset):
    """Auto-reset layer whose mode is given by a traced boolean, `next_step`.

    One compiled program can therefore be used for both the `next_step` and the `same_step` mode.
    """

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
) -> RolloutSteps:
    """Run a batch with auto-reset and random legal actions, and return the recorded steps.

    Args:
        environment: The environment.
        next_step: Use next-step mode instead of same-step mode.
        states: Previously recorded states with shape `[steps, batch, ...]`. Only those of the first step are
            used, as initial states.
        keys: One key per environment, from which all of its episodes after the first are drawn.
        step_keys: Keys for the random actions, with shape `[steps, batch, 2]`.
    """
    layer = _EitherMode(environment, next_step=next_step)

    def one(state: AutoResetState, keys: Keys) -> tuple[AutoResetState, RolloutSteps]:
        actions = jax.vmap(environment.sample_action)(keys, state.states)
        after, *rest = layer.step(state, actions)
        return after, RolloutSteps(state.states, actions, StepResult(after.states, *rest))

    return jax.lax.scan(one, AutoResetState(take(states, 0), keys), step_keys)[1]


@partial(jax.jit, static_argnums=0)
def _observe_states(environment: Environment, states: PyTree) -> tuple[PyTree, Bool[Array, "steps batch"]]:
    return jax.vmap(jax.vmap(environment.observe))(states), is_done(states)


@dataclasses.dataclass(frozen=True)
class _IllegalAction:
    """Selects a choice that the mask excludes or that is out of range, for actions that can be masked."""

    environment: Environment

    def __call__(self, key: Key, state: PyTree) -> PyTree:
        space = self.environment.action_space
        num_choices = masked_size(space)
        assert num_choices is not None
        legal = self.environment.legal_actions(state)
        legal = jnp.ones(num_choices, bool) if legal is None else legal
        # The last two choices are out of range: n, and n + 1, which becomes -1.
        illegal = jnp.append(~legal, jnp.ones(2, bool))
        number = jax.random.key_data(key)[0] % jnp.sum(illegal, dtype=jnp.uint32)
        choice = jnp.argmax(jnp.cumsum(illegal, dtype=jnp.uint32) > number)
        choice = jnp.where(choice > num_choices, -1, choice)
        action = self.environment.sample_action(key, state)
        return replace_choice(space, action, choice.astype(masked_choice(space, action).dtype))


def _without_counters(state: PyTree) -> Any:
    """Return the fields of a state that illegal actions must not change, by name."""
    counters = ("step_count", "terminated", "truncated")
    return {name: value for name, value in vars(state).items() if name not in counters}


@partial(jax.jit, static_argnums=0)
def _map_states(function: Callable[[Any], Any], states: PyTree) -> PyTree:
    return jax.vmap(jax.vmap(function))(states)


@partial(jax.jit, static_argnums=0)
def by_vmap(
    environment: Environment, keys: PyTree, states: PyTree, actions: PyTree
) -> tuple[Any, StepResult]:
    """Call `vmap(reset)` and `vmap(step)` with the keys, states and actions of each recorded step.

    Returns the results of `reset` and the results of `step`, with shape `[steps, batch, ...]`.
    """

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
    """Call `batch_reset`, `batch_step` and `batch_reset_where` with the arguments of each recorded step.

    Returns the results of the three methods, with shape `[steps, batch, ...]`.
    """

    def one(given: tuple[Any, Any, Any, Any, Any]) -> tuple[Any, StepResult, Any]:
        keys, states, actions, mask, observations = given
        return (
            environment.batch_reset(keys),
            StepResult(*environment.batch_step(states, actions)),
            environment.batch_reset_where(mask, keys, states, observations),
        )

    return jax.lax.map(one, (keys, states, actions, mask, observations))


@dataclasses.dataclass(frozen=True)
class RandomRolloutRunner:
    """Runs a batch of environments with random actions and records the steps for a conformance check."""

    environment: Environment
    seed: int
    """Seed for the episodes and actions."""
    batch_size: int
    """Number of environments."""
    num_steps: int
    """Number of steps per environment."""
    spec: EnvSpec | None = None
    """Spec of the environment, for the checks of its text, expert and task names."""
    invalid_action: Callable[[Key, Any], Any] | None = None
    """Function `invalid_action(key, state)` that returns an action that changes nothing. If None, a choice
    that is masked out or out of range is taken."""
    comparable_state: Callable[[Any], Any] | None = None
    """Function that returns the part of a state that invalid actions must not change. If None, all fields
    except `step_count`, `terminated` and `truncated` are compared."""

    @cached_property
    def keys(self) -> tuple[np.ndarray, np.ndarray]:
        """Reset keys of shape `[batch, 2]` and step keys of shape `[steps, batch, 2]`, as NumPy arrays."""
        keys = jax.random.split(jax.random.PRNGKey(self.seed), self.batch_size)
        return to_host(_split_keys(keys, self.num_steps))

    @property
    def has_invalid_actions(self) -> bool:
        """True if actions can be masked or out of range, or if `invalid_action` is given."""
        return self.invalid_action is not None or masked_size(self.environment.action_space) is not None

    def run_one(self, index: int) -> tuple[PyTree, RolloutSteps]:
        """Run one environment of the batch alone. Returns the first observation and the recorded steps."""
        reset_keys, step_keys = self.keys
        return _rollout_one(self.environment, reset_keys[index], step_keys[:, index])

    def run(self, invalid: Any = False) -> tuple[PyTree, RolloutSteps]:
        """Run the batch. Returns the first observations and the recorded steps.

        Args:
            invalid: Flags of shape `[steps, batch]`, or a single flag. Where a flag is True, an invalid
                action is taken. The flags are ignored if the environment has no invalid actions.
        """
        # Flags are passed even if none is True, so that all rollouts of the same size share one compilation.
        shape = (self.num_steps, self.batch_size)
        flags = np.broadcast_to(invalid, shape) if self.has_invalid_actions else None
        invalid_action = self.invalid_action or _IllegalAction(self.environment)
        return _rollout_batch(self.environment, invalid_action, *self.keys, flags)

    def observe(self, states: PyTree) -> tuple[PyTree, Bool[Array, "steps batch"]]:
        """Return the observations and done flags of recorded states."""
        return _observe_states(self.environment, states)

    def comparable_states(self, states: PyTree) -> PyTree:
        """Return the parts of recorded states that invalid actions must not change, as host arrays."""
        return to_host(_map_states(self.comparable_state or _without_counters, states))


def conformance_check(
    rule: str,
) -> Callable[[Callable[[RandomRolloutRunner], Violations]], Callable[..., bool | InconclusiveCheck]]:
    """Return a decorator that turns a function into a conformance check for a rule.

    The function takes a `RandomRolloutRunner` and returns a list with one message per violation, None if the
    environment lacks the checked capability, or an `InconclusiveCheck`.

    The check has the parameters of `RandomRolloutRunner`. If there are violations, it raises
    `ConformanceError` with the first five messages. Otherwise, it returns True if the environment has the
    capability, False if it lacks it, or the function's `InconclusiveCheck`.

    Args:
        rule: Description of the rule, which is the beginning of the error message.
    """

    def decorate(
        find_violations: Callable[[RandomRolloutRunner], Violations],
    ) -> Callable[..., bool | InconclusiveCheck]:
        @wraps(find_violations)
        def check(
            environment: Environment,
            seed: int = 0,
            *,
            batch_size: int = 4,
            num_steps: int = 200,
            **options: Any,
        ) -> bool | InconclusiveCheck:
            found = find_violations(RandomRolloutRunner(environment, seed, batch_size, num_steps, **options))
            if isinstance(found, InconclusiveCheck):
                return found
            if found:
                rest = [f"... and {len(found) - 5} more"] if len(found) > 5 else []
                raise ConformanceError(rule, found[:5] + rest)
            return found is not None

        return check

    return decorate


def describe_first(wrong: Bool[np.ndarray, "steps batch"], message: str) -> list[str]:
    """Return a list with one message about the first True flag, or an empty list if no flag is True.

    The returned message starts with the environment index and the step of this flag, and ends with `message`.
    """
    if not np.any(wrong):
        return []
    step, index = np.argwhere(wrong)[0]
    return [f"environment {index} at step {step}{message}"]


def sample_indices(num_steps: int, batch_size: int) -> list[tuple[int, int]]:
    """Return all (step, environment index) pairs for up to 32 steps of a rollout.

    The steps are evenly spaced and include the first and the last step.
    """
    times = np.unique(np.linspace(0, num_steps - 1, 32).astype(int))
    return [(int(time), index) for time in times for index in range(batch_size)]

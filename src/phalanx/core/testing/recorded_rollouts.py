"""What the conformance checks are made of: recorded plays, and differences of pytrees told in words.

Integers, booleans and keys must be equal; floats may differ by rounding, because a batch and a single
environment are compiled into different code. The checks themselves are in `conformance` and `capabilities`.
"""

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
from phalanx.core.vector import select_rows

RELATIVE_TOLERANCE = 1e-5
ABSOLUTE_TOLERANCE = 1e-6


class ConformanceError(AssertionError):
    """An environment breaks the protocol; `failures` says where, one sentence each."""

    def __init__(self, title: str, failures: Iterable[str]) -> None:
        self.failures = tuple(failures)
        super().__init__("\n  - ".join([title, *self.failures]))


def differences(expected: PyTree, actual: PyTree, what: str) -> list[str]:
    """One sentence for each leaf that differs; empty when the trees agree."""
    wanted: Any = jax.tree.structure(expected)
    given: Any = jax.tree.structure(actual)
    if wanted != given:
        return [f"{what} has another structure: expected {wanted}, got {given}"]
    sentences = []
    pairs = zip(jax.tree_util.tree_leaves_with_path(expected), jax.tree.leaves(actual), strict=True)
    for (path, left), right in pairs:
        name = what + jax.tree_util.keystr(path)
        sentences += _leaf_differences(as_numpy(left), as_numpy(right), name)
    return sentences


def _leaf_differences(left: np.ndarray, right: np.ndarray, name: str) -> list[str]:
    if left.shape != right.shape or left.dtype != right.dtype:
        return [f"{name}: expected {left.dtype}{list(left.shape)}, got {right.dtype}{list(right.shape)}"]
    if np.issubdtype(left.dtype, np.inexact):
        same = np.isclose(left, right, RELATIVE_TOLERANCE, ABSOLUTE_TOLERANCE, equal_nan=True)
    else:
        same = left == right
    if np.all(same):
        return []
    where = tuple(int(i) for i in np.argwhere(~same)[0])
    cell = f"{list(where)}" if where else ""
    count = f"{np.sum(~same)} of {same.size} differ"
    return [f"{name}{cell}: expected {left[where]}, got {right[where]} ({count})"]


def as_numpy(leaf: Any) -> np.ndarray:
    """A leaf on the host; a typed key as its words."""
    if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf)


def to_host(tree: PyTree) -> PyTree:
    """The same tree with NumPy leaves, so that slicing it costs no device call."""
    return jax.tree.map(as_numpy, tree)


def take(tree: PyTree, *index: Any) -> PyTree:
    """One entry of every leaf."""
    return jax.tree.map(lambda leaf: leaf[index], tree)


class StepResult(eqx.Module):
    """What a step returned."""

    states: PyTree
    observations: PyTree
    rewards: PyTree
    dones: PyTree
    infos: PyTree


class RecordedStep(eqx.Module):
    """One step of a play; in a recording every leaf is `[steps, ...]` or `[steps, batch, ...]`."""

    before: PyTree
    actions: PyTree
    after: StepResult


class RecordedAutoResetStep(eqx.Module):
    """One auto-reset step beside the plain step from the same states."""

    plain: StepResult
    plain_view: PyTree
    """`observe` of the plain step's states."""
    plain_over: np.ndarray
    """`is_done` of the plain step's states."""
    auto: StepResult
    auto_view: PyTree
    auto_over: np.ndarray


@partial(jax.jit, static_argnums=1)
def rollout_keys(keys: Keys, num_steps: int) -> tuple[Keys, PyTree]:
    """Reset keys `[batch]` and step keys `[steps, batch]`; apart, so that plays need not compile it."""
    split = jax.vmap(lambda key: jax.random.split(key, num_steps + 1), out_axes=1)(keys)
    return split[0], split[1:]


@partial(jax.jit, static_argnums=0)
def rollout_one(environment: Environment, key: Key, step_keys: PyTree) -> tuple[PyTree, RecordedStep]:
    """The first observation and the steps of one environment under legal random actions."""
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
    """The same for a batch, with an invalid action wherever `invalid` asks for one."""
    states, first = environment.batch_reset(keys)

    def one(states: PyTree, inputs: tuple[Any, Any]) -> tuple[PyTree, RecordedStep]:
        keys, wanted = inputs
        actions = jax.vmap(environment.sample_action)(keys, states)
        if wanted is not None:
            actions = select_rows(wanted, jax.vmap(environment.invalid_action)(keys, states), actions)
        after = StepResult(*environment.batch_step(states, actions))
        return after.states, RecordedStep(states, actions, after)

    return first, jax.lax.scan(one, states, (step_keys, invalid))[1]


@dataclasses.dataclass(frozen=True)
class _EitherMode(AutoReset):
    """Auto-reset in next-step mode where a flag says so, else in same-step mode: one program plays both."""

    next_step: Any = False

    def _ended(self, before: PyTree, *flags: Bool[Array, " batch"]) -> tuple[Bool[Array, " batch"], ...]:
        modes = (AutoReset(self.environment, mode) for mode in ("next_step", "same_step"))
        by_mode = (layer._reset_mask_and_flags(before, *flags) for layer in modes)
        return jax.tree.map(partial(jnp.where, self.next_step), *by_mode)


@partial(jax.jit, static_argnums=0)
def rollout_auto_reset(
    environment: Environment, next_step: Bool[Array, ""], states: PyTree, keys: Keys, step_keys: PyTree
) -> RecordedStep:
    """An auto-reset batch under legal random actions, from the first of recorded states."""
    layer = _EitherMode(environment, next_step=next_step)

    def one(state: AutoResetState, keys: Keys) -> tuple[AutoResetState, RecordedStep]:
        actions = jax.vmap(environment.sample_action)(keys, state.states)
        after, *rest = layer.step(state, actions)
        return after, RecordedStep(state.states, actions, StepResult(after.states, *rest))

    return jax.lax.scan(one, AutoResetState(take(states, 0), keys), step_keys)[1]


@partial(jax.jit, static_argnums=0)
def observe_states(environment: Environment, states: PyTree) -> tuple[PyTree, Bool[Array, "steps batch"]]:
    """`observe` and `is_done` of recorded states."""
    return jax.vmap(jax.vmap(environment.observe))(states), jax.vmap(environment.is_done)(states)


@partial(jax.jit, static_argnums=0)
def comparable_states(environment: Environment, states: PyTree) -> PyTree:
    """`content` of recorded states."""
    return jax.vmap(jax.vmap(environment.comparable_state))(states)


@partial(jax.jit, static_argnums=0)
def by_vmap(
    environment: Environment, keys: PyTree, states: PyTree, actions: PyTree
) -> tuple[Any, StepResult]:
    """`reset` and `step` of single environments, vmapped, at each of the recorded steps."""

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
    """The environment's own `batch_reset`, `batch_step` and `batch_reset_where` at each recorded step."""

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
    """`batch_reset` and `batch_step` of batches of one, along a recorded play of one environment."""

    def one(given: tuple[Any, Any]) -> StepResult:
        states, actions = take(given, None)
        return take(StepResult(*environment.batch_step(states, actions)), 0)

    return take(environment.batch_reset(key[None]), 0), jax.lax.map(one, (states, actions))


def raise_if_failed(rule: str, found: list[str]) -> bool:
    """True where nothing was found wrong; else a `ConformanceError` with the first few sentences."""
    if found:
        rest = [f"... and {len(found) - 5} more"] if len(found) > 5 else []
        raise ConformanceError(rule, found[:5] + rest)
    return True


def keys_from(seed: int, batch_size: int) -> Keys:
    """A key for each environment of a check."""
    return jax.random.split(jax.random.PRNGKey(seed), batch_size)


@lru_cache(maxsize=16)
def has_invalid(environment: Environment) -> bool:
    """Whether an environment has invalid actions to offer."""
    key = jax.random.PRNGKey(0)
    state, _ = jax.eval_shape(environment.reset, key)
    return jax.eval_shape(environment.invalid_action, key, state) is not None


def record_rollout(
    environment: Environment, keys: Keys, num_steps: int, invalid: Any = False
) -> tuple[Any, Any]:
    """Random play; `invalid` (steps x batch) asks for invalid actions, which an environment may not have."""
    # Plays without invalid actions pass the flags too, so that all plays of one size share a compilation.
    flags = np.broadcast_to(invalid, (num_steps, len(keys))) if has_invalid(environment) else None
    return rollout_batch(environment, *rollout_keys(keys, num_steps), flags)


def first_wrong(wrong: np.ndarray) -> str:
    """Where something is wrong first, of flags by step and environment."""
    step, index = np.argwhere(wrong)[0]
    return f"environment {index} at step {step}"


def sample_indices(num_steps: int, batch_size: int) -> list[tuple[int, int]]:
    """Some (step, environment) pairs, spread over the whole play, the last step included."""
    times = np.unique(np.linspace(0, num_steps - 1, 32).astype(int))
    return [(int(time), index) for time in times for index in range(batch_size)]

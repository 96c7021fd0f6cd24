"""Conformance checks of determinism, `jit`, batching, termination, auto-reset and spaces."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from phalanx.core.autoreset import Mode
from phalanx.core.environment import Environment, TransitionInfo
from phalanx.core.testing import recorded_rollouts as rollouts
from phalanx.core.testing.recorded_rollouts import (
    ConformanceError,
    first_wrong,
    has_invalid,
    keys_from,
    raise_if_failed,
    record_rollout,
    sample_indices,
)
from phalanx.core.testing.tree_diff import differences, take, to_host

_EAGER_STEPS = 3
"""Number of steps to run without `jit`. It is small, because the first step compiles each operation
separately, which is slow."""


def check_determinism(
    environment: Environment, seed: int = 0, *, batch_size: int = 4, num_steps: int = 200
) -> bool:
    """Check that the same key gives the same episode, with and without `jit`."""
    reset_key, step_keys = _single_keys(seed, batch_size, num_steps)
    once, again = (_eager_rollout(environment, reset_key, step_keys) for _ in range(2))
    found = differences(once, again, "second run without jit")
    first, second = (rollouts.rollout_one(environment, reset_key, step_keys) for _ in range(2))
    return raise_if_failed(
        "the same key must give the same episode", found + differences(first, second, "second run")
    )


def check_batch_of_one_equals_single(
    environment: Environment, seed: int = 0, *, batch_size: int = 4, num_steps: int = 200
) -> bool:
    """Check that a batch of size 1 gives the same results as `reset` and `step` of one environment."""
    reset_key, step_keys = _single_keys(seed, batch_size, num_steps)
    first, steps = rollouts.rollout_one(environment, reset_key, step_keys)
    initial, after = to_host(rollouts.by_batch_of_one(environment, reset_key, steps.before, steps.actions))
    first, steps = to_host((first, steps))
    found = differences((take(steps.before, 0), first), initial, "environment 0 of a batch of 1: reset")
    found += differences(steps.after, after, "environment 0 of a batch of 1: step")
    return raise_if_failed("a batch must give the same results as its environments one by one", found)


def check_batch_equals_loop(
    environment: Environment, seed: int = 0, *, batch_size: int = 4, num_steps: int = 200
) -> bool:
    """Check that a batch gives the same results as a loop over its environments."""
    keys = keys_from(seed, batch_size)
    first, steps = to_host(record_rollout(environment, keys, num_steps))
    found: list[str] = []
    reset_keys, step_keys = to_host(rollouts.rollout_keys(keys, num_steps))
    for index in range(batch_size):
        single = rollouts.rollout_one(environment, reset_keys[index], step_keys[:, index])
        single_first, single_steps = to_host(single)
        name = f"environment {index} of a batch of {batch_size}: "
        found += differences(single_first, take(first, index), f"{name}first observation")
        found += differences(single_steps, take(steps, slice(None), index), f"{name}step")
    return raise_if_failed("a batch must give the same results as its environments one by one", found)


def check_jit_equals_eager(
    environment: Environment, seed: int = 0, *, batch_size: int = 4, num_steps: int = 200
) -> bool:
    """Check that `reset` and `step` give the same results with and without `jit`."""
    reset_key, step_keys = _single_keys(seed, batch_size, num_steps)
    eager_first, eager_steps = _eager_rollout(environment, reset_key, step_keys)
    first, steps = to_host(rollouts.rollout_one(environment, reset_key, step_keys))
    found = differences(eager_first, (take(steps.before, 0), first), "compiled reset")
    for index, step in enumerate(eager_steps):
        found += differences(step.actions, take(steps.actions, index), f"compiled sample_action {index}")
        found += differences(step.after, take(steps.after, index), f"compiled step {index}")
    return raise_if_failed("jit must not change the results", found)


def check_vmap_equals_batch_functions(
    environment: Environment, seed: int = 0, *, batch_size: int = 4, num_steps: int = 200
) -> bool:
    """Check that `batch_reset`, `batch_step` and `batch_reset_where` equal `vmap` of `reset` and `step`."""
    keys = keys_from(seed, batch_size)
    _, steps = record_rollout(environment, keys, num_steps)
    mask = _every_other(num_steps, batch_size)
    observations, _ = rollouts.observe_states(environment, steps.before)
    _, step_keys = rollouts.rollout_keys(keys, num_steps)
    resets, after = to_host(rollouts.by_vmap(environment, step_keys, steps.before, steps.actions))
    actual = to_host(
        rollouts.by_batch(environment, step_keys, steps.before, steps.actions, mask, observations)
    )
    selected = jax.tree.map(partial(_choose, mask), resets, to_host((steps.before, observations)))
    names = ("batch_reset", "batch_step", "batch_reset_where")
    found: list[str] = []
    for name, left, right in zip(names, (resets, after, selected), actual, strict=True):
        found += differences(left, right, f"{name}, by step and environment: ")
    return raise_if_failed("batch functions must equal vmap of reset and step", found)


def check_done_states_are_absorbing(
    environment: Environment, seed: int = 0, *, batch_size: int = 4, num_steps: int = 200
) -> bool:
    """Check that stepping a finished state with any action changes nothing and gives reward 0."""
    keys = keys_from(seed, batch_size)
    every_other = np.arange(num_steps)[:, None] % 2 == 1
    steps = to_host(record_rollout(environment, keys, num_steps, every_other)[1])
    ends = _ends(environment, steps.after.dones)
    found: list[str] = []
    for index, end in ends.items():
        if end + 1 == num_steps:
            continue
        ending, tail = take(steps.after, end, index), take(steps.after, slice(end + 1, None), index)
        length = num_steps - end - 1
        kept = (ending.states, ending.observations, ending.infos.terminated, ending.infos.truncated)
        repeated = jax.tree.map(lambda leaf, n=length: np.repeat(leaf[None], n, 0), kept)
        after = (tail.states, tail.observations, tail.infos.terminated, tail.infos.truncated)
        names = ("state", "observation", "terminated", "truncated")
        for name, left, right in zip(names, repeated, after, strict=True):
            found += differences(left, right, f"{name} of environment {index} after its end at step {end}")
        if np.any(tail.rewards != 0):
            found.append(
                f"environment {index} ended at step {end} and later got rewards {tail.rewards[:4]}..."
            )
        if not np.all(tail.dones):
            found.append(f"environment {index} ended at step {end} and was later not done")
    if all(end + 1 == num_steps for end in ends.values()):
        found.append(f"all episodes ended in the last of {num_steps} steps; pass a larger num_steps")
    return raise_if_failed("stepping a finished state must change nothing and give reward 0", found)


def check_termination_flags(
    environment: Environment, seed: int = 0, *, batch_size: int = 4, num_steps: int = 200
) -> bool:
    """Check that `done` means either terminated or truncated, and that time limits truncate."""
    keys = keys_from(seed, batch_size)
    _, steps = record_rollout(environment, keys, num_steps)
    after = to_host(steps.after)
    if not isinstance(after.infos, TransitionInfo):
        raise ConformanceError("info", [f"{type(after.infos).__name__} needs `terminated` and `truncated`"])
    terminated, truncated, dones = after.infos.terminated, after.infos.truncated, after.dones
    _ends(environment, dones)
    found = [f"{name} must be bool, got {v.dtype}" for name, v in _flags(after) if v.dtype != np.bool_]
    if np.any(terminated & truncated):
        found.append(f"{first_wrong(terminated & truncated)} is both terminated and truncated")
    if np.any(dones != (terminated | truncated)):
        found.append(
            f"{first_wrong(dones != (terminated | truncated))}: done is not (terminated or truncated)"
        )
    is_done = np.asarray(rollouts.observe_states(environment, steps.after.states)[1])
    if np.any(is_done != dones):
        found.append(f"{first_wrong(is_done != dones)}: is_done(state) differs from the `done` of step")
    if has_invalid(environment):
        # Invalid actions change nothing, so only the time limit can end an episode.
        infos = to_host(record_rollout(environment, keys, num_steps, invalid=True)[1].after.infos)
        if np.any(infos.terminated):
            found.append(
                f"{first_wrong(infos.terminated)} terminated although all actions were invalid; a time limit "
                f"must truncate"
            )
    return raise_if_failed("terminated and truncated must be distinguished", found)


def check_terminal_observation_in_same_step_mode(
    environment: Environment, seed: int = 0, *, batch_size: int = 4, num_steps: int = 200
) -> bool:
    """Check the observations of same-step auto-reset.

    `final_observation` must be the terminal observation, and the returned observation the first one of the
    next episode.
    """
    steps, found = _auto_reset_rollout(environment, "same_step", seed, batch_size, num_steps)
    info, mask = steps.auto.infos, steps.raw.dones
    found += differences(mask, info.reset_mask, "reset_mask")
    found += differences(mask, steps.auto.dones, "done")
    found += differences(steps.raw.rewards, steps.auto.rewards, "reward")
    found += _where(mask, steps.raw_observations, info.final_observation, "final_observation")
    return raise_if_failed("same-step auto-reset must return the terminal observation", found)


def check_terminal_observation_in_next_step_mode(
    environment: Environment, seed: int = 0, *, batch_size: int = 4, num_steps: int = 200
) -> bool:
    """Check that next-step auto-reset returns the terminal observation with `done` and then resets."""
    steps, found = _auto_reset_rollout(environment, "next_step", seed, batch_size, num_steps)
    auto, mask = steps.auto, steps.auto.infos.reset_mask
    found += differences(auto.dones[:-1], mask[1:], "reset_mask, a step after done,")
    found += _where(auto.dones, steps.raw_observations, auto.observations, "observation returned with done")
    for name, value in (("reward", auto.rewards), *_flags(auto)):
        found += _where(mask, np.zeros_like(value), value, f"{name} of a reset step")
    return raise_if_failed("next-step auto-reset must return the terminal observation", found)


def check_invalid_actions_change_nothing(
    environment: Environment, seed: int = 0, *, batch_size: int = 4, num_steps: int = 200
) -> bool:
    """Check that invalid actions do not change the `comparable_state`."""
    if not has_invalid(environment):
        return False
    invalid = _every_other(num_steps, batch_size)
    _, steps = record_rollout(environment, keys_from(seed, batch_size), num_steps, invalid)
    before = to_host(rollouts.comparable_states(environment, steps.before))
    after = to_host(rollouts.comparable_states(environment, steps.after.states))
    found = _where(invalid, before, after, "comparable_state after an invalid action")
    return raise_if_failed("invalid actions must not change a state", found)


def check_observations_lie_in_their_space(
    environment: Environment, seed: int = 0, *, batch_size: int = 4, num_steps: int = 200
) -> bool:
    """Check that observations are in `observation_space` and equal to `observe(state)`."""
    first, steps = record_rollout(environment, keys_from(seed, batch_size), num_steps)
    observations = to_host(steps.after.observations)
    expected = to_host(rollouts.observe_states(environment, steps.after.states)[0])
    found = differences(expected, observations, "observation returned by step")
    members = [("reset", take(to_host(first), index)) for index in range(batch_size)]
    members += [(f"step {t}", take(observations, t, i)) for t, i in sample_indices(num_steps, batch_size)]
    space = environment.observation_space
    found += [
        f"the observation of {when} is not in {space}"
        for when, observation in members
        if not space.contains(observation)
    ]
    return raise_if_failed("observations must be in observation_space", found)


def check_sampled_actions_lie_in_their_space(
    environment: Environment, seed: int = 0, *, batch_size: int = 4, num_steps: int = 200
) -> bool:
    """Check that `sample_action` returns members of `action_space`, and that `step` accepts all members."""
    keys, space = keys_from(seed, batch_size), environment.action_space
    _, steps = record_rollout(environment, keys, num_steps)
    actions = to_host(steps.actions)
    found = [
        f"the action sampled at step {t} is not in {space}: {take(actions, t, i)}"
        for t, i in sample_indices(num_steps, batch_size)
        if not space.contains(take(actions, t, i))
    ]
    _, step_keys = rollouts.rollout_keys(keys, num_steps)
    members = jax.jit(jax.vmap(jax.vmap(space.sample)))(step_keys)
    result = _batch_steps(environment, step_keys, rollouts.RecordedStep(steps.before, members, steps.after))
    # Only the shapes and dtypes are compared.
    zeros = [jax.tree.map(np.zeros_like, to_host(each)) for each in (steps.after, result)]
    found += differences(zeros[0], zeros[1], "result of step with action_space.sample")
    return raise_if_failed("sampled actions must be in action_space", found)


def _single_keys(seed: int, batch_size: int, num_steps: int) -> tuple[Any, Any]:
    """Return the reset key and the step keys of the first environment of a rollout."""
    reset_keys, step_keys = to_host(rollouts.rollout_keys(keys_from(seed, batch_size), num_steps))
    return jnp.asarray(reset_keys[0]), step_keys[:, 0]


def _eager_rollout(
    environment: Environment, key: Any, step_keys: np.ndarray
) -> tuple[Any, list[rollouts.RecordedStep]]:
    first = environment.reset(key)
    state, steps = first[0], []
    for step_key in step_keys[:_EAGER_STEPS]:
        action = environment.sample_action(jnp.asarray(step_key), state)
        after = rollouts.StepResult(*environment.step(state, action))
        steps.append(rollouts.RecordedStep(state, action, after))
        state = after.states
    return first, steps


def _batch_steps(
    environment: Environment, step_keys: Any, steps: rollouts.RecordedStep
) -> rollouts.StepResult:
    """Call `batch_step` with recorded states and actions, using the compiled program of `by_batch`."""
    observations, is_done = rollouts.observe_states(environment, steps.before)
    mask = np.asarray(is_done)
    return rollouts.by_batch(environment, step_keys, steps.before, steps.actions, mask, observations)[1]


def _auto_reset_rollout(
    environment: Environment, mode: Mode, seed: int, batch_size: int, num_steps: int
) -> tuple[rollouts.RecordedAutoResetStep, list[str]]:
    """Run a batch with auto-reset. Returns the recorded steps and the failures that any mode could have."""
    keys = keys_from(seed, batch_size)
    reset_keys, step_keys = rollouts.rollout_keys(keys, num_steps)
    initial = record_rollout(environment, keys, num_steps)[1].before
    recorded = rollouts.rollout_auto_reset(environment, mode == "next_step", initial, reset_keys, step_keys)
    raw = _batch_steps(environment, step_keys, recorded)
    observed = (
        rollouts.observe_states(environment, states) for states in (raw.states, recorded.after.states)
    )
    (raw_observations, raw_done), (auto_observations, auto_done) = to_host(tuple(observed))
    auto, raw = to_host((recorded.after, raw))
    steps = rollouts.RecordedAutoResetStep(raw, raw_observations, auto)
    _ends(environment, raw.dones)
    reset = auto.infos.reset_mask
    found = []
    if np.any(raw_done != raw.dones):
        wrong = first_wrong(raw_done != raw.dones)
        found.append(f"{wrong}: `done` does not match the state; step must not reset the environment")
    found += differences(raw_observations, raw.observations, "observation returned by step")
    found += _where(~reset, raw.states, auto.states, "state of an environment that was not reset")
    found += _where(~reset, raw_observations, auto.observations, "observation where there was no reset")
    found += _where(reset, auto_observations, auto.observations, "first observation of a new episode")
    if np.any(auto_done & reset):
        found.append(f"{first_wrong(auto_done & reset)} starts a new episode that is already done")
    return steps, found


def _every_other(num_steps: int, batch_size: int) -> np.ndarray:
    return (np.arange(num_steps)[:, None] + np.arange(batch_size)) % 2 == 1


def _choose(mask: np.ndarray, new: np.ndarray, old: np.ndarray) -> np.ndarray:
    return np.where(mask.reshape(mask.shape + (1,) * (new.ndim - mask.ndim)), new, old)


def _ends(environment: Environment, dones: np.ndarray) -> dict[int, int]:
    """Return the step at which each environment's first episode ended, by the index of the environment.

    Environments whose episode has not ended are omitted.

    Raises:
        ConformanceError: If no episode has ended.
    """
    if not np.any(dones):
        raise ConformanceError(
            "at least one episode must end",
            [f"no episode ended within {len(dones)} random steps; pass a larger num_steps or a lower limit"],
        )
    return {int(i): int(np.argmax(dones[:, i])) for i in np.flatnonzero(dones.any(0))}


def _where(mask: np.ndarray, expected: Any, actual: Any, what: str) -> list[str]:
    return differences(take(expected, mask), take(actual, mask), what)


def _flags(result: rollouts.StepResult) -> tuple[tuple[str, np.ndarray], ...]:
    infos = result.infos
    return ("done", result.dones), ("terminated", infos.terminated), ("truncated", infos.truncated)


TRANSITION_CHECKS: tuple[Callable[..., bool], ...] = (
    check_determinism,
    check_batch_of_one_equals_single,
    check_batch_equals_loop,
    check_jit_equals_eager,
    check_vmap_equals_batch_functions,
    check_done_states_are_absorbing,
    check_termination_flags,
    check_terminal_observation_in_same_step_mode,
    check_terminal_observation_in_next_step_mode,
    check_invalid_actions_change_nothing,
    check_observations_lie_in_their_space,
    check_sampled_actions_lie_in_their_space,
)

"""Conformance checks for determinism, `jit`, batching, termination, auto-reset and spaces."""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from phalanx.core.autoreset import Mode
from phalanx.core.spaces import find_mismatch
from phalanx.core.testing import recorded_rollouts as rollouts
from phalanx.core.testing.recorded_rollouts import (
    ConformanceError,
    InconclusiveCheck,
    RandomRolloutRunner,
    Violations,
    conformance_check,
    describe_first,
    sample_indices,
)
from phalanx.core.testing.tree_diff import differences, take, to_host

_EAGER_STEPS = 3
"""Number of steps to run without `jit`. It is small, because steps without `jit` are slow: operations are
compiled and dispatched one by one."""


@conformance_check("the same key must give the same episode")
def check_determinism(rollout: RandomRolloutRunner) -> list[str]:
    """Check that two runs with the same key give the same episode. The check runs with and without `jit`."""
    found = differences(_run_eagerly(rollout), _run_eagerly(rollout), "second run without jit")
    return found + differences(rollout.run_one(0), rollout.run_one(0), "second run")


@conformance_check("a batch must give the same results as its environments one by one")
def check_batch_of_one_equals_single(rollout: RandomRolloutRunner) -> list[str]:
    """Check that `batch_reset` and `batch_step` match `reset` and `step` for a batch of size 1."""
    return _differences_from_loop(dataclasses.replace(rollout, batch_size=1))


@conformance_check("a batch must give the same results as its environments one by one")
def check_batch_equals_loop(rollout: RandomRolloutRunner) -> list[str]:
    """Check that a batch gives the same results as a loop over its environments."""
    return _differences_from_loop(rollout)


@conformance_check("jit must not change the results")
def check_jit_equals_eager(rollout: RandomRolloutRunner) -> list[str]:
    """Check that `reset` and `step` give the same results with and without `jit`."""
    eager_first, eager_steps = _run_eagerly(rollout)
    first, steps = to_host(rollout.run_one(0))
    found = differences(eager_first, (take(steps.before, 0), first), "compiled reset")
    for index, step in enumerate(eager_steps):
        found += differences(step.actions, take(steps.actions, index), f"compiled sample_action {index}")
        found += differences(step.after, take(steps.after, index), f"compiled step {index}")
    return found


@conformance_check("batch functions must equal vmap of reset and step")
def check_vmap_equals_batch_functions(rollout: RandomRolloutRunner) -> list[str]:
    """Check that `batch_reset`, `batch_step` and `batch_reset_where` equal `vmap` of `reset` and `step`."""
    environment, step_keys = rollout.environment, rollout.keys[1]
    _, steps = rollout.run()
    mask = _every_other(rollout)
    observations, _ = rollout.observe(steps.before)
    resets, after = to_host(rollouts.by_vmap(environment, step_keys, steps.before, steps.actions))
    actual = rollouts.by_batch(environment, step_keys, steps.before, steps.actions, mask, observations)
    selected = jax.tree.map(partial(_choose, mask), resets, to_host((steps.before, observations)))
    names = ("batch_reset", "batch_step", "batch_reset_where")
    found: list[str] = []
    for name, left, right in zip(names, (resets, after, selected), actual, strict=True):
        found += differences(left, right, f"{name}, by step and environment: ")
    return found


@conformance_check("stepping a finished state must change nothing and give reward 0")
def check_done_states_are_absorbing(rollout: RandomRolloutRunner) -> Violations:
    """Check that stepping a finished state with any action changes nothing and gives reward 0."""
    num_steps = rollout.num_steps
    after = to_host(rollout.run(invalid=np.arange(num_steps)[:, None] % 2 == 1)[1].after)
    _require_end(after.dones)
    found = _changes_after_end(after, after)
    if not np.any(after.dones[:-1]):
        found.append(f"all episodes ended in the last of {num_steps} steps; pass a larger num_steps")
    # The rollout above has one episode per environment. With auto-reset, more episodes terminate.
    recorded = _record_auto_reset(rollout, "next_step")
    again = _step_batches(rollout, recorded.before, recorded.actions)
    auto, again = to_host((recorded.after, again))
    found += _changes_after_end(auto, again)
    return found or _not_checked_unless(auto.infos.terminated[:-1])


def _changes_after_end(recorded: rollouts.StepResult, after: rollouts.StepResult) -> list[str]:
    """List the violations in steps that start from a finished state.

    Such a step must not change the state, the observation or the flags, and must give reward 0.

    Args:
        recorded: Results of a rollout, with or without next-step auto-reset.
        after: Results of the same steps (same states and actions) without auto-reset.
    """
    is_done = recorded.dones[:-1]
    old, new = take(recorded, slice(None, -1)), take(after, slice(1, None))
    found = describe_first(
        is_done & (new.rewards != 0), ": stepping a finished state must give reward 0, but it gave another"
    )
    found += describe_first(is_done & ~new.dones, ": a finished state was not done after another step")
    for name, expected, actual in (
        ("state", old.states, new.states),
        ("observation", old.observations, new.observations),
    ):
        found += _differences_where(is_done, expected, actual, f"{name} after stepping a finished state")
    return found


@conformance_check("terminated and truncated must be distinguished")
def check_termination_flags(rollout: RandomRolloutRunner) -> list[str]:
    """Check that `done` is `terminated | truncated`, and that the step limit truncates episodes.

    An episode that ends because of the step limit must be truncated, not terminated.
    """
    after = to_host(rollout.run()[1].after)
    terminated, truncated, dones = after.states.terminated, after.states.truncated, after.dones
    _require_end(dones)
    flags = ("done", dones), ("terminated", terminated), ("truncated", truncated)
    found = [f"{name} must be bool, got {flag.dtype}" for name, flag in flags if flag.dtype != np.bool_]
    found += describe_first(terminated & truncated, " is both terminated and truncated")
    found += describe_first(dones != (terminated | truncated), ": done is not (terminated or truncated)")
    if rollout.has_invalid_actions:
        # Invalid actions change nothing, so only the step limit can end an episode.
        states = to_host(rollout.run(invalid=True)[1].after.states)
        found += describe_first(
            states.terminated, " terminated although all actions were invalid; a step limit must truncate"
        )
    return found


@conformance_check("steps must be counted and limited")
def check_step_limit(rollout: RandomRolloutRunner) -> list[str]:
    """Check that `step_count` counts the steps of an episode, and that no episode is longer than
    `max_episode_steps`."""
    _, steps = rollout.run()
    before, after = to_host((steps.before, steps.after.states))
    running = ~(before.terminated | before.truncated)
    found = [] if not np.any(before.step_count[0]) else ["step_count must be 0 after reset"]
    found += describe_first(
        running & (after.step_count != before.step_count + 1), ": step_count must increase by 1 in every step"
    )
    limit = rollout.environment.max_episode_steps
    too_long = (after.step_count >= limit) & ~(after.terminated | after.truncated)
    return found + describe_first(too_long, f" has not ended after max_episode_steps ({limit}) steps")


@conformance_check("same-step auto-reset must return the terminal observation")
def check_terminal_observation_in_same_step_mode(rollout: RandomRolloutRunner) -> Violations:
    """Check the observations returned by same-step auto-reset.

    `final_observation` must be the terminal observation, and the returned observation must be the first
    observation of the next episode.
    """
    raw, auto, found = _run_with_auto_reset(rollout, "same_step")
    found += differences(raw.dones, auto.infos.reset_mask, "reset_mask")
    found += differences(raw.dones, auto.dones, "done")
    found += differences(raw.rewards, auto.rewards, "reward")
    found += _differences_where(
        raw.dones, raw.observations, auto.infos.final_observation, "final_observation"
    )
    return found or _not_checked_unless(auto.infos.terminated)


@conformance_check("next-step auto-reset must return the terminal observation")
def check_terminal_observation_in_next_step_mode(rollout: RandomRolloutRunner) -> Violations:
    """Check that next-step auto-reset returns the terminal observation with `done` and then resets."""
    raw, auto, found = _run_with_auto_reset(rollout, "next_step")
    mask = auto.infos.reset_mask
    found += differences(auto.dones[:-1], mask[1:], "reset_mask, a step after done,")
    found += _differences_where(
        auto.dones, raw.observations, auto.observations, "observation returned with done"
    )
    flags = ("terminated", auto.infos.terminated), ("truncated", auto.infos.truncated)
    for name, value in (("reward", auto.rewards), ("done", auto.dones), *flags):
        found += _differences_where(mask, np.zeros_like(value), value, f"{name} of a reset step")
    return found or _not_checked_unless(auto.infos.terminated)


@conformance_check("invalid actions must not change a state")
def check_invalid_actions_change_nothing(rollout: RandomRolloutRunner) -> list[str] | None:
    """Check that an invalid action changes nothing in the state except `step_count` and the flags."""
    if not rollout.has_invalid_actions:
        return None
    invalid = _every_other(rollout)
    _, steps = rollout.run(invalid)
    before, after = map(rollout.comparable_states, (steps.before, steps.after.states))
    return _differences_where(invalid, before, after, "state after an invalid action")


@conformance_check("observations must be in observation_space")
def check_observations_lie_in_their_space(rollout: RandomRolloutRunner) -> list[str]:
    """Check that observations are in `observation_space` and equal to `observe(state)`."""
    first, steps = rollout.run()
    first, observations = to_host((first, steps.after.observations))
    expected = to_host(rollout.observe(steps.after.states)[0])
    indices = sample_indices(rollout.num_steps, rollout.batch_size)
    members = [("reset", take(first, index)) for index in range(rollout.batch_size)]
    members += [(f"step {t}", take(observations, t, i)) for t, i in indices]
    space = rollout.environment.observation_space
    return differences(expected, observations, "observation returned by step") + [
        f"the observation of {when} is not in observation_space: {reason}"
        for when, observation in members
        if (reason := find_mismatch(space, observation, "observation")) is not None
    ]


@conformance_check("sampled actions must be in action_space")
def check_sampled_actions_lie_in_their_space(rollout: RandomRolloutRunner) -> list[str]:
    """Check that `sample_action` returns members of `action_space`, and that `step` accepts any member."""
    space = rollout.environment.action_space
    _, steps = rollout.run()
    actions = to_host(steps.actions)
    found = [
        f"the action sampled at step {t} is not in action_space: {reason}"
        for t, i in sample_indices(rollout.num_steps, rollout.batch_size)
        if (reason := find_mismatch(space, take(actions, t, i), "action")) is not None
    ]
    members = jax.jit(jax.vmap(jax.vmap(space.sample)))(rollout.keys[1])
    result = _step_batches(rollout, steps.before, members)
    # Only the shapes and dtypes are compared.
    expected, actual = jax.tree.map(np.zeros_like, to_host((steps.after, result)))
    return found + differences(expected, actual, "result of step with action_space.sample")


def _differences_from_loop(rollout: RandomRolloutRunner) -> list[str]:
    """Run each environment of a batch separately, and list where the results differ from the batched run."""
    first, steps = to_host(rollout.run())
    found: list[str] = []
    for index in range(rollout.batch_size):
        single_first, single_steps = to_host(rollout.run_one(index))
        name = f"environment {index} of a batch of {rollout.batch_size}: "
        found += differences(single_first, take(first, index), f"{name}first observation")
        found += differences(single_steps, take(steps, slice(None), index), f"{name}step")
    return found


def _run_eagerly(rollout: RandomRolloutRunner) -> tuple[Any, list[rollouts.RolloutSteps]]:
    """Run the first steps of the first environment without `jit`."""
    environment, (reset_keys, step_keys) = rollout.environment, rollout.keys
    first = environment.reset(jnp.asarray(reset_keys[0]))
    state, steps = first[0], []
    for step_key in step_keys[:_EAGER_STEPS, 0]:
        action = environment.sample_action(jnp.asarray(step_key), state)
        after = rollouts.StepResult(*environment.step(state, action))
        steps.append(rollouts.RolloutSteps(state, action, after))
        state = after.states
    return first, steps


def _step_batches(rollout: RandomRolloutRunner, states: Any, actions: Any) -> rollouts.StepResult:
    """Call `batch_step` with recorded states and actions.

    Only the results of `batch_step` are needed, but `by_batch` is called, because its compiled program can
    be shared with another check.
    """
    observations, is_done = rollout.observe(states)
    mask = np.asarray(is_done)
    return rollouts.by_batch(rollout.environment, rollout.keys[1], states, actions, mask, observations)[1]


def _record_auto_reset(rollout: RandomRolloutRunner, mode: Mode) -> rollouts.RolloutSteps:
    initial = rollout.run()[1].before
    return rollouts.rollout_auto_reset(rollout.environment, mode == "next_step", initial, *rollout.keys)


def _run_with_auto_reset(
    rollout: RandomRolloutRunner, mode: Mode
) -> tuple[rollouts.StepResult, rollouts.StepResult, list[str]]:
    """Run a batch with auto-reset, and compare it with the same steps without auto-reset.

    Returns:
        The results without auto-reset, the results with auto-reset, and the failures of the checks that apply
        to both auto-reset modes. The observations in the results without auto-reset are computed from the
        states after the steps.
    """
    recorded = _record_auto_reset(rollout, mode)
    raw = _step_batches(rollout, recorded.before, recorded.actions)
    observed = rollout.observe(raw.states), rollout.observe(recorded.after.states)
    (raw_observations, raw_done), (auto_observations, auto_done) = to_host(observed)
    auto, raw = to_host((recorded.after, raw))
    _require_end(raw.dones)
    reset = auto.infos.reset_mask
    found = describe_first(
        raw_done != raw.dones, ": `done` does not match the state; step must not reset the environment"
    )
    found += differences(raw_observations, raw.observations, "observation returned by step")
    for mask, expected, actual, what in (
        (~reset, raw.states, auto.states, "state of an environment that was not reset"),
        (~reset, raw_observations, auto.observations, "observation where there was no reset"),
        (reset, auto_observations, auto.observations, "first observation of a new episode"),
    ):
        found += _differences_where(mask, expected, actual, what)
    found += describe_first(auto_done & reset, " starts a new episode that is already done")
    return dataclasses.replace(raw, observations=raw_observations), auto, found


def _every_other(rollout: RandomRolloutRunner) -> np.ndarray:
    return (np.arange(rollout.num_steps)[:, None] + np.arange(rollout.batch_size)) % 2 == 1


def _choose(mask: np.ndarray, new: np.ndarray, old: np.ndarray) -> np.ndarray:
    return np.where(mask.reshape(mask.shape + (1,) * (new.ndim - mask.ndim)), new, old)


def _require_end(dones: np.ndarray) -> None:
    """Raise `ConformanceError` if no episode has ended."""
    if not np.any(dones):
        raise ConformanceError(
            "at least one episode must end",
            [f"no episode ended within {len(dones)} random steps; pass a larger num_steps or a lower limit"],
        )


def _not_checked_unless(terminated: np.ndarray) -> Violations:
    """Return `InconclusiveCheck` if no episode terminated, and an empty list otherwise."""
    if np.any(terminated):
        return []
    return InconclusiveCheck(
        f"no episode terminated in {len(terminated)} steps, so terminal states were not checked; "
        "pass a larger num_steps"
    )


def _differences_where(mask: np.ndarray, expected: Any, actual: Any, what: str) -> list[str]:
    return differences(take(expected, mask), take(actual, mask), what)

"""The conformance suite: what every environment must do, as checks that anyone can run on their own.

`check_environment` runs them all; each check is also a function for `pytest.mark.parametrize`. A check raises
`ConformanceError` in words, and returns False where an environment has nothing for it to check.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from phalanx.core.autoreset import Mode
from phalanx.core.environment import Environment, TransitionInfo
from phalanx.core.testing import recorded_rollouts as plays
from phalanx.core.testing.capability_checks import CAPABILITY_CHECKS
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
"""Steps taken without `jit`; every operation is then compiled on its own, which is slow the first time."""


@dataclasses.dataclass(frozen=True)
class ConformanceReport:
    """What was checked and held, and what the environment has nothing of (say, invalid actions)."""

    environment: str
    passed: tuple[str, ...]
    not_applicable: tuple[str, ...]


def check_environment(
    environment: Environment, *, seed: int = 0, batch_size: int = 4, num_steps: int = 200
) -> ConformanceReport:
    """Run every check; raise one `ConformanceError` that names all failures, or report what held.

    Random play of `num_steps` steps must reach the end of at least one episode.
    """
    passed: list[str] = []
    not_applicable: list[str] = []
    failures: list[str] = []
    for check in CHECKS:
        name = check.__name__
        try:
            applies = check(environment, seed, batch_size=batch_size, num_steps=num_steps)
        except ConformanceError as error:
            failures += [f"{name}: {failure}" for failure in error.failures]
        except Exception as error:
            error.add_note(f"while {name} was running on {environment!r}")
            raise
        else:
            (passed if applies else not_applicable).append(name)
    if failures:
        failed = len(CHECKS) - len(passed) - len(not_applicable)
        title = f"{type(environment).__name__} fails {failed} of {len(CHECKS)} conformance checks"
        raise ConformanceError(title, failures)
    return ConformanceReport(type(environment).__name__, tuple(passed), tuple(not_applicable))


def check_determinism(
    environment: Environment, seed: int = 0, *, batch_size: int = 4, num_steps: int = 200
) -> bool:
    """The same key gives the same episode, compiled or not."""
    reset_key, step_keys = _single_keys(seed, batch_size, num_steps)
    once, again = (_eager_play(environment, reset_key, step_keys) for _ in range(2))
    found = differences(once, again, "second run without jit")
    first, second = (plays.rollout_one(environment, reset_key, step_keys) for _ in range(2))
    return raise_if_failed(
        "the same key must give the same episode", found + differences(first, second, "second run")
    )


def check_batch_of_one_equals_single(
    environment: Environment, seed: int = 0, *, batch_size: int = 4, num_steps: int = 200
) -> bool:
    """A batch of one environment is that environment."""
    reset_key, step_keys = _single_keys(seed, batch_size, num_steps)
    first, steps = plays.rollout_one(environment, reset_key, step_keys)
    begun, after = to_host(plays.by_batch_of_one(environment, reset_key, steps.before, steps.actions))
    first, steps = to_host((first, steps))
    found = differences((take(steps.before, 0), first), begun, "environment 0 of a batch of 1: reset")
    found += differences(steps.after, after, "environment 0 of a batch of 1: step")
    return raise_if_failed("a batch must equal its environments one by one", found)


def check_batch_equals_loop(
    environment: Environment, seed: int = 0, *, batch_size: int = 4, num_steps: int = 200
) -> bool:
    """A batch is a loop over its environments: no environment feels its neighbours."""
    keys = keys_from(seed, batch_size)
    first, steps = to_host(record_rollout(environment, keys, num_steps))
    found: list[str] = []
    reset_keys, step_keys = to_host(plays.rollout_keys(keys, num_steps))
    for index in range(batch_size):
        single = plays.rollout_one(environment, reset_keys[index], step_keys[:, index])
        single_first, single_steps = to_host(single)
        name = f"environment {index} of a batch of {batch_size}: "
        found += differences(single_first, take(first, index), f"{name}first observation")
        found += differences(single_steps, take(steps, slice(None), index), f"{name}step")
    return raise_if_failed("a batch must equal its environments one by one", found)


def check_jit_equals_eager(
    environment: Environment, seed: int = 0, *, batch_size: int = 4, num_steps: int = 200
) -> bool:
    """`reset` and `step` give the same whether they are compiled or not."""
    reset_key, step_keys = _single_keys(seed, batch_size, num_steps)
    plain_first, plain_steps = _eager_play(environment, reset_key, step_keys)
    first, steps = to_host(plays.rollout_one(environment, reset_key, step_keys))
    found = differences(plain_first, (take(steps.before, 0), first), "compiled reset")
    for index, step in enumerate(plain_steps):
        found += differences(step.actions, take(steps.actions, index), f"compiled sample_action {index}")
        found += differences(step.after, take(steps.after, index), f"compiled step {index}")
    return raise_if_failed("jit must not change what an environment does", found)


def check_vmap_equals_batch_functions(
    environment: Environment, seed: int = 0, *, batch_size: int = 4, num_steps: int = 200
) -> bool:
    """`batch_reset`, `batch_step` and `batch_reset_where` mean the vmapped `reset` and `step`."""
    keys = keys_from(seed, batch_size)
    _, steps = record_rollout(environment, keys, num_steps)
    mask = _every_other(num_steps, batch_size)
    seen, _ = plays.observe_states(environment, steps.before)
    _, step_keys = plays.rollout_keys(keys, num_steps)
    resets, after = to_host(plays.by_vmap(environment, step_keys, steps.before, steps.actions))
    actual = to_host(plays.by_batch(environment, step_keys, steps.before, steps.actions, mask, seen))
    kept = jax.tree.map(partial(_choose, mask), resets, to_host((steps.before, seen)))
    names = ("batch_reset", "batch_step", "batch_reset_where")
    found: list[str] = []
    for name, left, right in zip(names, (resets, after, kept), actual, strict=True):
        found += differences(left, right, f"{name}, by step and environment: ")
    return raise_if_failed("batch functions must equal vmap of the single ones", found)


def check_done_states_are_absorbing(
    environment: Environment, seed: int = 0, *, batch_size: int = 4, num_steps: int = 200
) -> bool:
    """Stepping a finished state changes nothing, pays nothing and stays done, whatever the action."""
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
            found.append(f"environment {index} ended at step {end} and was then paid {tail.rewards[:4]}...")
        if not np.all(tail.dones):
            found.append(f"environment {index} ended at step {end} and was then not done")
    if all(end + 1 == num_steps for end in ends.values()):
        found.append(f"every episode ended in the very last of {num_steps} steps; pass a larger num_steps")
    return raise_if_failed("stepping a finished state must be a no-op with zero reward", found)


def check_termination_flags(
    environment: Environment, seed: int = 0, *, batch_size: int = 4, num_steps: int = 200
) -> bool:
    """`done` is terminated or truncated, never both; what ends without the world changing is truncated."""
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
    over = np.asarray(plays.observe_states(environment, steps.after.states)[1])
    if np.any(over != dones):
        found.append(f"{first_wrong(over != dones)}: is_done(state) is not the `done` that step returned")
    if has_invalid(environment):
        # An invalid action leaves the world as it is, so only the clock can end an episode of nothing else.
        infos = to_host(record_rollout(environment, keys, num_steps, invalid=True)[1].after.infos)
        if np.any(infos.terminated):
            found.append(
                f"{first_wrong(infos.terminated)} reads terminated under invalid actions alone; an end by "
                f"the clock is a truncation"
            )
    return raise_if_failed("terminated and truncated must be told apart", found)


def check_terminal_observation_in_same_step_mode(
    environment: Environment, seed: int = 0, *, batch_size: int = 4, num_steps: int = 200
) -> bool:
    """Same-step auto-reset hands on the terminal observation and the new episode's first."""
    steps, found = _auto_play(environment, "same_step", seed, batch_size, num_steps)
    info, mask = steps.auto.infos, steps.plain.dones
    found += differences(mask, info.reset_mask, "reset_mask")
    found += differences(mask, steps.auto.dones, "done")
    found += differences(steps.plain.rewards, steps.auto.rewards, "reward")
    found += _where(mask, steps.plain_view, info.final_observation, "final_observation")
    return raise_if_failed("the terminal observation must survive same-step auto-reset", found)


def check_terminal_observation_in_next_step_mode(
    environment: Environment, seed: int = 0, *, batch_size: int = 4, num_steps: int = 200
) -> bool:
    """Next-step auto-reset returns the terminal observation with `done`, then resets, pays 0, is not done."""
    steps, found = _auto_play(environment, "next_step", seed, batch_size, num_steps)
    auto, mask = steps.auto, steps.auto.infos.reset_mask
    found += differences(auto.dones[:-1], mask[1:], "reset_mask, a step after done,")
    found += _where(auto.dones, steps.plain_view, auto.observations, "observation returned with done")
    for name, value in (("reward", auto.rewards), *_flags(auto)):
        found += _where(mask, np.zeros_like(value), value, f"{name} of a reset step")
    return raise_if_failed("the terminal observation must survive next-step auto-reset", found)


def check_invalid_actions_change_nothing(
    environment: Environment, seed: int = 0, *, batch_size: int = 4, num_steps: int = 200
) -> bool:
    """Masked-out and malformed actions leave a state's `content` alone."""
    if not has_invalid(environment):
        return False
    invalid = _every_other(num_steps, batch_size)
    _, steps = record_rollout(environment, keys_from(seed, batch_size), num_steps, invalid)
    before = to_host(plays.comparable_states(environment, steps.before))
    after = to_host(plays.comparable_states(environment, steps.after.states))
    found = _where(invalid, before, after, "content after an invalid action")
    return raise_if_failed("invalid actions must never change a state", found)


def check_observations_lie_in_their_space(
    environment: Environment, seed: int = 0, *, batch_size: int = 4, num_steps: int = 200
) -> bool:
    """Every observation is a member of `observation_space` and is what `observe` says of its state."""
    first, steps = record_rollout(environment, keys_from(seed, batch_size), num_steps)
    observations, seen = (
        to_host(steps.after.observations),
        plays.observe_states(environment, steps.after.states)[0],
    )
    found = differences(to_host(seen), observations, "observation returned by step")
    members = [("reset", take(to_host(first), index)) for index in range(batch_size)]
    members += [(f"step {t}", take(observations, t, i)) for t, i in sample_indices(num_steps, batch_size)]
    space = environment.observation_space
    found += [
        f"the observation of {when} is not in {space}" for when, it in members if not space.contains(it)
    ]
    return raise_if_failed("observations must lie in observation_space", found)


def check_sampled_actions_lie_in_their_space(
    environment: Environment, seed: int = 0, *, batch_size: int = 4, num_steps: int = 200
) -> bool:
    """`sample_action` draws members of `action_space`, and `step` takes whatever the space itself draws."""
    keys, space = keys_from(seed, batch_size), environment.action_space
    _, steps = record_rollout(environment, keys, num_steps)
    actions = to_host(steps.actions)
    found = [
        f"the action sampled at step {t} is not in {space}: {take(actions, t, i)}"
        for t, i in sample_indices(num_steps, batch_size)
        if not space.contains(take(actions, t, i))
    ]
    _, step_keys = plays.rollout_keys(keys, num_steps)
    drawn = jax.jit(jax.vmap(jax.vmap(space.sample)))(step_keys)
    result = _batch_steps(environment, step_keys, plays.RecordedStep(steps.before, drawn, steps.after))
    blank = [jax.tree.map(np.zeros_like, to_host(it)) for it in (steps.after, result)]
    found += differences(blank[0], blank[1], "what step makes of action_space.sample")
    return raise_if_failed("sampled actions must lie in action_space", found)


def _single_keys(seed: int, batch_size: int, num_steps: int) -> tuple[Any, Any]:
    """The keys of a play's first environment: one for its reset, and one for each step."""
    reset_keys, step_keys = to_host(plays.rollout_keys(keys_from(seed, batch_size), num_steps))
    return jnp.asarray(reset_keys[0]), step_keys[:, 0]


def _eager_play(
    environment: Environment, key: Any, step_keys: np.ndarray
) -> tuple[Any, list[plays.RecordedStep]]:
    first = environment.reset(key)
    state, steps = first[0], []
    for step_key in step_keys[:_EAGER_STEPS]:
        action = environment.sample_action(jnp.asarray(step_key), state)
        after = plays.StepResult(*environment.step(state, action))
        steps.append(plays.RecordedStep(state, action, after))
        state = after.states
    return first, steps


def _batch_steps(environment: Environment, step_keys: Any, steps: plays.RecordedStep) -> plays.StepResult:
    """`batch_step` from recorded states, by the program that all checks of batch functions share."""
    seen, over = plays.observe_states(environment, steps.before)
    return plays.by_batch(environment, step_keys, steps.before, steps.actions, np.asarray(over), seen)[1]


def _auto_play(
    environment: Environment, mode: Mode, seed: int, batch_size: int, num_steps: int
) -> tuple[plays.RecordedAutoResetStep, list[str]]:
    """A recording, and what is wrong with it in either mode."""
    keys = keys_from(seed, batch_size)
    reset_keys, step_keys = plays.rollout_keys(keys, num_steps)
    begun = record_rollout(environment, keys, num_steps)[1].before
    taken = plays.rollout_auto_reset(environment, mode == "next_step", begun, reset_keys, step_keys)
    plain = _batch_steps(environment, step_keys, taken)
    views = (plays.observe_states(environment, states) for states in (plain.states, taken.after.states))
    (plain_view, plain_over), (auto_view, auto_over) = to_host(tuple(views))
    auto, plain = to_host((taken.after, plain))
    steps = plays.RecordedAutoResetStep(plain, plain_view, plain_over, auto, auto_view, auto_over)
    _ends(environment, steps.plain.dones)
    fresh = auto.infos.reset_mask
    found = []
    if np.any(steps.plain_over != steps.plain.dones):
        wrong = first_wrong(steps.plain_over != steps.plain.dones)
        found.append(f"{wrong}: `done` does not match the state; an environment never resets itself")
    found += differences(steps.plain_view, steps.plain.observations, "observation returned by step")
    found += _where(~fresh, steps.plain.states, auto.states, "state of an environment that was not reset")
    found += _where(~fresh, steps.plain_view, auto.observations, "observation where there was no reset")
    found += _where(fresh, steps.auto_view, auto.observations, "first observation of a new episode")
    if np.any(steps.auto_over & fresh):
        found.append(f"{first_wrong(steps.auto_over & fresh)} starts a new episode that is already done")
    return steps, found


def _every_other(num_steps: int, batch_size: int) -> np.ndarray:
    return (np.arange(num_steps)[:, None] + np.arange(batch_size)) % 2 == 1


def _choose(mask: np.ndarray, new: np.ndarray, old: np.ndarray) -> np.ndarray:
    return np.where(mask.reshape(mask.shape + (1,) * (new.ndim - mask.ndim)), new, old)


def _ends(environment: Environment, dones: np.ndarray) -> dict[int, int]:
    """The step at which each environment's first episode ended, for those that did."""
    if not np.any(dones):
        raise ConformanceError(
            "the end of an episode must be reachable",
            [f"no episode ended within {len(dones)} random steps; pass a larger num_steps or a lower limit"],
        )
    return {int(i): int(np.argmax(dones[:, i])) for i in np.flatnonzero(dones.any(0))}


def _where(mask: np.ndarray, expected: Any, actual: Any, what: str) -> list[str]:
    return differences(take(expected, mask), take(actual, mask), what)


def _flags(outcome: plays.StepResult) -> tuple[tuple[str, np.ndarray], ...]:
    infos = outcome.infos
    return ("done", outcome.dones), ("terminated", infos.terminated), ("truncated", infos.truncated)


CHECKS: tuple[Callable[..., bool], ...] = (
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
    *CAPABILITY_CHECKS,
)

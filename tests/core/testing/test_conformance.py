"""The conformance suite accepts a correct environment and rejects each incorrect one."""

import dataclasses
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phalanx.core import Environment, EpisodeState, testing
from phalanx.core.spaces import Box, Composite, Discrete, find_mismatch
from phalanx.core.testing import CHECKS, ConformanceError, check_environment, transition_checks
from phalanx.core.testing.tree_diff import differences
from tests.helpers.broken_environments import (
    BROKEN,
    HasCorrectKernel,
    Kernel,
    RewardAfterEnd,
    broken_spec,
    corridor_with,
)
from tests.helpers.corridor import SPEC, Corridor

pytestmark = pytest.mark.slow


@dataclasses.dataclass
class Seen:
    offset: Any
    cell: Any


SIZES = {"batch_size": 3, "num_steps": 24}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_correct_environment_passes_each_check(check):
    assert check(Corridor(), 0, spec=SPEC, **SIZES) is True


def test_correct_kernel_passes_all_checks():
    assert check_environment(HasCorrectKernel(), spec=SPEC, **SIZES).not_applicable == ()


@pytest.mark.parametrize(
    ("broken", "check", "message"),
    [pytest.param(*case, id=f"{case[0].__name__}-{case[1].__name__}") for case in BROKEN],
)
def test_incorrect_environment_fails_with_message(broken, check, message):
    spec = broken_spec(broken)
    with pytest.raises(ConformanceError, match=message):
        check(spec.make(), 0, spec=spec, **SIZES)


def test_every_check_can_fail():
    assert {check for _, check, _ in BROKEN} == set(CHECKS)


def test_report_lists_passed_checks():
    report = check_environment(Corridor(), spec=SPEC, **SIZES)
    assert report.environment == "Corridor"
    assert report.passed == tuple(check.__name__ for check in CHECKS)
    assert report.not_applicable == report.not_checked == ()
    assert str(report) == f"Corridor passes {len(CHECKS)} checks"


class Throttle(Environment):
    """Accelerates a car with a number, so no action is illegal."""

    max_episode_steps: int = 3
    observation_space = Box(-10.0, 10.0, (1,))
    action_space = Box(-1.0, 1.0, (1,))

    def initial_state(self, key):
        return Speed(jnp.zeros(1))

    def transition(self, state, action):
        return Speed(state.speed + action), 0.0, False

    def observe(self, state):
        return state.speed


class Speed(EpisodeState):
    speed: jax.Array


def test_checks_of_missing_capabilities_are_not_applicable(monkeypatch):
    capability_checks = [check for check in CHECKS if check.__module__.endswith("capability_checks")]
    invalid_actions = transition_checks.check_invalid_actions_change_nothing
    monkeypatch.setattr(testing, "CHECKS", (*capability_checks, invalid_actions))
    report = check_environment(Throttle(), **SIZES)
    assert report.passed == report.notes == ()
    assert report.not_applicable == tuple(check.__name__ for check in testing.CHECKS)


def test_invalid_actions_and_the_part_that_they_do_not_change_can_be_given():
    def stand_still(key, state):
        return jnp.zeros(1)

    def accelerate(key, state):
        return jnp.ones(1)

    check = transition_checks.check_invalid_actions_change_nothing
    assert check(Throttle(), invalid_action=stand_still, **SIZES) is True
    with pytest.raises(ConformanceError, match=r"state after an invalid action\['speed'\]"):
        check(Throttle(), invalid_action=accelerate, **SIZES)
    assert check(Throttle(), invalid_action=accelerate, comparable_state=lambda state: (), **SIZES) is True


def test_missing_mask_is_a_note(monkeypatch):
    class Misspelled(Corridor):
        def legal_actions(self, state):
            return None

        def sample_action(self, key, state):
            return jnp.int32(1)

    monkeypatch.setattr(testing, "CHECKS", ())
    [note] = check_environment(Misspelled(), **SIZES).notes
    assert note.startswith("no mask of legal actions was found: the observation has no field action_mask")
    assert check_environment(Corridor(), **SIZES).notes == ()


class RewardsAfterEnd(Kernel):
    def step(self, states, actions):
        states, observations, rewards, *rest = super().step(states, actions)
        return states, observations, jnp.where(states.terminated, 1.0, rewards), *rest


class NeverLeaps(Corridor):
    """Starts in cell 0 and takes single steps, so that only one of many random episodes terminates."""

    def initial_state(self, key):
        return dataclasses.replace(super().initial_state(key), position=jnp.int32(0))

    def legal_actions(self, state):
        return super().legal_actions(state).at[..., 2].set(False)


class RarelyTerminates(NeverLeaps):
    """Only one of many random episodes terminates, and stepping its terminal state pays reward 1 again."""

    def kernel(self):
        return RewardsAfterEnd(NeverLeaps(self.max_episode_steps))


TERMINAL_STATE_CHECKS = (
    transition_checks.check_done_states_are_absorbing,
    transition_checks.check_terminal_observation_in_same_step_mode,
    transition_checks.check_terminal_observation_in_next_step_mode,
)


def test_checks_of_terminal_states_are_not_checked_without_terminations(monkeypatch):
    monkeypatch.setattr(testing, "CHECKS", TERMINAL_STATE_CHECKS)
    report = check_environment(RarelyTerminates(max_episode_steps=10), batch_size=2, num_steps=12)
    note = "no episode terminated in 12 steps, so terminal states were not checked; pass a larger num_steps"
    assert report.passed == ()
    assert report.not_checked == tuple(check.__name__ for check in TERMINAL_STATE_CHECKS)
    assert note in str(report).splitlines()


def test_reward_after_a_rare_termination_is_found_with_more_steps():
    with pytest.raises(ConformanceError, match="stepping a finished state must give reward 0"):
        transition_checks.check_done_states_are_absorbing(
            RarelyTerminates(max_episode_steps=10), batch_size=2, num_steps=1000
        )


def test_one_error_lists_all_failures(monkeypatch):
    next_step, absorbing = (
        transition_checks.check_terminal_observation_in_next_step_mode,
        transition_checks.check_done_states_are_absorbing,
    )
    passing = transition_checks.check_observations_lie_in_their_space
    monkeypatch.setattr(testing, "CHECKS", (next_step, passing, absorbing))
    with pytest.raises(ConformanceError, match="RewardAfterEnd fails 2 of 3 conformance checks") as caught:
        check_environment(RewardAfterEnd(), **SIZES)
    names = [failure.partition(":")[0] for failure in caught.value.failures]
    assert set(names) == {next_step.__name__, absorbing.__name__}


def test_exception_of_environment_says_when_it_was_raised():
    class Crashes(Corridor):
        def transition(self, state, action):
            raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom") as caught:
        check_environment(Crashes(), **SIZES)
    assert any("while the first step was traced" in note for note in caught.value.__notes__)


def test_state_without_flags_is_one_failure():
    @dataclasses.dataclass
    class Bare:
        position: Any

    jax.tree_util.register_dataclass(Bare, ["position"], [])

    @corridor_with
    class ReturnsBareStates(Kernel):
        def step(self, states, actions):
            states, *rest = super().step(states, actions)
            return Bare(states.position), *rest

    message = "Bare has no step_count and no terminated and no truncated: derive it from EpisodeState"
    with pytest.raises(ConformanceError, match=message) as caught:
        check_environment(ReturnsBareStates(), **SIZES)
    assert len(caught.value.failures) == 1


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (Seen(np.zeros(2, np.int32), 0), "observation.offset must have dtype float32, got int32"),
        (Seen(np.zeros(3, np.float32), 0), r"observation.offset must have shape \(2,\), got \(3,\)"),
        (Seen(np.full(2, 2, np.float32), 0), "observation.offset must be from 0 to 1, got values from 2.0"),
        (Seen(np.zeros(2, np.float32), 4), r"observation.cell is not in Discrete\(n=4\)"),
        (np.zeros(2), "observation must be of type Seen, got ndarray"),
    ],
)
def test_mismatch_names_the_field(value, message):
    space = Composite.of(Seen, {"offset": Box(0, 1, (2,), np.float32), "cell": Discrete(4)})
    assert re.search(message, find_mismatch(space, value, "observation"))
    assert find_mismatch(space, Seen(np.zeros(2, np.float32), 3), "observation") is None


def test_differences_include_leaf_and_index():
    left, right = {"a": jnp.array([1, 2, 3])}, {"a": jnp.array([1, 5, 3])}
    assert differences(left, right, "state") == ["state['a'][1]: expected 2, got 5 (1 of 3 differ)"]
    assert differences(left, left, "state") == []


def test_differences_include_structure_dtype_and_shape():
    assert "another structure" in differences({"a": jnp.zeros(2)}, {"b": jnp.zeros(2)}, "x")[0]
    assert differences(np.zeros(2, np.int8), np.zeros(2, np.int32), "x") == [
        "x: expected int8[2], got int32[2]"
    ]
    assert differences(np.zeros(2), np.zeros(3), "x") == ["x: expected float64[2], got float64[3]"]


def test_differences_tolerate_only_rounding():
    assert differences(np.float32(1.0), np.float32(1.0000001), "x") == []
    assert len(differences(np.float32(1.0), np.float32(1.001), "x")) == 1
    assert differences(np.float32(np.nan), np.float32(np.nan), "x") == []


def test_typed_keys_are_compared_by_their_data():
    assert differences(jax.random.key(1), jax.random.key(1), "key") == []
    assert len(differences(jax.random.key(1), jax.random.key(2), "key")) == 1


def test_environment_without_arrays_is_static():
    assert jax.tree.leaves(Corridor()) == []
    assert Corridor() == Corridor(12) and hash(Corridor()) == hash(Corridor(12))
    assert dataclasses.replace(Corridor(), max_episode_steps=5) != Corridor()

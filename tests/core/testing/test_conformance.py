"""The conformance suite accepts a correct environment and rejects each incorrect one."""

import dataclasses
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phalanx.core import testing
from phalanx.core.environment import check_info
from phalanx.core.spaces import Box, Composite, Discrete, find_mismatch
from phalanx.core.testing import CHECKS, ConformanceError, check_environment, transition_checks
from phalanx.core.testing.tree_diff import differences
from tests.helpers.broken_environments import BROKEN, RewardAfterEnd
from tests.helpers.corridor import Corridor

pytestmark = pytest.mark.slow


@dataclasses.dataclass
class Seen:
    offset: Any
    cell: Any


SIZES = {"batch_size": 3, "num_steps": 24}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_correct_environment_passes_each_check(check):
    assert check(Corridor(), 0, **SIZES) is True


@pytest.mark.parametrize(
    ("broken", "check", "message"),
    [pytest.param(*case, id=f"{case[0].__name__}-{case[1].__name__}") for case in BROKEN],
)
def test_incorrect_environment_fails_with_message(broken, check, message):
    with pytest.raises(ConformanceError, match=message):
        check(broken(), 0, **SIZES)


def test_every_check_can_fail():
    assert {check for _, check, _ in BROKEN} == set(CHECKS)


def test_report_lists_passed_checks():
    report = check_environment(Corridor(), **SIZES)
    assert report.environment == "Corridor"
    assert report.passed == tuple(check.__name__ for check in CHECKS)
    assert report.not_applicable == report.not_checked == ()
    assert str(report) == f"Corridor passes {len(CHECKS)} checks"


def test_check_of_invalid_actions_is_not_applicable_without_them(monkeypatch):
    class Permissive(Corridor):
        def invalid_action(self, key, state):
            return None

    monkeypatch.setattr(testing, "CHECKS", (transition_checks.check_invalid_actions_change_nothing,))
    report = check_environment(Permissive(), **SIZES)
    assert report.passed == ()
    assert report.not_applicable == ("check_invalid_actions_change_nothing",)


def test_checks_of_missing_capabilities_are_not_applicable(monkeypatch):
    class Silent(Corridor):
        has_text = False
        render_modes = ()

        def expert(self):
            return None

        def legal_actions(self, state):
            return None

    capability_checks = [check for check in CHECKS if check.__module__.endswith("capability_checks")]
    monkeypatch.setattr(testing, "CHECKS", capability_checks)
    report = check_environment(Silent(), **SIZES)
    assert report.passed == ("check_task_name_and_version",)
    assert report.not_applicable == tuple(check.__name__ for check in capability_checks[:4])


class RarelyTerminates(Corridor):
    """Only one of many random episodes terminates, and stepping its terminal state pays reward 1 again."""

    def reset(self, key):
        state, _ = super().reset(key)
        state = dataclasses.replace(state, position=jnp.int32(0))
        return state, self.observe(state)

    def legal(self, state):
        return super().legal(state).at[..., 2].set(False)

    def step(self, state, action):
        state, observation, reward, done, info = super().step(state, action)
        return state, observation, jnp.where(state.terminated, 1.0, reward), done, info


TERMINAL_STATE_CHECKS = (
    transition_checks.check_done_states_are_absorbing,
    transition_checks.check_terminal_observation_in_same_step_mode,
    transition_checks.check_terminal_observation_in_next_step_mode,
)


def test_checks_of_terminal_states_are_not_checked_without_terminations(monkeypatch):
    monkeypatch.setattr(testing, "CHECKS", TERMINAL_STATE_CHECKS)
    report = check_environment(RarelyTerminates(max_steps=10), batch_size=2, num_steps=12)
    note = "no episode terminated in 12 steps, so terminal states were not checked; pass a larger num_steps"
    assert report.passed == ()
    assert report.not_checked == tuple(check.__name__ for check in TERMINAL_STATE_CHECKS)
    assert note in str(report).splitlines()


def test_reward_after_a_rare_termination_is_found_with_more_steps():
    with pytest.raises(ConformanceError, match="stepping a finished state must give reward 0"):
        transition_checks.check_done_states_are_absorbing(
            RarelyTerminates(max_steps=10), batch_size=2, num_steps=1000
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
        def step(self, state, action):
            raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom") as caught:
        check_environment(Crashes(), **SIZES)
    assert any("while the first step was traced" in note for note in caught.value.__notes__)


def test_info_without_flags_is_one_failure():
    class ReturnsDictionary(Corridor):
        def step(self, state, action):
            *rest, info = super().step(state, action)
            return *rest, {"terminated": info.terminated, "truncated": info.truncated}

    message = "must have the attributes terminated and truncated, .* got dict"
    with pytest.raises(ConformanceError, match=message) as caught:
        check_environment(ReturnsDictionary(), **SIZES)
    assert len(caught.value.failures) == 1
    with pytest.raises(ValueError, match=message):
        check_info({"terminated": False, "truncated": False})


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
    assert dataclasses.replace(Corridor(), max_steps=5) != Corridor()

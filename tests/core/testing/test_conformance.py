"""The conformance suite accepts a sound environment and finds out each broken one."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phalanx.core.testing import transition_checks as conformance
from phalanx.core.testing.capability_checks import CAPABILITY_CHECKS
from phalanx.core.testing.recorded_rollouts import differences
from phalanx.core.testing.transition_checks import CHECKS, ConformanceError, check_environment
from tests.helpers.broken_environments import BROKEN, PaysAfterTheEnd
from tests.helpers.corridor import Corridor

SIZES = {"batch_size": 3, "num_steps": 24}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_sound_environment_passes_each_check(check):
    assert check(Corridor(), 0, **SIZES) is True


@pytest.mark.parametrize(
    ("broken", "check", "words"),
    [pytest.param(*case, id=f"{case[0].__name__}-{case[1].__name__}") for case in BROKEN],
)
def test_a_broken_environment_is_found_out_in_words(broken, check, words):
    with pytest.raises(ConformanceError, match=words):
        check(broken(), 0, **SIZES)


def test_every_check_can_fail():
    assert {check for _, check, _ in BROKEN} == set(CHECKS)


def test_the_report_names_what_was_checked():
    report = check_environment(Corridor(), **SIZES)
    assert report.environment == "Corridor"
    assert report.passed == tuple(check.__name__ for check in CHECKS)
    assert report.not_applicable == ()


def test_an_environment_without_invalid_actions_is_told_that_nothing_was_checked_there(monkeypatch):
    class Permissive(Corridor):
        def invalid_action(self, key, state):
            return None

    monkeypatch.setattr(conformance, "CHECKS", (conformance.check_invalid_actions_change_nothing,))
    report = check_environment(Permissive(), **SIZES)
    assert report.passed == ()
    assert report.not_applicable == ("check_invalid_actions_change_nothing",)


def test_an_environment_that_says_nothing_of_itself_is_told_that_nothing_was_checked_there(monkeypatch):
    class Silent(Corridor):
        has_text = False
        render_modes = ()

        def legal_actions(self, state):
            return None

    monkeypatch.setattr(conformance, "CHECKS", CAPABILITY_CHECKS)
    report = check_environment(Silent(), **SIZES)
    assert report.passed == ("check_task_name_and_version",)
    assert report.not_applicable == tuple(check.__name__ for check in CAPABILITY_CHECKS[:3])


def test_one_error_names_all_failures(monkeypatch):
    next_step, finished = (
        conformance.check_terminal_observation_in_next_step_mode,
        conformance.check_done_states_are_absorbing,
    )
    sound = conformance.check_observations_lie_in_their_space
    monkeypatch.setattr(conformance, "CHECKS", (next_step, sound, finished))
    with pytest.raises(ConformanceError, match="PaysAfterTheEnd fails 2 of 3 conformance checks") as caught:
        check_environment(PaysAfterTheEnd(), **SIZES)
    names = [failure.partition(":")[0] for failure in caught.value.failures]
    assert set(names) == {next_step.__name__, finished.__name__}


def test_a_crash_is_not_swallowed_and_says_which_check_was_running():
    class Crashes(Corridor):
        def step(self, state, action):
            raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom") as caught:
        check_environment(Crashes(), **SIZES)
    assert "while check_determinism was running" in caught.value.__notes__[0]


def test_differences_name_the_leaf_and_the_cell():
    left, right = {"a": jnp.array([1, 2, 3])}, {"a": jnp.array([1, 5, 3])}
    assert differences(left, right, "state") == ["state['a'][1]: expected 2, got 5 (1 of 3 differ)"]
    assert differences(left, left, "state") == []


def test_differences_see_structure_type_and_shape():
    assert "another structure" in differences({"a": jnp.zeros(2)}, {"b": jnp.zeros(2)}, "x")[0]
    assert differences(np.zeros(2, np.int8), np.zeros(2, np.int32), "x") == [
        "x: expected int8[2], got int32[2]"
    ]
    assert differences(np.zeros(2), np.zeros(3), "x") == ["x: expected float64[2], got float64[3]"]


def test_differences_forgive_rounding_but_nothing_more():
    assert differences(np.float32(1.0), np.float32(1.0000001), "x") == []
    assert len(differences(np.float32(1.0), np.float32(1.001), "x")) == 1
    assert differences(np.float32(np.nan), np.float32(np.nan), "x") == []


def test_typed_keys_are_compared_by_their_words():
    assert differences(jax.random.key(1), jax.random.key(1), "key") == []
    assert len(differences(jax.random.key(1), jax.random.key(2), "key")) == 1


def test_the_corridor_is_static_and_equal_instances_share_a_compilation():
    assert jax.tree.leaves(Corridor()) == []
    assert Corridor() == Corridor(12) and hash(Corridor()) == hash(Corridor(12))
    assert dataclasses.replace(Corridor(), max_steps=5) != Corridor()

"""The conformance suite on the proof environment, with both backends and several options."""

import pytest

from phalanx.core.testing import check_environment
from phalanx.core.testing.transition_checks import (
    check_done_states_are_absorbing,
    check_invalid_actions_change_nothing,
    check_vmap_equals_batch_functions,
)
from phalanx.native import is_native_available, native_unavailable_reason
from tests.helpers import families as f

pytestmark = pytest.mark.slow


def test_native_backend_conforms() -> None:
    if not is_native_available():
        pytest.skip(native_unavailable_reason())
    check_environment(f.environment(backend="native"), comparable_state=f.without_counters, num_steps=60)


def test_xla_backend_conforms() -> None:
    env = f.environment(backend="xla", max_episode_steps=4)
    check_environment(env, comparable_state=f.without_counters, num_steps=40)


def test_environment_with_skipped_unary_actions_and_no_end_action_conforms() -> None:
    env = f.environment(skip_unary_actions=True, end_proof_action=False, max_episode_steps=3)
    for check in (
        check_vmap_equals_batch_functions,
        check_done_states_are_absorbing,
        check_invalid_actions_change_nothing,
    ):
        check(env, 0, num_steps=40, comparable_state=f.without_counters)

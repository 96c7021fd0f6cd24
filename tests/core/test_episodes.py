"""Whole episodes in one scan: agents with state, finished environments, and one compilation."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phalanx.compat.jaxarc.batch_processing import stack_states
from phalanx.core.episodes import draw_episodes, map_batches, run_episode_batch
from phalanx.core.vector import batch_reset, batch_step
from tests.helpers.corridor import LEFT, RIGHT, Corridor, walker

STEPS = 5


def go_right(states, agent_state, key):
    return jnp.full(states.position.shape, RIGHT), agent_state


def by_hand():
    """Reaches the end in its second step; in none of five; by a first step that is its last."""
    return stack_states([walker(5), walker(0), walker(2, step_count=11)])


def test_finished_environments_get_no_further_reward():
    final, totals, trajectory = run_episode_batch(by_hand(), go_right, STEPS, Corridor())
    assert final.position.tolist() == [7, 5, 3]
    assert final.terminated.tolist() == [True, False, False]
    assert final.truncated.tolist() == [False, False, True]
    np.testing.assert_allclose(totals, [0.9, -0.5, -0.1], atol=1e-6)
    np.testing.assert_allclose(trajectory.rewards[:, 0], [-0.1, 1.0, 0, 0, 0])
    assert trajectory.dones[:, 0].tolist() == [False, True, True, True, True]
    assert trajectory.observations.argmax(-1)[:, 0].tolist() == [6, 7, 7, 7, 7]
    assert trajectory.infos.truncated[:, 2].tolist() == [True] * 5


def test_a_trajectory_is_time_first():
    _, totals, trajectory = run_episode_batch(by_hand(), go_right, STEPS, Corridor())
    assert trajectory.actions.shape == trajectory.rewards.shape == trajectory.dones.shape == (STEPS, 3)
    assert trajectory.observations.shape == (STEPS, 3, 8)
    np.testing.assert_allclose(trajectory.rewards.sum(0), totals, atol=1e-6)


def test_result_of_batch_reset_is_accepted_as_states():
    keys = jax.random.split(jax.random.PRNGKey(0), 3)
    pair = batch_reset(keys, Corridor())
    by_pair = run_episode_batch(pair, go_right, STEPS, Corridor())
    by_states = run_episode_batch(pair[0], go_right, STEPS, Corridor())
    assert eqx.tree_equal(by_pair, by_states)


def test_scan_equals_loop_of_batch_steps():
    states, totals = by_hand(), 0.0
    for _ in range(STEPS):
        states, _, rewards, _, _ = batch_step(states, jnp.full(3, RIGHT), Corridor())
        totals = totals + rewards
    final, by_scan, _ = run_episode_batch(by_hand(), go_right, STEPS, Corridor())
    assert eqx.tree_equal(states, final)
    np.testing.assert_allclose(totals, by_scan, atol=1e-6)


def test_agent_state_is_passed_from_step_to_step():
    def to_and_fro(states, turn, key):
        return jnp.where(turn % 2 == 0, RIGHT, LEFT), turn + 1

    _, _, trajectory = run_episode_batch(
        by_hand(), to_and_fro, 4, Corridor(), agent_state=jnp.array([0, 1, 0])
    )
    assert trajectory.actions.T.tolist() == [[1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0]]


def draw(states, agent_state, key):
    return jax.random.randint(key, states.position.shape, 0, 3), agent_state


def test_run_depends_on_the_key_and_has_a_default_key():
    def actions(**key):
        return run_episode_batch(by_hand(), draw, STEPS, Corridor(), **key)[2].actions

    assert (actions() == actions()).all()
    assert (actions() == actions(key=jax.random.PRNGKey(0))).all()
    assert (actions() != actions(key=jax.random.PRNGKey(1))).any()
    rows = actions()
    assert any((rows[0] != row).any() for row in rows[1:]), "each step draws anew"


def test_with_auto_reset_episodes_follow_one_another():
    final, totals, trajectory = run_episode_batch(by_hand(), go_right, 12, Corridor(), auto_reset=True)
    assert trajectory.dones[:3, 0].tolist() == [False, True, False]
    assert trajectory.dones[:, 0].sum() > 1
    assert trajectory.infos.final_observation.argmax(-1)[1, 0] == 7
    assert not (final.terminated | final.truncated)[trajectory.dones[-1]].any()
    np.testing.assert_allclose(trajectory.rewards.sum(0), totals, atol=1e-5)


class Counting:
    """Counts how often its methods are traced."""

    traces = 0


@dataclasses.dataclass(frozen=True)
class FrozenAgent:
    action: int

    def act(self, states, agent_state, key):
        Counting.traces += 1
        return jnp.full(states.position.shape, self.action), agent_state


def test_a_method_of_an_equal_frozen_agent_does_not_compile_again():
    run_episode_batch(by_hand(), FrozenAgent(RIGHT).act, STEPS, Corridor())
    Counting.traces = 0
    run_episode_batch(by_hand(), FrozenAgent(RIGHT).act, STEPS, Corridor())
    assert Counting.traces == 0
    final, _, _ = run_episode_batch(by_hand(), FrozenAgent(LEFT).act, STEPS, Corridor())
    assert Counting.traces > 0
    assert final.position.tolist() == [0, 0, 1]


class Network(eqx.Module):
    bias: jax.Array

    def act(self, states, agent_state, key):
        Counting.traces += 1
        return jnp.full(states.position.shape, jnp.argmax(self.bias)), agent_state


def test_new_weights_of_a_network_do_not_compile_again():
    right, left = Network(jnp.array([0.0, 1.0, 0.0])), Network(jnp.array([1.0, 0.0, 0.0]))
    assert run_episode_batch(by_hand(), right.act, STEPS, Corridor())[0].position.tolist() == [7, 5, 3]
    Counting.traces = 0
    assert run_episode_batch(by_hand(), left.act, STEPS, Corridor())[0].position.tolist() == [0, 0, 1]
    assert Counting.traces == 0


@dataclasses.dataclass
class MutableAgent:
    action: int

    def act(self, states, agent_state, key):
        return jnp.full(states.position.shape, self.action), agent_state


def test_an_unhashable_agent_still_works():
    final, _, _ = run_episode_batch(by_hand(), MutableAgent(LEFT).act, STEPS, Corridor())
    assert final.position.tolist() == [0, 0, 1]


def test_invalid_agent_output_is_reported():
    def forgets_its_state(states, agent_state, key):
        return jnp.full(states.position.shape, RIGHT)

    def changes_its_state(states, agent_state, key):
        return jnp.full(states.position.shape, RIGHT), jnp.zeros(3)

    with pytest.raises(TypeError, match=r"agent_fn must return \(actions, new_agent_states\)"):
        run_episode_batch(by_hand(), forgets_its_state, STEPS, Corridor())
    with pytest.raises(TypeError, match="agent state with another structure"):
        run_episode_batch(by_hand(), changes_its_state, STEPS, Corridor())
    with pytest.raises(ValueError, match="max_steps must be at least 1, got 0"):
        run_episode_batch(by_hand(), go_right, 0, Corridor())
    with pytest.raises(TypeError, match="got a tuple of 3"):
        run_episode_batch((by_hand(), 1, 2), go_right, STEPS, Corridor())


class DrawnCorridor(Corridor):
    """A corridor that renders its states in the given mode."""

    mode: str = "svg"

    @property
    def render_modes(self):
        return (self.mode,)

    def render(self, state, mode="svg"):
        text = f"cell  {int(state.position)}"
        return f"<svg>{text}</svg>" if mode == "svg" else f"\x1b[31m{text}\x1b[0m"


def recorded():
    states = [walker(position) for position in (5, 6, 7)]
    return {"success": True, "initial_state": states[0], "step_states": states[1:], "final_state": states[2]}


def test_states_are_drawn_with_the_render_method():
    (record,) = draw_episodes(DrawnCorridor(), [recorded()])
    assert record["success"]
    assert record["initial_state"]._repr_svg_() == "<svg>cell  5</svg>"
    assert [state._repr_svg_() for state in record["step_states"]] == [
        "<svg>cell  6</svg>",
        "<svg>cell  7</svg>",
    ]
    assert record["final_state"]._repr_svg_() == "<svg>cell  7</svg>"


def test_states_that_render_as_text_are_drawn_as_text():
    (record,) = draw_episodes(DrawnCorridor(mode="ansi"), [recorded()])
    image = record["initial_state"]._repr_svg_()
    assert image.lstrip().startswith(("<?xml", "<svg"))
    assert "cell\u00a0\u00a05" in image
    assert "\x1b" not in image


def test_states_that_cannot_be_drawn_are_left_out_of_the_records():
    class Plain(Corridor):
        render_modes = ()

    assert draw_episodes(Plain(), [recorded()]) == [{"success": True}]


def test_states_that_draw_themselves_are_kept():
    class Drawn:
        def _repr_svg_(self):
            return "<svg/>"

    record = {"initial_state": Drawn(), "step_states": [Drawn()], "final_state": Drawn()}
    assert draw_episodes(Corridor(), [record]) == [record]


def test_batches_have_equal_sizes_and_padding_is_dropped():
    sizes = []

    def double(rows):
        sizes.append(len(rows))
        return (jnp.asarray(2 * rows),)

    [doubled] = map_batches(double, 5, 4)
    assert (doubled.tolist(), sizes) == ([0, 2, 4, 6, 8], [3, 3])
    with pytest.raises(ValueError, match="count must be at least 1, got 0"):
        map_batches(double, 0, 4)

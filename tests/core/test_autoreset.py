"""Auto-reset keeps the terminal observation, in both of Gymnasium's meanings, and feels no neighbours."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from phalanx.compat.jaxarc.batch_processing import stack_states
from phalanx.core.autoreset import AutoReset, AutoResetState
from phalanx.core.vector import map_where
from tests.helpers.corridor import LEFT, RIGHT, Corridor, walker

pytestmark = pytest.mark.slow

KEYS = np.asarray(jax.random.split(jax.random.PRNGKey(1), 2))
SAME, NEXT = AutoReset(Corridor(), "same_step"), AutoReset(Corridor(), "next_step")
step = jax.jit(lambda layer, state, actions: layer.step(state, actions))
reset = jax.jit(lambda layer, keys: layer.reset(keys))
begin = jax.jit(Corridor().reset)


def batch_of(*states) -> AutoResetState:
    return AutoResetState(stack_states(states), jax.device_put(KEYS[: len(states)]))


def cells(observations) -> list[int]:
    return np.argmax(observations, axis=1).tolist()


def test_same_step_returns_first_observation_and_keeps_terminal_one():
    state, observations, rewards, dones, info = step(
        SAME, batch_of(walker(6), walker(2)), np.array([RIGHT, RIGHT])
    )
    assert dones.tolist() == [True, False]
    np.testing.assert_allclose(rewards, [1.0, -0.1])
    assert cells(info.final_observation) == [7, 3]
    start = int(np.asarray(state.states.position)[0])
    assert start in range(4)
    assert cells(observations) == [start, 3]
    assert info.reset_mask.tolist() == info.terminated.tolist() == [True, False]
    assert info.truncated.tolist() == [False, False]
    assert state.states.step_count.tolist() == [0, 1]


def test_next_step_returns_the_terminal_observation_and_resets_a_step_later():
    state, observations, rewards, dones, info = step(
        NEXT, batch_of(walker(6), walker(2)), np.array([RIGHT, RIGHT])
    )
    assert cells(observations) == [7, 3]
    assert dones.tolist() == info.terminated.tolist() == [True, False]
    assert info.reset_mask.tolist() == [False, False]
    np.testing.assert_allclose(rewards, [1.0, -0.1])

    state, observations, rewards, dones, info = step(NEXT, state, np.array([LEFT, RIGHT]))
    assert info.reset_mask.tolist() == [True, False]
    assert dones.tolist() == info.terminated.tolist() == info.truncated.tolist() == [False, False]
    np.testing.assert_allclose(rewards, [0.0, -0.1])
    assert state.states.step_count.tolist() == [0, 2]
    assert cells(observations) == state.states.position.tolist()
    assert int(np.asarray(state.states.position)[0]) in range(4)
    assert cells(info.final_observation) == [7, 4]


def test_truncation_is_not_termination():
    _, _, _, dones, info = step(SAME, batch_of(walker(3, step_count=11), walker(3)), np.array([LEFT, LEFT]))
    assert dones.tolist() == info.truncated.tolist() == [True, False]
    assert info.terminated.tolist() == [False, False]


def test_only_finished_environments_get_a_new_key():
    before = batch_of(walker(6), walker(2))
    after, *_ = step(SAME, before, np.array([RIGHT, RIGHT]))
    kept, used = np.asarray(jax.random.split(jax.device_put(KEYS[0])))
    np.testing.assert_array_equal(after.keys, np.stack([kept, KEYS[1]]))
    expected, _ = jax.device_get(begin(used))
    assert eqx.tree_equal(jax.tree.map(lambda leaf: leaf[0], jax.device_get(after.states)), expected)


@pytest.mark.parametrize("layer", [SAME, NEXT], ids=lambda layer: layer.mode)
def test_episodes_do_not_depend_on_the_batch(layer):
    """100 environments together (where keys are split in chunks) against three of them alone."""
    keys = np.asarray(jax.random.split(jax.random.PRNGKey(7), 100))
    actions = np.random.default_rng(8).integers(0, 3, (60, 100), np.int32)

    @jax.jit
    def run(keys, actions):
        state, first = layer.reset(keys)
        _, steps = jax.lax.scan(lambda s, a: (lambda out: (out[0], out))(layer.step(s, a)), state, actions)
        return first, steps

    first, steps = jax.device_get(run(keys, actions))
    chosen = np.array([0, 41, 99])
    alone_first, alone_steps = jax.device_get(run(keys[chosen], actions[:, chosen]))
    assert eqx.tree_equal(alone_first, first[chosen])
    assert eqx.tree_equal(alone_steps, jax.tree.map(lambda leaf: leaf[:, chosen], steps))
    assert steps[4].reset_mask.sum() > 300, "many episodes must have ended for this to say anything"


def test_episodes_of_one_environment_differ():
    state, _ = reset(SAME, jax.random.split(jax.random.PRNGKey(5), 2))
    starts = []
    for _ in range(30):
        state, _, _, dones, _ = step(SAME, state, np.array([RIGHT, RIGHT]))
        if np.asarray(dones)[0]:
            starts.append(int(np.asarray(state.states.position)[0]))
    assert len(set(starts)) > 1


def test_first_episode_uses_the_key_of_its_environment():
    state, observations = jax.device_get(reset(SAME, KEYS))
    for index, key in enumerate(KEYS):
        kept, used = np.asarray(jax.random.split(jax.device_put(key)))
        expected, first = jax.device_get(begin(used))
        assert eqx.tree_equal(jax.tree.map(lambda leaf, i=index: leaf[i], state.states), expected)
        assert (observations[index] == first).all()
        assert (state.keys[index] == kept).all()


def test_unknown_mode_is_rejected():
    # Around the annotation checks, which users do not have switched on.
    layer = object.__new__(AutoReset)
    object.__setattr__(layer, "mode", "never")
    with pytest.raises(ValueError, match="mode must be 'same_step' or 'next_step', got 'never'"):
        layer.__post_init__()


def test_autoreset_is_static_and_hashable():
    assert jax.tree.leaves(SAME) == []
    assert AutoReset(Corridor()) == SAME and hash(AutoReset(Corridor())) == hash(SAME)
    assert SAME != NEXT


squares = jax.jit(lambda mask, rows: map_where(lambda row: (row**2, -row), mask, rows, (rows * 0, rows)))


@settings(max_examples=30, deadline=None)
@given(st.sets(st.integers(0, 99)))
def test_map_where_equals_vmap_and_where(named):
    mask = np.isin(np.arange(100), sorted(named))
    rows = np.arange(100, dtype=np.float32)
    squared, negated = squares(mask, rows)
    np.testing.assert_array_equal(squared, np.where(mask, np.arange(100.0) ** 2, 0))
    np.testing.assert_array_equal(negated, np.where(mask, -np.arange(100.0), np.arange(100.0)))


def test_map_where_computes_every_row_of_a_full_mask():
    squared, _ = squares(np.ones(100, bool), np.arange(100, dtype=np.float32))
    np.testing.assert_array_equal(squared, np.arange(100.0) ** 2)


def test_map_where_takes_typed_keys():
    keys, mask = jax.random.split(jax.random.key(0), 100), np.arange(100) % 7 == 0

    @jax.jit
    def both(mask, keys):
        split = map_where(lambda key: jax.random.split(key)[0], mask, keys, keys)
        expected = jnp.where(mask, jax.vmap(jax.random.split)(keys)[:, 0], keys)
        return jax.random.key_data(split), jax.random.key_data(expected)

    np.testing.assert_array_equal(*both(mask, keys))

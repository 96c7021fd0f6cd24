"""`batch_reset` and `batch_step`."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from phalanx.compat.jaxarc.batch_processing import stack_states
from phalanx.core.spaces import Box, Composite, Discrete
from phalanx.core.vector import _reset, _step, batch_reset, batch_step
from tests.helpers.corridor import LEFT, RIGHT, Corridor, walker

KEYS = jax.random.split(jax.random.PRNGKey(0), 3)


def test_batch_reset_and_step_match_expected_values():
    states = stack_states([walker(0), walker(3), walker(6)])
    states, observations, rewards, dones, infos = batch_step(
        states, jnp.array([LEFT, LEFT, RIGHT]), Corridor()
    )
    assert states.position.tolist() == [0, 2, 7]
    assert observations.argmax(1).tolist() == [0, 2, 7]
    np.testing.assert_allclose(rewards, [-1.0, -0.1, 1.0])
    assert dones.tolist() == infos.terminated.tolist() == [False, False, True]
    assert states.step_count.tolist() == infos.step_count.tolist() == [1, 1, 1]


def test_calls_with_equal_environments_compile_once():
    environment = Corridor(max_episode_steps=31)
    states, _ = batch_reset(KEYS, environment)
    actions = jnp.full(3, RIGHT)
    batch_step(states, actions, environment)
    resets, steps = _reset._cache_size(), _step._cache_size()
    states, _ = batch_reset(KEYS, Corridor(max_episode_steps=31))
    batch_step(states, actions, Corridor(max_episode_steps=31))
    assert (_reset._cache_size(), _step._cache_size()) == (resets, steps)


def test_only_donated_states_are_deleted():
    actions = jnp.full(3, RIGHT)
    states, _ = batch_reset(KEYS, Corridor())
    kept = batch_step(states, actions, Corridor())
    donated = batch_step(states, actions, Corridor(), donate=True)
    assert eqx.tree_equal(kept, donated)
    assert states.position.is_deleted()
    assert not kept[0].position.is_deleted()


def test_the_functions_work_inside_another_jit():
    @eqx.filter_jit
    def two_steps(keys, environment):
        states, _ = batch_reset(keys, environment)
        for _ in range(2):
            states, *_ = batch_step(states, jnp.full(3, RIGHT), environment)
        return states

    states, _ = batch_reset(KEYS, Corridor())
    assert (two_steps(KEYS, Corridor()).position == states.position + 2).all()


def test_spaces_sample_members_and_reject_others():
    class Pair(eqx.Module):
        left: jax.Array
        right: jax.Array

    key = jax.random.PRNGKey(3)
    grid = Box(0.0, 9.0, (2, 2), np.int8)
    pair = Composite.of(Pair, {"left": Discrete(3), "right": grid})
    for space in (Discrete(3), grid, Box(0.0, 1.0, (3,), np.bool_), Box(-1.0, 1.0, (2,)), pair):
        assert space.contains(space.sample(key))
    assert not Discrete(3).contains(jnp.int32(3))
    assert not Discrete(3).contains(jnp.float32(1))
    assert not grid.contains(jnp.full((2, 2), 10, jnp.int8))
    assert not grid.contains(jnp.zeros((2, 2), jnp.int32))
    assert not grid.contains(jnp.zeros((2, 3), jnp.int8))
    assert not pair.contains(Pair(jnp.int32(3), jnp.zeros((2, 2), jnp.int8)))
    assert not pair.contains(jnp.int32(0))

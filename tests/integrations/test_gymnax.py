"""The Gymnax interface is equivalent to the auto-reset of the core under jit, vmap and scan."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phalanx.core.autoreset import AutoReset
from phalanx.core.spaces import Box, Composite
from phalanx.core.testing.tree_diff import differences
from phalanx.integrations.gymnax import EnvParams, GymnaxEnv
from tests.helpers.small_environments import CELLS, LEFT, RIGHT, Lane, arc, proofs

ENVIRONMENTS = {"lane": Lane(), "arc": arc(), "proofs": proofs()}


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_purejaxrl_loop_equals_auto_reset(name: str) -> None:
    core = ENVIRONMENTS[name]
    env, layer = GymnaxEnv(core), AutoReset(core)
    params = env.default_params

    @jax.jit
    def rollout(keys: jax.Array) -> tuple[Any, ...]:
        auto, first = layer.reset(keys)
        initial = jax.vmap(env.reset, in_axes=(0, None))(
            jax.vmap(lambda key: jax.random.split(key)[1])(keys), params
        )

        def step_both(carry: Any, key: jax.Array) -> tuple[Any, Any]:
            auto, states = carry
            actions = jax.vmap(core.sample_action)(jax.random.split(key, 4), states)
            # Pass the key with which the layer would start the next episode.
            fresh = jax.vmap(lambda key: jax.random.split(key)[1])(auto.keys)
            seen, states, rewards, dones, info = jax.vmap(env.step, in_axes=(0, 0, 0, None))(
                fresh, states, actions, params
            )
            auto, *outcome, step_info = layer.step(auto, actions)
            ours = (seen, rewards, dones, info["final_observation"], info["terminated"], info["truncated"])
            theirs = (*outcome, step_info.final_observation, step_info.terminated, step_info.truncated)
            masks = (info.get("action_mask"), jax.vmap(env.action_mask)(states))
            return (auto, states), (ours, theirs, masks, auto.states, states)

        _, steps = jax.lax.scan(step_both, (auto, initial[1]), jax.random.split(keys[0], 10))
        return first, initial[0], steps

    first, initial, (ours, theirs, masks, auto, states) = rollout(jax.random.split(jax.random.PRNGKey(0), 4))
    assert differences(first, initial, "first") == []
    assert differences(theirs, ours, "steps") == []
    assert differences(auto, states, "states") == []
    assert differences(masks[0], masks[1], "mask of the returned state") == []
    dones = np.asarray(ours[2])
    assert dones.any(axis=0).all() and not dones.all()


def walk(env: GymnaxEnv, actions: list[int], raw: bool = False) -> list[tuple[Any, ...]]:
    _, state = env.reset(jax.random.PRNGKey(1), env.default_params)
    step, steps = jax.jit(env.step_env if raw else env.step), []
    for number, action in enumerate(actions):
        result = step(jax.random.PRNGKey(number), state, jnp.int32(action), env.default_params)
        state = result[1]
        steps.append(result)
    return steps


def test_six_values_distinguish_termination_and_truncation() -> None:
    steps = walk(GymnaxEnv(Lane(), step_values=6), [LEFT] * 6 + [RIGHT] * 4)
    assert all(len(step) == 6 for step in steps)
    ends = [(bool(terminated), bool(truncated)) for *_, terminated, truncated, _ in steps]
    assert ends[5] == (False, True) and ends[:5] == [(False, False)] * 5
    goal = ends.index((True, False))
    assert [float(step[5]["discount"]) for step in steps] == [float(n != goal) for n in range(10)]
    terminal, seen = steps[goal][5]["final_observation"], steps[goal][0]
    assert terminal[CELLS - 1] == 1 and terminal[CELLS] > 0
    assert seen[:2].sum() == 1 and seen[CELLS] == 0


def test_step_env_does_not_reset() -> None:
    env = GymnaxEnv(Lane())
    steps = walk(env, [LEFT] * 7, raw=True)
    seen = np.stack([step[0] for step in steps])
    assert seen[:, CELLS].tolist() == [1, 2, 3, 4, 5, 6, 6]
    assert [bool(step[3]) for step in steps] == [False] * 5 + [True] * 2
    assert [float(step[2]) for step in steps] == [-0.125] * 6 + [0.0]
    assert bool(env.is_terminal(steps[-1][1])) and env.get_obs(steps[-1][1]).tolist() == seen[-1].tolist()


def test_properties_match_gymnax() -> None:
    lane, puzzles = GymnaxEnv(Lane()), GymnaxEnv(arc())
    assert lane.name == "Lane" and lane.num_actions == lane.action_space(EnvParams()).n == 2
    assert lane.observation_space(lane.default_params).shape == (CELLS + 1,)
    assert isinstance(puzzles.action_space(), Composite) and puzzles == GymnaxEnv(arc())
    with pytest.raises(TypeError, match="an action of ArcEnvironment is not a single integer"):
        puzzles.num_actions  # noqa: B018
    _, state = jax.jit(puzzles.reset)(jax.random.PRNGKey(0))
    assert jnp.flatnonzero(puzzles.action_mask(state)).tolist() == [2, 3, 34]
    assert lane.action_mask(lane.reset(jax.random.PRNGKey(0))[1]) is None
    with pytest.raises(ValueError, match="step_values must be 5 or 6, got 4"):
        GymnaxEnv(Lane(), step_values=4)


def test_equal_environments_share_one_compilation() -> None:
    traced = []

    @partial(jax.jit, static_argnums=0)
    def begin(env: GymnaxEnv, key: jax.Array) -> Any:
        traced.append(env)
        return env.reset(key)

    for _ in range(2):
        begin(GymnaxEnv(Lane()), jax.random.PRNGKey(0))
    assert len(traced) == 1


def test_states_have_the_methods_of_gymnax_1() -> None:
    env = GymnaxEnv(Lane(), step_values=6)
    _, state = env.reset(jax.random.PRNGKey(1))
    flags = []
    for number, action in enumerate([LEFT] * 6):
        _, state, *_ = env.step_env(jax.random.PRNGKey(number), state, jnp.int32(action))
        flags.append(
            (bool(env.is_terminated(state)), bool(env.is_truncated(state)), float(env.discount(state)))
        )
    assert flags == [(False, False, 1.0)] * 5 + [(False, True, 1.0)]
    _, state = env.reset(jax.random.PRNGKey(1))
    while not env.is_terminal(state):
        _, state, *_ = env.step_env(jax.random.PRNGKey(0), state, jnp.int32(RIGHT))
    assert env.is_terminated(state) and not env.is_truncated(state) and env.discount(state) == 0


def test_state_space_has_the_shapes_and_dtypes_of_a_state() -> None:
    space = GymnaxEnv(Lane()).state_space()
    assert isinstance(space, Composite)
    assert {name: (field.shape, np.dtype(field.dtype).name) for name, field in space.fields} == {
        "position": ((), "int32"),
        "step_count": ((), "int32"),
        "terminated": ((), "bool"),
        "truncated": ((), "bool"),
    }
    for name in ("arc", "proofs"):
        env = GymnaxEnv(ENVIRONMENTS[name])
        _, state = env.reset(jax.random.PRNGKey(0))
        space = env.state_space(env.default_params)
        assert isinstance(space, Composite) and space.constructor is type(state)
        leaves = [getattr(state, field) for field, _ in space.fields]
        assert all(
            leaf.shape == inner.shape
            for leaf, (_, inner) in zip(leaves, space.fields, strict=True)
            if isinstance(inner, Box)
        )

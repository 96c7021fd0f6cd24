"""Single steps, safe steps, agents and rollouts through `jaxarc.envs` and `jaxarc.agents`."""

import inspect

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phalanx.compat.jaxarc.agents import RandomAgent, VectorizedRandomAgent
from phalanx.compat.jaxarc.envs import (
    NUM_OPERATIONS,
    EnvironmentConfig,
    JaxArcConfig,
    StepInfo,
    StructuredAction,
    UnifiedActionConfig,
    UnifiedDatasetConfig,
    arc_reset,
    arc_step,
    batch_reset,
    batch_step,
    check_bounds_jax,
    create_batch_episode_runner,
    create_bbox_action,
    create_mask_action,
    create_mock_task,
    create_observation,
    create_point_action,
    run_episode_batch,
    safe_arc_step,
    validate_action_jax,
)
from phalanx.compat.jaxarc.state import ArcEnvState

SIDE, LIMIT, SIZE = 17, 5, 3
TASK = create_mock_task()
CONFIG = JaxArcConfig(
    environment=EnvironmentConfig(max_episode_steps=LIMIT),
    dataset=UnifiedDatasetConfig(max_grid_height=SIDE, max_grid_width=SIDE),
    action=UnifiedActionConfig(selection_format="point"),
)
OUTSIDE = [(NUM_OPERATIONS, 2, 7), (-3, 2, 7), (1, SIDE, 7), (1, 2, -1)]


@pytest.fixture(scope="module")
def state() -> ArcEnvState:
    return arc_reset(jax.random.PRNGKey(8), CONFIG, TASK)[0]


def batch(seed: int = 8) -> tuple[ArcEnvState, jax.Array]:
    return batch_reset(jax.random.split(jax.random.PRNGKey(seed), SIZE), CONFIG, TASK)


def test_info_has_the_fields_of_jaxarc(state: ArcEnvState) -> None:
    fields = ["similarity", "similarity_improvement", "operation_type", "step_count", "episode_done"]
    assert list(inspect.signature(StepInfo).parameters)[: len(fields)] == fields
    after, _, _, done, info = arc_step(state, create_point_action(operation=1, row=2, col=7), CONFIG)
    assert isinstance(info, StepInfo)
    assert info.similarity == after.similarity_score
    assert info.similarity_improvement == after.similarity_score - state.similarity_score > 0
    assert (int(info.operation_type), int(info.step_count)) == (1, int(after.step_count)) == (1, 1)
    assert bool(info.episode_done) == bool(done) == bool(after.episode_done) is False


def test_observation_of_a_state_is_that_of_its_step(state: ArcEnvState) -> None:
    after, observation, *_ = arc_step(state, create_point_action(1, 2, 7), CONFIG)
    np.testing.assert_array_equal(create_observation(after, CONFIG), observation)


def test_step_is_deterministic_and_can_be_compiled(state: ArcEnvState) -> None:
    action = create_bbox_action(operation=4, r1=1, c1=6, r2=3, c2=8)
    assert isinstance(action, StructuredAction)
    box = CONFIG.model_copy(update={"action": UnifiedActionConfig(selection_format="bbox")})
    first, second = arc_step(state, action, box), arc_step(state, action, box)
    compiled = jax.jit(lambda state, action: arc_step(state, action, box)[:4])(state, action)
    for step in (second, compiled):
        np.testing.assert_array_equal(step[0].working_grid, first[0].working_grid)
        np.testing.assert_array_equal(step[1], first[1])
        np.testing.assert_allclose(step[2], first[2])
    assert int((first[0].working_grid == 4).sum()) == 9


def test_selection_can_be_a_mask(state: ArcEnvState) -> None:
    selection = np.zeros((SIDE, SIDE), bool)
    selection[:16, 7] = True
    masks = CONFIG.model_copy(update={"action": UnifiedActionConfig(selection_format="mask")})
    after, _, _, done, info = arc_step(state, create_mask_action(1, selection), masks)
    assert float(after.similarity_score) == float(info.similarity) == 1.0 and done


def test_batch_of_one_equals_a_single_step(state: ArcEnvState) -> None:
    action = create_point_action(1, 5, 7)
    single = arc_step(state, action, CONFIG)
    one = batch_step(*(jax.tree.map(lambda leaf: leaf[None], tree) for tree in (state, action)), CONFIG)
    np.testing.assert_array_equal(one[0].working_grid[0], single[0].working_grid)
    for got, expected in zip(one[1:4], single[1:4], strict=True):
        np.testing.assert_allclose(got[0], expected)


def test_safe_step_equals_a_step_if_the_action_is_valid(state: ArcEnvState) -> None:
    action = create_point_action(1, 2, 7)
    assert validate_action_jax(action, state, CONFIG)
    assert check_bounds_jax(action, state.working_grid.shape)
    expected = jax.tree.leaves(arc_step(state, action, CONFIG))
    for step in (safe_arc_step, jax.jit(safe_arc_step, static_argnums=2)):
        got = jax.tree.leaves(step(state, action, CONFIG))
        for leaf, expected_leaf in zip(got, expected, strict=True):
            np.testing.assert_allclose(leaf, expected_leaf)


@pytest.mark.parametrize("values", OUTSIDE)
def test_safe_step_refuses_an_invalid_action(state: ArcEnvState, values: tuple[int, int, int]) -> None:
    action = create_point_action(*values)
    assert not validate_action_jax(action, state, CONFIG)
    assert bool(check_bounds_jax(action, state.working_grid.shape)) == (values[1:] == (2, 7))
    after, observation, reward, done, info = safe_arc_step(state, action, CONFIG)
    assert eqx.tree_equal(after, state)
    np.testing.assert_array_equal(observation, create_observation(state, CONFIG))
    assert (float(reward), bool(done), int(info.operation_type)) == (-1.0, False, -1)
    assert float(info.similarity) == float(state.similarity_score)
    assert float(info.similarity_improvement) == 0.0


def test_donated_states_are_replaced() -> None:
    states, _ = batch()
    actions = create_point_action(jnp.ones(SIZE, int), jnp.arange(SIZE), jnp.full(SIZE, 7))
    expected = batch_step(states, actions, CONFIG)[0].working_grid
    donated, *_ = batch_step(states, actions, CONFIG, donate=True)
    np.testing.assert_array_equal(donated.working_grid, expected)


def test_random_agent_plays_one_environment(state: ArcEnvState) -> None:
    agent = RandomAgent(grid_shape=(SIDE, SIDE))
    agent_state, steps, done = agent.init(jax.random.PRNGKey(1)), 0, False
    while not done:
        action, agent_state = agent.select_action(agent_state, state, CONFIG)
        assert validate_action_jax(action, state, CONFIG)
        state, _, reward, done, _ = arc_step(state, action, CONFIG)
        steps += 1
    assert 1 <= steps <= LIMIT and state.episode_done and reward.shape == ()


def test_vectorized_agent_plays_a_batch_from_the_result_of_a_reset() -> None:
    agent = VectorizedRandomAgent(grid_shape=(SIDE, SIDE))
    final, totals, trajectory = run_episode_batch(batch(), agent.select_batch_actions, LIMIT, CONFIG)
    assert final.episode_done.all() and totals.shape == (SIZE,)
    assert trajectory.rewards.shape == trajectory.dones.shape == (LIMIT, SIZE)
    np.testing.assert_allclose(totals, trajectory.rewards.sum(0), atol=1e-5)


def test_runner_passes_the_agent_state_and_keys_on() -> None:
    def act(states: ArcEnvState, seen: jax.Array, key: jax.Array) -> tuple[StructuredAction, jax.Array]:
        rows = jax.random.randint(key, (SIZE,), 0, 16)
        return create_point_action(jnp.ones(SIZE, int), rows, 7 + seen), seen + 1

    run = create_batch_episode_runner(act, 2, CONFIG)
    counters = jnp.zeros(SIZE, jnp.int32)
    final, totals, trajectory = run(batch()[0], agent_state=counters, key=jax.random.PRNGKey(2))
    assert final.step_count.tolist() == [2] * SIZE
    # The first action fills a cell of the target column, the second one a cell to its right.
    assert (trajectory.rewards[0] > trajectory.rewards[1]).all()
    np.testing.assert_allclose(totals, trajectory.rewards.sum(0), atol=1e-6)
    blue = np.argwhere(np.asarray(final.working_grid[0]) == 1)
    assert sorted(blue[:, 1].tolist()) == [7, 8]

"""Random agents take legal actions inside the grid, and the same key gives the same actions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phalanx.arc import (
    ArcEnvironment,
    RandomAgent,
    VectorizedRandomAgent,
    arc_reset,
    arc_step,
    batch_reset,
    run_episode_batch,
)
from phalanx.arc.actions import BboxAction, MaskAction, PointAction
from phalanx.arc.config import ActionConfig, ArcConfig, DatasetConfig
from phalanx.arc.operations import NUM_OPERATIONS, Operation
from phalanx.arc.state import ArcState
from phalanx.arc.tasks import ArcTask, GridPair, as_grid

BATCH = 512
CONFIG = ArcConfig(dataset=DatasetConfig(max_grid_height=6, max_grid_width=7))
# The grid is only 3x2, so that a selection outside of it would be noticed.
TASK = ArcTask(id="small", demos=(GridPair(as_grid([[1, 2]] * 3), as_grid([[2, 1]] * 3)),), tests=())
NO_RESIZE = tuple(operation for operation in range(NUM_OPERATIONS) if operation != Operation.RESIZE)


@pytest.fixture(scope="module")
def states() -> ArcState:
    return batch_reset(jax.random.split(jax.random.PRNGKey(0), BATCH), CONFIG, TASK)[0]


def sample_actions(agent: VectorizedRandomAgent, states: ArcState, seed: int = 1):
    actions, agent_states = agent.select_batch_actions(states, None, jax.random.key(seed))
    assert agent_states is None
    return jax.device_get(actions)


def test_operations_are_sampled_uniformly(states: ArcState) -> None:
    agent = VectorizedRandomAgent((6, 7))
    operations = np.concatenate([sample_actions(agent, states, seed).operation for seed in range(40)])
    counts = np.bincount(operations, minlength=NUM_OPERATIONS)
    assert len(counts) == NUM_OPERATIONS
    # 488 of each are expected, with a standard deviation of 22; five deviations are allowed.
    assert np.all(np.abs(counts - len(operations) / NUM_OPERATIONS) < 110)


def test_all_allowed_operations_are_sampled(states: ArcState) -> None:
    actions = sample_actions(VectorizedRandomAgent((6, 7), allowed_operations=(3, 24, 34)), states)
    assert set(actions.operation.tolist()) == {3, 24, 34}


def test_all_legal_operations_of_config_are_sampled(states: ArcState) -> None:
    config = CONFIG.model_copy(update={"action": ActionConfig(allowed_operations=(0, 11, 41))})
    actions = sample_actions(VectorizedRandomAgent((6, 7), config=config), states)
    assert set(actions.operation.tolist()) == {0, 11, 41}


def test_agent_and_config_restrictions_are_combined(states: ArcState) -> None:
    config = CONFIG.model_copy(update={"action": ActionConfig(allowed_operations=(0, 11, 41))})
    actions = sample_actions(
        VectorizedRandomAgent((6, 7), allowed_operations=(11, 12, 41), config=config), states
    )
    assert set(actions.operation.tolist()) == {11, 41}


def test_points_cover_exactly_the_grid(states: ArcState) -> None:
    actions = sample_actions(VectorizedRandomAgent((6, 7), allowed_operations=NO_RESIZE), states)
    assert isinstance(actions, PointAction)
    cells = set(zip(actions.row.tolist(), actions.col.tolist(), strict=True))
    assert cells == {(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)}


def test_resize_may_select_any_cell_of_the_canvas(states: ArcState) -> None:
    actions = sample_actions(VectorizedRandomAgent((6, 7), allowed_operations=(Operation.RESIZE,)), states)
    cells = set(zip(actions.row.tolist(), actions.col.tolist(), strict=True))
    assert cells == {(row, col) for row in range(6) for col in range(7)}


def test_boxes_stay_inside_the_grid_with_corners_in_any_order(states: ArcState) -> None:
    actions = sample_actions(VectorizedRandomAgent((6, 7), "bbox", allowed_operations=NO_RESIZE), states)
    assert isinstance(actions, BboxAction)
    assert set(actions.r1.tolist()) == set(actions.r2.tolist()) == {0, 1, 2}
    assert set(actions.c1.tolist()) == set(actions.c2.tolist()) == {0, 1}
    assert np.any(actions.r1 < actions.r2) and np.any(actions.r1 > actions.r2)


@pytest.mark.parametrize(
    ("selection_format", "action_type"), [("point", PointAction), ("bbox", BboxAction), ("mask", MaskAction)]
)
def test_actions_have_format_of_config(states: ArcState, selection_format: str, action_type: type) -> None:
    config = CONFIG.model_copy(update={"action": ActionConfig(selection_format=selection_format)})
    for agent in (
        VectorizedRandomAgent(config=config),
        VectorizedRandomAgent((6, 7), config=config),
        VectorizedRandomAgent(allowed_operations=(3,), config=ArcEnvironment.create(config, TASK)),
    ):
        assert isinstance(sample_actions(agent, states), action_type)


def test_default_agent_samples_like_the_environment(states: ArcState) -> None:
    environment = ArcEnvironment.create(CONFIG, TASK)
    expected = jax.vmap(environment.sample_action)(
        jax.random.split(jax.random.key(1), states.batch_shape[0]), states
    )
    for config in (CONFIG, environment):
        actions = sample_actions(VectorizedRandomAgent(config=config), states)
        assert actions.operation.tolist() == expected.operation.tolist()
        assert actions.row.tolist() == expected.row.tolist()
    with pytest.raises(ValueError, match="needs a grid_shape or a config"):
        sample_actions(VectorizedRandomAgent(), states)


def test_masks_cover_exactly_the_grid(states: ArcState) -> None:
    actions = sample_actions(VectorizedRandomAgent((6, 7), "mask", allowed_operations=NO_RESIZE), states)
    assert isinstance(actions, MaskAction)
    assert actions.selection.shape == (BATCH, 6, 7)
    selected = actions.selection.any(axis=0)
    assert selected[:3, :2].all()
    assert selected.sum() == 6


def test_actions_depend_on_key(states: ArcState) -> None:
    agent = VectorizedRandomAgent((6, 7))
    assert np.array_equal(
        sample_actions(agent, states, 1).operation, sample_actions(agent, states, 1).operation
    )
    assert not np.array_equal(
        sample_actions(agent, states, 1).operation, sample_actions(agent, states, 2).operation
    )


def test_agents_with_equal_settings_are_equal_and_hash_alike() -> None:
    one = VectorizedRandomAgent((6, 7), config=CONFIG)
    other = VectorizedRandomAgent((6, 7), config=CONFIG.model_copy())
    assert one == other
    assert hash(one) == hash(other)
    assert one != VectorizedRandomAgent(config=CONFIG)


def test_batched_agent_takes_only_valid_actions(states: ArcState) -> None:
    agent = VectorizedRandomAgent((6, 7), config=CONFIG)
    _, rewards, trajectory = run_episode_batch(states, agent.select_batch_actions, 20, CONFIG)
    finished = np.roll(np.asarray(trajectory.dones), 1, axis=0)
    finished[0] = False
    assert np.all(np.asarray(trajectory.infos.operation_type)[~finished] >= 0)
    assert rewards.shape == (BATCH,)


@pytest.mark.parametrize(
    ("selection_format", "action_type"), [("point", PointAction), ("bbox", BboxAction), ("mask", MaskAction)]
)
def test_single_agent_acts_in_single_environment(selection_format: str, action_type: type) -> None:
    state, _ = arc_reset(jax.random.key(3), CONFIG, TASK)
    agent = RandomAgent(grid_shape=(6, 7), selection_format=selection_format)  # type: ignore[arg-type]
    agent_state = agent.init(jax.random.key(4))
    action, next_state = agent.select_action(agent_state, state, CONFIG)
    assert isinstance(action, action_type)
    assert action.operation.shape == ()
    assert not jnp.array_equal(jax.random.key_data(agent_state), jax.random.key_data(next_state))
    _, _, _, _, info = arc_step(state, action, CONFIG)
    assert info.operation_type == action.operation


def test_single_agent_accepts_legacy_key_and_needs_no_config() -> None:
    state, _ = arc_reset(jax.random.PRNGKey(3), CONFIG, TASK)
    agent = RandomAgent(grid_shape=(6, 7))
    action, _ = agent.select_action(agent.init(jax.random.PRNGKey(4)), state)
    assert bool(action.validate((6, 7)))


def test_invalid_allowed_operations_are_reported() -> None:
    with pytest.raises(ValueError, match=r"(?s)allowed_operations\.1.*less than or equal to 41"):
        RandomAgent((6, 7), allowed_operations=(1, 42))
    with pytest.raises(ValueError, match=r"(?s)allowed_operations.*at least 1 item"):
        RandomAgent((6, 7), allowed_operations=())


def test_agent_without_legal_operations_is_reported(states: ArcState) -> None:
    config = CONFIG.model_copy(update={"action": ActionConfig(allowed_operations=(0, 11))})
    with pytest.raises(ValueError, match="no operation is left"):
        sample_actions(VectorizedRandomAgent((6, 7), allowed_operations=(5,), config=config), states)

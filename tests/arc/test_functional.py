"""Functions that take a config give the same results as the environment."""

from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest

from phalanx.arc import (
    ActionConfig,
    ArcConfig,
    ArcEnvironment,
    DatasetConfig,
    EpisodeConfig,
    ObservationConfig,
    PointAction,
    arc_reset,
    arc_step,
    batch_reset,
    batch_step,
    generate_tasks,
    run_episode_batch,
)
from phalanx.arc.functional import as_environment, environment_of

TASKS = generate_tasks(num_tasks=3, seed=1, max_height=5, max_width=5)


def create_config(columns: int = 5, **sections: object) -> ArcConfig:
    return ArcConfig(dataset=DatasetConfig(max_grid_height=5, max_grid_width=columns), **sections)


@pytest.mark.parametrize("selection_format", ["point", "bbox", "mask"])
@pytest.mark.parametrize(
    "observation", [ObservationConfig(), ObservationConfig(target_grid=True, scalars=True)]
)
def test_repeated_steps_match_environment(selection_format: str, observation: ObservationConfig) -> None:
    config = create_config(
        action=ActionConfig(selection_format=selection_format),
        episode=EpisodeConfig(max_episode_steps=6),
        observation=observation,
    )
    environment = ArcEnvironment.create(config, TASKS)
    state, _ = arc_reset(jax.random.key(0), config, TASKS)
    expected_step = jax.jit(environment.step)
    for number in range(8):
        action = environment.sample_action(jax.random.key(number), state)
        expected = expected_step(state, action)
        result = arc_step(state, action, config)
        assert jax.tree.structure(result) == jax.tree.structure(expected)
        for actual_leaf, expected_leaf in zip(
            jax.tree.leaves(result), jax.tree.leaves(expected), strict=True
        ):
            np.testing.assert_allclose(actual_leaf, expected_leaf, rtol=1e-6)
        state = result[0]
    assert bool(result[3]) and int(result[4].step_count) == 6


def test_states_of_another_canvas_are_rejected() -> None:
    config, wide = create_config(), create_config(columns=7)
    state, _ = arc_reset(jax.random.key(0), config, TASKS)
    action = ArcEnvironment.create(config, TASKS).sample_action(jax.random.key(0), state)
    for _ in range(2):
        arc_step(state, action, config)
    other, _ = arc_reset(jax.random.key(0), wide, state.tasks)
    with pytest.raises(ValueError, match="the states have a canvas of"):
        arc_step(other, action, config)


KEYS = jax.random.split(jax.random.PRNGKey(0), 3)


def test_config_and_environment_give_same_batch() -> None:
    config, environment = create_config(), ArcEnvironment.create(create_config(), TASKS)
    by_config = batch_reset(KEYS, config, TASKS)
    assert eqx.tree_equal(by_config, batch_reset(KEYS, environment))
    actions = PointAction([3, 3, 3], [0, 1, 2], [0, 1, 2])
    stepped = batch_step(by_config[0], actions, config)
    assert eqx.tree_equal(stepped, batch_step(by_config[0], actions, environment))


def test_task_is_passed_to_config() -> None:
    assert as_environment(create_config(), TASKS[1]).task_buffer.tasks == (TASKS[1],)
    assert batch_reset(KEYS, create_config(), TASKS[1])[0].tasks.tasks == (TASKS[1],)


def test_states_with_tasks_determine_environment() -> None:
    states, _ = batch_reset(KEYS, create_config(), TASKS)
    assert environment_of(create_config(), states).task_buffer.tasks == tuple(TASKS)
    other = ArcEnvironment.create(create_config())
    assert environment_of(other, states) is other


def test_task_with_environment_and_other_types_are_rejected() -> None:
    with pytest.raises(TypeError, match="ArcEnvironment already has its tasks"):
        as_environment(ArcEnvironment.create(create_config(), TASKS), TASKS)
    with pytest.raises(TypeError, match=r"expected an ArcEnvironment or an ArcConfig, got int"):
        as_environment.__wrapped__(7)


def test_episodes_run_with_config() -> None:
    def fill(states: Any, agent_state: Any, key: Any) -> Any:
        return PointAction([3, 3, 3], [0, 1, 2], [0, 1, 2]), agent_state

    config = create_config(episode=EpisodeConfig(max_episode_steps=4))
    start = batch_reset(KEYS, config, TASKS)
    states, _, trajectory = run_episode_batch(start, fill, 4, config)
    assert states.truncated.tolist() == [True, True, True]
    assert trajectory.rewards.shape == (4, 3)

"""Functions that take a config give the same results as the environment."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phalanx.arc import (
    ActionConfig,
    ArcConfig,
    ArcEnvironment,
    DatasetConfig,
    EpisodeConfig,
    ObservationConfig,
    arc_reset,
    arc_step,
    batch_reset,
    batch_step,
    generate_tasks,
    run_episode_batch,
)
from phalanx.arc.functional import as_environment, environment_of
from tests.helpers.corridor import RIGHT, Corridor, CorridorConfig, walker

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
    by_config = batch_reset(KEYS, CorridorConfig())
    assert eqx.tree_equal(by_config, batch_reset(KEYS, Corridor()))
    actions = jnp.full(3, RIGHT)
    stepped = batch_step(by_config[0], actions, CorridorConfig())
    assert eqx.tree_equal(stepped, batch_step(by_config[0], actions, Corridor()))


def test_task_is_passed_to_config() -> None:
    assert as_environment(CorridorConfig(), 5) == Corridor(5)
    assert batch_reset(KEYS, CorridorConfig(), 5)[0].position.shape == (3,)


def test_states_with_tasks_determine_environment() -> None:
    class TaskedStates(eqx.Module):
        tasks: int = eqx.field(static=True)

    assert environment_of(CorridorConfig(), TaskedStates(tasks=7)) == Corridor(7)
    assert environment_of(Corridor(9), TaskedStates(tasks=7)) == Corridor(9)
    assert environment_of(CorridorConfig(), walker(0)) == Corridor(12)


def test_task_with_environment_and_other_types_are_rejected() -> None:
    with pytest.raises(TypeError, match="Corridor already has its tasks"):
        as_environment(Corridor(), 5)
    with pytest.raises(TypeError, match=r"expected an Environment or a config .* got int"):
        as_environment.__wrapped__(7)


def test_episodes_run_with_config() -> None:
    def go_right(states: Any, agent_state: Any, key: Any) -> Any:
        return jnp.full(3, RIGHT), agent_state

    start = batch_reset(KEYS, CorridorConfig())
    states, _, trajectory = run_episode_batch(start, go_right, 8, CorridorConfig())
    assert states.terminated.tolist() == [True, True, True]
    assert trajectory.rewards.shape == (8, 3)

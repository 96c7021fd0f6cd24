"""`arc_step` outside `jit` takes the same steps as the environment."""

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
    arc_reset,
    arc_step,
    generate_tasks,
)

TASKS = generate_tasks(num_tasks=3, seed=1, max_height=5, max_width=5)


def small(columns: int = 5, **sections: object) -> ArcConfig:
    return ArcConfig(dataset=DatasetConfig(max_grid_height=5, max_grid_width=columns), **sections)


@pytest.mark.parametrize("selection_format", ["point", "bbox", "mask"])
@pytest.mark.parametrize(
    "observation", [ObservationConfig(), ObservationConfig(target_grid=True, scalars=True)]
)
def test_repeated_steps_equal_those_of_the_environment(
    selection_format: str, observation: ObservationConfig
) -> None:
    config = small(
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
        for ours, theirs in zip(jax.tree.leaves(result), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-6)
        state = result[0]
    assert bool(result[3]) and int(result[4].step_count) == 6


def test_states_of_another_canvas_are_refused_after_steps_that_succeed() -> None:
    config, wide = small(), small(columns=7)
    state, _ = arc_reset(jax.random.key(0), config, TASKS)
    action = ArcEnvironment.create(config, TASKS).sample_action(jax.random.key(0), state)
    for _ in range(2):
        arc_step(state, action, config)
    other, _ = arc_reset(jax.random.key(0), wide, state.tasks)
    with pytest.raises(ValueError, match="the states have a canvas of"):
        arc_step(other, action, config)

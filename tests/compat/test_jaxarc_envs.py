"""JaxARC's functions and config work under their own names."""

import jax
import jax.numpy as jnp

from phalanx.compat.jaxarc.envs import (
    EnvironmentConfig,
    JaxArcConfig,
    PointAction,
    UnifiedDatasetConfig,
    arc_reset,
    batch_reset,
    batch_step,
    create_batch_episode_runner,
    create_mock_task,
    safe_arc_step,
)

CONFIG = JaxArcConfig(
    environment=EnvironmentConfig(max_episode_steps=5),
    dataset=UnifiedDatasetConfig(max_grid_height=16, max_grid_width=16),
    action={"selection_format": "point"},
)


def test_config_has_the_sections_environment_and_logging() -> None:
    assert CONFIG.environment.max_episode_steps == CONFIG.episode.max_episode_steps == 5
    assert JaxArcConfig().logging.num_samples == 3


def test_batches_take_task_data() -> None:
    keys = jax.random.split(jax.random.PRNGKey(0), 4)
    states, _ = batch_reset(keys, CONFIG, task_data=create_mock_task())
    actions = PointAction(jnp.full(4, 1), jnp.zeros(4, int), jnp.arange(4))
    states, _, rewards, dones, _ = batch_step(states, actions, CONFIG)
    assert rewards.shape == dones.shape == (4,) and not dones.any()


def test_safe_arc_step_keeps_the_state_after_an_invalid_action() -> None:
    state, _ = arc_reset(jax.random.PRNGKey(0), CONFIG, task_data=create_mock_task())
    after, _, reward, done, _ = safe_arc_step(state, PointAction(-5, 0, 0), CONFIG)
    assert reward == -1 and not done
    assert (after.working_grid == state.working_grid).all() and after.step_count == state.step_count


def test_batch_episode_runner_runs_an_agent() -> None:
    keys = jax.random.split(jax.random.PRNGKey(0), 2)
    states, _ = batch_reset(keys, CONFIG, create_mock_task())

    def agent(states, agent_state, key):
        return PointAction(jnp.full(2, 1), jnp.zeros(2, int), jnp.full(2, 7)), agent_state

    runner = create_batch_episode_runner(agent, 5, CONFIG)
    final, total, trajectory = runner(states)
    assert total.shape == (2,) and trajectory.rewards.shape == (5, 2) and final.episode_done.all()

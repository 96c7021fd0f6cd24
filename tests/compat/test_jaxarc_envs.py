"""JaxARC's functions and config work under their own names."""

import pickle
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phalanx.arc.config import ObservationConfig
from phalanx.compat.jaxarc.envs import (
    EnvironmentConfig,
    JaxArcConfig,
    LoggingConfig,
    PointAction,
    UnifiedDatasetConfig,
    arc_reset,
    arc_step,
    batch_reset,
    batch_step,
    create_batch_episode_runner,
    create_mock_task,
    create_observation,
    safe_arc_step,
)
from phalanx.compat.jaxarc.utils.logging import ExperimentLogger, FileHandler
from phalanx.config import to_yaml
from phalanx.io.yaml_files import read_yaml
from tests.helpers.recording_handler import RecordingHandler

CONFIG = JaxArcConfig(
    environment=EnvironmentConfig(max_episode_steps=5),
    dataset=UnifiedDatasetConfig(max_grid_height=16, max_grid_width=16),
    action={"selection_format": "point"},
)


def test_config_has_the_sections_environment_and_logging() -> None:
    assert CONFIG.environment.max_episode_steps == CONFIG.episode.max_episode_steps == 5
    assert JaxArcConfig().logging.num_samples == 3
    assert "environment" in CONFIG.model_dump() and "episode" not in CONFIG.model_dump()
    assert "environment=" in repr(CONFIG) and "episode=" not in repr(CONFIG)
    assert "environment:" in to_yaml(CONFIG)


def test_invalid_and_removed_logging_settings_are_rejected() -> None:
    with pytest.raises(ValueError, match=r"logging\.num_samples must be positive"):
        ExperimentLogger(JaxArcConfig(logging=LoggingConfig(num_samples=0)), {})
    with pytest.raises(ValueError, match="has no queue_size: use nothing: logging is synchronous"):
        LoggingConfig(queue_size=1)


@pytest.mark.parametrize(
    ("setting", "omitted"),
    [
        ("log_aggregated_rewards", {"reward_mean", "reward_std", "reward_max", "reward_min"}),
        ("log_aggregated_similarity", {f"similarity_{s}" for s in ("mean", "std", "max", "min")}),
        ("log_episode_lengths", {f"episode_length_{s}" for s in ("mean", "std", "max", "min")}),
        ("log_success_rates", {"success_rate"}),
        ("log_loss_metrics", {"policy_loss", "value_loss"}),
        ("log_gradient_norms", {"gradient_norm"}),
    ],
)
def test_settings_select_the_metrics(setting: str, omitted: set[str]) -> None:
    batch = {
        "episode_returns": jnp.ones(2),
        "similarity_scores": jnp.ones(2),
        "episode_lengths": jnp.ones(2),
        "success_mask": jnp.ones(2, bool),
        "policy_loss": 0.5,
        "value_loss": 0.5,
        "gradient_norm": 1.0,
    }
    metrics = []
    for is_logged in (True, False):
        handler = RecordingHandler()
        config = LoggingConfig(batched_logging_enabled=True, **{setting: is_logged})
        ExperimentLogger(config, {"memory": handler}).log_batch_step(batch)
        metrics.append(set(handler.metrics[0]))
    assert metrics[0] - metrics[1] == omitted


def test_sampled_episodes_without_similarity_scores_have_similarity_zero() -> None:
    handler = RecordingHandler()
    batch = {"episode_returns": jnp.array([1.0, 2.0])}
    with ExperimentLogger(LoggingConfig(batched_logging_enabled=True), {"memory": handler}) as logger:
        logger.log_batch_step(batch)
        assert logger._sample_episodes_from_batch(batch) == handler.episodes
    assert [episode["final_similarity"] for episode in handler.episodes] == [0.0, 0.0]
    assert not any(name.startswith("similarity") for name in handler.metrics[0])


def test_starts_and_ends_of_episodes_can_be_disabled() -> None:
    handler = RecordingHandler()
    settings = LoggingConfig(log_episode_start=False, log_episode_end=False)
    with ExperimentLogger(JaxArcConfig(logging=settings), {"memory": handler}) as logger:
        logger.log_task_start({"task_id": "a"})
        logger.log_episode_summary({"total_reward": 1.0})
    assert handler.tasks == handler.episodes == []


def test_file_handler_writes_pickles_and_the_config(tmp_path: Path) -> None:
    config = JaxArcConfig(logging=LoggingConfig(log_format="pickle"))
    handler = FileHandler(tmp_path, config)
    handler.log_episode_summary({"episode_num": 3})
    handler.close()
    assert pickle.loads((tmp_path / "episodes.pkl").read_bytes())["episode_num"] == 3
    assert JaxArcConfig(**read_yaml(tmp_path / "config.yaml")) == config


def test_batches_take_task_data() -> None:
    keys = jax.random.split(jax.random.PRNGKey(0), 4)
    states, _ = batch_reset(keys, CONFIG, task_data=create_mock_task())
    actions = PointAction(jnp.full(4, 1), jnp.zeros(4, int), jnp.arange(4))
    states, _, rewards, dones, _ = batch_step(states, actions, CONFIG)
    assert rewards.shape == dones.shape == (4,) and not dones.any()


EVERYTHING = CONFIG.model_copy(
    update={"observation": ObservationConfig(target_grid=True, selected=True, clipboard=True, scalars=True)}
)


def test_valid_safe_arc_step_equals_arc_step() -> None:
    state, _ = arc_reset(jax.random.PRNGKey(0), EVERYTHING, task_data=create_mock_task())
    for action in (PointAction(1, 3, 7), PointAction(34, 0, 0), PointAction(2, 0, 0)):
        expected = arc_step(state, action, EVERYTHING)
        assert eqx.tree_equal(safe_arc_step(state, action, EVERYTHING), expected)
        state = expected[0]


@pytest.mark.parametrize("num_steps", [0, 4, 5], ids=["first step", "last step", "after the end"])
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("invalid", [PointAction(-5, 0, 0), PointAction(42, 0, 0), PointAction(1, 16, 0)])
def test_invalid_safe_arc_step_describes_the_unchanged_state(
    num_steps: int, compiled: bool, invalid: PointAction
) -> None:
    state, _ = arc_reset(jax.random.PRNGKey(0), EVERYTHING, task_data=create_mock_task())
    for row in range(num_steps):
        state, *_ = arc_step(state, PointAction(1, row, 7), EVERYTHING)
    step = jax.jit(safe_arc_step, static_argnums=2) if compiled else safe_arc_step
    after, observation, reward, done, info = step(state, invalid, EVERYTHING)
    assert eqx.tree_equal(after, state)
    assert eqx.tree_equal(observation, create_observation(state, EVERYTHING))
    assert (reward, bool(done)) == (-1, num_steps == 5)
    assert (info.operation_type, info.similarity_improvement) == (-1, 0)
    assert info.similarity == state.similarity_score > 0
    for name in ("step_count", "episode_done", "terminated", "truncated", "solved"):
        assert getattr(info, name) == getattr(state, name), name


def test_safe_arc_step_of_a_batch_keeps_only_states_with_invalid_actions() -> None:
    # As many environments as the canvas has rows, so that the axes cannot be told apart by their sizes.
    states, _ = batch_reset(jax.random.split(jax.random.PRNGKey(0), 16), CONFIG, create_mock_task())
    actions = PointAction(jnp.tile(jnp.array([1, -1]), 8), jnp.arange(16), jnp.full(16, 7))
    after, _, rewards, dones, infos = safe_arc_step(states, actions, CONFIG)
    expected = arc_step(states, actions, CONFIG)[0]
    valid = np.arange(16) % 2 == 0
    np.testing.assert_array_equal(after.working_grid, expected.working_grid)
    assert after.step_count.tolist() == infos.step_count.tolist() == valid.astype(int).tolist()
    assert (rewards[~valid] == -1).all() and (rewards[valid] > -1).all() and not dones.any()


def test_batch_episode_runner_runs_an_agent() -> None:
    keys = jax.random.split(jax.random.PRNGKey(0), 2)
    states, _ = batch_reset(keys, CONFIG, create_mock_task())

    def agent(states, agent_state, key):
        return PointAction(jnp.full(2, 1), jnp.zeros(2, int), jnp.full(2, 7)), agent_state

    runner = create_batch_episode_runner(agent, 5, CONFIG)
    final, total, trajectory = runner(states)
    assert total.shape == (2,) and trajectory.rewards.shape == (5, 2) and final.episode_done.all()

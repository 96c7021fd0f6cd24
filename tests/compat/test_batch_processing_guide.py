"""Every code block on getting started, the core functions and keys, as it stands in the batch processing guide but for its import lines.

What earlier blocks leave behind, and what the guide leaves out, comes from the fixtures in `conftest.py`.
"""
# The blocks keep the guide's own quotes, layout and habits.
# ruff: noqa
# fmt: off

import inspect

import jax
import jax.numpy as jnp
import pytest
from tests.compat.mock_task import create_mock_task

from phalanx import core
from phalanx.arc import ArcEnvState, JaxArcConfig, JaxArcTask, PointAction
from phalanx.arc.actions import Action as StructuredAction
from phalanx.core import batch_reset, batch_step


def test_quick_start(capsys: pytest.CaptureFixture[str]) -> None:
    import jax
    import jax.numpy as jnp
    from phalanx.arc import EpisodeConfig, JaxArcConfig, UnifiedActionConfig, UnifiedDatasetConfig
    from phalanx.core import batch_reset, batch_step
    from phalanx.arc import PointAction

    # Configuration
    config = JaxArcConfig(
        episode=EpisodeConfig(max_episode_steps=100),
        dataset=UnifiedDatasetConfig(max_grid_height=30, max_grid_width=30),
        action=UnifiedActionConfig(selection_format="point")
    )

    # Create mock task
    task = create_mock_task()

    # Batch processing
    batch_size = 16
    keys = jax.random.split(jax.random.PRNGKey(42), batch_size)

    # Batch reset
    batch_states, batch_obs = batch_reset(keys, config, task)

    # Create batch actions
    batch_actions = PointAction(
        operation=jnp.zeros(batch_size, dtype=jnp.int32),
        row=jnp.full(batch_size, 5, dtype=jnp.int32),
        col=jnp.full(batch_size, 5, dtype=jnp.int32)
    )

    # Batch step
    batch_states, batch_obs, rewards, dones, infos = batch_step(
        batch_states, batch_actions, config
    )

    print(f"Batch shape: {batch_states.working_grid.shape}")  # (16, 30, 30)
    print(f"Rewards: {rewards}")  # (16,)

    assert batch_states.working_grid.shape == (16, 30, 30)
    assert rewards.shape == dones.shape == infos.similarity.shape == (16,)
    assert "Batch shape: (16, 30, 30)" in capsys.readouterr().out


def test_the_signature_of_batch_reset() -> None:
    def batch_reset(
        keys: jnp.ndarray,           # Shape: (batch_size, 2)
        config: JaxArcConfig,        # Environment configuration
        task_data: JaxArcTask        # Task data (shared across batch)
    ) -> tuple[ArcEnvState, jnp.ndarray]:
        """Reset multiple environments in parallel.

        Args:
            keys: PRNG keys for each environment
            config: Environment configuration (shared)
            task_data: Task data (shared across all environments)

        Returns:
            batch_states: Batched environment states
            batch_obs: Batched observations
        """

    assert list(inspect.signature(batch_reset).parameters) == ["keys", "config", "task_data"]
    assert len(inspect.signature(core.batch_reset).parameters) == 3


def test_batch_reset_usage(config: JaxArcConfig, task: JaxArcTask) -> None:
    # Create batch of PRNG keys
    master_key = jax.random.PRNGKey(42)
    batch_size = 32
    keys = jax.random.split(master_key, batch_size)

    # Reset batch of environments
    batch_states, batch_obs = batch_reset(keys, config, task)

    # Verify batch dimensions
    assert batch_states.working_grid.shape == (batch_size, 30, 30)
    assert batch_obs.shape == (batch_size, 30, 30)


def test_the_signature_of_batch_step() -> None:
    def batch_step(
        states: ArcEnvState,         # Batched states
        actions: StructuredAction,   # Batched actions
        config: JaxArcConfig         # Environment configuration
    ) -> tuple[ArcEnvState, jnp.ndarray, jnp.ndarray, dict]:
        """Step multiple environments in parallel.

        Args:
            states: Batched environment states
            actions: Batched structured actions
            config: Environment configuration (shared)

        Returns:
            new_states: Updated batched states
            new_obs: Updated batched observations
            rewards: Batch of rewards
            dones: Batch of done flags
            infos: Batch of info dictionaries
        """

    names = list(inspect.signature(batch_step).parameters)
    assert names == ["states", "actions", "config"] == list(inspect.signature(core.batch_step).parameters)[:3]


def test_batch_step_usage(batch_states: ArcEnvState, batch_size: int, config: JaxArcConfig) -> None:
    # Create batch actions
    batch_actions = PointAction(
        operation=jnp.array([0, 1, 0, 1] * (batch_size // 4)),  # Mixed operations
        row=jnp.arange(batch_size) % 10 + 5,                    # Different rows
        col=jnp.full(batch_size, 7, dtype=jnp.int32)           # Same column
    )

    # Step batch of environments
    new_states, new_obs, rewards, dones, infos = batch_step(
        batch_states, batch_actions, config
    )

    # Process results
    print(f"Reward range: {jnp.min(rewards):.3f} to {jnp.max(rewards):.3f}")
    print(f"Completed episodes: {jnp.sum(dones)}")

    assert new_obs.shape == (batch_size, 30, 30)
    assert infos.operation_type.tolist() == [0, 1, 0, 1] * (batch_size // 4)
    # Environment 1 filled (6, 7) with colour 1, which is what the mock task asks for.
    assert new_states.working_grid[1, 6, 7] == 1
    assert rewards[1] > rewards[0]


def test_key_splitting(batch_size: int) -> None:
    # ✅ Good: Proper key splitting
    master_key = jax.random.PRNGKey(42)
    batch_keys = jax.random.split(master_key, batch_size)

    # Each environment gets a unique key
    for i, key in enumerate(batch_keys):
        print(f"Env {i}: {key}")

    # ❌ Bad: Reusing the same key
    # batch_keys = jnp.array([master_key] * batch_size)  # All identical!

    assert len({tuple(key.tolist()) for key in batch_keys}) == batch_size


def test_deterministic_behavior(batch_size: int, config: JaxArcConfig, task: JaxArcTask) -> None:
    def test_deterministic_batch():
        """Test that batch processing is deterministic."""
        key = jax.random.PRNGKey(42)

        # First run
        keys1 = jax.random.split(key, batch_size)
        states1, obs1 = batch_reset(keys1, config, task)

        # Second run with same key
        keys2 = jax.random.split(key, batch_size)
        states2, obs2 = batch_reset(keys2, config, task)

        # Should be identical
        assert jnp.allclose(states1.working_grid, states2.working_grid)
        assert jnp.allclose(obs1, obs2)

        print("✅ Batch processing is deterministic")

    test_deterministic_batch()


def test_key_management_in_episodes(batch_size: int, config: JaxArcConfig, task: JaxArcTask) -> None:
    def run_batch_episode(initial_keys, config, task, max_steps=50):
        """Run complete batch episode with proper key management."""
        # Reset environments
        states, obs = batch_reset(initial_keys, config, task)

        # Track episode data
        episode_rewards = jnp.zeros(batch_size)
        episode_lengths = jnp.zeros(batch_size, dtype=jnp.int32)
        active_mask = jnp.ones(batch_size, dtype=jnp.bool_)

        for step in range(max_steps):
            # Create actions (could be from policy)
            actions = PointAction(
                operation=jnp.zeros(batch_size, dtype=jnp.int32),
                row=jnp.full(batch_size, step % 10 + 5, dtype=jnp.int32),
                col=jnp.full(batch_size, 5, dtype=jnp.int32)
            )

            # Step environments
            states, obs, rewards, dones, infos = batch_step(states, actions, config)

            # Update tracking
            episode_rewards += rewards * active_mask
            episode_lengths = jnp.where(active_mask, episode_lengths + 1, episode_lengths)
            active_mask = active_mask & ~dones

            # Early termination if all done
            if not jnp.any(active_mask):
                break

        return {
            'final_states': states,
            'episode_rewards': episode_rewards,
            'episode_lengths': episode_lengths,
            'completion_rate': jnp.mean(~active_mask)
        }

    # Run batch episode
    keys = jax.random.split(jax.random.PRNGKey(42), batch_size)
    results = run_batch_episode(keys, config, task)

    print(f"Average reward: {jnp.mean(results['episode_rewards']):.3f}")
    print(f"Average length: {jnp.mean(results['episode_lengths']):.1f}")
    print(f"Completion rate: {results['completion_rate']:.1%}")

    # Colour 0 on colour 0 changes nothing, so nobody solves it and 50 of 100 steps pass.
    assert results["episode_lengths"].tolist() == [50] * batch_size
    assert jnp.allclose(results["episode_rewards"], 50 * -0.01)

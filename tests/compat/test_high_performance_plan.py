"""Every code block on building and measuring, as it stands in the high-performance plan but for its imports.

What the plan leaves out is supplied in each test, before the block. Blocks that only define something are
called afterwards; the benchmarks with fewer steps than the plan's, because these are tests.
"""
# The blocks keep the plan's own quotes, layout and habits.
# ruff: noqa
# fmt: off

import functools
import inspect

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phalanx import arc
from phalanx.arc import NUM_OPERATIONS, JaxArcConfig, JaxArcTask, PointAction, StepInfo, arc_reset, arc_step, check_bounds_jax, create_observation, create_point_action
from phalanx.core import batch_reset, batch_step, run_episode_batch


def test_step_info(config: JaxArcConfig, task: JaxArcTask) -> None:
    # Replace info dict with JAX-compatible eqx.Module
    class StepInfo(eqx.Module):
        """JAX-compatible step info structure - replaces dict."""
        similarity: jnp.float32
        similarity_improvement: jnp.float32
        operation_type: jnp.int32
        step_count: jnp.int32
        episode_done: jnp.bool_

        # eqx.Module automatically handles PyTree registration

    plans, librarys = inspect.signature(StepInfo).parameters, inspect.signature(arc.StepInfo).parameters
    assert list(plans) == list(librarys)[: len(plans)]


def test_a_step_that_returns_step_info(config: JaxArcConfig, task: JaxArcTask) -> None:
    state, _ = arc_reset(jax.random.PRNGKey(0), config, task)
    action = create_point_action(operation=1, row=3, col=7)
    # "Existing step logic", which the plan does not repeat.
    validated_action = action
    final_state, observation, reward, done, expected = arc.arc_step(state, action, config)

    @jax.jit  # Keep existing decorator, just remove callbacks
    def arc_step(state, action, config):
        """Remove ALL jax.debug.callback calls - keep everything else the same."""

        # Keep all existing logic but:
        # 1. DELETE all jax.debug.callback calls
        # 2. Return StepInfo instead of dict
        # 3. Keep current config handling (it works fine)

        # ... existing step logic (unchanged) ...

        # Replace info dict with StepInfo
        info = StepInfo(
            similarity=final_state.similarity_score,
            similarity_improvement=final_state.similarity_score - state.similarity_score,
            operation_type=validated_action.operation,
            step_count=final_state.step_count,
            episode_done=done
        )

        return final_state, observation, reward, done, info

    info = arc_step(state, action, config)[-1]
    assert isinstance(info, arc.StepInfo)
    for name in ("similarity", "similarity_improvement", "operation_type", "step_count", "episode_done"):
        assert getattr(info, name) == getattr(expected, name), name


def test_safe_action_processing(config: JaxArcConfig, task: JaxArcTask) -> None:
    @jax.jit
    def safe_arc_step(state, action, config):
        """Add JAX-native error handling without breaking JIT compilation."""

        # JAX-compatible validation
        is_valid_action = validate_action_jax(action, state, config)

        def valid_step():
            return arc_step(state, action, config)

        def invalid_step():
            # Return safe fallback state instead of raising exception
            error_info = StepInfo(
                similarity=state.similarity_score,
                similarity_improvement=0.0,
                operation_type=-1,  # Invalid operation marker
                step_count=state.step_count,
                episode_done=False
            )
            return state, create_observation(state, config), -1.0, False, error_info

        return jax.lax.cond(is_valid_action, valid_step, invalid_step)

    def validate_action_jax(action, state, config):
        """JAX-compatible action validation - returns bool, no exceptions."""
        # Replace try/except with JAX-native checks
        valid_operation = (action.operation >= 0) & (action.operation < NUM_OPERATIONS)
        valid_bounds = check_bounds_jax(action, state.working_grid.shape)
        return valid_operation & valid_bounds

    state, _ = arc_reset(jax.random.PRNGKey(0), config, task)
    good = create_point_action(operation=1, row=3, col=7)
    for got, wanted in zip(
        jax.tree.leaves(safe_arc_step(state, good, config)),
        jax.tree.leaves(arc_step(state, good, config)),
        strict=True,
    ):
        np.testing.assert_array_equal(got, wanted)
    for bad in (create_point_action(42, 3, 7), create_point_action(-1, 3, 7), create_point_action(1, 30, 7)):
        kept, _, reward, done, info = safe_arc_step(state, bad, config)
        assert eqx.tree_equal(kept, state)
        assert (float(reward), bool(done), int(info.operation_type)) == (-1.0, False, -1)
        # The plan's own check and the library's agree, and a plain step marks the action the same way.
        assert not arc.validate_action_jax(bad, state, config)
        assert arc_step(state, bad, config)[-1].operation_type == -1


def test_donated_buffers_and_an_episode_runner_with_agent_state(config: JaxArcConfig, task: JaxArcTask) -> None:
    # Add memory donation to existing batch functions
    @functools.partial(jax.jit, donate_argnums=(0,))
    def arc_step(state, action, config):
        """Add donate_argnums for memory efficiency - keep existing logic."""
        # All existing logic unchanged, just add memory donation
        pass

    # Improve existing create_batch_episode_runner with agent state management
    def improved_batch_episode_runner(states, agent_fn, max_steps, config):
        """Enhance existing batch runner with proper agent state handling."""

        def scan_step(carry, _):
            states, agent_states, total_rewards, key = carry  # Add agent_states and key

            # Split key for this step
            key, action_key = jax.random.split(key)

            # Agent selects actions with state management
            actions, new_agent_states = agent_fn(states, agent_states, action_key)

            # Use existing batch_step
            new_states, obs, rewards, dones, infos = batch_step(states, actions, config)

            return (new_states, new_agent_states, total_rewards + rewards, key), (rewards, dones, infos)

        # Use existing lax.scan pattern but with enhanced carry
        pass

    # The plan leaves both bodies open; the library has them.
    assert improved_batch_episode_runner(None, None, 1, config) is None
    keys = jax.random.split(jax.random.PRNGKey(0), 16)
    states, _ = batch_reset(keys, config, task)
    actions = PointAction(
        operation=jnp.ones(16, jnp.int32), row=jnp.arange(16), col=jnp.full(16, 7, jnp.int32)
    )
    stepped, _, _, _, _ = batch_step(states, actions, config, donate=True)
    assert stepped.step_count.tolist() == [1] * 16

    def agent_fn(states, agent_states, key):
        return actions, agent_states + 1

    final, total_rewards, trajectory = run_episode_batch(
        batch_reset(keys, config, task), agent_fn, 3, config, agent_state=jnp.zeros(16, jnp.int32)
    )
    assert final.step_count.tolist() == [3] * 16
    assert jnp.allclose(total_rewards, trajectory.rewards.sum(axis=0))


def test_the_simple_benchmark(
    config: JaxArcConfig, task: JaxArcTask, capsys: pytest.CaptureFixture[str]
) -> None:
    def create_test_config():
        return config

    def create_test_state():
        return arc_reset(jax.random.PRNGKey(0), config, task)[0]

    def create_test_action():
        return create_point_action(operation=2, row=3, col=7)

    def create_batch_states(batch_size):
        return batch_reset(jax.random.split(jax.random.PRNGKey(0), batch_size), config, task)[0]

    def create_batch_actions(batch_size):
        return create_point_action(jnp.full(batch_size, 2), jnp.full(batch_size, 3), jnp.full(batch_size, 7))

    import time
    import jax
    import jax.numpy as jnp
    from phalanx.arc import arc_step
    from phalanx.core import batch_step

    def benchmark_single_env(num_steps=10000):
        """Benchmark single environment performance."""
        # Setup
        state = create_test_state()
        action = create_test_action()
        config = create_test_config()

        # Warmup JIT
        _ = arc_step(state, action, config)

        # Benchmark
        start_time = time.perf_counter()
        for _ in range(num_steps):
            state, obs, reward, done, info = arc_step(state, action, config)
            reward.block_until_ready()  # Ensure computation completes
        end_time = time.perf_counter()

        sps = num_steps / (end_time - start_time)
        return sps

    def benchmark_batch_env(batch_size=100, num_steps=1000):
        """Benchmark batch environment performance."""
        # Setup batch
        states = create_batch_states(batch_size)
        actions = create_batch_actions(batch_size)
        config = create_test_config()

        # Warmup
        _ = batch_step(states, actions, config)

        # Benchmark
        start_time = time.perf_counter()
        for _ in range(num_steps):
            states, obs, rewards, dones, infos = batch_step(states, actions, config)
            rewards.block_until_ready()
        end_time = time.perf_counter()

        total_steps = batch_size * num_steps
        sps = total_steps / (end_time - start_time)
        return sps

    def run_performance_comparison():
        """Compare before/after optimizations."""
        print("=== JaxARC Performance Benchmark ===")

        # Single environment
        single_sps = benchmark_single_env()
        print(f"Single Environment: {single_sps:,.0f} SPS")

        # Batch environments
        for batch_size in [10, 100, 1000]:
            batch_sps = benchmark_batch_env(batch_size)
            speedup = batch_sps / single_sps
            print(f"Batch {batch_size:4d}: {batch_sps:,.0f} SPS ({speedup:.1f}x)")

    # The plan's 10,000 and 1,000 steps would only measure the machine.
    benchmark_single_env.__defaults__ = (20,)
    benchmark_batch_env.__defaults__ = (100, 5)
    run_performance_comparison()
    printed = capsys.readouterr().out
    for name in ("Single Environment:", "Batch   10:", "Batch  100:", "Batch 1000:"):
        assert name in printed


def test_the_analysis_of_what_each_optimization_brings(capsys: pytest.CaptureFixture[str]) -> None:
    def benchmark_with_config(config):
        return 1000.0 * len(config)

    def analyze_optimization_impact():
        """Analyze the impact of each optimization phase."""
        print("=== Optimization Impact Analysis ===")

        # Test with different configurations
        configs = {
            "baseline": {"callbacks": True, "error_handling": "try_except"},
            "no_callbacks": {"callbacks": False, "error_handling": "try_except"},
            "jax_native": {"callbacks": False, "error_handling": "jax_lax_cond"},
            "optimized": {"callbacks": False, "error_handling": "jax_lax_cond", "donate_args": True}
        }

        results = {}
        for name, config in configs.items():
            sps = benchmark_with_config(config)
            results[name] = sps
            print(f"{name:12s}: {sps:,.0f} SPS")

        # Calculate improvements
        baseline = results["baseline"]
        for name, sps in results.items():
            if name != "baseline":
                improvement = sps / baseline
                print(f"{name:12s}: {improvement:.1f}x improvement")

        return results

    assert analyze_optimization_impact() == {
        "baseline": 2000.0, "no_callbacks": 2000.0, "jax_native": 2000.0, "optimized": 3000.0
    }
    assert "optimized   : 1.5x improvement" in capsys.readouterr().out

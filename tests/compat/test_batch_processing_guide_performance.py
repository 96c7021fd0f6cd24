"""Every code block on performance, debugging and monitoring, as it stands in the batch processing guide but for its import lines.

What earlier blocks leave behind, and what the guide leaves out, comes from the fixtures in `conftest.py`.
One call has a smaller argument than the guide's: the search for a batch size stops at 8, not at 1,024.
"""
# The blocks keep the guide's own quotes, layout and habits.
# ruff: noqa
# fmt: off

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

from phalanx.arc import ArcEnvState, JaxArcConfig, JaxArcTask, PointAction
from phalanx.core import batch_reset, batch_step


def test_batch_size_selection(config: JaxArcConfig, task: JaxArcTask) -> None:
    def find_optimal_batch_size(config, task, max_batch_size=1024):
        """Find optimal batch size for current hardware."""
        import time

        batch_sizes = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]
        batch_sizes = [bs for bs in batch_sizes if bs <= max_batch_size]

        results = {}

        for batch_size in batch_sizes:
            try:
                # Test batch processing
                keys = jax.random.split(jax.random.PRNGKey(42), batch_size)

                # Warm up
                batch_states, batch_obs = batch_reset(keys, config, task)

                # Benchmark
                start_time = time.perf_counter()
                for _ in range(10):  # Multiple runs for accuracy
                    batch_states, batch_obs = batch_reset(keys, config, task)
                elapsed = (time.perf_counter() - start_time) / 10

                # Calculate metrics
                per_env_time = elapsed / batch_size
                throughput = batch_size / elapsed

                results[batch_size] = {
                    'per_env_time': per_env_time,
                    'throughput': throughput,
                    'total_time': elapsed
                }

                print(f"Batch {batch_size:3d}: {per_env_time*1000:.2f}ms/env, {throughput:.0f} envs/sec")

            except Exception as e:
                print(f"Batch {batch_size:3d}: Failed ({e})")
                break

        # Find optimal batch size
        optimal_batch_size = max(results.keys(), key=lambda bs: results[bs]['throughput'])
        print(f"\nOptimal batch size: {optimal_batch_size}")

        return optimal_batch_size, results

    # Find optimal batch size
    optimal_bs, perf_results = find_optimal_batch_size(config, task, max_batch_size=8)

    assert optimal_bs in perf_results
    assert list(perf_results) == [1, 2, 4, 8]


def test_memory_usage_analysis(config: JaxArcConfig, task: JaxArcTask) -> None:
    def analyze_memory_usage(config, task, batch_sizes=[1, 16, 64, 256]):
        """Analyze memory usage for different batch sizes."""
        memory_results = {}

        for batch_size in batch_sizes:
            keys = jax.random.split(jax.random.PRNGKey(42), batch_size)
            batch_states, batch_obs = batch_reset(keys, config, task)

            # Calculate memory usage
            state_memory = batch_states.working_grid.nbytes
            obs_memory = batch_obs.nbytes
            total_memory = state_memory + obs_memory

            per_env_memory = total_memory / batch_size

            memory_results[batch_size] = {
                'total_mb': total_memory / (1024 * 1024),
                'per_env_mb': per_env_memory / (1024 * 1024),
                'state_mb': state_memory / (1024 * 1024),
                'obs_mb': obs_memory / (1024 * 1024)
            }

            print(f"Batch {batch_size:3d}: {memory_results[batch_size]['total_mb']:.1f}MB total, "
                  f"{memory_results[batch_size]['per_env_mb']:.3f}MB per env")

        # Analyze scaling efficiency
        baseline_per_env = memory_results[1]['per_env_mb']

        print("\nMemory scaling efficiency:")
        for batch_size in batch_sizes[1:]:
            current_per_env = memory_results[batch_size]['per_env_mb']
            overhead = (current_per_env / baseline_per_env - 1) * 100
            print(f"  Batch {batch_size:3d}: {overhead:+.1f}% overhead per env")

        return memory_results

    # Analyze memory usage
    memory_analysis = analyze_memory_usage(config, task)

    assert memory_analysis[256]["state_mb"] == 256 * 30 * 30 / 2**20


def test_jit_compilation(config: JaxArcConfig, task: JaxArcTask, capsys: pytest.CaptureFixture[str]) -> None:
    # Pre-compile batch functions with specific shapes
    @eqx.filter_jit
    def compiled_batch_reset(keys, config, task_data):
        """Pre-compiled batch reset function."""
        return batch_reset(keys, config, task_data)

    @eqx.filter_jit
    def compiled_batch_step(states, actions, config):
        """Pre-compiled batch step function."""
        return batch_step(states, actions, config)

    def warm_up_batch_functions(batch_size, config, task):
        """Warm up batch functions to avoid compilation overhead."""
        keys = jax.random.split(jax.random.PRNGKey(42), batch_size)

        # Warm up reset
        batch_states, batch_obs = compiled_batch_reset(keys, config, task)

        # Warm up step
        actions = PointAction(
            operation=jnp.zeros(batch_size, dtype=jnp.int32),
            row=jnp.zeros(batch_size, dtype=jnp.int32),
            col=jnp.zeros(batch_size, dtype=jnp.int32)
        )

        compiled_batch_step(batch_states, actions, config)
        print(f"✅ Warmed up batch functions for batch size {batch_size}")

    # Warm up for your target batch size
    warm_up_batch_functions(64, config, task)

    assert "Warmed up batch functions for batch size 64" in capsys.readouterr().out


def test_batch_state_inspection(batch_states: ArcEnvState, capsys: pytest.CaptureFixture[str]) -> None:
    def inspect_batch_states(batch_states, indices=[0, 1, 2]):
        """Inspect specific environments in batch."""
        batch_size = batch_states.working_grid.shape[0]

        print(f"Batch size: {batch_size}")
        print(f"Grid shape: {batch_states.working_grid.shape[1:]}")

        for i in indices:
            if i < batch_size:
                print(f"\nEnvironment {i}:")
                print(f"  Step count: {batch_states.step_count[i]}")
                print(f"  Similarity: {batch_states.similarity_score[i]:.3f}")
                print(f"  Episode done: {batch_states.episode_done[i]}")

                # Show grid summary
                grid = batch_states.working_grid[i]
                unique_colors = jnp.unique(grid)
                print(f"  Unique colors: {unique_colors}")

    # Inspect batch
    inspect_batch_states(batch_states)

    printed = capsys.readouterr().out
    assert "Grid shape: (30, 30)" in printed
    assert "Environment 2:" in printed
    assert "Unique colors: [-1  0]" in printed


def test_performance_monitoring(config: JaxArcConfig, task: JaxArcTask) -> None:
    class BatchPerformanceMonitor:
        """Monitor batch processing performance."""

        def __init__(self):
            self.reset_times = []
            self.step_times = []
            self.batch_sizes = []

        def time_batch_reset(self, keys, config, task):
            """Time batch reset operation."""
            import time

            start_time = time.perf_counter()
            result = batch_reset(keys, config, task)
            elapsed = time.perf_counter() - start_time

            self.reset_times.append(elapsed)
            self.batch_sizes.append(len(keys))

            return result

        def time_batch_step(self, states, actions, config):
            """Time batch step operation."""
            import time

            start_time = time.perf_counter()
            result = batch_step(states, actions, config)
            elapsed = time.perf_counter() - start_time

            self.step_times.append(elapsed)

            return result

        def get_stats(self):
            """Get performance statistics."""
            if not self.reset_times:
                return "No data collected"

            reset_times = jnp.array(self.reset_times)
            step_times = jnp.array(self.step_times)
            batch_sizes = jnp.array(self.batch_sizes)

            return {
                'reset_time_mean': jnp.mean(reset_times),
                'reset_time_std': jnp.std(reset_times),
                'step_time_mean': jnp.mean(step_times),
                'step_time_std': jnp.std(step_times),
                'avg_batch_size': jnp.mean(batch_sizes),
                'total_operations': len(self.reset_times) + len(self.step_times)
            }

    # Use performance monitor
    monitor = BatchPerformanceMonitor()

    # Monitored operations
    keys = jax.random.split(jax.random.PRNGKey(42), 32)
    batch_states, batch_obs = monitor.time_batch_reset(keys, config, task)

    actions = PointAction(
        operation=jnp.zeros(32, dtype=jnp.int32),
        row=jnp.full(32, 5, dtype=jnp.int32),
        col=jnp.full(32, 5, dtype=jnp.int32)
    )

    new_states, new_obs, rewards, dones, infos = monitor.time_batch_step(
        batch_states, actions, config
    )

    # Get statistics
    stats = monitor.get_stats()
    print(f"Performance stats: {stats}")

    assert stats["total_operations"] == 2
    assert stats["avg_batch_size"] == 32
    assert new_states.step_count.tolist() == [1] * 32

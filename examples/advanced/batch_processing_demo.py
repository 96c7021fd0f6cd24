"""Process batches of ARC environments: reset, step, run episodes, change the batch size, profile.

python examples/advanced/batch_processing_demo.py --batch-size 256 --steps 50

The parts are independent of each other.
"""

import argparse

import jax
import jax.numpy as jnp

from phalanx.arc import (
    ActionConfig,
    ArcConfig,
    ArcState,
    DatasetConfig,
    PointAction,
    TaskBuffer,
    VectorizedRandomAgent,
    arc_reset,
    batch_reset,
    batch_step,
    create_point_action,
    generate_tasks,
    operation_name,
    run_episode_batch,
)
from phalanx.compat.jaxarc.batch_processing import (
    BatchPerformanceMonitor,
    analyze_memory_usage,
    find_optimal_batch_size,
    inspect_batch_states,
    process_dynamic_batch,
)


def reset_and_step(config: ArcConfig, tasks: TaskBuffer, batch_size: int) -> ArcState:
    """Reset and step a batch. Each environment draws its own task, and actions may differ."""
    keys = jax.random.split(jax.random.PRNGKey(1), batch_size)
    states, observations = batch_reset(keys, config, tasks)
    print(f"observations {observations.shape}, tasks drawn {len(set(states.task_index.tolist()))}")
    actions = PointAction(
        operation=jnp.arange(batch_size) % 10,  # fill with colours 0 to 9
        row=jnp.zeros(batch_size, jnp.int32),
        col=jnp.zeros(batch_size, jnp.int32),
    )
    states, observations, rewards, dones, infos = batch_step(states, actions, config)
    print(f"rewards {rewards.min():.3f} to {rewards.max():.3f}, {int(dones.sum())} done")
    print(f"environment 1 did {operation_name(int(infos.operation_type[1]))!r}")
    return states


def whole_episodes(config: ArcConfig, tasks: TaskBuffer, batch_size: int, steps: int) -> None:
    """Run episodes in one compiled loop. The same keys give the same episodes."""
    agent = VectorizedRandomAgent(grid_shape=config.grid_shape, config=config)
    start = batch_reset(jax.random.split(jax.random.PRNGKey(0), batch_size), config, tasks)
    runs = [run_episode_batch(start, agent.select_batch_actions, steps, config) for _ in range(2)]
    final, rewards, trajectory = runs[0]
    print(f"mean reward {rewards.mean():.3f}, {int(final.solved.sum())} solved")
    print(f"trajectory of rewards {trajectory.rewards.shape}: steps, then environments")
    print(f"the second run is the same: {bool(jnp.array_equal(rewards, runs[1][1]))}")


def changing_batch_sizes(config: ArcConfig, tasks: TaskBuffer) -> None:
    """Step any number of states in batches of a fixed size, so that only one shape is compiled."""
    for count in (3, 5, 11):
        keys = jax.random.split(jax.random.PRNGKey(count), count)
        states = [arc_reset(key, config, tasks)[0] for key in keys]
        actions = [create_point_action(2, 0, 0) for _ in states]
        _, _, rewards, _, _ = process_dynamic_batch(states, actions, config, max_batch_size=8)
        print(f"{count} states in batches of 8 gave {len(rewards)} rewards")


def profiling(config: ArcConfig, tasks: TaskBuffer, states: ArcState, largest: int) -> None:
    """Measure speed and memory, and inspect states."""
    find_optimal_batch_size(config, tasks, max_batch_size=largest)
    analyze_memory_usage(config, tasks, batch_sizes=(1, largest))
    timer = BatchPerformanceMonitor()
    keys = jax.random.split(jax.random.PRNGKey(7), largest)
    fresh, _ = timer.time_batch_reset(keys, config, tasks)
    zeros = jnp.zeros(largest, jnp.int32)
    timer.time_batch_step(fresh, PointAction(operation=zeros, row=zeros, col=zeros), config)
    print({name: round(value, 5) for name, value in timer.get_stats().items()})
    inspect_batch_states(states, indices=(0, 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--steps", type=int, default=50)
    arguments = parser.parse_args()

    config = ArcConfig(
        dataset=DatasetConfig(max_grid_height=10, max_grid_width=10),
        action=ActionConfig(selection_format="point"),
    )
    tasks = TaskBuffer.from_tasks(generate_tasks(num_tasks=32, seed=0))
    print("== reset and step")
    states = reset_and_step(config, tasks, arguments.batch_size)
    print("\n== whole episodes")
    whole_episodes(config, tasks, arguments.batch_size, arguments.steps)
    print("\n== batches of changing size")
    changing_batch_sizes(config, tasks)
    print("\n== profiling")
    profiling(config, tasks, states, arguments.batch_size)


if __name__ == "__main__":
    main()

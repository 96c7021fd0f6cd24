"""Run random policies on all families of generated ARC tasks, and measure success rates and speed.

A batch of episodes is one compiled call. The success rates are a baseline for trained agents.

python examples/arc/random_policy.py
"""

import argparse
import time

import jax
import numpy as np
from rich.console import Console

from phalanx.arc import (
    ActionConfig,
    ArcConfig,
    DatasetConfig,
    EpisodeConfig,
    TaskBuffer,
    VectorizedRandomAgent,
    batch_reset,
    generate_tasks,
    run_episode_batch,
)
from phalanx.arc.rendering import episode_steps, render_episode

SIDE = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--batch-size", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--tasks", type=int, default=600)
    arguments = parser.parse_args()
    console = Console(highlight=False)

    # Boxes, because some families cannot be solved cell by cell.
    config = ArcConfig(
        dataset=DatasetConfig(max_grid_height=SIDE, max_grid_width=SIDE),
        episode=EpisodeConfig(max_episode_steps=arguments.steps),
        action=ActionConfig(selection_format="bbox"),
    )
    tasks = TaskBuffer.from_tasks(generate_tasks(num_tasks=arguments.tasks, max_height=SIDE, max_width=SIDE))
    agent = VectorizedRandomAgent(config.grid_shape, "bbox", config=config)

    keys = jax.random.split(jax.random.key(0), arguments.batch_size)
    states, observations = batch_reset(keys, config, tasks)
    print(f"{arguments.batch_size} environments, observations {observations.shape} of {observations.dtype}")
    for run in ("the first call, which compiles", "the second"):
        began = time.perf_counter()
        _, rewards, trajectory = run_episode_batch(
            states, agent.select_batch_actions, arguments.steps, config, key=jax.random.key(1)
        )
        rewards.block_until_ready()
        seconds = time.perf_counter() - began
        rate = arguments.batch_size * arguments.steps / seconds
        print(f"{run}: {seconds:.2f} s, {rate:,.0f} steps/s")

    # A finished environment stays as it is, so the last step tells how each episode ended.
    solved = np.asarray(trajectory.infos.solved[-1])
    similarity = np.asarray(trajectory.infos.similarity[-1])
    family = np.array([tasks[task].family for task in states.task_index.tolist()])
    print("\nfamily              episodes   solved   similarity")
    shares = {name: solved[family == name].mean() for name in tasks.families if name in family}
    for name in sorted(shares, key=shares.get, reverse=True):
        mine = family == name
        print(f"{name:18} {mine.sum():9} {shares[name]:8.1%} {similarity[mine].mean():12.2f}")
    print(f"{'all':18} {len(solved):9} {solved.mean():8.1%} {similarity.mean():12.2f}")

    if solved.any():
        # The luckiest: the fewest steps to a solution.
        lengths = np.where(solved, np.asarray(trajectory.infos.step_count[-1]), arguments.steps + 1)
        lucky = int(np.argmin(lengths))
        steps = episode_steps(trajectory, lucky, initial=states)
        console.print("\n", render_episode(steps, title=f"Luck: {family[lucky]}", max_steps=6))


if __name__ == "__main__":
    main()

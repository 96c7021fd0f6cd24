"""Train PPO on one family of generated ARC tasks, and evaluate it on unseen tasks.

In the family `fill_enclosed`, the area inside a closed ring takes the color of the ring. The grids are 3x3
and 4x4. The run folder has the files of `phalanx train ppo --env arc`, so `phalanx report FOLDER` works.

python examples/arc/ppo_one_family.py     (about a minute of CPU time)
"""

import argparse
from pathlib import Path

import jax
from rich.console import Console

from phalanx.arc.rendering import render_state
from phalanx.core import record_episodes
from phalanx.training import PPO, PPOConfig, Progress, next_free_dir, train


def show(progress: Progress) -> None:
    """Return a bar that shows the success rate during training."""
    if progress.update % 3 == 1 or progress.update == progress.num_updates:
        solved, reward = progress.metrics["success_rate"], progress.metrics["reward_mean"]
        bar = "#" * round(40 * solved)
        print(f"update {progress.update:3}  {bar:40} {solved:5.1%}  return {reward:5.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--updates", type=int, default=40)
    parser.add_argument("--num-envs", type=int, default=256)
    parser.add_argument("--family", default="fill_enclosed")
    parser.add_argument("overrides", nargs="*", help="any setting of the training, as network.hidden_dim=16")
    parser.add_argument("--out", type=Path, default=Path("out/examples/ppo_one_family"))
    arguments = parser.parse_args()

    config = PPOConfig.load(
        "arc",
        (
            f"env.dataset.families=[{arguments.family}]",
            "env.dataset.num_generated_tasks=500",
            f"num_envs={arguments.num_envs}",
            f"num_updates={arguments.updates}",
            "optimizer.learning_rate=0.004",
            "evaluation.every=0",
            "evaluation.num_generated_tasks=100",
            "evaluation.num_sampled_attempts=0",
            "logging.sample_frequency=0",
            *arguments.overrides,
        ),
    )
    training = PPO(config)
    outcome = train(training, next_free_dir(arguments.out), show=show)
    first, last = (outcome.evaluations[place]["success_rate"] for place in (0, -1))
    print(f"{outcome.counts['env_steps']:,} steps in {outcome.seconds:.0f} s, written to {outcome.run_dir}")
    print(f"unseen puzzles handed in right: {first:.0%} before, {last:.0%} after")

    # What the trained agent makes of a puzzle.
    network = training.policy(outcome.state)
    (episode,) = record_episodes(training.environment, network, jax.random.key(7), 1, 8, greedy=True)
    final = training.environment.attach_names(episode["final_state"])
    Console(highlight=False).print(render_state(final))


if __name__ == "__main__":
    main()

"""Define a family of ARC tasks, check its solutions, and train an agent on it.

The rule of the family: every painted cell casts a shadow of its color on the cell below it. A family is a
function that draws a rule and generates pairs of grids with their shortest solutions. After it is registered,
`generate_tasks` and all configs in this process can use it by name.

python examples/arc/custom_task_family.py     (about a minute of CPU time)
"""

import argparse
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from rich.console import Console

from phalanx.arc import (
    ActionConfig,
    ArcConfig,
    ArcEnvironment,
    ArcTask,
    BboxAction,
    batch_step,
    generate_tasks,
)
from phalanx.arc.generators import (
    GeneratedPair,
    PairSampler,
    TaskFamily,
    blank,
    palette,
    pick,
    point,
    register_family,
)
from phalanx.arc.rendering import render_task
from phalanx.training import BC, BCConfig, Progress, next_free_dir, train

NAME = "shadow"


def shadow(rng: np.random.Generator, height: int, width: int) -> PairSampler:
    """A fill for each shadow. Shortest: shadows differ in colour, and a fill writes one colour; what moves or
    turns cells paints no more of them than there were, and a paste needs a copy before it.
    """

    def pair() -> GeneratedPair | None:
        before = blank(height, width)
        colors = palette(rng, pick(rng, 1, 2))
        columns = rng.permutation(width)
        places = [(pick(rng, 0, height - 2), int(column)) for column in columns[: len(colors)]]
        for color, place in zip(colors, places, strict=True):
            before[place] = color
        after = before.copy()
        for color, (row, column) in zip(colors, places, strict=True):
            after[row + 1, column] = color
        # Operation `color` fills the selected cells with that colour.
        steps = [point(color, row + 1, column) for color, (row, column) in zip(colors, places, strict=True)]
        return GeneratedPair(before, after, tuple(steps))

    return pair


register_family(
    TaskFamily(NAME, "The cell below a painted one takes its colour.", shadow, point_solvable=True)
)


def solved_by_their_solutions(tasks: list[ArcTask]) -> float:
    """Apply the solutions of all first demonstrations as one batch, and return the success rate."""
    config = ArcConfig(action=ActionConfig(selection_format="bbox"))
    indices = jnp.arange(len(tasks))
    states, _ = ArcEnvironment.create(config, tasks).batch_reset_to(indices, jnp.zeros_like(indices))
    for time in range(max(len(task.solutions[0]) for task in tasks)):
        # A solved episode has ended: whatever comes after its last step changes nothing.
        steps = [task.solutions[0][min(time, len(task.solutions[0]) - 1)] for task in tasks]
        corners = {
            name: jnp.array([getattr(step, name) for step in steps]) for name in ("r1", "c1", "r2", "c2")
        }
        operations = jnp.array([step.operation for step in steps])
        states, _, _, _, info = batch_step(states, BboxAction(operations, **corners), config)
    return float(jnp.mean(info.solved))


def show(progress: Progress) -> None:
    if progress.update % 3 == 1 or progress.update == progress.num_updates:
        agreed = progress.metrics["accuracy"]
        print(f"update {progress.update:3}  {'#' * round(40 * agreed):40} {agreed:5.1%} as the solution")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--updates", type=int, default=20, help="0 draws and checks only")
    parser.add_argument("--num-envs", type=int, default=256)
    parser.add_argument("--out", type=Path, default=Path("out/examples/custom_task_family"))
    arguments = parser.parse_args()

    tasks = generate_tasks((NAME,), 200, max_height=4, max_width=4)
    Console(highlight=False).print(render_task(tasks[0]))
    print(f"{len(tasks)} tasks, solved by their own solutions: {solved_by_their_solutions(tasks):.0%}")

    if arguments.updates == 0:
        return
    overrides = (
        f"env.dataset.families=[{NAME}]",
        f"num_envs={arguments.num_envs}",
        f"num_updates={arguments.updates}",
        "evaluation.every=0",
        "evaluation.num_generated_tasks=50",
        "evaluation.num_sampled_attempts=0",
        "logging.sample_frequency=0",
    )
    training = BC(BCConfig.load("arc", overrides))
    outcome = train(training, next_free_dir(arguments.out), show=show)
    first, last = (outcome.evaluations[place]["success_rate"] for place in (0, -1))
    print(f"unseen tasks handed in right: {first:.0%} before, {last:.0%} after")


if __name__ == "__main__":
    main()

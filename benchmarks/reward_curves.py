"""Draws how runs learned from reward: what share of the answers drawn was right, over processor time, as SVG.

phalanx train grpo --config puzzles --init-from runs/lm --env binary,nonogram --out runs/reward/seed_0 seed=0
python benchmarks/reward_curves.py runs/reward --out docs/images/reward_curves.svg
"""

import argparse
import itertools
import json
import math
import sys
from pathlib import Path

import drawsvg
from line_chart import Axis, Points, line_chart

POINTS = 30
"""Of a line; each is the mean over the updates since the one before."""


def read_curve(run: Path) -> Points:
    """Minutes of processor time in updates, and the share that was solved then."""
    lines = (run / "batch_metrics.jsonl").read_text(encoding="utf-8").splitlines()
    found = [json.loads(line)["metrics"] for line in lines]
    minutes = list(itertools.accumulate(each["processor_seconds"] / 60 for each in found))
    rates = [each["success_rate"] for each in found]
    step = max(1, len(found) // POINTS)
    return [
        (minutes[at + step - 1], sum(rates[at : at + step]) / step)
        for at in range(0, len(found) - step + 1, step)
    ]


def draw_curves(curves: dict[str, Points]) -> drawsvg.Drawing:
    """A line for each run."""
    longest = math.ceil(max(minutes for curve in curves.values() for minutes, _ in curve))
    return line_chart(
        "puzzles solved by answers that were drawn while learning",
        Axis("minutes of processor time", [longest * part / 4 for part in range(5)]),
        Axis("", [tenth / 10 for tenth in range(0, 11, 2)], form="{:.0%}".format),
        curves,
    )


def main() -> None:
    """Read the runs and write the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="Runs, or folders of seed_* runs.")
    parser.add_argument("--out", type=Path, default=Path("reward_curves.svg"))
    arguments = parser.parse_args()
    runs = [each for run in arguments.runs for each in (sorted(run.glob("seed_*")) or [run])]
    try:
        curves = {f"{run.parent.name} {run.name}": read_curve(run) for run in runs}
    except (OSError, ValueError) as error:
        sys.exit(str(error))
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    draw_curves(curves).save_svg(str(arguments.out))
    for name, curve in curves.items():
        print(name, " ".join(f"{minutes:.1f}:{rate:.2f}" for minutes, rate in curve))


if __name__ == "__main__":
    main()

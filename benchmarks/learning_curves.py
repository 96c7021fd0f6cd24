"""Draws how runs of several seeds learned: the median of their held-out success and its range, as SVG.

for seed in 0 1 2; do phalanx demo --seed $seed --out runs/curves/seed_$seed; done
python benchmarks/learning_curves.py runs/curves --out docs/images/learning_curves.svg
"""

import argparse
import json
import statistics
import sys
from pathlib import Path

import drawsvg
from line_chart import Axis, line_chart

Curve = dict[int, list[float]]
"""Success rates of the seeds at a number of environment steps."""


def read_curves(run: Path) -> Curve:
    """Greedy held-out success by environment steps, of every seed of a run."""
    folders = sorted(run.glob("seed_*"))
    if not folders:
        raise ValueError(f"{run} has no seed_* folders; train it with --seeds 3")
    curve: Curve = {}
    for folder in folders:
        for line in (folder / "evaluations.jsonl").read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            if record["mode"] == "greedy":
                curve.setdefault(record["env_steps"], []).append(record["success_rate"])
    return curve


def draw_curves(curves: dict[str, Curve]) -> drawsvg.Drawing:
    """A band from the worst to the best seed and a line for the median, for each run."""
    longest = max(steps for curve in curves.values() for steps in curve)
    lines, bands = {}, {}
    for run, curve in curves.items():
        name = f"{run} ({max(map(len, curve.values()))} seeds)"
        points = sorted(curve.items())
        lines[name] = [(steps, statistics.median(rates)) for steps, rates in points]
        bands[name] = [(steps, min(rates), max(rates)) for steps, rates in points]
    return line_chart(
        "handed in right on held-out tasks",
        Axis(
            "environment steps of each seed", [longest * part / 4 for part in range(5)], form="{:,.0f}".format
        ),
        Axis("", [tenth / 10 for tenth in range(0, 11, 2)], form="{:.0%}".format),
        lines,
        bands,
    )


def main() -> None:
    """Read the runs and write the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, default=Path("learning_curves.svg"))
    arguments = parser.parse_args()
    try:
        curves = {run.name: read_curves(run) for run in arguments.runs}
    except (OSError, ValueError) as error:
        sys.exit(str(error))
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    draw_curves(curves).save_svg(str(arguments.out))
    for name, curve in curves.items():
        for steps, rates in sorted(curve.items()):
            print(f"{name} {steps:>9,} median {statistics.median(rates):.3f} of {sorted(rates)}")


if __name__ == "__main__":
    main()

"""Draws how runs of several seeds learned: the median of their held-out success and its range, as SVG.

phalanx train arc --seeds 3 --out runs/curves
python benchmarks/learning_curves.py runs/curves --out docs/images/learning_curves.svg
"""

import argparse
import json
import statistics
import sys
from pathlib import Path

import drawsvg
from line_chart import BOTTOM, COLORS, HEIGHT, LEFT, RIGHT, TOP, WIDTH

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
                curve.setdefault(record["environment_steps"], []).append(record["success_rate"])
    return curve


def draw_curves(curves: dict[str, Curve]) -> drawsvg.Drawing:
    """A band from the worst to the best seed and a line for the median, for each run."""
    drawing = drawsvg.Drawing(WIDTH, HEIGHT, font_family="sans-serif")
    drawing.append(drawsvg.Rectangle(0, 0, WIDTH, HEIGHT, fill="white"))
    longest = max(steps for curve in curves.values() for steps in curve)

    def x(steps: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * steps / longest

    def y(share: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share

    for tenth in range(0, 11, 2):
        drawing.append(drawsvg.Line(LEFT, y(tenth / 10), WIDTH - RIGHT, y(tenth / 10), stroke="#dddddd"))
        drawing.append(drawsvg.Text(f"{tenth * 10} %", 11, LEFT - 6, y(tenth / 10) + 4, text_anchor="end"))
    for part in range(5):
        steps = longest * part / 4
        drawing.append(
            drawsvg.Text(f"{steps:,.0f}", 11, x(steps), HEIGHT - BOTTOM + 16, text_anchor="middle")
        )
    drawing.append(drawsvg.Text("solved on held-out tasks", 15, LEFT, TOP - 16))
    middle = (LEFT + WIDTH - RIGHT) / 2
    drawing.append(
        drawsvg.Text("environment steps of each seed", 12, middle, HEIGHT - 12, text_anchor="middle")
    )
    for index, (name, curve) in enumerate(curves.items()):
        color = COLORS[index]
        points = sorted(curve.items())
        band = [(x(s), y(max(r))) for s, r in points] + [(x(s), y(min(r))) for s, r in reversed(points)]
        line = [(x(s), y(statistics.median(r))) for s, r in points]
        drawing.append(drawsvg.Lines(*[n for point in band for n in point], fill=color, fill_opacity=0.2))
        drawing.append(
            drawsvg.Lines(*[n for point in line for n in point], stroke=color, stroke_width=2, fill="none")
        )
        seeds = max(len(rates) for rates in curve.values())
        label = f"{name} ({seeds} seeds)"
        drawing.append(drawsvg.Text(label, 12, WIDTH - RIGHT + 12, TOP + 14 + 18 * index, fill=color))
    return drawing


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

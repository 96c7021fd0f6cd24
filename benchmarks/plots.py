"""Curves for the documentation, drawn from result files: `python -m benchmarks.plots OUTPUT_FOLDER`.

padding-versus-shuffling.svg    padding efficiency and variety of lengths over the size of the sorted pool
lm-puzzles.svg                  success rate on validation puzzles during GRPO and during more SFT
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import drawsvg

from benchmarks.suite import RESULTS
from phalanx.io.atomic import atomic_write
from phalanx.svg import line_chart

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
"""Colors of the lines, which remain distinct for color-blind readers (Okabe and Ito)."""
_LEFT, _TOP, _WIDTH, _HEIGHT = 60, 40, 440, 240


def plot(
    title: str,
    x_label: str,
    x_ticks: Sequence[Any],
    lines: Mapping[str, Sequence[float]],
    y_range: tuple[float, float] = (0.0, 100.0),
    y_unit: str = "%",
) -> drawsvg.Drawing:
    """Draw lines with axes and a legend.

    Args:
        title: Title above the plot.
        x_label: Label of the horizontal axis.
        x_ticks: Labels of the points on the horizontal axis, at equal distances.
        lines: Values of each line by name, one for each label.
        y_range: Values at the bottom and the top.
        y_unit: Unit that is appended to the labels of the vertical axis.

    Raises:
        ValueError: A line does not have one value for each label, or there are fewer than two points.
    """
    if len(x_ticks) < 2:
        raise ValueError(f"a curve requires at least two points, got {len(x_ticks)}")
    for name, values in lines.items():
        if len(values) != len(x_ticks):
            raise ValueError(
                f"the line {name!r} has {len(values)} values, but there are {len(x_ticks)} points"
            )
    drawing = drawsvg.Drawing(_LEFT + _WIDTH + 200, _TOP + _HEIGHT + 60, font_family="sans-serif")
    drawing.append(drawsvg.Rectangle(0, 0, drawing.width, drawing.height, fill="white"))
    drawing.append(drawsvg.Text(title, 15, _LEFT, 22))
    low, high = y_range
    for part in range(5):
        value, y = low + (high - low) * part / 4, _TOP + _HEIGHT * (1 - part / 4)
        drawing.append(drawsvg.Line(_LEFT, y, _LEFT + _WIDTH, y, stroke="#dddddd"))
        drawing.append(drawsvg.Text(f"{value:,g}{y_unit}", 11, _LEFT - 6, y + 4, text_anchor="end"))
    step = _WIDTH / (len(x_ticks) - 1)
    for index, tick in enumerate(x_ticks):
        x = _LEFT + index * step
        drawing.append(drawsvg.Text(str(tick), 11, x, _TOP + _HEIGHT + 18, text_anchor="middle"))
    center = _LEFT + _WIDTH / 2
    drawing.append(drawsvg.Text(x_label, 12, center, _TOP + _HEIGHT + 42, text_anchor="middle"))
    for index, (name, values) in enumerate(lines.items()):
        color = COLORS[index % len(COLORS)]
        chart = line_chart(values, _WIDTH, _HEIGHT, ends=y_range, ink=color)
        group = drawsvg.Group(transform=f"translate({_LEFT} {_TOP})")
        for part in chart.parts:
            group.append(part)
        drawing.append(group)
        drawing.append(drawsvg.Text(name, 12, _LEFT + _WIDTH + 12, _TOP + 14 + 20 * index, fill=color))
    return drawing


def padding_versus_shuffling(result: Mapping[str, Any]) -> drawsvg.Drawing:
    """Plot the measurements `padding-pool-*` of the suite `batch_planning`."""
    found = [each for each in result["measurements"] if each["id"].startswith("padding-pool-")]
    found.sort(key=lambda each: each["settings"]["pool_batches"])
    return plot(
        "Padding versus shuffling",
        "pool_batches: number of batches that are sorted by length together",
        [each["settings"]["pool_batches"] for each in found],
        {
            "padding efficiency": [each["median"] for each in found],
            "length deviation in a batch": [
                100 * each["settings"]["relative_length_deviation"] for each in found
            ],
        },
    )


def lm_puzzles(result: Mapping[str, Any]) -> drawsvg.Drawing:
    """Plot the success rate of the first seed on validation puzzles during training."""
    by_id = {each["id"]: each for each in result["measurements"]}
    lines = {}
    for name, id in (("GRPO", "grpo-binary"), ("more SFT", "more-sft-binary")):
        curve = by_id[id]["settings"]["runs"][0]["validation_success_rate"]
        lines[name] = [100 * rate for _, rate in curve]
    count = min(map(len, lines.values()))
    ticks = [f"{100 * index // (count - 1)}%" for index in range(count)]
    lines = {name: values[:count] for name, values in lines.items()}
    return plot("Success rate on validation puzzles", "fraction of the training time", ticks, lines)


PLOTS = {
    "padding-versus-shuffling": ("batch_planning", padding_versus_shuffling),
    "lm-puzzles": ("lm_puzzles", lm_puzzles),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw all plots whose result files exist, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plots", description=__doc__)
    parser.add_argument("output", type=Path, help="folder for the SVG files, such as docs/images")
    options = parser.parse_args(arguments)
    options.output.mkdir(parents=True, exist_ok=True)
    for name, (suite, draw) in PLOTS.items():
        path = RESULTS / f"{suite}.json"
        if not path.exists():
            print(f"{name}: skipped, because {path} does not exist", file=sys.stderr)
            continue
        with atomic_write(options.output / f"{name}.svg", "w") as file:
            draw(json.loads(path.read_text())).as_svg(output_file=file)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A line chart on two logarithmic axes as SVG: enough for throughput over batch size.

What the lines are is up to the caller; pictures of grids and episodes are in `phalanx.arc.render`.
"""

import math
from collections.abc import Mapping, Sequence

import drawsvg

# Okabe and Ito's colours, told apart by colour-blind readers too.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
WIDTH, HEIGHT = 640, 400
LEFT, RIGHT, TOP, BOTTOM = 80, 170, 40, 50

Points = Sequence[tuple[float, float]]


def line_chart(title: str, x_label: str, y_label: str, lines: Mapping[str, Points]) -> drawsvg.Drawing:
    """One line for each name; every x and y must be positive."""
    points = [point for line in lines.values() for point in line]
    if not points:
        raise ValueError(f"nothing to draw in {title!r}: every line is empty")
    if min(min(point) for point in points) <= 0:
        raise ValueError(f"{title!r}: a logarithmic axis needs positive numbers")
    x_axis = _Axis([x for x, _ in points], LEFT, WIDTH - RIGHT)
    y_axis = _Axis([y for _, y in points], HEIGHT - BOTTOM, TOP)
    drawing = drawsvg.Drawing(WIDTH, HEIGHT, font_family="sans-serif")
    drawing.append(drawsvg.Rectangle(0, 0, WIDTH, HEIGHT, fill="white"))
    drawing.append(drawsvg.Text(title, 15, LEFT, TOP - 16))
    drawing.append(drawsvg.Text(x_label, 12, (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, text_anchor="middle"))
    turn = f"rotate(-90 16 {HEIGHT / 2})"
    drawing.append(drawsvg.Text(y_label, 12, 16, HEIGHT / 2, text_anchor="middle", transform=turn))
    _draw_grid(drawing, x_axis, y_axis)
    for index, (name, line) in enumerate(lines.items()):
        color = COLORS[index % len(COLORS)]
        path = [place for x, y in line for place in (x_axis.place(x), y_axis.place(y))]
        drawing.append(drawsvg.Lines(*path, stroke=color, stroke_width=2, fill="none"))
        for x, y in line:
            drawing.append(drawsvg.Circle(x_axis.place(x), y_axis.place(y), 3, fill=color))
        drawing.append(drawsvg.Text(name, 12, WIDTH - RIGHT + 12, TOP + 14 + 18 * index, fill=color))
    return drawing


class _Axis:
    """A logarithmic axis between two places on the page."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        self.low, self.high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
        if self.low == self.high:
            self.high += 1
        self._start, self._end = start, end

    def place(self, value: float) -> float:
        share = (math.log10(value) - self.low) / (self.high - self.low)
        return self._start + share * (self._end - self._start)

    @property
    def decades(self) -> list[int]:
        return [10**power for power in range(self.low, self.high + 1) if power >= 0]


def _draw_grid(drawing: drawsvg.Drawing, x_axis: _Axis, y_axis: _Axis) -> None:
    for value in x_axis.decades:
        x = x_axis.place(value)
        drawing.append(drawsvg.Line(x, TOP, x, HEIGHT - BOTTOM, stroke="#dddddd"))
        drawing.append(drawsvg.Text(f"{value:,}", 11, x, HEIGHT - BOTTOM + 16, text_anchor="middle"))
    for value in y_axis.decades:
        y = y_axis.place(value)
        drawing.append(drawsvg.Line(LEFT, y, WIDTH - RIGHT, y, stroke="#dddddd"))
        drawing.append(drawsvg.Text(f"{value:,}", 11, LEFT - 6, y + 4, text_anchor="end"))

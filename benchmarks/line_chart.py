"""A line chart as SVG, on logarithmic or linear axes: enough for throughput over batch size or for learning.

What the lines are is up to the caller; pictures of grids and episodes are in `phalanx.arc.rendering`.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import drawsvg

# Okabe and Ito's colors, told apart by color-blind readers too.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
WIDTH, HEIGHT = 640, 400
LEFT, RIGHT, TOP, BOTTOM = 80, 170, 40, 50

Points = Sequence[tuple[float, float]]


@dataclasses.dataclass(frozen=True)
class Axis:
    """From the first tick to the last."""

    label: str
    ticks: Sequence[float]
    logarithmic: bool = False
    form: Callable[[float], str] = "{:,g}".format

    @classmethod
    def decades(cls, label: str, values: Iterable[float]) -> "Axis":
        """A logarithmic axis with a tick at every power of ten."""
        values = list(values)
        if not values:
            raise ValueError(f"nothing to draw over {label!r}: every line is empty")
        if min(values) <= 0:
            raise ValueError(f"a logarithmic axis of {label!r} needs positive numbers, got {min(values)}")
        low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
        return cls(label, [10.0**power for power in range(low, max(high, low + 1) + 1)], logarithmic=True)

    def share(self, value: float) -> float:
        """How far along the axis a value is, from 0 to 1."""
        scale: Callable[[float], float] = math.log10 if self.logarithmic else float
        low, high = scale(self.ticks[0]), scale(self.ticks[-1])
        return (scale(value) - low) / (high - low)


def line_chart(
    title: str,
    x_axis: Axis,
    y_axis: Axis,
    lines: Mapping[str, Points],
    bands: Mapping[str, Sequence[tuple[float, float, float]]] | None = None,
) -> drawsvg.Drawing:
    """One line for each name, and behind it its band of (x, lowest, highest) where it has one."""
    page = _Page(x_axis, y_axis)
    page.frame(title)
    for index, (name, line) in enumerate(lines.items()):
        color = COLORS[index % len(COLORS)]
        if band := (bands or {}).get(name):
            edge = [(x, high) for x, _, high in band] + [(x, low) for x, low, _ in reversed(band)]
            page.path(edge, fill=color, fill_opacity=0.2)
        page.path(line, stroke=color, stroke_width=2, fill="none")
        for x, y in line:
            dot = drawsvg.Circle(page.x(x), page.y(y), 3, fill=color)
            dot.append_title(f"{x:,g}: {y:,.4g}")
            page.drawing.append(dot)
        page.text(name, WIDTH - RIGHT + 12, TOP + 14 + 18 * index, fill=color)
    return page.drawing


class _Page:
    def __init__(self, x_axis: Axis, y_axis: Axis) -> None:
        self.x_axis, self.y_axis = x_axis, y_axis
        self.drawing = drawsvg.Drawing(WIDTH, HEIGHT, font_family="sans-serif")

    def x(self, value: float) -> float:
        return round(LEFT + (WIDTH - RIGHT - LEFT) * self.x_axis.share(value), 1)

    def y(self, value: float) -> float:
        return round(HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * self.y_axis.share(value), 1)

    def text(self, text: str, x: float, y: float, size: int = 12, **settings: object) -> None:
        self.drawing.append(drawsvg.Text(text, size, x, y, **settings))

    def path(self, points: Points, **settings: object) -> None:
        places = [place for x, y in points for place in (self.x(x), self.y(y))]
        self.drawing.append(drawsvg.Lines(*places, **settings))

    def frame(self, title: str) -> None:
        """Everything but the lines."""
        self.drawing.append(drawsvg.Rectangle(0, 0, WIDTH, HEIGHT, fill="white"))
        self.text(title, LEFT, TOP - 16, 15)
        self.text(self.x_axis.label, (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, text_anchor="middle")
        turn = f"rotate(-90 16 {HEIGHT / 2})"
        self.text(self.y_axis.label, 16, HEIGHT / 2, text_anchor="middle", transform=turn)
        for tick in self.x_axis.ticks:
            x = self.x(tick)
            self.drawing.append(drawsvg.Line(x, TOP, x, HEIGHT - BOTTOM, stroke="#dddddd"))
            self.text(self.x_axis.form(tick), x, HEIGHT - BOTTOM + 16, 11, text_anchor="middle")
        for tick in self.y_axis.ticks:
            y = self.y(tick)
            self.drawing.append(drawsvg.Line(LEFT, y, WIDTH - RIGHT, y, stroke="#dddddd"))
            self.text(self.y_axis.form(tick), LEFT - 6, y + 4, 11, text_anchor="end")

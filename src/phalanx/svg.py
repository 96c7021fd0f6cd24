"""Building blocks for SVG drawings: colors, fonts, text of bounded width, layout and charts."""

import dataclasses
import functools
import itertools
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import drawsvg as draw

from phalanx.formatting import format_compact
from phalanx.io.atomic import atomic_write

Number = float | int
Anchor = Literal["start", "middle", "end"]

FONT = "Inter, 'Segoe UI', 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif"
MONO = "'JetBrains Mono', 'SF Mono', Consolas, 'DejaVu Sans Mono', 'Liberation Mono', monospace"
MARGIN = 20
GAP = 14
CARD_PADDING = 12

# Drawings have a light background with a border, so that they are readable on dark pages as well.
SHEET, CARD, BORDER, TRACK = "#FCFCFD", "#FFFFFF", "#DFE3EA", "#E8EBF1"
TEXT, MUTED, LINE = "#1B2330", "#667085", "#B6BECB"
GOOD, GOOD_TINT = "#12805C", "#E3F5EE"
BAD, BAD_TINT = "#B42318", "#FDECEA"
ACCENT, ACCENT_TINT = "#3B5BDB", "#EDF1FE"
_LIGHT_ACCENT, _LIGHT_GOOD = "#D3DBF7", "#CFEBDF"

# Advance widths of DejaVu Sans in ems. It is the widest font in `FONT`, so text that fits in it always fits.
_ADVANCES = {
    char: ems
    for chars, ems in (
        (" '.,:;|/\\ijlIJf-·", 0.36),
        ("()[]t!r", 0.42),
        ("sczkvxyLF?*_", 0.6),
        ("mwMW@%…—", 1.0),
        ("#+<=>^~&×−→✓", 0.85),
    )
    for char in chars
}
_BOLD = 1.13
_MONO_EMS = 0.61
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def clean(content: str) -> str:
    """Replace characters that are not allowed in XML with the Unicode replacement character."""
    return _NOT_XML.sub("�", content)


def short(value: Number) -> str:
    """Format a coordinate with at most two decimals."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


@functools.cache
def _advance(char: str) -> float:
    # Ideographs and emoji are square. Other characters are at most as wide as a capital letter.
    default = 1.05 if ord(char) > 0x2E7F else 0.64 if char.islower() or char.isdecimal() else 0.8
    return _ADVANCES.get(char, default)


def text_width(content: str, size: Number, bold: bool = False, mono: bool = False) -> float:
    """Return an upper bound on the width of a line of text, in pixels.

    Args:
        content: The text.
        size: Font size in pixels.
        bold: Whether the font is bold.
        mono: Whether the font is monospaced.
    """
    ems = len(content) * _MONO_EMS if mono else sum(map(_advance, content))
    return ems * size * (_BOLD if bold else 1.0)


def truncate(content: str, size: Number, width: Number, bold: bool = False) -> str:
    """Shorten a string with an ellipsis if it is wider than `width` pixels at font size `size`.

    >>> truncate("a very long title", 10, 50)
    'a very l…'
    """
    content = clean(" ".join(content.split()))
    if text_width(content, size, bold) <= width:
        return content
    available = width / size / (_BOLD if bold else 1.0) - _advance("…")
    ends = itertools.accumulate(map(_advance, content))
    return content[: sum(1 for end in ends if end <= available)].rstrip() + "…"


def text_line(
    content: str,
    size: Number,
    x: Number,
    y: Number,
    *,
    fill: str = TEXT,
    bold: bool = False,
    mono: bool = False,
    anchor: Anchor = "start",
) -> draw.Text:
    """Create a line of text with its baseline at `y`, and its start, middle or end (`anchor`) at `x`."""
    family = {"font_family": MONO} if mono else {}
    weight = 600 if bold else 400
    return draw.Text(
        clean(content), size, short(x), short(y), fill=fill, text_anchor=anchor, font_weight=weight, **family
    )


@dataclasses.dataclass(frozen=True)
class SvgBlock:
    """A rectangular layout block: SVG elements within the rectangle from (0, 0) to (width, height)."""

    width: Number
    height: Number
    parts: tuple[Any, ...] = ()
    """Elements of the block."""

    def at(self, x: Number, y: Number, **attributes: Any) -> draw.Group:
        """Return the block as an SVG group with its top left corner at (x, y)."""
        group = draw.Group(transform=f"translate({short(x)},{short(y)})", **attributes)
        for part in self.parts:
            group.append(part)
        return group


def text_block(
    content: str,
    size: Number = 12,
    *,
    width: Number | None = None,
    bold: bool = False,
    fill: str = TEXT,
    anchor: Anchor = "start",
) -> SvgBlock:
    """Create a block with a line of text.

    Args:
        content: The text.
        size: Font size.
        width: Width of the block. The text is truncated to this width and aligned within it. If None, the
            block is as wide as the text.
        bold: Whether to use a bold font.
        fill: Color of the text.
        anchor: Alignment of the text within `width`.
    """
    shown = truncate(content, size, float("inf") if width is None else width, bold)
    block_width = text_width(shown, size, bold) if width is None else width
    x = {"start": 0.0, "middle": block_width / 2, "end": block_width}[anchor]
    element = text_line(shown, size, x, size * 0.98, fill=fill, bold=bold, anchor=anchor)
    return SvgBlock(block_width, round(size * 1.3, 1), (element,))


def hstack(
    blocks: Sequence[SvgBlock], gap: Number = GAP, align: Literal["top", "middle", "bottom"] = "top"
) -> SvgBlock:
    """Arrange blocks from left to right, with `gap` pixels between them."""
    height = max((block.height for block in blocks), default=0)
    fraction = {"top": 0.0, "middle": 0.5, "bottom": 1.0}[align]
    x, parts = 0.0, []
    for block in blocks:
        parts.append(block.at(x, (height - block.height) * fraction))
        x += block.width + gap
    return SvgBlock(max(x - gap, 0), height, tuple(parts))


def vstack(
    blocks: Sequence[SvgBlock], gap: Number = 6, align: Literal["left", "middle"] = "left"
) -> SvgBlock:
    """Arrange blocks from top to bottom, with `gap` pixels between them."""
    width = max((block.width for block in blocks), default=0)
    y, parts = 0.0, []
    for block in blocks:
        parts.append(block.at((width - block.width) / 2 if align == "middle" else 0, y))
        y += block.height + gap
    return SvgBlock(width, max(y - gap, 0), tuple(parts))


def flow_cards(blocks: Iterable[SvgBlock], width: Number) -> SvgBlock:
    """Put blocks on cards and arrange them in rows of at most `width` pixels.

    The cards in a row have the same height.

    Args:
        blocks: The blocks.
        width: Maximum width of a row.
    """
    rows: list[list[SvgBlock]] = []
    row_width = 0.0
    for block in blocks:
        card_width = block.width + 2 * CARD_PADDING
        if not rows or row_width + GAP + card_width > width:
            rows.append([block])
            row_width = card_width
        else:
            rows[-1].append(block)
            row_width += GAP + card_width
    lines = []
    for row in rows:
        height = max(block.height for block in row)
        lines.append(hstack([card(dataclasses.replace(block, height=height)) for block in row]))
    return vstack(lines, GAP)


def card(block: SvgBlock, padding: Number = CARD_PADDING) -> SvgBlock:
    """Put a block on a white card with rounded corners."""
    width, height = block.width + 2 * padding, block.height + 2 * padding
    outline = round(width - 1, 2), round(height - 1, 2)
    back = draw.Rectangle(0.5, 0.5, *outline, rx=9, fill=CARD, stroke=BORDER)
    return SvgBlock(width, height, (back, block.at(padding, padding)))


def badge(content: str, *, fill: str, ink: str, size: Number = 11) -> SvgBlock:
    """Create a badge: a short text on a rounded background."""
    width, height = text_block(content, size, bold=True).width + 16, size + 9
    back = draw.Rectangle(0, 0, round(width, 2), height, rx=height / 2, fill=fill)
    label = text_block(content, size, width=width, bold=True, fill=ink, anchor="middle")
    return SvgBlock(width, height, (back, label.at(0, (height - size * 1.24) / 2)))


def justify(left: SvgBlock, right: SvgBlock, width: Number) -> SvgBlock:
    """Put one block at the left end and one at the right end of a line that is `width` pixels wide."""
    height = max(left.height, right.height)
    parts = (
        left.at(0, (height - left.height) / 2),
        right.at(width - right.width, (height - right.height) / 2),
    )
    return SvgBlock(width, height, parts)


def new_drawing(width: Number, height: Number, title: str) -> draw.Drawing:
    """Create an empty drawing with a light background. The title is for screen readers and tooltips."""
    drawing = draw.Drawing(
        width, height, font_family=FONT, role="img", style="max-width:100%;height:auto", id_prefix="phalanx"
    )
    drawing.append(draw.Title(clean(title)))
    drawing.append(
        draw.Rectangle(0.5, 0.5, width - 1, height - 1, rx=14, fill=SHEET, stroke=BORDER, stroke_width=1)
    )
    return drawing


def to_drawing(block: SvgBlock, title: str) -> draw.Drawing:
    """Create a drawing of a block with a margin around it."""
    drawing = new_drawing(round(block.width + 2 * MARGIN, 1), round(block.height + 2 * MARGIN, 1), title)
    drawing.append(block.at(MARGIN, MARGIN))
    return drawing


def line_chart(
    values: Sequence[float],
    width: Number = 320,
    height: Number = 60,
    *,
    low: Sequence[float] | None = None,
    high: Sequence[float] | None = None,
    ends: tuple[float, float] | None = None,
    ink: str = "#2f6fde",
) -> SvgBlock:
    """Draw a line chart of equally spaced values.

    Args:
        values: Values from left to right. Values that are not finite are omitted.
        width: Width of the chart in pixels.
        height: Height of the chart in pixels.
        low: Lower edge of a band around the line. The band is drawn if `low` and `high` are given.
        high: Upper edge of the band.
        ends: Values at the bottom and the top of the chart. Defaults to the minimum and maximum of the data.
        ink: Color of the line and the band.
    """
    known = [float(value) for value in (*values, *(low or ()), *(high or ())) if math.isfinite(value)]
    lowest, highest = ends or (min(known, default=0.0), max(known, default=1.0))
    extent = (highest - lowest) or 1.0

    def points(row: Sequence[float]) -> list[tuple[str, str]]:
        step = width / max(len(row) - 1, 1)
        found = [(i * step, height - (value - lowest) / extent * height) for i, value in enumerate(row)]
        return [(short(x), short(y)) for x, y in found if math.isfinite(y)]

    parts: list[Any] = [draw.Line(0, height, width, height, stroke=BORDER, stroke_width=1)]
    if low is not None and high is not None:
        edge = [*points(high), *reversed(points(low))]
        parts.append(draw.Lines(*itertools.chain(*edge), close=True, fill=ink, fill_opacity=0.15))
    if line := points(values):
        if len(line) == 1:
            parts.append(draw.Circle(*line[0], 2.5, fill=ink))
        else:
            parts.append(draw.Lines(*itertools.chain(*line), fill="none", stroke=ink, stroke_width=2))
    return SvgBlock(width, height, tuple(parts))


def histogram(
    edges: Sequence[int], counts: Sequence[int], tooltips: Sequence[str], marks: Mapping[str, float]
) -> SvgBlock:
    """Draw a histogram with labeled axes.

    Args:
        edges: Lower edge of each bin in ascending order, followed by the upper edge of the last bin.
        counts: Count for each bin, shown as the height of its bar.
        tooltips: Tooltip for each bar.
        marks: Dictionary from labels to values, in ascending order of the values. Each value is marked with a
            triangle and its label below the horizontal axis.
    """
    left, width, height = 50, 820, 250
    low, high = edges[0], edges[-1]
    scale = height / (1.04 * max(counts))

    def to_x(value: float) -> float:
        return left + (width - left) * (value - low) / (high - low)

    parts: list[Any] = []
    for tick in _round_ticks(max(counts), 5):
        y = height - tick * scale
        parts.append(draw.Line(left, short(y), width, short(y), stroke=BORDER, stroke_width=1))
        parts.append(text_line(format_compact(tick), 12, left - 10, y + 4, fill=MUTED, anchor="end"))
    gap = 1 if len(counts) <= 120 else 0
    for (begin, end), count, tooltip in zip(itertools.pairwise(edges), counts, tooltips, strict=True):
        if count:
            bar_height = max(1.0, count * scale)
            size = (max(0.6, to_x(end) - to_x(begin) - gap), bar_height)
            corner = (to_x(begin), height - bar_height)
            bar = draw.Rectangle(*map(short, (*corner, *size)), fill=ACCENT)
            bar.append_title(tooltip)
            parts.append(bar)
    parts.append(draw.Line(left, height, width, height, stroke=MUTED, stroke_width=1))
    for tick in _round_ticks(high - 1, 8):
        if tick >= low:
            parts.append(text_line(f"{tick:,}", 12, to_x(tick), height + 18, fill=MUTED, anchor="middle"))
    label_x = -math.inf
    for name, value in marks.items():
        x, y = to_x(value), height + 28
        label_x = max(x, label_x + 28)
        parts.append(draw.Lines(short(x), y, short(x - 5), y + 8, short(x + 5), y + 8, close=True, fill=TEXT))
        parts.append(text_line(name, 12, label_x, y + 21, anchor="middle"))
    return SvgBlock(width, height + 54, tuple(parts))


def _round_ticks(highest: int, num_steps: int) -> range:
    """Return multiples of a round number (1, 2 or 5 times a power of ten) from 0 to `highest`.

    The round number is chosen so that there are at most `num_steps` steps.
    """
    steps = (digit * 10**power for power in itertools.count() for digit in (1, 2, 5))
    return range(0, highest + 1, next(step for step in steps if highest <= step * num_steps))


class Bar(NamedTuple):
    """A row of a bar chart."""

    label: str
    """Text to the left of the bar."""
    value: int
    """Count shown by the dark part of the bar, out of `total`."""
    total: int
    """Count shown by the complete bar. The part beyond `value` has a lighter color."""
    note: str
    """Text to the right of the bar."""
    highlighted: bool = False
    """Draw the bar in a different color, and the label and the note in bold."""


def bar_chart(bars: Sequence[Bar], legend: tuple[str, str], width: Number = 820) -> SvgBlock:
    """Draw a chart with one horizontal bar per row.

    Args:
        bars: Bars from top to bottom.
        legend: Names of the dark and light parts of the bars.
        width: Width of the chart in pixels, including labels and notes.
    """
    left = 12 + max(text_width(bar.label, 13, bar.highlighted) for bar in bars)
    right = 10 + max(text_width(bar.note, 13, bar.highlighted) for bar in bars)
    scale = (width - left - right) / (max(bar.total for bar in bars) or 1)
    parts: list[Any] = []
    for x, color, name in ((left, ACCENT, legend[0]), (left + 110, _LIGHT_ACCENT, legend[1])):
        parts.append(draw.Rectangle(short(x), 0, 11, 11, rx=2, fill=color))
        parts.append(text_line(name, 12, x + 17, 10, fill=MUTED))
    for row, bar in enumerate(bars):
        y = 26 + 40 * row
        dark, light = (GOOD, _LIGHT_GOOD) if bar.highlighted else (ACCENT, _LIGHT_ACCENT)
        parts.append(text_line(bar.label, 13, left - 12, y + 17, bold=bar.highlighted, anchor="end"))
        if bar.total:
            group = draw.Group()
            group.append_title(f"{bar.label}: {bar.value:,} of {bar.total:,}")
            for amount, color in ((bar.total, light), (bar.value, dark)):
                bar_width = short(max(1.0, amount * scale))
                group.append(draw.Rectangle(short(left), y, bar_width, 24, rx=3, fill=color))
            parts.append(group)
        x = left + bar.total * scale + 10
        color = TEXT if bar.total else MUTED
        parts.append(text_line(bar.note, 13, x, y + 17, fill=color, bold=bar.highlighted))
    return SvgBlock(width, 26 + 40 * len(bars), tuple(parts))


def titled_drawing(chart: SvgBlock, title: str, subtitle: str) -> draw.Drawing:
    """Create a drawing that consists of a title, a subtitle and, below them, a chart."""
    header = vstack([text_block(title, 18, bold=True), text_block(subtitle, 13, fill=MUTED)])
    return to_drawing(vstack([header, chart], 18), title)


def to_html(drawing: draw.Drawing) -> str:
    """Return a drawing as HTML for a notebook. The XML header is omitted, because HTML does not allow it."""
    return f'<div style="max-width:100%;margin:4px 0">{drawing.as_svg(header="")}</div>'


def save_svg(drawing: draw.Drawing, path: str | os.PathLike[str]) -> Path:
    """Write a drawing to a file atomically and return the path."""
    target = Path(path)
    with atomic_write(target, "w") as file:
        drawing.as_svg(file)
    return target

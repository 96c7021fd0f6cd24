"""SVG charts of length histograms, bucket efficiency, and buckets compared with packing.

`to_ascii` of the same results returns text versions of the charts.
"""

import os
from collections.abc import Sequence
from typing import NamedTuple

import drawsvg as draw

from phalanx.data.bucket_search import BatchingEfficiencyReport
from phalanx.data.length_analysis import BucketAnalysis, LengthHistogram
from phalanx.data.plans.buckets import BucketSpec
from phalanx.formatting import format_percent
from phalanx.svg import ACCENT, BORDER, FONT, GOOD, MUTED, SHEET, TEXT, save_svg

WIDTH = 860
"""Width of every chart in pixels. The height depends on the content."""

_MARGIN = 28
_LEFT = 76
_PLOT_HEIGHT = 250
_ROW = 40
_LABEL = 15
_REAL, _PADDING, _EDGE, _BAND = ACCENT, "#D3DBF7", "#B5472A", "#F3F5FA"
_BEST = GOOD
_BEST_PADDING = "#CFEBDF"


class _Row(NamedTuple):
    """A row of a bar chart, which shows real tokens followed by padding."""

    label: str
    real: int
    padded: int
    note: str
    marked: bool = False


class _EdgeLabel(NamedTuple):
    """Position, text and vertical level of the label of a bucket edge."""

    x: float
    words: str
    level: int


def draw_length_histogram(
    histogram: LengthHistogram, bucket_spec: BucketSpec | None = None, title: str = "Sample lengths"
) -> draw.Drawing:
    """Draw the number of samples by length, with the median, the 90th percentile and the bucket edges."""
    low, high = histogram.bins[0].min_length, histogram.bins[-1].max_length
    right = WIDTH - _MARGIN

    def across(length: float) -> float:
        return round(_LEFT + (right - _LEFT) * (length - low) / (high - low), 2)

    edges = () if bucket_spec is None else tuple(e for e in bucket_spec.max_lengths if low <= e < high)
    # A bucket holds its edge, so the line stands behind it.
    labels = _edge_labels([(across(edge + 1), f"{edge:,}") for edge in edges])
    top = _MARGIN + 58 + _LABEL * (1 + max((label.level for label in labels), default=-1))
    bottom = top + _PLOT_HEIGHT
    sheet = _sheet(
        bottom + 62,
        title,
        f"{histogram.total_samples:,} samples, {histogram.total_tokens:,} tokens; mean "
        f"{histogram.mean_length:,.0f}, p50 {histogram.p50:,}, p90 {histogram.p90:,}, "
        f"longest {histogram.max_length:,}",
    )
    bounds = [_LEFT, *(label.x for label in labels), right]
    for start, end in zip(bounds[0::2], bounds[1::2], strict=False):
        sheet.append(draw.Rectangle(start, top, round(end - start, 2), _PLOT_HEIGHT, fill=_BAND))
    most = max(b.count for b in histogram.bins)
    scale = _PLOT_HEIGHT / (1.04 * most)
    for tick in _ticks(most):
        y = round(bottom - tick * scale, 2)
        sheet.append(draw.Line(_LEFT, y, right, y, stroke=BORDER, stroke_width=1))
        sheet.append(_text(_short(tick), _LEFT - 10, y + 4, 12, MUTED, "end"))
    gap = 1 if len(histogram.bins) <= 120 else 0
    for b in histogram.bins:
        if b.count:
            left, height = across(b.min_length), max(1.0, round(b.count * scale, 2))
            wide = max(0.6, round(across(b.max_length) - left - gap, 2))
            bar = draw.Rectangle(left, round(bottom - height, 2), wide, height, fill=_REAL)
            bar.append_title(f"{b.label}: {b.count:,} samples")
            sheet.append(bar)
    _append_edges(sheet, labels, top, bottom)
    sheet.append(draw.Line(_LEFT, bottom, right, bottom, stroke=MUTED, stroke_width=1))
    for tick in _ticks(high - 1, 8):
        if tick >= low:
            sheet.append(_text(f"{tick:,}", across(tick), bottom + 18, 12, MUTED, "middle"))
    median, ninety = across(histogram.p50), across(histogram.p90)
    for x, shift, name in ((median, 0.0, "p50"), (ninety, max(0.0, 28 - ninety + median), "p90")):
        y = bottom + 28
        sheet.append(draw.Lines(x, y, x - 5, y + 8, x + 5, y + 8, close=True, fill=TEXT))
        sheet.append(_text(name, x + shift, y + 21, 12, TEXT, "middle"))
    return sheet


def draw_bucket_efficiency(analysis: BucketAnalysis, title: str = "Padding in each bucket") -> draw.Drawing:
    """Draw the real tokens and the padding of each bucket."""
    rows = [
        _Row(
            f"{bucket.min_length:,}–{bucket.max_length:,}",
            bucket.total_tokens,
            bucket.padded_tokens,
            f"{format_percent(bucket.efficiency)} of {_short(bucket.padded_tokens)}"
            if bucket.sample_count
            else "empty",
        )
        for bucket in analysis.buckets
    ]
    skipped = f"; {analysis.skipped_samples:,} samples skipped" if analysis.skipped_samples else ""
    subtitle = (
        f"{format_percent(analysis.overall_efficiency)} of {_short(analysis.padded_tokens)} "
        "padded tokens are real; "
        f"{analysis.total_samples:,} samples{skipped}"
    )
    return _bars(rows, title, subtitle)


def draw_bucketing_vs_packing(
    report: BatchingEfficiencyReport, title: str = "Padded tokens: buckets and packing"
) -> draw.Drawing:
    """Draw the real tokens and the padding for the given buckets, for optimal buckets and for packing."""
    real = report.total_tokens
    best = max(efficiency for _, efficiency in report.compared())
    rows = [
        _Row(
            name[0].upper() + name[1:],
            real,
            round(real / efficiency),
            _note(efficiency, round(real / efficiency)),
            efficiency == best,
        )
        for name, efficiency in report.compared()
    ]
    packing = report.packing
    subtitle = (
        f"{report.total_samples:,} samples, {_short(real)} real tokens; packed into "
        f"{packing.num_packs:,} rows of {packing.capacity:,}"
    )
    return _bars(rows, title, subtitle)


def save_chart(chart: draw.Drawing, path: str | os.PathLike[str]) -> None:
    """Write a chart as an SVG file."""
    save_svg(chart, path)


def _edge_labels(places: Sequence[tuple[float, str]]) -> list[_EdgeLabel]:
    """Put each label on the lowest of three levels where it does not overlap others.

    Labels without room become empty.
    """
    taken = [0.0] * 3
    labels = []
    for x, words in places:
        half = 3 + 3.6 * len(words)
        level = next((n for n, end in enumerate(taken) if x - half > end), None)
        if level is None:
            labels.append(_EdgeLabel(x, "", 0))
        else:
            taken[level] = x + half
            labels.append(_EdgeLabel(x, words, level))
    return labels


def _append_edges(sheet: draw.Drawing, labels: Sequence[_EdgeLabel], top: float, bottom: float) -> None:
    for label in labels:
        tip = top - 4 - _LABEL * label.level if label.words else top
        sheet.append(
            draw.Line(label.x, tip, label.x, bottom, stroke=_EDGE, stroke_width=1.2, stroke_dasharray="4 3")
        )
        if label.words:
            sheet.append(_text(label.words, label.x, tip - 4, 12, _EDGE, "middle"))
    if labels:
        x, y = WIDTH - _MARGIN - 82, _MARGIN + 34
        sheet.append(draw.Line(x - 28, y, x - 7, y, stroke=_EDGE, stroke_width=1.4, stroke_dasharray="4 3"))
        sheet.append(_text("bucket edges", x, y + 4, 12, MUTED))


def _bars(rows: Sequence[_Row], title: str, subtitle: str) -> draw.Drawing:
    top = _MARGIN + 88
    left = _MARGIN + 20 + round(7.2 * max(len(row.label) for row in rows))
    note = 20 + round(7.2 * max(len(row.note) for row in rows))
    room = WIDTH - _MARGIN - note - left
    widest = max(row.padded for row in rows) or 1
    sheet = _sheet(top + _ROW * len(rows) + 12, title, subtitle)
    for x, color, name in ((left, _REAL, "real tokens"), (left + 110, _PADDING, "padding")):
        sheet.append(draw.Rectangle(x, top - 24, 11, 11, rx=2, fill=color))
        sheet.append(_text(name, x + 17, top - 14, 12, MUTED))
    for i, row in enumerate(rows):
        y = top + _ROW * i
        real, padded = round(room * row.real / widest, 2), round(room * row.padded / widest, 2)
        ink, tint = (_BEST, _BEST_PADDING) if row.marked else (_REAL, _PADDING)
        sheet.append(_text(row.label, left - 12, y + 19, 13, TEXT, "end", bold=row.marked))
        if row.padded:
            bar = draw.Group()
            bar.append_title(f"{row.label}: {row.real:,} real of {row.padded:,} padded tokens")
            bar.append(draw.Rectangle(left, y + 2, max(1.5, padded), 24, rx=3, fill=tint))
            bar.append(draw.Rectangle(left, y + 2, max(1.0, real), 24, rx=3, fill=ink))
            sheet.append(bar)
        color = TEXT if row.padded else MUTED
        sheet.append(_text(row.note, left + padded + 10, y + 19, 13, color, bold=row.marked))
    return sheet


def _sheet(height: float, title: str, subtitle: str) -> draw.Drawing:
    sheet = draw.Drawing(WIDTH, height, font_family=FONT, role="img")
    sheet.append_title(title)
    sheet.append(
        draw.Rectangle(0.5, 0.5, WIDTH - 1, height - 1, rx=10, fill=SHEET, stroke=BORDER, stroke_width=1)
    )
    sheet.append(_text(title, _MARGIN, _MARGIN + 16, 18, TEXT, bold=True))
    sheet.append(_text(subtitle, _MARGIN, _MARGIN + 38, 13, MUTED))
    return sheet


def _text(
    words: str, x: float, y: float, size: int, color: str, anchor: str = "start", *, bold: bool = False
) -> draw.Text:
    weight = {"font_weight": 600} if bold else {}
    return draw.Text(words, size, round(x, 2), round(y, 2), fill=color, text_anchor=anchor, **weight)


def _ticks(most: int, wanted: int = 5) -> list[int]:
    """Return multiples of a round step from 0 to at most `most`, in about `wanted` steps."""
    step = next(
        step
        for power in range(20)
        for step in (10**power, 2 * 10**power, 5 * 10**power)
        if most <= step * wanted
    )
    return list(range(0, most + 1, step))


def _note(efficiency: float, padded: int) -> str:
    return f"{format_percent(efficiency)} of {_short(padded)}"


def _short(number: int) -> str:
    """Format a number with at most four digits and a unit, such as `293 M`."""
    for size, unit in ((10**12, " T"), (10**9, " G"), (10**6, " M"), (10**4, " k")):
        if number >= size:
            scale = size if size != 10**4 else 1000
            return f"{number / scale:.3g}{unit}" if number / scale < 1000 else f"{number / scale:.0f}{unit}"
    return f"{number:,}"

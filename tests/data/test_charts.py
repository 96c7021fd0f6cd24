"""SVG charts of lengths, buckets and efficiency reports."""

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

import drawsvg
import numpy as np
import pytest

from phalanx.data import (
    BucketSpec,
    LengthTable,
    analyze_bucket_efficiency,
    compute_length_histogram,
    create_efficiency_report,
)
from phalanx.svg import save_svg

SPEC = BucketSpec(edges=(128, 256, 512), max_sample_length=1024)


@pytest.fixture(scope="module")
def lengths() -> LengthTable:
    draws = np.random.default_rng(1).lognormal(5, 0.8, 2000)
    return LengthTable.from_arrays(None, np.clip(np.round(draws), 1, 1024).astype(np.int32))


def elements(chart: drawsvg.Drawing, tag: str) -> list[ElementTree.Element]:
    root = ElementTree.fromstring(chart.as_svg())
    return [element for element in root.iter() if element.tag.endswith("}" + tag)]


def texts(chart: drawsvg.Drawing) -> list[str]:
    return [element.text or "" for element in elements(chart, "text")]


def iter_positions(
    element: ElementTree.Element, dx: float = 0.0, dy: float = 0.0
) -> Iterator[tuple[ElementTree.Element, float, float]]:
    """Yield every element with the position of its coordinate origin on the canvas."""
    if moved := re.fullmatch(r"translate\((.+),(.+)\)", element.get("transform", "")):
        dx, dy = dx + float(moved[1]), dy + float(moved[2])
    yield element, dx, dy
    for child in element:
        yield from iter_positions(child, dx, dy)


def assert_inside(chart: drawsvg.Drawing) -> None:
    """Check that all bars and texts are inside the canvas."""
    for element, dx, dy in iter_positions(ElementTree.fromstring(chart.as_svg())):
        x, y = dx + float(element.get("x", 0)), dy + float(element.get("y", 0))
        if element.tag.endswith("}rect"):
            assert x >= 0 and x + float(element.get("width", 0)) <= chart.width
            assert y >= 0 and y + float(element.get("height", 0)) <= chart.height
        elif element.tag.endswith("}text"):
            width = 0.52 * float(element.get("font-size", 0)) * len(element.text or "")
            left = {"start": x, "middle": x - width / 2, "end": x - width}[
                element.get("text-anchor", "start")
            ]
            assert left >= 0 and left + width <= chart.width, element.text
            assert 0 < y <= chart.height


def test_histogram_has_bars_and_percentile_markers(lengths: LengthTable) -> None:
    histogram = compute_length_histogram(lengths, 40)
    chart = histogram.to_svg()
    titles = [title.text for title in elements(chart, "title")]
    assert sum("samples" in (title or "") for title in titles) == sum(b.count > 0 for b in histogram.bins)
    assert {"Sample lengths", "p50", "p90", "200"} <= set(texts(chart))
    assert_inside(chart)


def test_histogram_of_equal_lengths_is_drawn() -> None:
    assert_inside(compute_length_histogram({"a": 5, "b": 5}).to_svg())


def test_every_bucket_has_a_row_and_empty_ones_are_labeled() -> None:
    analysis = analyze_bucket_efficiency({"a": 100, "b": 600, "c": 9000}, SPEC)
    chart = analysis.to_svg()
    shown = texts(chart)
    assert [text for text in shown if "–" in text] == ["1–128", "129–256", "257–512", "513–1,024"]
    assert shown.count("empty") == 2
    assert "78.1% of 128" in shown
    assert any("1 samples skipped" in text for text in shown)
    assert_inside(chart)


def test_report_chart_compares_buckets_and_packing(lengths: LengthTable) -> None:
    report = create_efficiency_report(lengths, SPEC)
    chart = report.to_svg()
    assert {"These buckets", "Best for waste", "Packing"} <= set(texts(chart))
    assert_inside(chart)


def test_saved_chart_is_valid_and_reproducible_svg(lengths: LengthTable, tmp_path: Path) -> None:
    for name in ("one.svg", "two.svg"):
        save_svg(compute_length_histogram(lengths).to_svg(), tmp_path / name)
    one = (tmp_path / "one.svg").read_text()
    assert one == (tmp_path / "two.svg").read_text()
    assert ElementTree.fromstring(one).tag.endswith("svg")

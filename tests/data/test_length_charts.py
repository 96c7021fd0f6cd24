"""The analysis as SVG."""

import xml.etree.ElementTree as ElementTree
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
from phalanx.data.length_charts import (
    WIDTH,
    draw_bucket_efficiency,
    draw_bucketing_vs_packing,
    draw_length_histogram,
    save_chart,
)

SPEC = BucketSpec(edges=(128, 256, 512), max_sample_length=1024)


@pytest.fixture(scope="module")
def lengths() -> LengthTable:
    draws = np.random.default_rng(1).lognormal(5, 0.8, 2000)
    return LengthTable.from_arrays(None, np.clip(np.round(draws), 1, 1024).astype(np.int32))


def elements(chart: drawsvg.Drawing, tag: str) -> list[ElementTree.Element]:
    root = ElementTree.fromstring(chart.as_svg())
    return [element for element in root.iter() if element.tag.endswith("}" + tag)]


def words(chart: drawsvg.Drawing) -> list[str]:
    return [element.text or "" for element in elements(chart, "text")]


def assert_inside(chart: drawsvg.Drawing) -> None:
    """No bar and no text begins or ends outside the sheet."""
    for bar in elements(chart, "rect"):
        x, y = float(bar.get("x", 0)), float(bar.get("y", 0))
        assert x >= 0 and x + float(bar.get("width", 0)) <= WIDTH
        assert y >= 0 and y + float(bar.get("height", 0)) <= chart.height
    for text in elements(chart, "text"):
        x, wide = float(text.get("x", 0)), 0.52 * float(text.get("font-size", 0)) * len(text.text or "")
        left = {"start": x, "middle": x - wide / 2, "end": x - wide}[text.get("text-anchor", "start")]
        assert left >= 0 and left + wide <= WIDTH, text.text
        assert 0 < float(text.get("y", 0)) <= chart.height


def test_the_histogram_has_a_bar_for_each_bin_and_names_its_edges(lengths: LengthTable) -> None:
    histogram = compute_length_histogram(lengths, 40)
    chart = draw_length_histogram(histogram, SPEC)
    titles = [title.text for title in elements(chart, "title")]
    assert sum("samples" in (title or "") for title in titles) == sum(b.count > 0 for b in histogram.bins)
    assert {"128", "256", "512", "1,024", "bucket edges", "p50", "p90"} <= set(words(chart))
    assert_inside(chart)


def test_the_histogram_needs_no_buckets(lengths: LengthTable) -> None:
    chart = draw_length_histogram(compute_length_histogram(lengths))
    assert "bucket edges" not in words(chart)
    assert_inside(chart)


def test_crowded_edges_leave_out_numbers_and_not_lines(lengths: LengthTable) -> None:
    spec = BucketSpec(edges=tuple(range(10, 400, 5)), max_sample_length=1024)
    chart = draw_length_histogram(compute_length_histogram(lengths, 40), spec)
    dashed = [line for line in elements(chart, "path") if line.get("stroke-dasharray")]
    low, high = int(lengths.lengths.min()), int(lengths.lengths.max())
    assert len(dashed) == 1 + sum(low <= edge <= high for edge in spec.max_lengths)  # one in the legend
    assert_inside(chart)


def test_samples_of_one_length_can_be_drawn() -> None:
    assert_inside(draw_length_histogram(compute_length_histogram({"a": 5, "b": 5}), SPEC))


def test_every_bucket_has_its_row_and_an_empty_one_says_so() -> None:
    analysis = analyze_bucket_efficiency({"a": 100, "b": 600, "c": 9000}, SPEC)
    chart = draw_bucket_efficiency(analysis)
    shown = words(chart)
    assert [text for text in shown if "–" in text] == ["1–128", "129–256", "257–512", "513–1,024"]
    assert shown.count("empty") == 2
    assert "78.1% of 128" in shown
    assert any("1 samples skipped" in text for text in shown)
    assert_inside(chart)


def test_buckets_and_packing_stand_side_by_side(lengths: LengthTable) -> None:
    report = create_efficiency_report(lengths, SPEC)
    chart = draw_bucketing_vs_packing(report)
    assert {"These buckets", "Best for waste", "Packing"} <= set(words(chart))
    assert_inside(chart)


def test_a_saved_chart_is_an_svg_file_and_the_same_every_time(lengths: LengthTable, tmp_path: Path) -> None:
    for name in ("one.svg", "two.svg"):
        save_chart(draw_length_histogram(compute_length_histogram(lengths), SPEC), tmp_path / name)
    one = (tmp_path / "one.svg").read_text()
    assert one == (tmp_path / "two.svg").read_text()
    assert ElementTree.fromstring(one).tag.endswith("svg")

"""SVG drawings: cells, colors, outlines, text that fits, HTML reprs and saved files."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import drawsvg
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp

from phalanx.arc.rendering import (
    ARC,
    SAFE,
    StateSnapshot,
    draw_grid,
    draw_pair,
    draw_state,
    draw_task,
    save_svg,
    snapshot,
    snapshots,
)
from phalanx.arc.tasks import ArcTask, GridPair
from phalanx.svg import text_width, truncate
from tests.helpers.arc_drawings import (
    DONE,
    DOT,
    NASTY,
    SMALL,
    SVG,
    TASK,
    of_class,
    parsed,
    played,
    started,
    words,
)


def parse_cells(root: ElementTree.Element, side: float, shape: tuple[int, int]) -> np.ndarray:
    """Return the grid that the colored paths of a drawing show, with -1 for empty cells."""
    grid = np.full(shape, -1)
    for path in of_class(root, "cells"):
        color = ARC.colors.index(path.attrib["fill"])
        for x, y, width, height in re.findall(
            r"M([\d.]+) ([\d.]+)h([\d.]+)v([\d.]+)h-[\d.]+z", path.attrib["d"]
        ):
            row, column = int(float(y) / side), int(float(x) / side)
            assert float(height) == side
            cells = (row, slice(column, column + int(float(width) / side)))
            assert (grid[cells] == -1).all(), "a cell is painted twice"
            grid[cells] = color
    return grid


def text_spans(
    element: ElementTree.Element, left: float = 0.0
) -> Iterator[tuple[str, float, float, float, float]]:
    """Yield each text with its left and right end and those of its card."""

    def walk(node: ElementTree.Element, x: float, card: tuple[float, float]) -> Iterator[Any]:
        translation = re.match(r"translate\(([-\d.]+),", node.get("transform", ""))
        x += float(translation.group(1)) if translation else 0.0
        rects = [child for child in node if child.tag == f"{SVG}rect" and child.get("rx") in ("9", "14")]
        if rects:
            card = (x, x + float(rects[0].attrib["width"]) + 1)
        if node.tag == f"{SVG}text":
            size, bold = float(node.attrib["font-size"]), node.get("font-weight") == "600"
            width = text_width(node.text or "", size, bold)
            start = (
                x
                + float(node.attrib["x"])
                - width * {"start": 0, "middle": 0.5, "end": 1}[node.attrib["text-anchor"]]
            )
            yield node.text, start, start + width, *card
        for child in node:
            yield from walk(child, x, card)

    yield from walk(element, left, (0.0, 0.0))


grids = hnp.arrays(
    np.int8, hnp.array_shapes(min_dims=2, max_dims=2, max_side=12), elements=st.integers(-1, 9)
)


@settings(max_examples=60, deadline=None)
@given(grids)
def test_drawn_cells_match_the_grid(grid: np.ndarray) -> None:
    inside = np.argwhere(grid >= 0)
    height, width = inside.max(axis=0) + 1 if inside.size else (0, 0)
    side = max(4, min(30, np.floor(2 * 320 / max(height, width, 1)) / 2))
    assert np.array_equal(parse_cells(parsed(draw_grid(grid)), side, grid.shape), grid)


def test_grid_uses_selected_palette() -> None:
    fills = [path.get("fill") for path in of_class(parsed(draw_grid(SMALL, palette="safe")), "cells")]
    assert fills == list(SAFE.colors[:6])


def test_cells_outside_the_grid_are_not_drawn() -> None:
    canvas = np.full((30, 30), -1)
    canvas[:2, :3] = SMALL
    assert draw_grid(canvas).as_svg() == draw_grid(SMALL).as_svg()


def test_selection_has_white_outline_on_black() -> None:
    mask = np.zeros((2, 3), bool)
    mask[0, 1:] = True
    root = parsed(draw_grid(SMALL, selected=mask))
    (casing,), (line,) = of_class(root, "selection-casing"), of_class(root, "selection")
    # Cells are 30 pixels: a 60 by 30 box whose top left is (30, 0).
    assert line.get("d") == casing.get("d") == "M30 0h60M30 30h60M30 0v30M90 0v30"
    assert line.get("stroke") == "#FFFFFF" and casing.get("stroke") == "#0B0D12"
    assert float(casing.attrib["stroke-width"]) > float(line.attrib["stroke-width"]) >= 1.5


def test_empty_selection_has_no_outline() -> None:
    assert not of_class(parsed(draw_grid(SMALL, selected=np.zeros((2, 3), bool))), "selection")


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        (
            np.zeros((2, 2), np.int8) + 10,
            r"cell \(0, 0\) must be a color from 0 to 9 or -1 for none, got 10",
        ),
        ([[0, 1], [-2, 0]], r"cell \(1, 0\) must be a color from 0 to 9 or -1 for none, got -2"),
    ],
)
def test_invalid_colors_are_reported_with_their_cell(grid: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        draw_grid(grid)


def test_selection_of_wrong_shape_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"the selection has shape \(3, 2\), the grid \(2, 3\)"):
        draw_grid(SMALL, selected=np.zeros((3, 2), bool))


def test_pair_draws_secret_output_as_question_mark() -> None:
    assert len(of_class(parsed(draw_pair(GridPair(DOT, DONE))), "rim")) == 2
    secret = draw_pair(GridPair(DOT, None))
    assert len(of_class(parsed(secret), "rim")) == 1
    assert "?" in words(secret)


def test_task_draws_and_labels_every_pair() -> None:
    drawing = draw_task(TASK)
    assert len(of_class(parsed(drawing), "rim")) == 5
    assert {"dot-1", "recolor · 2 demos · 1 test", "Demo 1", "Demo 2", "Test 1"} <= set(words(drawing))


def test_titles_are_escaped_and_invalid_xml_characters_replaced() -> None:
    task = ArcTask(NASTY, TASK.demos, (), family="<i>")
    drawings = [draw_grid(SMALL, title=NASTY), draw_pair(TASK.demos[0], title=NASTY), draw_task(task)]
    for drawing in drawings:
        assert any(line.startswith('a<b> & "c" �') for line in words(drawing))
        assert 'a<b> & "c" �' in parsed(drawing).findtext(f"{SVG}title", "")


def test_text_does_not_overflow_its_card() -> None:
    long = "a very long title " * 20
    drawings = [
        draw_grid(SMALL, title=long),
        draw_pair(TASK.demos[0], title=long),
        draw_task(ArcTask(long, TASK.demos, TASK.tests, family=long)),
        draw_state(played()[0][0]),
    ]
    for drawing in drawings:
        spans = list(text_spans(parsed(drawing)))
        assert spans
        for line, start, end, left, right in spans:
            assert left <= start and end <= right, (
                f"{line!r} spans {start:.0f}-{end:.0f} on {left:.0f}-{right:.0f}"
            )


@settings(max_examples=40, deadline=None)
@given(st.text(max_size=80), st.integers(20, 400))
def test_truncated_text_fits_width(content: str, width: int) -> None:
    assert text_width(truncate(content, 12, width), 12) <= width


def test_state_drawing_shows_all_fields() -> None:
    state = played()[0][0]
    drawing = draw_state(state)
    root = parsed(drawing)
    assert len(of_class(root, "rim")) == 4  # input, working grid, target, clipboard
    assert len(of_class(root, "selection")) == 1
    texts = set(words(drawing))
    assert {snapshot(state).title, "Fill 5", "6", "100%", "✓ solved", "Clipboard"} <= texts
    assert re.fullmatch(r"dot-1 · demo [12] of 2", snapshot(state).title)
    assert len(of_class(parsed(draw_state(state, show_target=False)), "rim")) == 3


def test_secret_target_is_drawn_as_question_mark() -> None:
    empty = np.zeros((0, 0), np.int8)
    view = StateSnapshot("t", DOT, DOT, empty, np.zeros((3, 3), bool), empty, None, 0.0, 0, False, False)
    assert {"?", "Target · secret", "none", "running"} <= set(words(draw_state(view)))


def test_snapshot_matches_state() -> None:
    view = snapshot(started()[0])
    assert view.working.tolist() == view.input.tolist() == DOT.tolist()
    assert view.target.tolist() == DONE.tolist()
    assert (view.step, view.operation, view.done, view.clipboard.size) == (0, None, False, 0)
    assert view.similarity == pytest.approx(8 / 9)


def test_batch_cannot_be_drawn_as_single_state() -> None:
    with pytest.raises(ValueError, match=r"expected a single state, got a batch of shape \(5,\)"):
        draw_state(started())
    assert len(snapshots(started(), limit=2)) == 2


def test_html_repr_is_inline_svg_without_xml_header() -> None:
    for obj in (TASK, TASK.demos[0], started()[0]):
        html = obj._repr_html_()
        assert "<?xml" not in html
        assert ElementTree.fromstring(html).find(f"{SVG}svg") is not None


def test_html_repr_of_batch_draws_first_three_states() -> None:
    html = started()._repr_html_()
    assert html.count("<svg") == 3
    assert "… and 2 more in this batch" in html


def test_save_svg_writes_complete_drawing(tmp_path: Path) -> None:
    path = save_svg(draw_task(TASK), tmp_path / "task.svg")
    assert ElementTree.parse(path).getroot().tag == f"{SVG}svg"
    assert [file.name for file in tmp_path.iterdir()] == ["task.svg"]


class FailingDrawing(drawsvg.Drawing):
    """A drawing that fails while it is written."""

    def as_svg(self, output_file: Any = None, **options: Any) -> None:
        output_file.write("<svg>")
        raise RuntimeError("half way")


def test_failed_save_keeps_existing_file(tmp_path: Path) -> None:
    path = tmp_path / "grid.svg"
    save_svg(draw_grid(SMALL), path)
    before = path.read_text()
    with pytest.raises(RuntimeError, match="half way"):
        save_svg(FailingDrawing(10, 10), path)
    assert path.read_text() == before
    assert [file.name for file in tmp_path.iterdir()] == ["grid.svg"]

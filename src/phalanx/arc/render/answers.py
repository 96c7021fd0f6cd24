"""Answers beside what was expected, and how often each operation was used, as SVG sheets.

Whole tasks and pairs are in `svg`; what was handed in is known to `phalanx.agents`.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import drawsvg as draw
import numpy as np

from phalanx.arc.render.cells import blank_block, cell_size, grid_block
from phalanx.arc.render.palette import palette_named
from phalanx.arc.render.svg import SHEET_WIDTH, arrow
from phalanx.core.drawing import ACCENT, MUTED, Block, beside, flowed, sheet, stacked, text

_BOX = 110
"""Pixels for one grid."""


class Answer(NamedTuple):
    """One test pair and what was handed in for it."""

    title: str
    given: np.ndarray
    predicted: np.ndarray | None
    """None where nothing was handed in."""
    expected: np.ndarray | None
    """None where the output is secret."""


def draw_answers(answers: Sequence[Answer], title: str) -> draw.Drawing:
    """Input, what was handed in and what was expected, for each test pair."""
    cards = flowed((_card(answer) for answer in answers), SHEET_WIDTH)
    return sheet(stacked([text(title, 16, bold=True), cards], 12), title)


def _card(answer: Answer) -> Block:
    grids = (("input", answer.given), ("handed in", answer.predicted), ("expected", answer.expected))
    side = min(cell_size(grid.shape, _BOX) for _, grid in grids if grid is not None)
    palette = palette_named("arc")
    blocks = []
    for name, grid in grids:
        drawn = (
            blank_block(answer.given.shape, side, "?")
            if grid is None
            else grid_block(grid, side, palette=palette)
        )
        blocks.append(stacked([drawn, text(name, 11, fill=MUTED)], 4))
    row = beside([blocks[0], arrow(), blocks[1], blocks[2]], 10, "middle")
    return stacked([text(answer.title, 12, width=row.width, bold=True), row], 6)


def draw_operations(counts: Mapping[str, int]) -> draw.Drawing:
    """How often each operation was carried out, as bars."""
    most = max(counts.values(), default=1)
    rows = []
    for name, count in sorted(counts.items(), key=lambda item: -item[1]):
        bar = draw.Rectangle(0, 3, round(max(1.0, 420 * count / most), 1), 9, rx=3, fill=ACCENT)
        rows.append(
            beside([text(name, 12, width=190), Block(430, 15, (bar,)), text(f"{count:,}", 12, width=80)], 8)
        )
    return sheet(stacked([text("Operations used", 16, bold=True), *rows], 5), "Operations used")

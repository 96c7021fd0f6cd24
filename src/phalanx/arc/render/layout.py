"""Blocks of SVG with a known size, put beside, above and below one another, and the sheet they lie on.

What the blocks show is decided elsewhere: `cells` draws grids, `svg` and `film` compose whole pictures.
"""

import dataclasses
import functools
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import drawsvg as draw
import numpy as np

from phalanx.arc.operations import NUM_COLORS
from phalanx.arc.render.palette import ARC, BORDER, CARD, GRID_EDGE, MUTED, SHEET, TEXT, Number, Palette
from phalanx.arc.render.snapshots import Cells, Mask

FONT = "Inter, 'Segoe UI', 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif"
MARGIN = 20
GAP = 14

# Advance widths in ems of DejaVu Sans, the widest font of the stack, so that what fits here fits anywhere.
_ADVANCES = {
    sign: ems
    for signs, ems in (
        (" '.,:;|/\\ijlIJf-·", 0.36),
        ("()[]t!r", 0.42),
        ("sczkvxyLF?*_", 0.6),
        ("mwMW@%…—", 1.0),
        ("#+<=>^~&×−→✓", 0.85),
    )
    for sign in signs
}
_BOLD = 1.13
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclasses.dataclass(frozen=True)
class Block:
    """Drawn elements and the box from (0, 0) to (width, height) that holds them."""

    width: Number
    height: Number
    parts: tuple[Any, ...] = ()
    card: tuple[tuple[str, str], ...] = ()
    """SVG attributes of the card under it, where it lies on one."""

    def at(self, x: Number, y: Number) -> Any:
        """A group with this block's top left at (x, y)."""
        group = draw.Group(transform=f"translate({_short(x)},{_short(y)})")
        for part in self.parts:
            group.append(part)
        return group


def _short(value: Number) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


@functools.cache
def _advance(sign: str) -> float:
    # Ideographs and emoji are square; any other sign not in the table is at most as wide as a capital.
    usual = 1.05 if ord(sign) > 0x2E7F else 0.64 if sign.islower() or sign.isdecimal() else 0.8
    return _ADVANCES.get(sign, usual)


def text_width(content: str, size: Number, bold: bool = False) -> float:
    """An upper estimate of how wide a line of text is drawn."""
    return sum(map(_advance, content)) * size * (_BOLD if bold else 1.0)


def fitted(content: str, size: Number, width: Number, bold: bool = False) -> str:
    """The text, or as much of its beginning as the width holds, with an ellipsis.

    >>> fitted("a very long title", 10, 50)
    'a very l…'
    """
    content = _NOT_XML.sub("�", " ".join(content.split()))
    if text_width(content, size, bold) <= width:
        return content
    room = width / size / (_BOLD if bold else 1.0) - _advance("…")
    ends = itertools.accumulate(map(_advance, content))
    return content[: sum(1 for end in ends if end <= room)].rstrip() + "…"


def text(
    content: str,
    size: Number = 12,
    *,
    width: Number | None = None,
    bold: bool = False,
    fill: str = TEXT,
    anchor: Literal["start", "middle", "end"] = "start",
) -> Block:
    """A line of text; with a width it is cut to fit and anchored in that width."""
    line = fitted(content, size, float("inf") if width is None else width, bold)
    box = text_width(line, size, bold) if width is None else width
    x = {"start": 0.0, "middle": box / 2, "end": box}[anchor]
    element = draw.Text(
        line,
        size,
        _short(x),
        _short(size * 0.98),
        fill=fill,
        text_anchor=anchor,
        font_weight=600 if bold else 400,
    )
    return Block(box, round(size * 1.3, 1), (element,))


def beside(
    blocks: Sequence[Block], gap: Number = GAP, align: Literal["top", "middle", "bottom"] = "top"
) -> Block:
    """Blocks from left to right."""
    height = max((block.height for block in blocks), default=0)
    share = {"top": 0.0, "middle": 0.5, "bottom": 1.0}[align]
    x, parts = 0.0, []
    for block in blocks:
        parts.append(block.at(x, (height - block.height) * share))
        x += block.width + gap
    return Block(max(x - gap, 0), height, tuple(parts))


def stacked(blocks: Sequence[Block], gap: Number = 6, align: Literal["left", "middle"] = "left") -> Block:
    """Blocks from top to bottom."""
    width = max((block.width for block in blocks), default=0)
    y, parts = 0.0, []
    for block in blocks:
        parts.append(block.at((width - block.width) / 2 if align == "middle" else 0, y))
        y += block.height + gap
    return Block(width, max(y - gap, 0), tuple(parts))


def flowed(blocks: Iterable[Block], width: Number, gap: Number = GAP, padding: Number = 12) -> Block:
    """Cards in reading order, wrapped at the width; the cards of a row are equally high."""
    rows: list[list[Block]] = []
    filled = 0.0
    for block in blocks:
        needed = block.width + 2 * padding
        if not rows or filled + gap + needed > width:
            rows.append([block])
            filled = needed
        else:
            rows[-1].append(block)
            filled += gap + needed
    lines = []
    for row in rows:
        height = max(block.height for block in row)
        lines.append(beside([card(dataclasses.replace(block, height=height), padding) for block in row], gap))
    return stacked(lines, gap)


def card(block: Block, padding: Number = 12) -> Block:
    """A block on a rounded card, white unless the block brings a style of its own."""
    width, height = block.width + 2 * padding, block.height + 2 * padding
    style = {"fill": CARD, "stroke": BORDER, **dict(block.card)}
    back = draw.Rectangle(0.5, 0.5, round(width - 1, 2), round(height - 1, 2), rx=9, **style)
    return Block(width, height, (back, block.at(padding, padding)))


def pill(content: str, *, fill: str, ink: str, size: Number = 11) -> Block:
    """A short word in a rounded badge."""
    word = text(content, size, bold=True, fill=ink)
    width, height = word.width + 16, size + 9
    back = draw.Rectangle(0, 0, round(width, 2), height, rx=height / 2, fill=fill)
    label = text(content, size, width=width, bold=True, fill=ink, anchor="middle")
    return Block(width, height, (back, label.at(0, (height - size * 1.24) / 2)))


def spread(left: Block, right: Block, width: Number) -> Block:
    """Two blocks on one line, at its two ends."""
    height = max(left.height, right.height)
    parts = (
        left.at(0, (height - left.height) / 2),
        right.at(width - right.width, (height - right.height) / 2),
    )
    return Block(width, height, parts)


def sheet(block: Block, title: str) -> Any:
    """The finished drawing: the block on a light sheet that reads on light and on dark pages."""
    width, height = round(block.width + 2 * MARGIN, 1), round(block.height + 2 * MARGIN, 1)
    drawing = draw.Drawing(
        width, height, font_family=FONT, role="img", style="max-width:100%;height:auto", id_prefix="phalanx"
    )
    drawing.append(draw.Title(_NOT_XML.sub("�", title)))
    drawing.append(
        draw.Rectangle(0.5, 0.5, width - 1, height - 1, rx=14, fill=SHEET, stroke=BORDER, stroke_width=1)
    )
    drawing.append(block.at(MARGIN, MARGIN))
    return drawing


def cell_size(shape: tuple[int, ...], box: Number, labels: bool = False, largest: Number = 30) -> float:
    """The side of a cell with which a grid of this shape fills a square box; digits need some room."""
    return float(np.clip(np.floor(2 * box / max(*shape, 1)) / 2, 11 if labels else 4, largest))


def grid_block(
    cells: Cells,
    side: Number,
    *,
    selected: Mask | None = None,
    palette: Palette = ARC,
    labels: bool = False,
) -> Block:
    """The cells at a given side, -1 left blank; one path a colour keeps a film strip a small file."""
    height, width = cells.shape
    if not cells.size:
        return blank_block((1, 1), side, "")
    parts: list[object] = []
    for color in range(NUM_COLORS):
        runs = list(_runs(cells == color))
        if runs:
            area = "".join(
                f"M{c * side:g} {r * side:g}h{n * side:g}v{side:g}h{-n * side:g}z" for r, c, n in runs
            )
            parts.append(
                draw.Path(
                    area,
                    fill=palette.colors[color],
                    shape_rendering="crispEdges",
                    class_=f"cells color-{color}",
                )
            )
    filled = cells >= 0
    # Inner lines lie between two cells that exist; the rim around them is a stronger line.
    lines = _edges(filled, side, inner=True)
    if lines:
        parts.append(draw.Path(lines, stroke="#8A8F99", stroke_opacity=0.55, stroke_width=1, fill="none"))
    parts.append(_stroke(_edges(filled, side), GRID_EDGE, 1.2, "rim"))
    if labels:
        parts.append(_digits(cells, side, palette))
    if selected is not None and selected.any():
        outline = _edges(selected, side)
        width_out = float(np.clip(side / 4, 3, 5))
        # White inside black: one of the two stands out against every colour.
        parts.append(_stroke(outline, "#0B0D12", width_out, "selection-casing"))
        parts.append(_stroke(outline, "#FFFFFF", width_out * 0.5, "selection"))
    return Block(width * side, height * side, tuple(parts))


def blank_block(shape: tuple[int, int], side: Number, sign: str) -> Block:
    """A dashed empty frame, for a grid that is not known or holds nothing."""
    width, height = max(shape[1] * side, 28), max(shape[0] * side, 28)
    frame = draw.Rectangle(
        0.5,
        0.5,
        width - 1,
        height - 1,
        rx=3,
        fill="none",
        stroke=MUTED,
        stroke_opacity=0.6,
        stroke_dasharray="4 3",
    )
    size = min(height * 0.5, 30)
    parts: tuple[object, ...] = (frame,)
    if sign:
        parts += (
            draw.Text(sign, size, width / 2, height / 2 + size * 0.36, fill=MUTED, text_anchor="middle"),
        )
    return Block(width, height, parts)


def _stroke(path: str, color: str, width: Number, name: str) -> draw.Path:
    return draw.Path(
        path, stroke=color, stroke_width=round(width, 2), stroke_linecap="square", fill="none", class_=name
    )


def _digits(cells: Cells, side: Number, palette: Palette) -> draw.Group:
    size = round(side * 0.52, 1)
    group = draw.Group(text_anchor="middle", font_weight=600, class_="digits")
    for (r, c), color in np.ndenumerate(cells):
        if color >= 0:
            x, y = (c + 0.5) * side, (r + 0.5) * side + size * 0.36
            group.append(
                draw.Text(str(int(color)), size, round(x, 1), round(y, 1), fill=palette.ink(int(color)))
            )
    return group


def _runs(mask: Mask) -> Iterator[tuple[int, int, int]]:
    """Horizontal runs of true cells: row, first column, length."""
    for r, row in enumerate(mask):
        bounds = np.flatnonzero(np.diff(np.concatenate(([0], row.astype(np.int8), [0]))))
        for start, stop in zip(bounds[::2], bounds[1::2], strict=True):
            yield r, int(start), int(stop - start)


def _edges(mask: Mask, side: Number, inner: bool = False) -> str:
    """Path of the lines around the true cells or, with `inner`, between two of them."""
    padded = np.pad(mask, 1)
    above, left = padded[:-1, 1:-1], padded[1:-1, :-1]
    below, right = padded[1:, 1:-1], padded[1:-1, 1:]
    across = (above & below) if inner else (above ^ below)
    down = (left & right) if inner else (left ^ right)
    level = "".join(f"M{c * side:g} {r * side:g}h{n * side:g}" for r, c, n in _runs(across))
    upright = "".join(f"M{c * side:g} {r * side:g}v{n * side:g}" for c, r, n in _runs(down.T))
    return level + upright

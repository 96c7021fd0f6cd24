"""Draws grids as SVG blocks, with cells, lines, digits and the outline of the selection."""

from collections.abc import Iterator

import drawsvg as draw
import numpy as np

from phalanx.arc.operations import NUM_COLORS
from phalanx.arc.rendering.palette import ARC, GRID_EDGE, Palette
from phalanx.arc.rendering.snapshot import Cells, Mask
from phalanx.svg import MUTED, Number, SvgBlock


def cell_size(shape: tuple[int, ...], box: Number, labels: bool = False, largest: Number = 30) -> float:
    """Compute the side of a cell in pixels such that a grid fits in a square box.

    The result has a minimum, so large grids may exceed the box.

    Args:
        shape: Height and width of the grid.
        box: Side of the box in pixels.
        labels: Whether cells contain digits, for which the minimum is larger.
        largest: Maximum side of a cell in pixels.
    """
    return float(np.clip(np.floor(2 * box / max(*shape, 1)) / 2, 11 if labels else 4, largest))


def grid_block(
    cells: Cells,
    side: Number,
    *,
    selected: Mask | None = None,
    palette: Palette = ARC,
    labels: bool = False,
) -> SvgBlock:
    """Draw a grid. Cells of -1 are left empty. All cells of one color are a single path, which keeps files
    small.

    Args:
        cells: The grid.
        side: Side of a cell in pixels.
        selected: Mask of cells to outline, or None.
        palette: Colors of the cells.
        labels: Whether to write a digit in each cell.
    """
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
    # Thin lines between cells, and a stronger line around the grid.
    lines = _edges(filled, side, inner=True)
    if lines:
        parts.append(draw.Path(lines, stroke="#8A8F99", stroke_opacity=0.55, stroke_width=1, fill="none"))
    parts.append(_stroke(_edges(filled, side), GRID_EDGE, 1.2, "rim"))
    if labels:
        parts.append(_digits(cells, side, palette))
    if selected is not None and selected.any():
        outline = _edges(selected, side)
        width_out = float(np.clip(side / 4, 3, 5))
        # White on black has contrast with every color.
        parts.append(_stroke(outline, "#0B0D12", width_out, "selection-casing"))
        parts.append(_stroke(outline, "#FFFFFF", width_out * 0.5, "selection"))
    return SvgBlock(width * side, height * side, tuple(parts))


def blank_block(shape: tuple[int, int], side: Number, sign: str) -> SvgBlock:
    """Draw an empty frame with dashed lines, for a grid that is unknown or empty.

    Args:
        shape: Height and width of the frame in cells.
        side: Side of a cell in pixels.
        sign: Text in the center of the frame; empty for none.
    """
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
    return SvgBlock(width, height, parts)


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
    """Iterate over the horizontal runs of True cells. Each is given by its row, its first column and its
    length."""
    for r, row in enumerate(mask):
        bounds = np.flatnonzero(np.diff(np.concatenate(([0], row.astype(np.int8), [0]))))
        for start, stop in zip(bounds[::2], bounds[1::2], strict=True):
            yield r, int(start), int(stop - start)


def _edges(mask: Mask, side: Number, inner: bool = False) -> str:
    """Return the SVG path of the lines around the True cells. With `inner`, it consists of the lines between
    adjacent True cells instead."""
    padded = np.pad(mask, 1)
    above, left = padded[:-1, 1:-1], padded[1:-1, :-1]
    below, right = padded[1:, 1:-1], padded[1:-1, 1:]
    across = (above & below) if inner else (above ^ below)
    down = (left & right) if inner else (left ^ right)
    level = "".join(f"M{c * side:g} {r * side:g}h{n * side:g}" for r, c, n in _runs(across))
    upright = "".join(f"M{c * side:g} {r * side:g}v{n * side:g}" for c, r, n in _runs(down.T))
    return level + upright

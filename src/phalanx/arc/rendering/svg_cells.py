"""Draws grids as SVG blocks, with cells, lines and the outline of the selection."""

from collections.abc import Iterable, Iterator

import drawsvg as draw
import numpy as np

from phalanx.arc.operations import NUM_COLORS
from phalanx.arc.rendering.palette import ARC, GRID_EDGE, Palette
from phalanx.arc.rendering.snapshot import Cells, Mask
from phalanx.svg import MUTED, Number, SvgBlock


def cell_size(shapes: Iterable[tuple[int, ...]], box: Number) -> float:
    """Compute the side of a cell in pixels so that each grid fits in a square box.

    The side is limited to the range from 4 to 30 pixels, so large grids may exceed the box.

    Args:
        shapes: Height and width of each grid.
        box: Side of the box in pixels.
    """
    longest = max(1, *(max(shape) for shape in shapes))
    return float(np.clip(np.floor(2 * box / longest) / 2, 4, 30))


def grid_block(
    cells: Cells, side: Number, *, selected: Mask | None = None, palette: Palette = ARC
) -> SvgBlock:
    """Draw a grid. Cells with the value -1 are left empty.

    All cells of one color are drawn with a single SVG path, which keeps files small.

    Args:
        cells: The grid.
        side: Side of a cell in pixels.
        selected: Mask of cells to outline, or None.
        palette: Colors of the cells.
    """
    height, width = cells.shape
    if not cells.size:
        return blank_block((1, 1), side, "")
    parts: list[object] = []
    for color in range(NUM_COLORS):
        area = "".join(
            f"M{c * side:g} {r * side:g}h{n * side:g}v{side:g}h{-n * side:g}z"
            for r, c, n in _runs(cells == color)
        )
        if area:
            style = {"shape_rendering": "crispEdges", "class_": f"cells color-{color}"}
            parts.append(draw.Path(area, fill=palette.colors[color], **style))
    filled = cells >= 0
    # Thin lines between cells, and a stronger line around the grid.
    lines = _edges(filled, side, inner=True)
    if lines:
        parts.append(draw.Path(lines, stroke="#8A8F99", stroke_opacity=0.55, stroke_width=1, fill="none"))
    parts.append(_stroke(_edges(filled, side), GRID_EDGE, 1.2, "rim"))
    if selected is not None and selected.any():
        outline = _edges(selected, side)
        width_out = float(np.clip(side / 4, 3, 5))
        # White on black contrasts with every color.
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
    dashes = {"stroke": MUTED, "stroke_opacity": 0.6, "stroke_dasharray": "4 3"}
    parts = [draw.Rectangle(0.5, 0.5, width - 1, height - 1, rx=3, fill="none", **dashes)]
    if sign:
        size = min(height * 0.5, 30)
        y = height / 2 + size * 0.36
        parts.append(draw.Text(sign, size, width / 2, y, fill=MUTED, text_anchor="middle"))
    return SvgBlock(width, height, tuple(parts))


def grid_or_blank(cells: Cells | None, side: Number, palette: Palette, shape: tuple[int, int]) -> SvgBlock:
    """Draw a grid or, if it is None, an empty frame of the given shape with a question mark."""
    return blank_block(shape, side, "?") if cells is None else grid_block(cells, side, palette=palette)


def _stroke(path: str, color: str, width: Number, name: str) -> draw.Path:
    return draw.Path(
        path, stroke=color, stroke_width=round(width, 2), stroke_linecap="square", fill="none", class_=name
    )


def _runs(mask: Mask) -> Iterator[tuple[int, int, int]]:
    """Iterate over the horizontal runs of True cells. Each is given by its row, its first column and its
    length."""
    for r, row in enumerate(mask):
        bounds = np.flatnonzero(np.diff(np.concatenate(([0], row.astype(np.int8), [0]))))
        for start, stop in zip(bounds[::2], bounds[1::2], strict=True):
            yield r, int(start), int(stop - start)


def _edges(mask: Mask, side: Number, inner: bool = False) -> str:
    """Return the SVG path of the lines around the True cells or, if `inner` is true, of the lines between
    adjacent True cells."""
    padded = np.pad(mask, 1)
    above, left = padded[:-1, 1:-1], padded[1:-1, :-1]
    below, right = padded[1:, 1:-1], padded[1:-1, 1:]
    across = (above & below) if inner else (above ^ below)
    down = (left & right) if inner else (left ^ right)
    level = "".join(f"M{c * side:g} {r * side:g}h{n * side:g}" for r, c, n in _runs(across))
    upright = "".join(f"M{c * side:g} {r * side:g}v{n * side:g}" for c, r, n in _runs(down.T))
    return level + upright

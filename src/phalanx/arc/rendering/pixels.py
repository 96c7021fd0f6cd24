"""Draws ARC states as pixels."""

import numpy as np
from jaxtyping import Int8, UInt8

from phalanx.arc.rendering.palette import ARC, GRID_EDGE, rgb
from phalanx.arc.rendering.snapshot import snapshot
from phalanx.arc.state import ArcState
from phalanx.svg import SHEET

MIN_CELL_PIXELS = 12
"""Minimum side of a cell in pixels, including the grid line. Also the width of the gap between two grids."""
MIN_CANVAS_PIXELS = 240
"""Approximate minimum length, in pixels, of the longer side of a rendered canvas. The cells of small canvases
are enlarged to reach this length."""


_COLORS = np.array([rgb(color) for color in (*ARC.colors, GRID_EDGE, SHEET)], np.uint8)
"""Colors of the cell values 0 to 9, of lines (index -2) and of the background (index -1)."""


def draw_pixels(state: ArcState, *, show_target: bool = True) -> UInt8[np.ndarray, "height width 3"]:
    """Draw the input, the working grid and the target of a single state next to each other.

    Each is drawn on a canvas of the same size.

    Args:
        state: The state.
        show_target: Draw the target. It must be False if the target is secret.
    """
    view = snapshot(state)
    grids = [view.input, view.working, *([view.target] if show_target else [])]
    cell = max(MIN_CELL_PIXELS, MIN_CANVAS_PIXELS // max(state.grid_shape))
    panels = [_draw_cells(np.asarray(grid), state.grid_shape, cell) for grid in grids]
    gap = np.full((panels[0].shape[0], MIN_CELL_PIXELS, 3), _COLORS[-1], np.uint8)
    return np.concatenate([part for panel in panels for part in (panel, gap)][:-1], axis=1)


def _draw_cells(
    grid: Int8[np.ndarray, "rows columns"], shape: tuple[int, int], cell: int
) -> UInt8[np.ndarray, "_ _ 3"]:
    canvas = np.full(shape, -1, np.int8)
    canvas[: grid.shape[0], : grid.shape[1]] = grid
    canvas = canvas.repeat(cell, axis=0).repeat(cell, axis=1)
    line = np.zeros(canvas.shape, bool)
    line[::cell], line[:, ::cell] = True, True
    return _COLORS[np.where(line & (canvas >= 0), -2, canvas)]

"""Render modes of `ArcEnvironment.render`: SVG, terminal text and pixels."""

from typing import Any

import numpy as np
from jaxtyping import Int8, UInt8

from phalanx.arc.rendering.palette import ARC, GRID_EDGE, rgb
from phalanx.arc.rendering.snapshot import snapshot
from phalanx.arc.state import ArcState
from phalanx.svg import SHEET

RENDER_MODES = ("svg", "ansi", "rgb_array")

MIN_CELL_PIXELS = 12
"""Minimum side of a cell in pixels, including the grid line. Also the width of the gap between two grids."""
MIN_CANVAS_PIXELS = 240
"""Approximate minimum length, in pixels, of the longer side of a rendered canvas. The cells of small canvases
are enlarged to reach this length."""


_COLORS = np.array([rgb(color) for color in (*ARC.colors, GRID_EDGE, SHEET)], np.uint8)
"""Colors of the cell values 0 to 9, of lines (index -2) and of the background (index -1)."""


def render_state_as(state: ArcState, mode: str, *, show_target: bool = True) -> Any:
    """Render a single state.

    Args:
        state: The state.
        mode: `svg` returns SVG text, `ansi` returns text with terminal colors, and `rgb_array` returns
            pixels.
        show_target: Show the target. It must be False if the target is secret.
    """
    if mode == "svg":
        from phalanx.arc.rendering.svg_task import draw_state

        return draw_state(state, show_target=show_target).as_svg()
    if mode == "ansi":
        return _text(state, show_target)
    if mode == "rgb_array":
        return _pixels(state, show_target)
    raise ValueError(f"ARC can be rendered as {', '.join(RENDER_MODES)}, got {mode!r}")


def _text(state: ArcState, show_target: bool) -> str:
    from rich.console import Console

    from phalanx.arc.rendering.terminal import render_state

    # Fixed settings, so that the result does not depend on the terminal.
    console = Console(force_terminal=True, color_system="truecolor", width=120, legacy_windows=False)
    with console.capture() as captured:
        console.print(render_state(state, show_target=show_target))
    return captured.get()


def _pixels(state: ArcState, show_target: bool) -> UInt8[np.ndarray, "height width 3"]:
    """Draw the input, the working grid and the target next to each other. Each is drawn on a canvas of the
    same size."""
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

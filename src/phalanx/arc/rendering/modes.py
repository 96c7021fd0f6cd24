"""One state as an environment's `render` gives it: SVG text, terminal text or an array of pixels.

What the first two look like is decided in `svg` and `terminal`.
"""

import functools
import io
from typing import Any

import numpy as np
from jaxtyping import Int8, UInt8

from phalanx.arc.rendering.palette import ARC, GRID_EDGE, rgb
from phalanx.arc.rendering.snapshot import snapshot
from phalanx.arc.state import ArcState
from phalanx.svg import SHEET

RENDER_MODES = ("svg", "ansi", "rgb_array")

LEAST_CELL = 12
"""Pixels on a cell's side, its line included, on the largest canvas; also between the grids."""
LEAST_SIDE = 240
"""Pixels that the longer side of a canvas has, about: small grids have larger cells."""


def render_picture(state: ArcState, mode: str, *, show_target: bool = True) -> Any:
    """A single state in one of the `RENDER_MODES`; without its target where that is a secret."""
    if mode == "svg":
        from phalanx.arc.rendering.svg_task import draw_state

        return draw_state(state, show_target=show_target).as_svg()
    if mode == "ansi":
        return _text(state, show_target)
    if mode == "rgb_array":
        return _pixels(state, show_target)
    raise ValueError(f"ARC is drawn as {', '.join(RENDER_MODES)}, not as {mode!r}")


def _text(state: ArcState, show_target: bool) -> str:
    from rich.console import Console

    from phalanx.arc.rendering.terminal import render_state

    file = io.StringIO()
    # The same anywhere, whatever terminal this runs in.
    console = Console(
        file=file, force_terminal=True, color_system="truecolor", width=120, legacy_windows=False
    )
    console.print(render_state(state, show_target=show_target))
    return file.getvalue()


def _pixels(state: ArcState, show_target: bool) -> UInt8[np.ndarray, "height width 3"]:
    """Input, working grid and target beside one another on canvases of one size."""
    view = snapshot(state)
    grids = [view.input, view.working, *([view.target] if show_target else [])]
    cell = max(LEAST_CELL, LEAST_SIDE // max(state.grid_shape))
    panels = [_painted(np.asarray(grid), state.grid_shape, cell) for grid in grids]
    gap = np.full((panels[0].shape[0], LEAST_CELL, 3), _colors()[-1], np.uint8)
    return np.concatenate([part for panel in panels for part in (panel, gap)][:-1], axis=1)


def _painted(
    grid: Int8[np.ndarray, "rows columns"], shape: tuple[int, int], cell: int
) -> UInt8[np.ndarray, "_ _ 3"]:
    canvas = np.full(shape, -1, np.int8)
    canvas[: grid.shape[0], : grid.shape[1]] = grid
    pixels = np.repeat(np.repeat(_colors()[canvas], cell, axis=0), cell, axis=1)
    inside = np.repeat(np.repeat(canvas >= 0, cell, axis=0), cell, axis=1)
    line = np.zeros(inside.shape, bool)
    line[::cell], line[:, ::cell] = True, True
    pixels[inside & line] = _colors()[-2]
    return pixels


@functools.cache
def _colors() -> UInt8[np.ndarray, "colors 3"]:
    """The colors of the values 0 to 9, of the lines, and last, for -1, of the sheet."""
    return np.array([rgb(color) for color in (*ARC.colors, GRID_EDGE, SHEET)], np.uint8)

"""Pictures of one state for Gymnasium's `render`: text, and for ARC an array of pixels.

Drawings for people to read are in the domains, such as `phalanx.arc.render`.
"""

import functools
import io
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Int8, UInt8

from phalanx.core.environment import Environment
from phalanx.proofs.knowledge.vocabulary import IndexManager

Renderers = Mapping[str, Callable[[Any], Any]]
"""What makes a picture of a state, by render mode."""

CELL = 12
"""Pixels on a cell's side, its line included."""


def renderers_of(environment: Environment, index_manager: IndexManager | None = None) -> Renderers:
    """`ansi` and `rgb_array` for ARC, `ansi` for proofs whose names are known, none for others."""
    from phalanx.arc.environment import ArcEnvironment
    from phalanx.proofs.search.environment import ProofEnv

    if isinstance(environment, ArcEnvironment):
        # In evaluation the target is a secret, in a picture too.
        shown = environment.config.environment.mode == "training"
        return {
            "ansi": functools.partial(_arc_text, shown),
            "rgb_array": functools.partial(_arc_pixels, environment.config.grid_shape, shown),
        }
    if isinstance(environment, ProofEnv) and index_manager is not None:
        return {"ansi": functools.partial(_proof_text, index_manager)}
    return {}


def _arc_text(show_target: bool, state: Any) -> str:
    from rich.console import Console

    from phalanx.arc.render.terminal import render_state

    file = io.StringIO()
    # The same anywhere, whatever terminal this runs in.
    console = Console(
        file=file, force_terminal=True, color_system="truecolor", width=120, legacy_windows=False
    )
    console.print(render_state(state, show_target=show_target))
    return file.getvalue()


def _arc_pixels(shape: tuple[int, int], show_target: bool, state: Any) -> UInt8[np.ndarray, "height width 3"]:
    """Input, working grid and target beside one another on canvases of one size."""
    from phalanx.arc.render.snapshots import snapshot

    view = snapshot(state)
    grids = [view.input, view.working, *([view.target] if show_target else [])]
    panels = [_painted(np.asarray(grid), shape) for grid in grids]
    gap = np.full((panels[0].shape[0], CELL, 3), _colors()[-1], np.uint8)
    return np.concatenate([part for panel in panels for part in (panel, gap)][:-1], axis=1)


def _painted(grid: Int8[np.ndarray, "rows columns"], shape: tuple[int, int]) -> UInt8[np.ndarray, "_ _ 3"]:
    canvas = np.full(shape, -1, np.int8)
    canvas[: grid.shape[0], : grid.shape[1]] = grid
    pixels = np.repeat(np.repeat(_colors()[canvas], CELL, axis=0), CELL, axis=1)
    inside = np.repeat(np.repeat(canvas >= 0, CELL, axis=0), CELL, axis=1)
    line = np.zeros(inside.shape, bool)
    line[::CELL], line[:, ::CELL] = True, True
    pixels[inside & line] = _colors()[-2]
    return pixels


@functools.cache
def _colors() -> UInt8[np.ndarray, "colors 3"]:
    """The colours of the values 0 to 9, of the lines, and last, for -1, of the sheet."""
    from phalanx.arc.render.palette import ARC, GRID_EDGE, rgb
    from phalanx.core.drawing import SHEET

    return np.array([rgb(color) for color in (*ARC.colors, GRID_EDGE, SHEET)], np.uint8)


def _proof_text(index_manager: IndexManager, state: Any) -> str:
    """The goals, and what each legal action leads to."""

    def goals(rows: Any) -> str:
        return ", ".join(map(str, index_manager.decode_state(np.asarray(rows))))

    lines = [f"step {int(state.step_count)}: {goals(state.goals)}"]
    lines += [
        f"  {number}: {goals(rows)}" for number, rows in enumerate(state.successors[: int(state.count)])
    ]
    return "\n".join(lines) + "\n"

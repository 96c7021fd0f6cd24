"""Draws tasks, states and episodes in the terminal, as Rich renderables.

Each cell is two columns wide, or one column if the terminal is too narrow.
"""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
from rich.columns import Columns
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.measure import Measurement
from rich.panel import Panel
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from phalanx.arc.rendering.frames import EpisodeFrame, frames_to_show
from phalanx.arc.rendering.palette import ARC, Palette, PaletteName, palette_named
from phalanx.arc.rendering.snapshot import Cells, Mask, StateSnapshot, snapshot
from phalanx.arc.state import ArcState
from phalanx.arc.tasks import ArcTask, GridPair
from phalanx.formatting import format_percent

_STATUS_STYLES = {"solved": "bold green", "ended": "bold red", "running": "dim"}


@dataclasses.dataclass(frozen=True, eq=False)
class TerminalGrid:
    """Rich renderable that draws a grid with colored blocks, or with digits if the console has no colors."""

    cells: Cells
    palette: Palette = ARC
    selected: Mask | None = None
    """Mask of the cells to mark; None to mark no cells."""

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        columns = max(self.cells.shape[1], 1)
        width = 2 * columns if 2 * columns <= options.max_width else min(columns, options.max_width)
        return Measurement(width, width)

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType | Segment]:
        columns = self.cells.shape[1]
        max_columns = options.max_width
        wide = 2 * columns <= max_columns
        fits = columns if wide else min(columns, max_columns)
        colored = console.color_system is not None and not console.no_color
        # With sixteen colors, some cell colors look the same, so digits are added.
        labels = console.color_system in ("standard", "windows") or not colored
        if not self.cells.size:
            yield Segment("-")
            yield Segment.line()
        selected = np.zeros(self.cells.shape, bool) if self.selected is None else self.selected
        for row, marks in zip(self.cells.tolist(), selected.tolist(), strict=True):
            for color, marked in zip(row[:fits], marks[:fits], strict=True):
                yield self._cell(color, marked, wide, colored, labels)
            yield Segment.line()
        if fits < columns:
            yield Segment(f"+{columns - fits} columns"[:max_columns], Style(dim=True))
            yield Segment.line()

    def _cell(self, color: int, marked: bool, wide: bool, colored: bool, labels: bool) -> Segment:
        if color < 0:
            return Segment("  " if wide else " ")
        digit = str(color) if labels else ""
        if wide:
            sign = (f"*{digit}" if marked else f" {digit}") if digit else ("[]" if marked else "  ")
        else:
            sign = "*" if marked else digit or " "
        if not colored:
            return Segment(sign, Style(bold=True, reverse=True) if marked else None)
        ink, background = self.palette.ink(color), self.palette.colors[color]
        return Segment(sign, Style(color=ink, bgcolor=background, bold=marked))


def render_task(task: ArcTask, *, palette: PaletteName = "arc") -> RenderableType:
    """Draw all pairs of a task, demonstrations first. The input and output of a pair are next to each other,
    or one below the other in a narrow terminal."""
    heading = Text(task.id, style="bold")
    if task.family:
        heading.append(f"  {task.family}", style="dim")
    colors = palette_named(palette)
    demos = [_pair(pair, f"demo {number}", colors) for number, pair in enumerate(task.demos, 1)]
    tests = [_pair(pair, f"test {number}", colors) for number, pair in enumerate(task.tests, 1)]
    return Group(heading, *demos, *tests)


def render_state(
    state: ArcState | StateSnapshot, *, show_target: bool = True, palette: PaletteName = "arc"
) -> RenderableType:
    """Draw a single state: the input, the working grid with the selection, the target, the clipboard, the
    step count and the similarity."""
    view = snapshot(state)
    colors = palette_named(palette)
    grids = {"input": view.input, "working": view.working}
    if show_target:
        grids["target"] = view.target
    if view.clipboard.size:
        grids["clipboard"] = view.clipboard
    panels = [
        _grid_panel(TerminalGrid(grid, colors, view.selected if name == "working" else None), name)
        for name, grid in grids.items()
    ]
    facts = Text(
        f"step {view.step} · {view.operation_name} · similarity {format_percent(view.similarity)} · "
    )
    facts.append(view.status, style=_STATUS_STYLES[view.status])
    return Group(Text(view.title, style="bold"), facts, Columns(panels))


def render_episode(
    frames: Sequence[EpisodeFrame],
    *,
    title: str = "Episode",
    max_frames: int = 24,
    palette: PaletteName = "arc",
) -> RenderableType:
    """Draw the steps of an episode in rows. If there are more than `max_frames` frames, only the beginning
    and the end are shown."""
    colors = palette_named(palette)
    panels = [
        _panel("", item) if isinstance(item, str) else _step(item, colors)
        for item in frames_to_show(frames, max_frames)
    ]
    heading = Text(title, style="bold")
    final = frames[-1]
    heading.append(f"  {final.status}", style=_STATUS_STYLES[final.status])
    return Group(heading, Columns(panels))


def _pair(pair: GridPair, title: str, palette: Palette) -> Columns:
    output = _panel(Text("?", style="dim"), f"{title} output")
    if pair.output is not None:
        output = _grid_panel(TerminalGrid(pair.output, palette), f"{title} output")
    return Columns([_grid_panel(TerminalGrid(pair.input, palette), f"{title} input"), output])


def _step(frame: EpisodeFrame, palette: Palette) -> Panel:
    text = Text(frame.selection_text, style="dim", no_wrap=True, overflow="ellipsis")
    if frame.result_text:
        text.append(f"\n{frame.result_text}")
    if frame.status != "running":
        text.append(f"\n{frame.status}", style=_STATUS_STYLES[frame.status])
    grid = TerminalGrid(frame.grid, palette, frame.selected)
    edge = "green" if frame.solved else "dim"
    return _panel(Group(grid, text), f"{frame.step} {frame.name}", edge)


def _grid_panel(grid: TerminalGrid, title: str) -> Panel:
    height, width = grid.cells.shape
    return _panel(grid, f"{title} {height}×{width}")


def _panel(content: RenderableType, title: str, style: str = "dim") -> Panel:
    """Draw content in a frame that is as wide as necessary."""
    # Two spaces, because Rich makes a panel two columns too narrow for its title.
    label = Text(f"{title}  ", style="not dim")
    return Panel(content, title=label, title_align="left", border_style=style, padding=0, expand=False)

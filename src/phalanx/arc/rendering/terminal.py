"""Draws grids, pairs, tasks, states and episodes in the terminal, as Rich renderables.

Each cell is two columns wide, or one column if the terminal is too narrow.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.panel import Panel
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text

from phalanx.arc.rendering.episode_steps import GridStep, steps_to_show
from phalanx.arc.rendering.palette import ARC, Palette, PaletteName, palette_named
from phalanx.arc.rendering.snapshot import (
    Cells,
    GridLike,
    Mask,
    MaskLike,
    StateSnapshot,
    as_cells,
    as_mask,
    snapshot,
)
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
        # A cell is two columns wide, or one if the terminal is narrow.
        wide = columns * 2 if columns * 2 <= options.max_width else columns
        return Measurement(columns, wide).with_maximum(options.max_width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns, max_columns = self.cells.shape[1], options.max_width
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


def render_grid(
    grid: GridLike, *, title: str = "", selected: MaskLike | None = None, palette: PaletteName = "arc"
) -> RenderableType:
    """Draw a grid in a frame that also shows its size.

    Args:
        grid: The grid, which may be padded with -1.
        title: Title of the frame; empty for none.
        selected: Mask of cells to mark, with the shape of `grid`. If None, no cells are marked.
        palette: `arc`, or `safe` for color-blind readers.
    """
    colors = palette_named(palette)
    return _panel(TerminalGrid(as_cells(grid), colors, as_mask(selected, grid)), title)


def render_pair(pair: GridPair, *, title: str = "", palette: PaletteName = "arc") -> RenderableType:
    """Draw the input and output of a pair next to each other, or one below the other in a narrow terminal."""
    colors, name = palette_named(palette), f"{title} output".strip()
    output = _Framed(Text("?", style="dim"), name)
    if pair.output is not None:
        output = _panel(TerminalGrid(pair.output, colors), name)
    return _Row([_panel(TerminalGrid(pair.input, colors), f"{title} input".strip()), output])


def render_task(task: ArcTask, *, palette: PaletteName = "arc") -> RenderableType:
    """Draw all pairs of a task, demonstrations first."""
    heading = Text(task.id, style="bold")
    if task.family:
        heading.append(f"  {task.family}", style="dim")
    named = [(f"demo {i + 1}", pair) for i, pair in enumerate(task.demos)]
    named += [(f"test {i + 1}", pair) for i, pair in enumerate(task.tests)]
    return Group(heading, _Row([render_pair(pair, title=name, palette=palette) for name, pair in named]))


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
        _panel(TerminalGrid(grid, colors, view.selected if name == "working" else None), name)
        for name, grid in grids.items()
    ]
    facts = Text(
        f"step {view.step} · {view.operation_name} · similarity {format_percent(view.similarity)} · "
    )
    facts.append(view.status, style=_STATUS_STYLES[view.status])
    return Group(Text(view.title, style="bold"), facts, _Row(panels))


def format_state(state: ArcState, *, show_target: bool = True) -> str:
    """Return the drawing of `render_state` as text with terminal colors, independent of the terminal."""
    console = Console(force_terminal=True, color_system="truecolor", width=120, legacy_windows=False)
    with console.capture() as captured:
        console.print(render_state(state, show_target=show_target))
    return captured.get()


def render_episode(
    steps: Sequence[GridStep],
    *,
    title: str = "Episode",
    max_steps: int = 24,
    palette: PaletteName = "arc",
) -> RenderableType:
    """Draw the steps of an episode in rows. If there are more than `max_steps`, only the beginning and the
    end are shown."""
    colors = palette_named(palette)
    panels = [
        _Framed(Text(""), item) if isinstance(item, str) else _step(item, colors)
        for item in steps_to_show(steps, max_steps)
    ]
    heading = Text(title, style="bold")
    final = steps[-1]
    heading.append(f"  {final.status}", style=_STATUS_STYLES[final.status])
    return Group(heading, _Row(panels))


def _step(step: GridStep, palette: Palette) -> "_Framed":
    text = Text(step.selection_text, style="dim", no_wrap=True, overflow="ellipsis")
    if step.result_text:
        text.append(f"\n{step.result_text}")
    if step.status != "running":
        text.append(f"\n{step.status}", style=_STATUS_STYLES[step.status])
    grid = TerminalGrid(step.grid, palette, step.selected)
    return _Framed(Group(grid, text), f"{step.step} {step.name}", "green" if step.solved else "dim")


def _panel(grid: TerminalGrid, title: str) -> "_Framed":
    height, width = grid.cells.shape
    return _Framed(grid, f"{title} {height}×{width}".strip())


@dataclasses.dataclass(frozen=True, eq=False)
class _Framed:
    """Content in a frame with a title. The frame is as wide as necessary."""

    content: RenderableType
    title: str
    style: str = "dim"

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        # The border takes one column on each side, the title three.
        inner = options.update_width(max(options.max_width - 2, 1))
        content = Measurement.get(console, inner, self.content).maximum
        width = min(options.max_width, max(content + 2, cell_len(self.title) + 6))
        return Measurement(width, width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = self.__rich_measure__(console, options).maximum
        title = Text(self.title, style="not dim")
        style = self.style
        yield Panel(self.content, title=title, title_align="left", border_style=style, padding=0, width=width)


@dataclasses.dataclass(frozen=True, eq=False)
class _Row:
    """Draws renderables from left to right. If they do not fit in the width of the terminal, they continue in
    the next row."""

    parts: Sequence[RenderableType]

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        widths = [Measurement.get(console, options, part).maximum for part in self.parts]
        total = min(sum(widths) + len(widths) - 1, options.max_width)
        return Measurement(min(max(widths), total), total)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows: list[list[RenderableType]] = []
        filled = options.max_width
        for part in self.parts:
            width = Measurement.get(console, options, part).maximum
            filled += 1 + width
            if filled > options.max_width:
                rows.append([])
                filled = width
            rows[-1].append(part)
        for row in rows:
            line = Table.grid(padding=(0, 1, 0, 0), pad_edge=False)
            line.add_row(*row)
            yield line

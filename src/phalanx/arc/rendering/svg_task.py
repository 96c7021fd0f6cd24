"""Draws grids, pairs, tasks, states and failed outputs as SVG, or as HTML for notebooks."""

import html
from collections.abc import Mapping, Sequence

import drawsvg as draw

from phalanx.arc.rendering.palette import ARC, Palette, PaletteName, palette_named
from phalanx.arc.rendering.snapshot import (
    Cells,
    GridLike,
    MaskLike,
    StateSnapshot,
    as_cells,
    as_mask,
    snapshot,
    snapshots,
)
from phalanx.arc.rendering.svg_cells import blank_block, cell_size, grid_block, grid_or_blank
from phalanx.arc.state import ArcState
from phalanx.arc.tasks import ArcTask, GridPair
from phalanx.formatting import format_count, format_percent
from phalanx.svg import (
    ACCENT,
    BAD,
    BAD_TINT,
    GOOD,
    GOOD_TINT,
    MUTED,
    TEXT,
    TRACK,
    Number,
    SvgBlock,
    badge,
    flow_cards,
    hstack,
    justify,
    save_svg as save_svg,
    text_block,
    to_drawing,
    to_html,
    vstack,
)

SHEET_WIDTH = 1120
"""Maximum width of a row of cards, such as the pairs of a task, in pixels."""
_ANSWER_BOX = 110
"""Side of the square box in which a submitted grid is drawn, in pixels."""


def draw_grid(
    grid: GridLike, *, title: str = "", selected: MaskLike | None = None, palette: PaletteName = "arc"
) -> draw.Drawing:
    """Draw a grid.

    Args:
        grid: The grid, which may be padded with -1.
        title: Text above the grid, before the size of the grid. If empty, only the size is shown.
        selected: Mask of cells to outline, with the shape of `grid`. If None, no cells are outlined.
        palette: `arc`, or `safe` for color-blind readers.
    """
    cells, colors = as_cells(grid), palette_named(palette)
    side = cell_size([cells.shape], 320)
    drawn = grid_block(cells, side, selected=as_mask(selected, grid), palette=colors)
    size = f"{cells.shape[0]}×{cells.shape[1]}"
    heading = text_block(f"{title} · {size}" if title else size, 13, width=max(drawn.width, 120), fill=MUTED)
    return to_drawing(vstack([heading, drawn], 8), title or f"grid {size}")


def draw_pair(pair: GridPair, *, title: str = "Pair", palette: PaletteName = "arc") -> draw.Drawing:
    """Draw the input and output of a pair. A secret output is drawn as a dashed frame with a question mark.

    Args:
        pair: The pair.
        title: Title of the drawing.
        palette: `arc`, or `safe` for color-blind readers.
    """
    body = _pair_block(pair, _side((pair,), 280), palette_named(palette))
    heading = text_block(title, 16, width=max(body.width, 160), bold=True)
    return to_drawing(vstack([heading, body], 12), title)


def draw_task(task: ArcTask, *, palette: PaletteName = "arc") -> draw.Drawing:
    """Draw all pairs of a task at the same scale, demonstrations first.

    Args:
        task: The task.
        palette: `arc`, or `safe` for color-blind readers.
    """
    side, colors = _side(task.pairs, 190), palette_named(palette)
    blocks = []
    for kind, pairs, ink in (("Demo", task.demos, TEXT), ("Test", task.tests, ACCENT)):
        for number, pair in enumerate(pairs, 1):
            caption = text_block(f"{kind} {number}", 12, bold=True, fill=ink)
            blocks.append(vstack([caption, _pair_block(pair, side, colors)], 8))
    body = flow_cards(blocks, SHEET_WIDTH)
    counts = f"{format_count(len(task.demos), 'demo')} · {format_count(len(task.tests), 'test')}"
    facts = f"{task.family} · {counts}" if task.family else counts
    width = max(body.width, 260)
    name = text_block(task.id, 18, width=width, bold=True)
    heading = vstack([name, text_block(facts, 12, width=width, fill=MUTED)], 3)
    return to_drawing(vstack([heading, body], 16), f"task {task.id}")


def draw_state(
    state: ArcState | StateSnapshot, *, show_target: bool = True, palette: PaletteName = "arc"
) -> draw.Drawing:
    """Draw a state: the input, the working grid with the selection, the target, the clipboard, the last
    operation, the step count and the similarity.

    Args:
        state: A single state.
        show_target: Draw the target.
        palette: `arc`, or `safe` for color-blind readers.
    """
    view = snapshot(state)
    grids = {"Input": view.input, "Working": view.working} | ({"Target": view.target} if show_target else {})
    side = cell_size([grid.shape for grid in grids.values()], 250)
    colors = palette_named(palette)
    panels = []
    for name, grid in grids.items():
        selected = view.selected if name == "Working" else None
        caption, drawn = f"{name} · secret", blank_block(view.working.shape, side, "?")
        if grid.size:
            caption = f"{name} · {grid.shape[0]}×{grid.shape[1]}"
            drawn = grid_block(grid, side, selected=selected, palette=colors)
        panels.append(vstack([text_block(caption, 12, fill=MUTED), drawn], 6))
    remembered = text_block("empty", 12)
    if view.clipboard.size:
        small = min(side, cell_size([view.clipboard.shape], 84))
        remembered = grid_block(view.clipboard, small, palette=colors)
    facts = [
        _fact("Operation", text_block(view.operation_name, 13, bold=True)),
        _fact("Step", text_block(str(view.step), 13, bold=True)),
        _fact("Similarity", meter(view.similarity, 150)),
        _fact("Clipboard", remembered),
    ]
    body = flow_cards([hstack(panels, 22), vstack(facts, 12)], SHEET_WIDTH * 2)
    title = text_block(view.title, 16, width=body.width - 90, bold=True)
    heading = justify(title, status_pill(view.status), body.width)
    return to_drawing(vstack([heading, body], 14), f"{view.title}, step {view.step}")


def _pair_block(pair: GridPair, side: Number, palette: Palette) -> SvgBlock:
    """Draw the input of a pair, an arrow, and its output."""
    left = grid_block(pair.input, side, palette=palette)
    right = grid_or_blank(pair.output, side, palette, pair.input.shape)
    return hstack([left, arrow(), right], 10, "middle")


def arrow() -> SvgBlock:
    """Draw a small arrow that points to the right."""
    line = draw.Path(
        "M1 7h17M12 1l6 6l-6 6", stroke=MUTED, stroke_width=2, fill="none", stroke_linejoin="round"
    )
    return SvgBlock(20, 14, (line,))


def meter(value: Number, width: Number) -> SvgBlock:
    """Draw a fraction from 0 to 1 as a bar with a percentage. Values below 1 are never shown as 100%."""
    bar = width - 52
    track = draw.Rectangle(0, 4, bar, 7, rx=3.5, fill=TRACK)
    filled = draw.Rectangle(0, 4, round(bar * value, 2), 7, rx=3.5, fill=GOOD if value == 1 else ACCENT)
    label = text_block(format_percent(value), 12, width=46, bold=True, anchor="end")
    return SvgBlock(width, 16, (track, filled, label.at(width - 46, 0)))


def status_pill(status: str) -> SvgBlock:
    """Draw the status of an episode: solved, ended or running."""
    colors = {"solved": (GOOD_TINT, GOOD), "ended": (BAD_TINT, BAD), "running": (TRACK, MUTED)}
    fill, ink = colors[status]
    return badge(("✓ " if status == "solved" else "") + status, fill=fill, ink=ink)


def _fact(name: str, value: SvgBlock) -> SvgBlock:
    return vstack([text_block(name, 11, width=160, fill=MUTED), value], 3)


def _side(pairs: tuple[GridPair, ...], box: Number) -> float:
    """Compute the side of a cell in pixels so that each grid of the given pairs fits in a square box."""
    grids = [grid for pair in pairs for grid in (pair.input, pair.output) if grid is not None]
    return cell_size([grid.shape for grid in grids], box)


MAX_STATES = 3
"""Maximum number of states in a batch, or tasks in a buffer, that are drawn in a notebook."""


def task_html(task: ArcTask) -> str:
    """Return HTML that draws all pairs of a task in a notebook."""
    return to_html(draw_task(task))


def tasks_html(tasks: Sequence[ArcTask]) -> str:
    """Return HTML that draws the first `MAX_STATES` tasks in a notebook, followed by the number of remaining
    tasks."""
    drawn = "\n".join(f"<p>{html.escape(task.id)}</p>\n{task_html(task)}" for task in tasks[:MAX_STATES])
    rest = len(tasks) - MAX_STATES
    return f"{drawn}\n<p>… and {rest} more tasks</p>" if rest > 0 else drawn


def pair_html(pair: GridPair) -> str:
    """Return HTML that draws a pair in a notebook."""
    return to_html(draw_pair(pair))


def state_html(state: ArcState) -> str:
    """Return HTML that draws a state, or the first `MAX_STATES` states of a batch, in a notebook."""
    views = snapshots(state, MAX_STATES)
    drawn = "\n".join(to_html(draw_state(view)) for view in views)
    rest = state.similarity.size - len(views)
    return f"{drawn}\n<p>… and {rest} more in this batch</p>" if rest else drawn


def draw_failed_outputs(
    outputs: Mapping[str, tuple[Cells, Cells | None, Cells | None]], title: str
) -> draw.Drawing:
    """Draw test pairs whose submitted output is wrong, or cannot be checked because the expected output is
    secret.

    Args:
        outputs: Input, submitted output and expected output of each test pair, by pair name. The submitted
            output is None if nothing was submitted, and the expected output is None if it is secret.
        title: Title of the drawing.
    """
    cards = flow_cards((_card(name, grids) for name, grids in outputs.items()), SHEET_WIDTH)
    return to_drawing(vstack([text_block(title, 16, bold=True), cards], 12), title)


def _card(title: str, grids: tuple[Cells, Cells | None, Cells | None]) -> SvgBlock:
    side = cell_size([grid.shape for grid in grids if grid is not None], _ANSWER_BOX)
    blocks = [
        vstack([grid_or_blank(grid, side, ARC, grids[0].shape), text_block(name, 11, fill=MUTED)], 4)
        for name, grid in zip(("input", "submitted", "expected"), grids, strict=True)
    ]
    row = hstack([blocks[0], arrow(), blocks[1], blocks[2]], 10, "middle")
    return vstack([text_block(title, 12, width=row.width, bold=True), row], 6)


def draw_operations(counts: Mapping[str, int]) -> draw.Drawing:
    """Draw a bar chart of how often each operation was used.

    Args:
        counts: Number of uses of each operation, by name.
    """
    most = max(counts.values(), default=1)
    rows = []
    for name, count in sorted(counts.items(), key=lambda item: -item[1]):
        bar = draw.Rectangle(0, 3, round(max(1.0, 420 * count / most), 1), 9, rx=3, fill=ACCENT)
        label, number = text_block(name, 12, width=190), text_block(f"{count:,}", 12, width=80)
        rows.append(hstack([label, SvgBlock(430, 15, (bar,)), number], 8))
    return to_drawing(vstack([text_block("Operations used", 16, bold=True), *rows], 5), "Operations used")

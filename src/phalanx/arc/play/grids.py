"""Widgets that draw grids. The widget of the working grid also handles the mouse."""

import dataclasses
import functools

import numpy as np
from jaxtyping import Integer
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Region, Size
from textual.message import Message
from textual.reactive import reactive
from textual.strip import Strip
from textual.widget import Widget

from phalanx.arc.play.keys import CursorSelection
from phalanx.arc.rendering.palette import Palette, rgb

Grid = Integer[np.ndarray, "_ _"]

_OUTSIDE = Style(color="#5c6773", dim=True)
_BLEND = 0.08
"""Fraction of white (for dark colors) or black (for light colors) that is blended into the color of every
second cell, so that adjacent cells of the same color can be distinguished."""

# Terminals with 256 colors choose the nearest color themselves, which would turn lighter maroon into purple.
# So each color is mapped to a standard color, and to a second one with the same hue for every second cell.
_COLORS_256 = {
    "arc": "000000 0087D7 FF0000 00D75F FFD700 AFAFAF FF00AF FF8700 87D7FF 870000",
    "arc other": "121212 005FD7 D70000 00AF5F D7AF00 9E9E9E D70087 D78700 5FD7FF 5F0000",
    "safe": "000000 005FAF D70000 AFD7AF FFFF5F 949494 D700FF FF8700 5FAFFF AF005F",
    "safe other": "121212 005F87 AF0000 87D787 D7D75F 808080 AF00D7 D78700 5FAFD7 87005F",
}
_SPLIT_256 = {name: tuple(f"#{color}" for color in text.split()) for name, text in _COLORS_256.items()}
_OTHER_CELLS = {f"{name}-256": _SPLIT_256[f"{name} other"] for name in ("arc", "safe")}


def terminal_palette(palette: Palette, color_system: str | None) -> Palette:
    """Return the palette for a terminal. If the terminal does not support 24-bit colors, similar colors from
    the 256 standard colors are used.

    Args:
        palette: Palette to display.
        color_system: Name of the color system that Rich has detected; None if there are no colors.
    """
    if color_system in (None, "truecolor"):
        return palette
    return Palette(f"{palette.name}-256", _SPLIT_256[palette.name], palette.names)


def size_at(shape: tuple[int, int], scale: int) -> Size:
    """Compute the number of terminal columns and lines that a grid occupies.

    Args:
        shape: Height and width of the grid.
        scale: Scale at which the grid is drawn. A cell is `2 * scale` columns wide and `scale` lines high. At
            scale 0, a cell is one column wide and half a line high.

    >>> size_at((3, 4), 1), size_at((3, 4), 0)
    (Size(width=8, height=3), Size(width=4, height=2))
    """
    height, width = shape
    return Size(width, (height + 1) // 2) if scale == 0 else Size(2 * scale * width, scale * height)


class GridView(Widget):
    """Widget that draws a grid with colors."""

    DEFAULT_CSS = "GridView { width: auto; height: auto; }"

    def __init__(self, cells: Grid, palette: Palette, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.cells, self.palette, self.scale = cells, palette, 1
        self._drawn = Size(0, 0)

    @property
    def display_shape(self) -> tuple[int, int]:
        """Number of rows and columns of cells that are drawn."""
        height, width = self.cells.shape
        return height, width

    def show(self, cells: Grid, scale: int | None = None) -> None:
        """Replace the displayed grid. If `scale` is None, the scale does not change."""
        scale = self.scale if scale is None else scale
        if cells is not self.cells or scale != self.scale:
            self.cells, self.scale = cells, scale
            self._redraw()

    def _redraw(self) -> None:
        """Draw the widget again. The layout is updated only if the size has changed."""
        size = size_at(self.display_shape, self.scale)
        self.refresh(layout=size != self._drawn)
        self._drawn = size

    def get_content_width(self, container: Size, viewport: Size) -> int:
        return size_at(self.display_shape, self.scale).width

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return size_at(self.display_shape, self.scale).height

    def render_line(self, y: int) -> Strip:
        if y >= size_at(self.display_shape, self.scale).height:
            return Strip.blank(self.size.width)
        return Strip(self._halves(y) if self.scale == 0 else self._cells(y))

    def _halves(self, y: int) -> list[Segment]:
        colors = self.palette.colors
        upper = self.cells[2 * y].tolist()
        lower = self.cells[2 * y + 1].tolist() if 2 * y + 1 < len(self.cells) else [None] * len(upper)
        return [
            Segment("▀", _style(colors[top], None if bottom is None else colors[bottom]))
            for top, bottom in zip(upper, lower, strict=True)
        ]

    def _cells(self, y: int) -> list[Segment]:
        row = y // self.scale
        height, width = self.cells.shape
        segments = []
        for col, text in enumerate(self._texts(row, y)):
            if row < height and col < width:
                color, other = int(self.cells[row, col]), (row + col) % 2 == 1
                segments.append(Segment(text, _cell_style(self.palette, color, other, not text.isspace())))
            else:
                segments.append(Segment("·".center(2 * self.scale) if text.isspace() else text, _OUTSIDE))
        return segments

    def _texts(self, row: int, y: int) -> list[str]:
        """Return the text that each cell of a grid row shows on one line of the widget.

        Args:
            row: Index of the row in the grid.
            y: Index of the line in the widget.
        """
        return ["  " * self.scale] * self.display_shape[1]


class WorkingGridView(GridView, can_focus=True):
    """Widget that shows the working grid. It draws the selection and posts messages when cells are clicked or
    dragged."""

    @dataclasses.dataclass
    class Pressed(Message):
        """Message posted when a cell is clicked."""

        row: int
        col: int
        ctrl: bool
        """True if the control key was held down."""

    @dataclasses.dataclass
    class Dragged(Message):
        """Message posted when the mouse is dragged from one cell to another."""

        cursor: CursorSelection
        """Cursor that selects the box whose opposite corners are these two cells."""

    def __init__(self, cells: Grid, palette: Palette, *, id: str | None = None) -> None:
        super().__init__(cells, palette, id=id)
        self.cursor = CursorSelection()
        self.canvas: tuple[int, int] | None = None
        """Height and width of the canvas if cells outside the grid are drawn; None if they are not."""
        self._pressed: tuple[int, int] | None = None
        self._dragging = False

    @property
    def display_shape(self) -> tuple[int, int]:
        return self.canvas or super().display_shape

    def select(self, cursor: CursorSelection, canvas: tuple[int, int] | None) -> None:
        """Replace the displayed selection.

        Args:
            cursor: Cursor with the selection.
            canvas: Height and width of the canvas. If it is given, the canvas cells outside the grid are also
                drawn. If None, only the grid is drawn.
        """
        self.cursor, self.canvas = cursor, canvas
        self._redraw()

    def region_of(self, row: int, col: int) -> Region:
        """Return the region of the widget that a cell occupies."""
        return Region(2 * self.scale * col, self.scale * row, 2 * self.scale, self.scale)

    def cell_at(self, x: int, y: int) -> tuple[int, int]:
        """Return the row and column of the cell at a position in the widget. If there is no cell at this
        position, the nearest cell is returned."""
        height, width = self.display_shape
        row, col = y // self.scale, x // (2 * self.scale)
        return min(max(row, 0), height - 1), min(max(col, 0), width - 1)

    def _texts(self, row: int, y: int) -> list[str]:
        texts = super()._texts(row, y)
        top, left, bottom, right = self.cursor.box
        if top <= row <= bottom:
            for col in range(left, right + 1):
                texts[col] = self._outline(col, y)
        for other, col in self.cursor.loose:
            if other == row:
                texts[col] = "×" * (2 * self.scale)
        return texts

    def _outline(self, col: int, y: int) -> str:
        """Return the part of the selected box's outline that is drawn in one cell, for one terminal line."""
        top, left, bottom, right = self.cursor.box
        first, last = y == top * self.scale, y == (bottom + 1) * self.scale - 1
        left_end, line, right_end = {
            (True, True): ("[", " ", "]"),
            (True, False): ("┌", "─", "┐"),
            (False, True): ("└", "─", "┘"),
            (False, False): ("│", " ", "│"),
        }[first, last]
        middle = line * (2 * self.scale - 2)
        return (left_end if col == left else line) + middle + (right_end if col == right else line)

    def on_mouse_down(self, event: events.MouseDown) -> None:
        if event.button != 1:
            return
        self.capture_mouse()
        self._pressed = self.cell_at(event.x, event.y)
        self._dragging = False

    def on_mouse_move(self, event: events.MouseEvent) -> None:
        if self._pressed is None:
            return
        cell = self.cell_at(event.x, event.y)
        if self._dragging or cell != self._pressed:
            self._dragging = True
            self.post_message(self.Dragged(CursorSelection(*cell, self._pressed)))

    def on_mouse_up(self, event: events.MouseUp) -> None:
        if self._pressed is None:
            return
        self.release_mouse()
        self.on_mouse_move(event)
        if not self._dragging:
            self.post_message(self.Pressed(*self._pressed, event.ctrl))
        self._pressed = None


class PaletteBar(Widget):
    """Widget that shows the ten colors in a row. The selected color is marked. A click selects a color."""

    DEFAULT_CSS = "PaletteBar { width: 40; height: 1; }"
    WIDTH = 4

    color = reactive(0)
    """Color that is marked as selected."""

    def __init__(self, palette: Palette) -> None:
        super().__init__()
        self.palette = palette

    def render_line(self, y: int) -> Strip:
        segments = []
        for number, color in enumerate(self.palette.colors):
            text = f"[{number}] " if number == self.color else f" {number}  "
            segments.append(Segment(text, _style(self.palette.ink(number), color, number == self.color)))
        return Strip(segments)

    async def on_click(self, event: events.Click) -> None:
        if 0 <= event.x < self.WIDTH * len(self.palette.colors):
            await self.run_action(f"app.color({event.x // self.WIDTH})")


@functools.lru_cache(maxsize=512)
def _style(ink: str, background: str | None, bold: bool = False) -> Style:
    return Style(color=ink, bgcolor=background, bold=bold)


@functools.lru_cache(maxsize=512)
def _cell_style(palette: Palette, color: int, other: bool, marked: bool) -> Style:
    """Return the text style and background color of a cell.

    Args:
        palette: Colors of the cell values.
        color: Color of the cell.
        other: Make the background slightly lighter or darker. This is done for every second cell.
        marked: Draw the text of the cell in bold. This is done unless the text is blank.
    """
    background = palette.colors[color]
    if other and palette.name in _OTHER_CELLS:
        background = _OTHER_CELLS[palette.name][color]
    elif other:
        parts = rgb(background)
        towards = 255 if sum(parts) < 3 * 128 else 0
        background = "#" + "".join(f"{round(part + (towards - part) * _BLEND):02x}" for part in parts)
    return _style(palette.ink(color), background, marked)

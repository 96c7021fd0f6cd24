"""Key bindings and their help text, tools, and the cursor with its selection."""

import dataclasses
from collections.abc import Iterable

import numpy as np
from jaxtyping import Bool
from textual.binding import Binding

from phalanx.arc.operations import NUM_COLORS, OPERATIONS, Operation, operation_name
from phalanx.formatting import format_count


@dataclasses.dataclass(frozen=True)
class Tool:
    """An editor tool. A click, the space key or the enter key applies it to the selected cells."""

    name: str
    """Name of the tool, as shown on the screen."""
    key: str
    """Key that selects the tool."""
    first: int | None
    """Id of the tool's operation. If the tool has a color, this is the operation for color 0. None for the
    move tool."""
    has_color: bool = False
    """True if the tool uses the selected color."""
    single: bool = False
    """True if the tool is applied to the cursor's cell only, not to the entire selection."""

    def operation(self, color: int) -> int | None:
        """Return the id of the tool's operation for a color; None for the move tool."""
        return self.first if self.first is None or not self.has_color else self.first + color


FILL = Tool("Fill", "f", Operation.FILL_0, has_color=True)
FLOOD = Tool("Flood fill", "g", Operation.FLOOD_FILL_0, has_color=True, single=True)
MOVE = Tool("Move", "m", None)
PASTE = Tool("Paste", "v", Operation.PASTE, single=True)
RESIZE = Tool("Resize", "z", Operation.RESIZE, single=True)

TOOLS = (FILL, FLOOD, MOVE, PASTE, RESIZE)

OPERATION_KEYS: dict[int, str] = {
    Operation.MOVE_UP: "ctrl+up",
    Operation.MOVE_DOWN: "ctrl+down",
    Operation.MOVE_LEFT: "ctrl+left",
    Operation.MOVE_RIGHT: "ctrl+right",
    Operation.ROTATE_CLOCKWISE: "t",
    Operation.ROTATE_COUNTERCLOCKWISE: "T",
    Operation.FLIP_HORIZONTAL: "y",
    Operation.FLIP_VERTICAL: "Y",
    Operation.COPY: "c",
    Operation.CUT: "x",
    Operation.PASTE: "v",
    Operation.CLEAR: "d",
    Operation.COPY_INPUT: "o",
    Operation.SUBMIT: "s",
    Operation.NEXT_DEMO_PAIR: ">",
    Operation.PREVIOUS_DEMO_PAIR: "<",
    Operation.NEXT_TEST_PAIR: "]",
    Operation.PREVIOUS_TEST_PAIR: "[",
    Operation.RESET_PAIR: "=",
    Operation.FIRST_UNSOLVED_DEMO_PAIR: "{",
    Operation.FIRST_UNSOLVED_TEST_PAIR: "}",
}
"""Keys that immediately apply an operation to the selection, by operation id. Operations without an entry are
applied with a tool."""

MOVES = {
    "up": Operation.MOVE_UP,
    "down": Operation.MOVE_DOWN,
    "left": Operation.MOVE_LEFT,
    "right": Operation.MOVE_RIGHT,
}
"""For each direction, the operation that moves the selected object."""
MOVING_OPERATIONS = frozenset(range(Operation.MOVE_UP, Operation.FLIP_VERTICAL + 1))
"""Ids of the operations that move, rotate or flip an object. The selection follows the object."""
DIRECTIONS = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
"""For each direction, the number of rows (down) and columns (to the right) by which the cursor moves."""


def tool_for(operation: int) -> tuple[Tool, int | None] | None:
    """Return the tool for a fill, flood fill, paste or resize operation, and the color of the operation (None
    for paste and resize). For any other operation, return None."""
    if operation < 2 * NUM_COLORS:
        return (FILL if operation < NUM_COLORS else FLOOD), operation % NUM_COLORS
    return {PASTE.first: (PASTE, None), RESIZE.first: (RESIZE, None)}.get(operation)


def key_text(operation: int) -> str:
    """Return the keys to press to apply an operation, as a string such as `f 3 space`."""
    chosen = tool_for(operation)
    if chosen is not None and operation not in OPERATION_KEYS:
        tool, color = chosen
        return f"{tool.key} space" if color is None else f"{tool.key} {color} space"
    return OPERATION_KEYS[operation]


def panel_entries() -> list[tuple[str, str, str]]:
    """Return the entries of the operation panel. Each entry consists of a key, a name, and the Textual action
    that a click runs. All fills share one entry, and so do all flood fills."""
    entries = [(tool.key, tool.name, f"tool('{tool.key}')") for tool in TOOLS]
    for info in OPERATIONS[2 * NUM_COLORS :]:
        if info.id not in {tool.first for tool in TOOLS} | set(MOVES.values()):
            action = "submit" if info.id == Operation.SUBMIT else f"choose({info.id})"
            entries.append((OPERATION_KEYS[info.id], info.name, action))
    return entries


_LETTERS = {"k": "up", "j": "down", "h": "left", "l": "right"}


def key_bindings() -> Iterable[Binding]:
    """Yield all key bindings of the application."""
    yield Binding("space,enter", "apply", "Apply", key_display="space")
    for color in range(10):
        yield Binding(str(color), f"color({color})", "Color", show=color == 0, key_display="0-9")
    yield Binding("u", "undo", "Undo")
    yield Binding("U", "redo", "Redo", show=False)
    yield Binding("r", "restart", "Restart", show=False)
    yield Binding("s", "submit", "Submit")
    yield Binding("w", "save", "Save")
    yield Binding("n", "next", "Next")
    yield Binding("a", "operations", "List")
    yield Binding("?", "help", "Help")
    yield Binding("q", "quit", "Quit")
    yield Binding("escape", "drop", "Clear the selection", show=False)
    yield Binding("i", "keep", "Select the box as single cells", show=False)
    yield Binding("delete,backspace", f"operate({int(Operation.CLEAR)})", "Clear", show=False)
    yield Binding("pageup", "scroll(-1)", "Scroll up", show=False)
    yield Binding("pagedown", "scroll(1)", "Scroll down", show=False)
    for key, direction in [*_LETTERS.items(), *((name, name) for name in DIRECTIONS)]:
        extended = key.upper() if len(key) == 1 else f"shift+{key}"
        yield Binding(key, f"go('{direction}')", show=False)
        yield Binding(extended, f"go('{direction}', True)", show=False)
    for tool in TOOLS:
        if tool.first not in OPERATION_KEYS:
            yield Binding(tool.key, f"tool('{tool.key}')", tool.name, show=False)
    for operation, key in OPERATION_KEYS.items():
        if operation != Operation.SUBMIT:
            yield Binding(key, f"operate({int(operation)})", operation_name(operation), show=False)


KEY_HELP = (
    ("Mouse", ""),
    ("click a cell", "apply the selected tool (fill, flood fill, paste, resize) there"),
    ("drag", "select a box; click in it to apply the tool to all of it"),
    ("ctrl+click", "add a cell to the selection, or remove it (--format mask)"),
    ("click a color, an operation", "select it; operations that need no cell are applied immediately"),
    ("Keys", ""),
    ("arrows, h j k l", "move the cursor"),
    ("shift+arrows, H J K L", "select a box"),
    ("i", "select the box as single cells, for --format mask; esc clears the selection"),
    ("0 to 9", "select a color"),
    ("space, enter", "apply the tool to the selection"),
    ("f  g", "select fill, flood fill"),
    ("m", "move the selected cells with the arrow keys; esc stops"),
    ("ctrl+arrows", "move them one step"),
    ("t T  y Y", "rotate clockwise, counterclockwise; flip horizontally, vertically"),
    ("c x v d", "copy, cut, paste at the cursor, clear"),
    ("z", "resize: select the new bottom-right cell, then press space or click"),
    ("o  =", "copy the input, reset the pair: the grid becomes the input again"),
    ("[ ]  }", "previous, next, first unsolved test pair"),
    ("< >  {", "the same for demonstration pairs; they have no effect on a test pair"),
    ("a, ctrl+p", "all 42 operations, as a list and by name"),
    ("Episode", ""),
    ("u  U", "undo, redo; undone steps are not recorded"),
    ("r", "restart: undo everything"),
    ("s", "submit; u undoes a submission"),
    ("w", "save the episode after it has ended"),
    ("n", "next task"),
    ("page up, page down", "scroll the demonstrations"),
    ("q", "quit"),
)
"""Keys and mouse actions with their descriptions, for the help screen. Headings have no description."""


@dataclasses.dataclass(frozen=True)
class CursorSelection:
    """The cursor and the selection. If `loose` is empty, the selection is the box between the cursor and the
    anchor. Otherwise, the selection consists of the cells in `loose`."""

    row: int = 0
    """Row of the cursor."""
    col: int = 0
    """Column of the cursor."""
    anchor: tuple[int, int] = (0, 0)
    """Row and column of the corner of the selected box that is opposite the cursor."""
    loose: frozenset[tuple[int, int]] = frozenset()
    """Cells that are selected individually, as (row, column)."""

    @classmethod
    def at(cls, row: int, col: int) -> "CursorSelection":
        """Create a cursor that selects a single cell."""
        return cls(row, col, (row, col))

    @property
    def box(self) -> tuple[int, int, int, int]:
        """First row, first column, last row and last column of the box between the cursor and the anchor."""
        rows, cols = (self.row, self.anchor[0]), (self.col, self.anchor[1])
        return min(rows), min(cols), max(rows), max(cols)

    @property
    def text(self) -> str:
        """Text with the position of the cursor, counted from 1, and the size of the selection."""
        top, left, bottom, right = self.box
        size = f" · {bottom - top + 1}×{right - left + 1} selected"
        if self.loose:
            size = f" · {format_count(len(self.loose), 'cell')} selected"
        return f"row {self.row + 1}, column {self.col + 1}{'' if self.is_single else size}"

    @property
    def is_single(self) -> bool:
        """True if only the cursor's cell is selected."""
        return (self.row, self.col) == self.anchor and not self.loose

    def contains(self, row: int, col: int) -> bool:
        """Return whether a cell is selected."""
        top, left, bottom, right = self.box
        return (row, col) in self.loose if self.loose else top <= row <= bottom and left <= col <= right

    def move(self, down: int, right: int, extend: bool = False) -> "CursorSelection":
        """Return the cursor after a move.

        Args:
            down: Number of rows to move down.
            right: Number of columns to move to the right.
            extend: Extend the selected box by keeping the position of the anchor. If false, the anchor moves
                with the cursor.
        """
        row, col = self.row + down, self.col + right
        return CursorSelection(row, col, self.anchor if extend else (row, col), self.loose)

    def toggle(self) -> "CursorSelection":
        """Add the cells of the box to `loose`, or remove them if all of them are already in `loose`.

        Returns the new selection, whose box is only the cursor's cell.
        """
        top, left, bottom, right = self.box
        box = {(row, col) for row in range(top, bottom + 1) for col in range(left, right + 1)}
        loose = self.loose - box if box <= self.loose else self.loose | box
        return CursorSelection(self.row, self.col, (self.row, self.col), frozenset(loose))

    def clip(self, height: int, width: int) -> "CursorSelection":
        """Return the cursor and the selection clipped to a grid of the given size."""
        corners = np.clip([(self.row, self.col), self.anchor], 0, (height - 1, width - 1))
        (row, col), (other_row, other_col) = corners.tolist()
        loose = frozenset((r, c) for r, c in self.loose if r < height and c < width)
        return CursorSelection(row, col, (other_row, other_col), loose)

    def mask(self, shape: tuple[int, int]) -> Bool[np.ndarray, "rows columns"]:
        """Return the mask of the selected cells, with the given shape."""
        cells = np.zeros(shape, bool)
        top, left, bottom, right = self.box
        cells[top : bottom + 1, left : right + 1] = not self.loose
        for cell in self.loose:
            cells[cell] = True
        return cells

    def select_cells(self, cells: Bool[np.ndarray, "rows columns"]) -> "CursorSelection":
        """Return a cursor that selects the given cells: individually if `loose` is not empty, otherwise by
        their bounding box. If `cells` is an empty mask, this cursor is returned unchanged."""
        rows, cols = (indices.tolist() for indices in np.nonzero(cells))
        if not rows:
            return self
        if self.loose:
            loose = frozenset(zip(rows, cols, strict=True))
            return CursorSelection(max(rows), max(cols), (max(rows), max(cols)), loose)
        return CursorSelection(max(rows), max(cols), (min(rows), min(cols)))

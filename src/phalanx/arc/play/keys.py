"""Tools, key bindings of operations, and the cursor with its selection."""

import dataclasses

import numpy as np
from jaxtyping import Bool

from phalanx.arc.operations import NUM_COLORS, OPERATIONS, Operation
from phalanx.formatting import format_count


@dataclasses.dataclass(frozen=True)
class Tool:
    """A tool, which a click, space or enter applies."""

    name: str
    key: str
    first: int | None
    """Operation of the tool, with color 0 if it has colors; None for moving."""
    has_color: bool = False
    single: bool = False
    """Whether the tool applies to the cursor's cell only."""

    def operation(self, color: int) -> int | None:
        """Return the operation for a color; None for moving."""
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
"""Keys that apply an operation to the selection immediately."""

MOVES = {
    (-1, 0): Operation.MOVE_UP,
    (1, 0): Operation.MOVE_DOWN,
    (0, -1): Operation.MOVE_LEFT,
    (0, 1): Operation.MOVE_RIGHT,
}
MOVING_OPERATIONS = frozenset(range(Operation.MOVE_UP, Operation.FLIP_VERTICAL + 1))
"""Operations that move an object, and the selection with it."""
DIRECTIONS = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}


def tool_for(operation: int) -> tuple[Tool, int | None] | None:
    """Return the tool and color of an operation that needs a cell; None for other operations."""
    if operation < 2 * NUM_COLORS:
        return (FILL if operation < NUM_COLORS else FLOOD), operation % NUM_COLORS
    return {PASTE.first: (PASTE, None), RESIZE.first: (RESIZE, None)}.get(operation)


def key_text(operation: int) -> str:
    """Describe the keys of an operation."""
    chosen = tool_for(operation)
    if chosen is not None and operation not in OPERATION_KEYS:
        tool, color = chosen
        return f"{tool.key} space" if color is None else f"{tool.key} {color} space"
    return OPERATION_KEYS[operation]


def panel_entries() -> list[tuple[str, str, Tool | int]]:
    """List key, name and tool or operation for the panel. Colors are selected elsewhere."""
    entries: list[tuple[str, str, Tool | int]] = [(tool.key, tool.name, tool) for tool in TOOLS]
    shown = {tool.first for tool in TOOLS} | set(MOVES.values())
    entries += [
        (OPERATION_KEYS[info.id], info.name, info.id)
        for info in OPERATIONS[2 * NUM_COLORS :]
        if info.id not in shown
    ]
    return entries


@dataclasses.dataclass(frozen=True)
class Cursor:
    """Position of the cursor, the box from there to the anchor, and selected single cells."""

    row: int = 0
    col: int = 0
    anchor: tuple[int, int] = (0, 0)
    loose: frozenset[tuple[int, int]] = frozenset()

    @classmethod
    def at(cls, row: int, col: int) -> "Cursor":
        """Create a cursor on one cell."""
        return cls(row, col, (row, col))

    @property
    def box(self) -> tuple[int, int, int, int]:
        """Top, left, bottom and right, all included."""
        (row, col), (other_row, other_col) = (self.row, self.col), self.anchor
        return min(row, other_row), min(col, other_col), max(row, other_row), max(col, other_col)

    @property
    def text(self) -> str:
        """Description of the position and the selection, with rows and columns counted from 1."""
        top, left, bottom, right = self.box
        size = f" · {bottom - top + 1}×{right - left + 1} selected"
        if self.loose:
            size = f" · {format_count(len(self.loose), 'cell')} selected"
        return f"row {self.row + 1}, column {self.col + 1}{'' if self.is_single else size}"

    @property
    def is_single(self) -> bool:
        """Whether exactly one cell is selected."""
        return (self.row, self.col) == self.anchor and not self.loose

    def contains(self, row: int, col: int) -> bool:
        """Return whether a cell is selected."""
        top, left, bottom, right = self.box
        return (row, col) in self.loose if self.loose else top <= row <= bottom and left <= col <= right

    def move(self, down: int, right: int, extend: bool = False) -> "Cursor":
        """Move the cursor by one cell. With `extend`, the anchor stays. Single cells stay."""
        row, col = self.row + down, self.col + right
        return Cursor(row, col, self.anchor if extend else (row, col), self.loose)

    def drag(self, row: int, col: int) -> "Cursor":
        """Select the box from the anchor to a cell."""
        return dataclasses.replace(self, row=row, col=col)

    def toggle(self) -> "Cursor":
        """Add the box to the single cells, or remove it if all of its cells are among them."""
        top, left, bottom, right = self.box
        box = {(row, col) for row in range(top, bottom + 1) for col in range(left, right + 1)}
        loose = self.loose - box if box <= self.loose else self.loose | box
        return Cursor(self.row, self.col, (self.row, self.col), frozenset(loose))

    def clip(self, height: int, width: int) -> "Cursor":
        """Clip the cursor and the selection to a grid of this size."""
        row, col = _clamp(self.row, height), _clamp(self.col, width)
        anchor = (_clamp(self.anchor[0], height), _clamp(self.anchor[1], width))
        loose = frozenset((r, c) for r, c in self.loose if r < height and c < width)
        return Cursor(row, col, anchor, loose)

    def mask(self, shape: tuple[int, int]) -> Bool[np.ndarray, "rows columns"]:
        """Return the mask of the selected cells: the single cells if there are any, otherwise the box."""
        cells = np.zeros(shape, bool)
        if self.loose:
            for row, col in self.loose:
                cells[row, col] = True
            return cells
        top, left, bottom, right = self.box
        cells[top : bottom + 1, left : right + 1] = True
        return cells

    def single_mask(self, shape: tuple[int, int]) -> Bool[np.ndarray, "rows columns"]:
        """Return the mask of the cursor's cell."""
        return Cursor.at(self.row, self.col).mask(shape)

    def select_cells(self, cells: Bool[np.ndarray, "rows columns"]) -> "Cursor":
        """Select cells to which an object has moved; unchanged if there are none."""
        positions: list[tuple[int, int]] = [(row, col) for row, col in np.argwhere(cells).tolist()]
        if not positions:
            return self
        rows, cols = zip(*positions, strict=True)
        if self.loose:
            return Cursor(max(rows), max(cols), (max(rows), max(cols)), frozenset(positions))
        return Cursor(max(rows), max(cols), (min(rows), min(cols)))


def _clamp(index: int, side: int) -> int:
    return min(max(index, 0), side - 1)

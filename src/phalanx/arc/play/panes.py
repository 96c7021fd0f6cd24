"""Panes and dialogs of the terminal application, and their styles."""

from collections.abc import Iterator
from typing import ClassVar

from rich.table import Column, Table
from rich.text import Text
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, ScrollableContainer, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Button, Label, OptionList, Static
from textual.widgets.option_list import Option

from phalanx.arc.operations import OPERATIONS
from phalanx.arc.play.grids import GridView, WorkingGridView, size_at
from phalanx.arc.play.keys import KEY_HELP, CursorSelection, Tool, key_text, panel_entries
from phalanx.arc.rendering.palette import Palette
from phalanx.arc.rendering.snapshot import StateSnapshot
from phalanx.arc.tasks import ArcTask, GridPair

# The background is lighter than Textual's default, so that the edges of black cells are visible.
CSS = """
Screen { background: #262b35; }
#title { dock: top; height: 1; padding: 0 1; background: $panel; text-overflow: ellipsis; }
#main { height: 1fr; }
#demonstrations { width: 1fr; scrollbar-size-vertical: 1; }
PairView { width: 100%; height: auto; align-horizontal: center; border: round #4a5262;
           border-title-color: $text-muted; border-subtitle-color: $text-muted; }
.arrow { width: 3; height: 100%; content-align: center middle; color: $text-muted; }
#work { width: 1fr; }
#input-frame { height: auto; border: round #4a5262; border-title-color: $text-muted;
               align-horizontal: center; scrollbar-size: 1 1; }
#board-frame { height: 1fr; border: round $accent; border-title-color: $accent;
               border-subtitle-color: $text-muted; align: center middle; scrollbar-size: 1 1; }
#panel { width: 29; height: 100%; border: round #4a5262; border-title-color: $text-muted;
         scrollbar-size-vertical: 1; padding: 0; background: #262b35; }
Screen.-narrow #panel { display: none; }
#message { height: 1; padding: 0 1; text-overflow: ellipsis; }
#message.solved { background: #12805c; color: #ffffff; text-style: bold; }
#message.failed { background: #b42318; color: #ffffff; text-style: bold; }
#choice { height: 1; padding: 0 1; }
#tool { width: 1fr; padding-left: 2; text-overflow: ellipsis; }
ModalScreen { align: center middle; }
.dialog { width: 100; max-width: 95%; height: auto; max-height: 90%; border: round $accent; padding: 0 1;
          background: $surface; }
.dialog OptionList { height: auto; max-height: 100%; border: none; background: $surface; }
.question { width: 62; padding: 1 2; }
.question Horizontal { height: auto; margin-top: 1; }
.question Button { margin-right: 2; }
"""


_BORDER = 2
_ARROW = 3
_MAX_SCALE = 3


class PairView(Horizontal):
    """Widget that shows a demonstration: its input, an arrow and its output."""

    def __init__(self, pair: GridPair, number: int, palette: Palette) -> None:
        super().__init__()
        if pair.output is None:
            raise ValueError("a demonstration must have an output")
        self.grids = (GridView(pair.input, palette), GridView(pair.output, palette))
        self.border_title = f"demonstration {number}"
        self.border_subtitle = " → ".join(_size(grid.cells.shape) for grid in self.grids)

    def compose(self) -> Iterator[Widget]:
        yield self.grids[0]
        yield Static(" → ", classes="arrow")
        yield self.grids[1]

    def size_at(self, scale: int) -> tuple[int, int]:
        """Return the number of terminal columns and lines that the widget occupies at a scale. The number of
        lines includes the border, but the number of columns does not."""
        sizes = [size_at(grid.display_shape, scale) for grid in self.grids]
        return sum(size.width for size in sizes) + _ARROW, max(size.height for size in sizes) + _BORDER


class DemonstrationPane(VerticalScroll, can_focus=False):
    """Pane that shows all demonstrations, one below the other and as large as possible."""

    async def show(self, task: ArcTask, palette: Palette) -> None:
        """Replace the displayed demonstrations with those of a task."""
        await self.remove_children()
        await self.mount_all(PairView(pair, number, palette) for number, pair in enumerate(task.demos, 1))
        self.scroll_home(animate=False)
        self.fit()

    def on_resize(self) -> None:
        self.fit()

    def fit(self) -> None:
        """Choose the largest scale at which the demonstrations fit in the width of the pane. Scales above 1
        are used only if the demonstrations also fit in the height, so that no scrolling is necessary."""
        pairs = list(self.query(PairView))
        # The scroll bar takes one column, the border of a pair two.
        width, height = self.size.width - _BORDER - 1, self.size.height
        for scale in range(_MAX_SCALE, -1, -1):
            sizes = [pair.size_at(scale) for pair in pairs]
            # Demonstrations that are too tall can be scrolled.
            fits_height = scale <= 1 or sum(lines for _, lines in sizes) <= height
            if fits_height and all(columns <= width for columns, _ in sizes):
                break
        for pair in pairs:
            for grid in pair.grids:
                grid.show(grid.cells, scale)


class GridFrame(ScrollableContainer, can_focus=False, inherit_bindings=False):
    """Scrollable frame around a grid. It ignores the arrow keys, because they move the cursor."""


class WorkPane(Vertical):
    """Pane that shows the input of the test pair above the working grid."""

    def __init__(self, view: StateSnapshot, palette: Palette) -> None:
        super().__init__(id="work")
        self.input = GridView(view.input, palette, id="input")
        self.board = WorkingGridView(view.working, palette, id="board")
        self.frames = (GridFrame(self.input, id="input-frame"), GridFrame(self.board, id="board-frame"))

    def compose(self) -> Iterator[Widget]:
        yield from self.frames

    def on_resize(self) -> None:
        self.fit()

    def show(self, view: StateSnapshot, cursor: CursorSelection, canvas: tuple[int, int] | None) -> None:
        """Draw a state and the selection.

        Args:
            view: The state.
            cursor: Cursor with the selection.
            canvas: Height and width of the canvas. If it is given, the canvas cells outside the grid are also
                drawn. If None, only the grid is drawn.
        """
        before = self.input.display_shape, self.board.display_shape
        if view.input.tolist() != self.input.cells.tolist():
            self.input.show(view.input)
        self.board.show(view.working)
        self.board.select(cursor, canvas)
        self.frames[0].border_title = f"input {_size(view.input.shape)}"
        self.frames[1].border_title = f"your output {_size(view.working.shape)}"
        if before != (self.input.display_shape, self.board.display_shape):
            self.fit()
        self.frames[1].scroll_to_region(self.board.region_of(cursor.row, cursor.col), animate=False)

    def fit(self) -> None:
        """Choose the largest possible scale for the working grid, and then the largest possible scale for the
        input."""
        board, above = self.board.display_shape, self.input.display_shape
        width, height = self.size.width - _BORDER, self.size.height - 2 * _BORDER
        scales = [(large, small) for large in range(_MAX_SCALE, 0, -1) for small in range(large, -1, -1)]
        for large, small in scales:
            one, other = size_at(board, large), size_at(above, small)
            if max(one.width, other.width) <= width and one.height + other.height <= height:
                break
        self.board.show(self.board.cells, large)
        self.input.show(self.input.cells, small)
        # The input takes at most half of the height; grids that do not fit can be scrolled.
        self.frames[0].styles.height = min(other.height, height // 2) + _BORDER


class OperationPanel(OptionList, can_focus=False):
    """Clickable list of tools and operations, with their keys."""

    def __init__(self) -> None:
        self.entries = panel_entries()
        super().__init__(
            *(
                Option(Text.assemble((f"{key:<2}", "bold"), name, no_wrap=True, overflow="ellipsis"), id=key)
                for key, name, _ in self.entries
            ),
            id="panel",
        )
        self.border_title = "operations"

    def mark(self, tool: Tool) -> None:
        """Highlight the current tool."""
        self.highlighted = self.get_option_index(tool.key)


def _size(shape: tuple[int, ...]) -> str:
    return f"{shape[0]}×{shape[1]}"


class HelpScreen(ModalScreen[None]):
    """Dialog that explains the keys and mouse actions."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,question_mark,enter", "dismiss", "Close")]

    def compose(self) -> Iterator[Widget]:
        table = Table.grid(padding=(0, 2))
        for key, text in KEY_HELP:
            table.add_row(Text(key, "bold" if text else "bold underline"), text)
        with VerticalScroll(classes="dialog") as dialog:
            dialog.border_title = "ARC editor"
            dialog.border_subtitle = "esc: close"
            yield Static("Find the rule of the demonstrations and turn the test input into its output.\n")
            yield Static(table)


class OperationsScreen(ModalScreen[int | None]):
    """Dialog that lists all operations with their keys. Its result is the id of the selected operation, or
    None if the player closes the dialog without a selection."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,a", "dismiss", "Close")]

    def compose(self) -> Iterator[Widget]:
        with Vertical(classes="dialog") as dialog:
            dialog.border_title = "Operations"
            dialog.border_subtitle = "enter: select, esc: close"
            yield OptionList(*(Option(_line(info.id), id=str(info.id)) for info in OPERATIONS))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(int(str(event.option.id)))


def _line(operation: int) -> Table:
    info = OPERATIONS[operation]
    table = Table.grid(Column(width=11), Column(width=25), Column(ratio=1), padding=(0, 1), expand=True)
    table.add_row(Text(key_text(operation), "bold"), info.name, Text(info.text, "dim"))
    return table


class UnsavedEpisodeDialog(ModalScreen[str]):
    """Dialog that asks whether to save a solved episode before leaving it. Its result is `save`, `leave` or
    `stay`."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("w", "dismiss('save')"),
        Binding("l", "dismiss('leave')"),
        Binding("escape", "dismiss('stay')"),
    ]

    def compose(self) -> Iterator[Widget]:
        with Vertical(classes="dialog question") as dialog:
            dialog.border_title = "Not saved"
            yield Label("You solved this task, but the episode is not saved.")
            with Horizontal():
                yield Button("Save (w)", id="save", variant="success")
                yield Button("Discard (l)", id="leave", variant="warning")
                yield Button("Cancel (esc)", id="stay")

    def on_button_pressed(self, event: Button.Pressed) -> None:
        self.dismiss(str(event.button.id))

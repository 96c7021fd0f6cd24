"""The look of the game: where its parts stand, and their colours, in Textual's CSS.

Cells have the colours of `phalanx.arc.render.palette`.
"""

from collections.abc import Iterator, Sequence

from rich.text import Text
from textual.containers import Horizontal, ScrollableContainer, Vertical, VerticalScroll
from textual.widget import Widget
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from phalanx.arc.render.palette import Palette
from phalanx.arc.render.snapshots import StateSnapshot
from phalanx.arc.tasks import ArcTask, GridPair
from phalanx.cli.play.grids import Board, GridView, size_at
from phalanx.cli.play.tools import Cursor, Tool, panel_entries

# Behind black cells the screen is lighter than Textual's own, so that grids show where they end.
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
_LARGEST = 3


class PairView(Horizontal):
    """A demonstration: input, arrow, output."""

    def __init__(self, pair: GridPair, number: int, palette: Palette) -> None:
        super().__init__()
        if pair.output is None:
            raise ValueError("a demonstration has an output")
        self.grids = (GridView(pair.input, palette), GridView(pair.output, palette))
        self.shapes = (pair.input.shape, pair.output.shape)
        self.border_title = f"demonstration {number}"
        self.border_subtitle = " → ".join(f"{height}×{width}" for height, width in self.shapes)

    def compose(self) -> Iterator[Widget]:
        yield self.grids[0]
        yield Static(" → ", classes="arrow")
        yield self.grids[1]

    def size_at(self, scale: int) -> tuple[int, int]:
        """Columns and lines that it takes, its border included."""
        sizes = [size_at((height, width), scale) for height, width in self.shapes]
        return sum(size.width for size in sizes) + _ARROW, max(size.height for size in sizes) + _BORDER

    def rescale(self, scale: int) -> None:
        """Draw both grids larger or smaller."""
        for grid in self.grids:
            grid.show(grid.cells, scale)


class Demonstrations(VerticalScroll, can_focus=False):
    """The demonstrations below one another, as large as the pane lets them be."""

    async def show(self, task: ArcTask, palette: Palette) -> None:
        """Put another task's demonstrations here."""
        await self.remove_children()
        await self.mount_all(PairView(pair, number, palette) for number, pair in enumerate(task.demos, 1))
        self.scroll_home(animate=False)
        self.fit()

    def on_resize(self) -> None:
        self.fit()

    def fit(self) -> None:
        """Choose the size of cells."""
        pairs = list(self.query(PairView))
        # The scroll bar takes a column, the border of a pair two.
        width, height = self.size.width - _BORDER - 1, self.size.height
        scale = _largest_fitting(pairs, width, height)
        for pair in pairs:
            pair.rescale(scale)


def _largest_fitting(pairs: Sequence[PairView], width: int, height: int) -> int:
    for scale in range(_LARGEST, -1, -1):
        sizes = [pair.size_at(scale) for pair in pairs]
        if all(columns <= width for columns, _ in sizes) and (
            scale <= 1 or sum(lines for _, lines in sizes) <= height
        ):
            return scale
    return 0


class Frame(ScrollableContainer, can_focus=False, inherit_bindings=False):
    """A border around a grid that may be larger; the arrows are left to the cursor."""


class WorkPane(Vertical):
    """The test's input above the grid that is worked on."""

    def __init__(self, view: StateSnapshot, palette: Palette) -> None:
        super().__init__(id="work")
        self.input = GridView(view.input, palette, id="input")
        self.board = Board(view.working, palette, id="board")
        self.frames = (
            Frame(self.input, id="input-frame"),
            Frame(self.board, id="board-frame"),
        )

    def compose(self) -> Iterator[Widget]:
        yield from self.frames

    def on_resize(self) -> None:
        self.fit()

    def show(self, view: StateSnapshot, cursor: Cursor, canvas: tuple[int, int] | None) -> None:
        """Draw a state and what is selected; with a canvas, the cells outside the grid too."""
        before = self.input.shown_shape, self.board.shown_shape
        if view.input.tolist() != self.input.cells.tolist():
            self.input.show(view.input)
        self.board.show(view.working)
        self.board.select(cursor, canvas)
        self.frames[0].border_title = f"input {_size(view.input.shape)}"
        self.frames[1].border_title = f"your output {_size(view.working.shape)}"
        if before != (self.input.shown_shape, self.board.shown_shape):
            self.fit()
        self.frames[1].scroll_to_region(self.board.region_of(cursor.row, cursor.col), animate=False)

    def fit(self) -> None:
        """Choose the size of cells: as large as possible where one works, then where one looks."""
        board, above = self.board.shown_shape, self.input.shown_shape
        width, height = self.size.width - _BORDER, self.size.height - 2 * _BORDER
        scales = [(large, small) for large in range(_LARGEST, 0, -1) for small in range(large, -1, -1)]
        for large, small in scales:
            one, other = size_at(board, large), size_at(above, small)
            if max(one.width, other.width) <= width and one.height + other.height <= height:
                break
        self.board.show(self.board.cells, large)
        self.input.show(self.input.cells, small)
        # What does not fit scrolls; the input never takes more than half.
        self.frames[0].styles.height = min(other.height, height // 2) + _BORDER


class OperationPanel(OptionList, can_focus=False):
    """Tools and operations with their keys, for the mouse."""

    def __init__(self) -> None:
        self.entries = panel_entries()
        super().__init__(*(Option(_entry(key, name), id=key) for key, name, _ in self.entries), id="panel")
        self.border_title = "operations"

    def mark(self, tool: Tool) -> None:
        """Show which tool is chosen."""
        self.highlighted = next(place for place, entry in enumerate(self.entries) if entry[2] == tool)


def _entry(key: str, name: str) -> Text:
    return Text.assemble((f"{key:<2}", "bold"), name, no_wrap=True, overflow="ellipsis")


def _size(shape: tuple[int, ...]) -> str:
    return f"{shape[0]}×{shape[1]}"

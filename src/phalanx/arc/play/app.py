"""The main screen of the terminal application, which handles keyboard and mouse input."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import App, SystemCommand
from textual.binding import BindingType
from textual.containers import Horizontal
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Footer, OptionList, Static

from phalanx.arc.config import ArcConfig
from phalanx.arc.operations import OPERATIONS, Operation, operation_name
from phalanx.arc.play.grids import PaletteBar, WorkingGridView, terminal_palette
from phalanx.arc.play.keys import (
    DIRECTIONS,
    FILL,
    MOVE,
    MOVES,
    MOVING_OPERATIONS,
    RESIZE,
    TOOLS,
    CursorSelection,
    Tool,
    key_bindings,
    tool_for,
)
from phalanx.arc.play.panes import (
    CSS,
    DemonstrationPane,
    HelpScreen,
    OperationPanel,
    OperationsScreen,
    UnsavedEpisodeDialog,
    WorkPane,
)
from phalanx.arc.play.recording import EpisodeSampleFile
from phalanx.arc.play.session import PlayError, PlaySession, PlayTestPair
from phalanx.arc.rendering.palette import PaletteName, palette_named
from phalanx.arc.state import ArcState
from phalanx.formatting import format_count, format_percent


class PlayApp(App[None]):
    """Textual application in which a player solves ARC tasks one after another. Complete episodes can be
    saved to a file.

    Args:
        tasks: Test pairs to solve, in this order.
        config: Settings of the environment.
        recording: File to which episodes are saved.
        show_similarity: Show the similarity of the working grid to the target.
        palette: `arc`, or `safe` for color-blind players.
    """

    TITLE = "phalanx play"
    CSS = CSS
    BINDINGS: ClassVar[list[BindingType]] = list(key_bindings())
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (110, "-wide")]  # noqa: RUF012 - as Textual declares it

    def __init__(
        self,
        tasks: Sequence[PlayTestPair],
        config: ArcConfig,
        recording: EpisodeSampleFile,
        *,
        show_similarity: bool = False,
        palette: PaletteName = "arc",
    ) -> None:
        super().__init__()
        self.tasks, self.config, self.file = tasks, config, recording
        self.show_similarity = show_similarity
        self.palette = terminal_palette(palette_named(palette), self.console.color_system)
        self.index = 0
        self.session = PlaySession(tasks[0], config)
        self.tool: Tool = FILL
        self.color = 1
        self.solved: set[int] = set()
        """Test pairs that were solved, as indices in `tasks`."""
        self.saved_steps = 0
        """Total number of steps in all saved episodes."""
        self._saved: list[ArcState] = []
        """Final states of the saved episodes, so that no episode is saved twice."""

    def compose(self) -> Iterator[Widget]:
        yield Static(id="title")
        with Horizontal(id="main"):
            yield DemonstrationPane(id="demonstrations")
            yield WorkPane(self.session.view, self.palette)
            yield OperationPanel()
        yield Static(id="message")
        with Horizontal(id="choice"):
            yield PaletteBar(self.palette)
            yield Static(id="tool")
        yield Footer(show_command_palette=False, compact=True)

    async def on_mount(self) -> None:
        self.theme = "textual-dark"
        await self._open()

    async def _open(self) -> None:
        """Show the task of the current session, and reset the cursor and the tool."""
        self.board.cursor = CursorSelection()
        self.tool = FILL
        await self.query_one(DemonstrationPane).show(self.session.task.task, self.palette)
        self._message = "Find the rule of the demonstrations. Press ? for the keys."
        self._draw()
        self.board.focus()

    @property
    def board(self) -> WorkingGridView:
        """Widget that shows the working grid."""
        return self.query_one(WorkingGridView)

    @property
    def is_saved(self) -> bool:
        """True if the episode has been saved in its current state."""
        return any(state is self.session.state for state in self._saved)

    @property
    def saved_episodes(self) -> int:
        """Number of saved episodes."""
        return len(self._saved)

    def _draw(self) -> None:
        """Update the screen."""
        session, view = self.session, self.session.view
        canvas = self.config.grid_shape if self.tool is RESIZE and not session.ended else None
        self.query_one(WorkPane).show(view, self.board.cursor.clip(*(canvas or view.working.shape)), canvas)
        title = Text.assemble((view.title, "bold"), f"  {session.task.task.family or ''}".rstrip())
        title.append(f"  step {view.step} of {self.config.episode.max_episode_steps}", "dim")
        if self.show_similarity:
            title.append(f"  {format_percent(view.similarity)} of the cells are correct", "italic")
        self.query_one("#title", Static).update(title, layout=False)
        message = self.query_one("#message", Static)
        message.set_class(session.solved, "solved")
        message.set_class(session.ended and not session.solved, "failed")
        message.update(Text(self._result_text() or self._message), layout=False)
        named = f" {self.palette.names[self.color]}" if self.tool.has_color else ""
        self.query_one("#tool", Static).update(Text.assemble((self.tool.name, "bold"), named), layout=False)
        self.query_one(PaletteBar).color = self.color
        self.query_one(OperationPanel).mark(self.tool)
        self.query_one("#board-frame").border_subtitle = self.board.cursor.text

    def _result_text(self) -> str:
        """Return a message about the result of the episode; empty while the episode is running."""
        session = self.session
        if session.solved:
            then = "n: next task" if self.is_saved else "w: save, n: next task"
            return f"SOLVED in {format_count(session.view.step, 'step')}. {then}."
        if session.ended:
            why = "NOT SOLVED" if bool(session.state.terminated) else "OUT OF STEPS"
            return f"{why}. u: undo the last step, r: restart, n: next task."
        return ""

    def _try(self, act: Callable[[], object], message: str) -> None:
        """Call a function of the session. If it succeeds, show `message`; if it raises `PlayError`, show the
        reason."""
        try:
            act()
        except PlayError as error:
            self.notify(str(error), severity="warning")
        else:
            self._message = message
            if self.session.solved:
                self.solved.add(self.index)
        self._draw()

    def action_operate(self, operation: int) -> None:
        """Apply an operation to the selected cells. An operation that takes a single cell is applied to the
        cell at the cursor."""
        cursor, chosen = self.board.cursor, tool_for(operation)
        is_single = chosen is not None and chosen[0].single
        selection = CursorSelection.at(cursor.row, cursor.col) if is_single else cursor
        cells = selection.mask(self.config.grid_shape)

        def act() -> None:
            self.session.act(operation, cells)
            if operation in MOVING_OPERATIONS:
                self.board.cursor = cursor.select_cells(self.session.view.selected)
            if operation == Operation.RESIZE:
                self.tool = FILL

        self._try(act, f"{operation_name(operation)}.")

    def action_apply(self) -> None:
        """Apply the selected tool to the selected cells."""
        operation = self.tool.operation(self.color)
        if operation is None:
            self.notify("the arrow keys move the selected cells; esc stops moving", severity="warning")
        else:
            self.action_operate(operation)

    def action_choose(self, operation: int) -> None:
        """Handle the choice of an operation in a list. If `tool_for` returns a tool for the operation, the
        tool is selected, so that the player can choose a cell. Otherwise, the operation is applied
        immediately."""
        chosen = tool_for(operation)
        if chosen is None:
            self.action_operate(operation)
            return
        self.tool, self.color = chosen[0], self.color if chosen[1] is None else chosen[1]
        self._message = f"{operation_name(operation)}: click a cell, or press space."
        self._draw()

    def action_tool(self, key: str) -> None:
        """Select a tool by its key."""
        self.tool = tool = next(tool for tool in TOOLS if tool.key == key)
        hints = {MOVE: "the arrow keys move the selected cells; esc stops", RESIZE: "select the last cell"}
        self._message = f"{tool.name}: {hints.get(tool, 'click a cell, or press space')}."
        self._draw()

    def action_color(self, color: int) -> None:
        """Select a color. If the current tool has no color, the fill tool is selected too."""
        self.color = color
        self.tool = self.tool if self.tool.has_color else FILL
        self._draw()

    def action_go(self, direction: str, extend: bool = False) -> None:
        """Move the cursor or, with the move tool, the selected cells.

        Args:
            direction: `up`, `down`, `left` or `right`.
            extend: Extend the selected box to the new position of the cursor.
        """
        if self.tool is MOVE and not extend:
            self.action_operate(MOVES[direction])
        else:
            self.board.cursor = self.board.cursor.move(*DIRECTIONS[direction], extend)
            self._draw()

    def action_drop(self) -> None:
        """Reduce the selection to the cell at the cursor. If the current tool has no color, also switch to
        the fill tool."""
        self.board.cursor = CursorSelection.at(self.board.cursor.row, self.board.cursor.col)
        self.tool = self.tool if self.tool.has_color else FILL
        self._draw()

    def action_keep(self) -> None:
        """Add all cells of the selected box to the set of individually selected cells. If the set already
        contains all of these cells, remove them from the set."""
        if self.config.action.selection_format != "mask":
            self.notify("single cells need --format mask", severity="warning")
            return
        self.board.cursor = self.board.cursor.toggle()
        self._draw()

    def action_scroll(self, pages: int) -> None:
        """Scroll the demonstrations by the given number of pages."""
        pane = self.query_one(DemonstrationPane)
        pane.scroll_relative(y=pages * max(pane.size.height - 2, 1), animate=False)

    def action_undo(self) -> None:
        """Undo the last step."""
        self._try(self.session.undo, "Undone; U redoes it.")

    def action_redo(self) -> None:
        """Redo the last undone step."""
        self._try(self.session.redo, "Redone.")

    def action_submit(self) -> None:
        """Submit the grid."""
        self._try(self.session.submit, "Submitted.")

    def action_save(self) -> bool:
        """Save the episode, unless it has already been saved. Return False only if saving failed."""
        if self.is_saved:
            self.notify(f"this episode has already been saved to {self.file.path}", severity="warning")
            return True
        try:
            samples = self.file.append(self.session)
        except (PlayError, ValueError, OSError) as error:
            self.notify(f"not saved: {error}", severity="error", timeout=10)
            return False
        self._saved.append(self.session.state)
        self.saved_steps += len(samples)
        self.notify(f"{format_count(len(samples), 'step')} saved to {self.file.path}")
        self._draw()
        return True

    def action_restart(self) -> None:
        """Restart the task by undoing all steps."""
        self._before_leaving(lambda: self._try(self.session.restart, "Restarted."))

    def action_next(self) -> None:
        """Open the next task. After the last task, start again with the first one."""

        async def open_next() -> None:
            self.index = (self.index + 1) % len(self.tasks)
            self.session = PlaySession(self.tasks[self.index], self.config)
            await self._open()

        self._before_leaving(lambda: self.call_next(open_next))

    async def action_quit(self) -> None:
        """Quit the application."""
        self._before_leaving(self.exit)

    def _before_leaving(self, leave: Callable[[], object]) -> None:
        """Call `leave`.

        If the episode is solved but not saved, first ask the player whether to save it, to leave without
        saving, or to stay. If the player stays, do not call `leave`.
        """

        def answered(answer: str | None) -> None:
            if answer == "leave" or (answer == "save" and self.action_save()):
                leave()

        if self.session.solved and not self.is_saved:
            self.push_screen(UnsavedEpisodeDialog(), answered)
        else:
            leave()

    def action_help(self) -> None:
        """Open the help dialog."""
        self.push_screen(HelpScreen())

    def action_operations(self) -> None:
        """Open the dialog with all operations, and handle the player's choice."""
        self.push_screen(
            OperationsScreen(), lambda chosen: None if chosen is None else self.action_choose(chosen)
        )

    def get_system_commands(self, screen: Screen) -> Iterable[SystemCommand]:
        """Yield the commands of Textual's command palette, followed by one command per operation."""
        yield from super().get_system_commands(screen)
        for info in OPERATIONS:
            yield SystemCommand(info.name, info.text, lambda number=info.id: self.action_choose(number))

    def on_working_grid_view_pressed(self, event: WorkingGridView.Pressed) -> None:
        cursor = self.board.cursor
        if event.ctrl and self.config.action.selection_format == "mask":
            clicked = CursorSelection(event.row, event.col, (event.row, event.col), cursor.loose)
            self.board.cursor = clicked.toggle()
            self._draw()
            return
        if cursor.is_single or not cursor.contains(event.row, event.col) or self.tool.single:
            self.board.cursor = CursorSelection.at(event.row, event.col)
        if self.tool is MOVE:
            self._draw()
        else:
            self.action_apply()

    def on_working_grid_view_dragged(self, event: WorkingGridView.Dragged) -> None:
        self.board.cursor = event.cursor
        self._draw()

    async def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        if isinstance(event.option_list, OperationPanel):
            await self.run_action(event.option_list.entries[event.option_index][2])

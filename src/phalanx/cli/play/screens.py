"""What opens over the game: help, the list of all operations, and the question before work is lost.

The game's own screen is in `application`.
"""

from collections.abc import Iterator
from typing import ClassVar, Literal

from rich.table import Table
from rich.text import Text
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Button, Label, OptionList, Static
from textual.widgets.option_list import Option

from phalanx.arc.operations import OPERATIONS
from phalanx.cli.play.tools import key_text

_KEYS = (
    ("Mouse", ""),
    ("click a cell", "does what is chosen (fill, flood fill, paste, resize) there"),
    ("drag", "selects a box; a click into it does what is chosen to all of it"),
    ("ctrl+click", "adds a cell to the selection, or takes it out (--format mask)"),
    ("click a colour, an operation", "chooses it; what needs no cell is done at once"),
    ("Keys", ""),
    ("arrows, h j k l", "move the cursor"),
    ("shift+arrows, H J K L", "select a box"),
    ("i", "keeps the box as loose cells, for --format mask; esc drops the selection"),
    ("0 to 9", "choose a colour"),
    ("space, enter", "do what is chosen, to the selection"),
    ("f  g", "choose fill, flood fill"),
    ("m", "move the selected cells with the arrows; esc ends it"),
    ("ctrl+arrows", "move them one step"),
    ("t T  y Y", "rotate clockwise, counter-clockwise; flip left to right, top to bottom"),
    ("c x v d", "copy, cut, paste at the cursor, clear"),
    ("z", "resize: choose the new bottom-right cell, then space or a click"),
    ("o  =", "copy the input, reset the pair: the grid becomes the input again"),
    ("[ ]  }", "previous, next, first unsolved test pair"),
    ("< >  {", "the same for demonstration pairs: while a test is played they change nothing"),
    ("a, ctrl+p", "all 42 operations, as a list and by name"),
    ("Episode", ""),
    ("u  U", "undo, do again: undone steps are not recorded"),
    ("r", "restart: undoes everything"),
    ("s", "submit; u takes a submission back"),
    ("w", "save the ended episode as a demonstration"),
    ("n", "next puzzle"),
    ("page up, page down", "scroll the demonstrations"),
    ("q", "quit"),
)


class HelpScreen(ModalScreen[None]):
    """The keys and what the mouse does."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,question_mark,enter", "dismiss", "Close")]

    def compose(self) -> Iterator[Widget]:
        table = Table.grid(padding=(0, 2))
        for key, words in _KEYS:
            table.add_row(Text(key, "bold" if words else "bold underline"), words)
        with VerticalScroll(classes="dialog") as dialog:
            dialog.border_title = "Playing ARC"
            dialog.border_subtitle = "esc closes"
            yield Static("Find the rule of the demonstrations, and make the test's output of its input.\n")
            yield Static(table)


class OperationsScreen(ModalScreen[int | None]):
    """All operations with their keys; gives the one that was chosen."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,a", "dismiss", "Close")]

    def compose(self) -> Iterator[Widget]:
        with Vertical(classes="dialog") as dialog:
            dialog.border_title = "Operations"
            dialog.border_subtitle = "enter chooses, esc closes"
            yield OptionList(*(Option(_line(number), id=str(number)) for number in range(len(OPERATIONS))))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(int(str(event.option.id)))


def _line(operation: int) -> Table:
    info = OPERATIONS[operation]
    table = Table.grid(padding=(0, 1), expand=True)
    table.add_column(width=11)
    table.add_column(width=25)
    table.add_column(ratio=1)
    table.add_row(Text(key_text(operation), "bold"), info.name, Text(info.text, "dim"))
    return table


Leaving = Literal["save", "leave", "stay"]


class LeaveScreen(ModalScreen[Leaving]):
    """Asks what becomes of a solved episode that is not saved."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("w", "answer('save')"),
        Binding("l", "answer('leave')"),
        Binding("escape", "answer('stay')"),
    ]

    def compose(self) -> Iterator[Widget]:
        with Vertical(classes="dialog question") as dialog:
            dialog.border_title = "Not saved"
            yield Label("You solved this puzzle, and the episode is not saved.")
            with Horizontal():
                yield Button("Save (w)", id="save", variant="success")
                yield Button("Leave it (l)", id="leave", variant="warning")
                yield Button("Stay (esc)", id="stay")

    def on_button_pressed(self, event: Button.Pressed) -> None:
        self.action_answer(str(event.button.id))

    def action_answer(self, answer: str) -> None:
        """Close with one of the answers."""
        answers: dict[str, Leaving] = {"save": "save", "leave": "leave", "stay": "stay"}
        self.dismiss(answers[answer])

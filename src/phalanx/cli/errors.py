"""How the command line tells a user's mistake from a fault of the program.

A mistake is one line on stderr and exit code 2; a fault keeps its traceback.
"""

import contextlib
import dataclasses
import importlib
from collections.abc import Iterator, Mapping
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from phalanx.formatting import escape_untrusted


class UserError(Exception):
    """Something the user can put right; its text is the line that is shown, safe for a terminal."""

    def __init__(self, text: str) -> None:
        super().__init__(escape_untrusted(text))


@contextlib.contextmanager
def user_errors() -> Iterator[None]:
    """Turns the refusals of settings, files and data inside the block into a `UserError`.

    Put it around what reads the user's input, and not around the work itself: a ValueError in there is
    a fault that must show where it came from.
    """
    try:
        yield
    except (ValueError, OSError) as error:
        raise UserError(_one_line(error)) from error


def _one_line(error: ValueError | OSError) -> str:
    # Pydantic's ValidationError prints a paragraph for each field; `errors()` has the parts.
    details = getattr(error, "errors", None)
    if callable(details):
        problems = (
            (".".join(map(str, detail["loc"])), detail["msg"].removeprefix("Value error, "))
            for detail in details()
        )
        return "; ".join(f"{where}: {message}" if where else message for where, message in problems)
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split())


@dataclasses.dataclass(frozen=True)
class Mount:
    """A command or a group of them that another module keeps in its `app`."""

    module: str
    """Module to import on use, whose `app` is a Typer, or `module:name` for another name."""
    help: str
    """One line for the list of commands, read without importing the module."""
    compiles: bool = False
    """Whether it compiles with XLA, whose work is then kept for the next time."""
    hidden: bool = False
    """Whether the command is left out of the list, as an alias is."""


class _Deferred(TyperCommand):
    """Stands in the list for a command; becomes the real one when the command line names it."""

    def __init__(self, name: str, mount: Mount) -> None:
        super().__init__(name=name, help=mount.help, hidden=mount.hidden)
        self.module, self.compiles = mount.module, mount.compiles

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        if self.compiles:
            from phalanx.cli.compilation_cache import keep_compiled

            keep_compiled()
        module, _, name = self.module.partition(":")
        command = typer.main.get_command(getattr(importlib.import_module(module), name or "app"))
        return command.make_context(info_name, args, parent=parent, **extra)


def lazy_group(mounts: Mapping[str, Mount]) -> type[TyperGroup]:
    """A group class, for `typer.Typer(cls=...)`, that lists `mounts` and imports the one that is used."""

    class LazyGroup(TyperGroup):
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            for name, mount in mounts.items():
                self.add_command(_Deferred(name, mount))

    return LazyGroup

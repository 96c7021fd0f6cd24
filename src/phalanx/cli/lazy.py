"""Commands that are imported when they run, so that `phalanx --help` answers at once.

What the commands do is in the module that each of them names.
"""

import dataclasses
import importlib
from collections.abc import Mapping
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup


@dataclasses.dataclass(frozen=True)
class Mount:
    """A command or a group of them that another module keeps in its `app`."""

    module: str
    """The module to import on use; its `app` is a Typer with one command or several."""
    help: str
    """One line for the list of commands, read without importing the module."""


class _Deferred(TyperCommand):
    """Stands in the list for a command; becomes the real one when the command line names it."""

    def __init__(self, name: str, mount: Mount) -> None:
        super().__init__(name=name, help=mount.help)
        self.module = mount.module

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        command = typer.main.get_command(importlib.import_module(self.module).app)
        return command.make_context(info_name, args, parent=parent, **extra)


def lazy_group(mounts: Mapping[str, Mount]) -> type[TyperGroup]:
    """A group class, for `typer.Typer(cls=...)`, that lists `mounts` and imports the one that is used."""

    class LazyGroup(TyperGroup):
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            for name, mount in mounts.items():
                self.add_command(_Deferred(name, mount))

    return LazyGroup

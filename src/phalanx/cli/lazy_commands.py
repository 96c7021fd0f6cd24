"""Commands whose modules are imported only when a command runs, so that `phalanx --help` is fast."""

import dataclasses
import importlib
from collections.abc import Mapping
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup


@dataclasses.dataclass(frozen=True)
class LazyCommand:
    """A command or group of commands in a module that is imported when the command runs."""

    module: str
    """Name of a module with a Typer application called `app`, or `module:name` if the application is called
    `name`."""
    help: str
    """One-line description for the list of commands."""
    compiles: bool = False
    """Whether the command compiles programs with XLA and therefore uses the compilation cache."""
    hidden: bool = False
    """Whether to omit the command from the list of commands, for example because it is an alias."""


class _Placeholder(TyperCommand):
    """Represents a lazy command in the list of commands. Imports and runs the actual command when called."""

    def __init__(self, name: str, command: LazyCommand) -> None:
        super().__init__(name=name, help=command.help, hidden=command.hidden)
        self.module, self.compiles = command.module, command.compiles

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        if self.compiles:
            from phalanx.compilation_cache import enable_compilation_cache

            enable_compilation_cache()
        module, _, name = self.module.partition(":")
        command = typer.main.get_command(getattr(importlib.import_module(module), name or "app"))
        return command.make_context(info_name, args, parent=parent, **extra)


def lazy_group(commands: Mapping[str, LazyCommand]) -> type[TyperGroup]:
    """Return a group class for `typer.Typer(cls=...)` that contains the given commands.

    Args:
        commands: Commands by name.
    """

    class LazyGroup(TyperGroup):
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            for name, command in commands.items():
                self.add_command(_Placeholder(name, command))

    return LazyGroup

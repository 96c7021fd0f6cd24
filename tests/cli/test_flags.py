"""Every flag of every command is used by a test."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from phalanx.cli.app import COMMANDS

TESTS = Path(__file__).parents[1]


def flags(command: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield the command and the flag for all flags of a command and its subcommands."""
    for name, below in getattr(command, "commands", {}).items():
        yield from flags(below, f"{path} {name}")
    for parameter in command.params:
        if parameter.param_type_name == "option":
            # For flags such as --submit and --no-submit, either one counts.
            names = [name for name in (*parameter.opts, *parameter.secondary_opts) if name[:2] == "--"]
            yield path, "/".join(names)


def all_flags() -> list[tuple[str, str]]:
    import importlib

    found: list[tuple[str, str]] = []
    for name, mount in COMMANDS.items():
        command = typer.main.get_command(importlib.import_module(mount.module).app)
        found += flags(command, name)
    return sorted(set(found))


@pytest.fixture(scope="module")
def used() -> str:
    return "\n".join(path.read_text() for path in TESTS.rglob("*.py") if path.name != Path(__file__).name)


def test_every_flag_is_used_in_a_test(used: str) -> None:
    known = set(re.findall(r"--[a-z][a-z0-9-]*", used))
    assert [one for one in all_flags() if not known.intersection(one[1].split("/"))] == []


def test_flags_are_collected_from_the_commands() -> None:
    found = all_flags()
    assert {("train", "--resume"), ("eval", "--per-task"), ("sweep", "--jobs")} <= set(found)

"""What every comparison does: read its options, measure contenders in turns, tell what came of it.

Who is compared at what is in the `compare_*.py` beside; what the figures mean in their `*_report.py`.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from figures import Comparison, Verdict
from peers import Peer, Runner, RunnerError
from rich.console import Console

from phalanx.core.files import atomic_write


@dataclasses.dataclass(frozen=True)
class Contender:
    """Who does a work, and the options of its runner."""

    name: str
    peer: Peer
    settings: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Turns:
    """What a contender's runner measured, once in every round, and what it told of itself."""

    rates: tuple[float, ...]
    conditions: dict[str, Any]


class Report(Protocol):
    """A module that says what measurements mean."""

    def print_tables(self, comparison: Any, verdicts: Sequence[Verdict], console: Console) -> None: ...
    def markdown(self, comparison: Any, verdicts: Sequence[Verdict], conditions: str) -> str: ...


def options(description: str | None, seconds: float, seconds_help: str) -> argparse.ArgumentParser:
    """The options that every comparison has."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache"))
    parser.add_argument(
        "--venv-dir", type=pathlib.Path, default=cache / "phalanx" / "peers", help="where peers are installed"
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=seconds, help=seconds_help)
    parser.add_argument("--json", action="store_true", help="JSON lines only, no tables")
    parser.add_argument("--markdown", type=pathlib.Path, help="write the tables to this file")
    return parser


def in_turns(
    contenders: Sequence[Contender], venv_dir: pathlib.Path, repeats: int, patience: float
) -> list[Turns]:
    """Prepare every contender one after the other, then measure them in turns.

    A runner that does not answer for `patience` seconds is given up.
    """
    with contextlib.ExitStack() as stack:
        runners = []
        for contender in contenders:
            python = contender.peer.python(venv_dir)
            runner = stack.enter_context(Runner(python, contender.peer.runner, contender.settings, patience))
            runner.wait_until_ready()
            runners.append(runner)
        rounds = [[runner.measure() for runner in runners] for _ in range(repeats)]
        return [
            Turns(tuple(rates), runner.conditions)
            for runner, rates in zip(runners, zip(*rounds, strict=True), strict=True)
        ]


def tell(name: str, comparison: Comparison, report: Report, arguments: argparse.Namespace, told: str) -> int:
    """Verdicts as JSON lines, tables, and a Markdown file where asked for; 1 if a target was missed."""
    verdicts = comparison.verdicts()
    for verdict in verdicts:
        print(json.dumps(verdict.record(name)), flush=True)
    if not arguments.json:
        report.print_tables(comparison, verdicts, Console(width=None if sys.stdout.isatty() else 140))
    if arguments.markdown is not None:
        with atomic_write(arguments.markdown, "w") as file:
            file.write(report.markdown(comparison, verdicts, f"`python benchmarks/{name}.py`: {told}"))
    return 1 if any(verdict.passed is False for verdict in verdicts) else 0


def run(name: str, main: Callable[[], int]) -> None:
    """`main` as a program; a runner that fails ends it in words."""
    try:
        sys.exit(main())
    except RunnerError as error:
        sys.exit(f"{name}: {error}")

"""How commands show what they found: tables that fit a terminal, JSON for machines, progress on long work.

What is shown is up to each command.
"""

import contextlib
import json
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import typer

from phalanx.core.text import sanitized

_TERMINAL_COLUMNS = 80


def print_json(value: Any) -> None:
    """The value as indented JSON."""
    typer.echo(json.dumps(value, indent=2))


def columns(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Rows under a header; whole numbers get their commas, and columns of numbers stand right.

    >>> print(columns(["NAME", "SAMPLES"], [["a", 12000], ["bb", 7]]))
    NAME  SAMPLES
    a      12,000
    bb          7
    """
    right = [all(isinstance(row[place], int | float) for row in rows) for place in range(len(header))]
    cells = [list(header), *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(line[place]) for line in cells) for place in range(len(header))]
    lines = [
        "  ".join(
            cell.rjust(width) if stands_right else cell.ljust(width)
            for cell, width, stands_right in zip(line, widths, right, strict=True)
        )
        for line in cells
    ]
    return "\n".join(line.rstrip() for line in lines)


def facts(pairs: Sequence[tuple[str, object]]) -> str:
    """One fact a line, names lined up; long texts go on in lines below.

    >>> print(facts([("samples", 12000), ("fingerprint", "ab12")]))
    samples      12,000
    fingerprint  ab12
    """
    width = max(len(name) for name, _ in pairs)
    below = " " * (width + 2)
    return "\n".join(
        textwrap.fill(
            f"{name.ljust(width)}  {_cell(value)}",
            _TERMINAL_COLUMNS,
            subsequent_indent=below,
            break_long_words=False,
            break_on_hyphens=False,
        )
        for name, value in pairs
    )


def _cell(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        # Names may be strangers': of tasks, files, games.
        return sanitized(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4f}"


@contextlib.contextmanager
def progress(
    what: str, unit: str, total: int | None = None, *, quiet: bool = False
) -> Iterator[Callable[[int], None]]:
    """A function that is told how much more is done; it moves a bar on stderr, in a terminal only."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    parts = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TextColumn(unit), TimeElapsedColumn())
    with Progress(*parts, console=console, transient=True, disable=quiet or not console.is_terminal) as bar:
        task = bar.add_task(what, total=total)
        yield lambda more: bar.advance(task, more)

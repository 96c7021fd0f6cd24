"""How commands show what they found: tables that fit a terminal, JSON for machines, progress on long work.

What is shown is up to each command.
"""

import contextlib
import json
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import typer

from phalanx.formatting import escape_untrusted

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
        return escape_untrusted(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4f}"


EVERY = 10.0
"""Seconds between two lines of progress where there is no terminal."""


class Pace:
    """Lets a line of progress pass every `EVERY` seconds, and tells how long the rest will take."""

    def __init__(self) -> None:
        self._began = self._said = time.monotonic()

    def is_due(self) -> bool:
        """Whether it is time for the next line; if so, the clock starts again."""
        now = time.monotonic()
        if now - self._said < EVERY:
            return False
        self._said = now
        return True

    @property
    def spent(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._began

    def left(self, done: int, total: int | None) -> str:
        """The time that is left, in words; nothing where that cannot be known."""
        if total is None or not done:
            return ""
        return f", {clock(self.spent * (total - done) / done)} left"


def clock(seconds: float) -> str:
    """
    >>> clock(8.4), clock(161), clock(7384)
    ('0:00:08', '0:02:41', '2:03:04')
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


@contextlib.contextmanager
def progress(
    what: str, unit: str, total: int | None = None, *, quiet: bool = False
) -> Iterator[Callable[[int], None]]:
    """A function that is told how much more is done.

    It moves a bar on stderr; where that is no terminal it says a line every ten seconds.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        done, pace = 0, Pace()

        def advance(more: int) -> None:
            nonlocal done
            done += more
            if pace.is_due() and not quiet:
                of = "" if total is None else f" of {total:,}"
                rate = f"{done / pace.spent:,.0f}/s{pace.left(done, total)}"
                typer.echo(f"{what}: {done:,}{of} {unit}, {rate}", err=True)

        yield advance
        return
    parts = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TextColumn(unit), TimeElapsedColumn())
    with Progress(*parts, console=console, transient=True, disable=quiet) as bar:
        task = bar.add_task(what, total=total)
        yield lambda more: bar.advance(task, more)


@contextlib.contextmanager
def working(what: str, *, err: bool = True) -> Iterator[None]:
    """Shows that something goes on which cannot tell how far it is, as what is compiled cannot.

    In a terminal something turns; elsewhere a line is said every ten seconds.
    """
    from rich.console import Console

    console = Console(stderr=err)
    if console.is_terminal:
        with console.status(what):
            yield
        return
    pace, over = Pace(), threading.Event()

    def speak() -> None:
        while not over.wait(EVERY):
            typer.echo(f"{what}: {clock(pace.spent)}", err=err)

    speaker = threading.Thread(target=speak, daemon=True)
    speaker.start()
    try:
        yield
    finally:
        over.set()
        speaker.join()

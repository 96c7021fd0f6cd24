"""Output of the commands as tables, JSON and progress bars."""

import contextlib
import json
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import typer

from phalanx.formatting import escape_untrusted

PROGRESS_INTERVAL = 10.0
"""Number of seconds between progress lines if the output is not a terminal."""
_TERMINAL_COLUMNS = 80


def print_json(value: Any) -> None:
    """Print a value as indented JSON."""
    typer.echo(json.dumps(value, indent=2))


def format_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Format rows as a table. Columns of numbers are right-aligned, with thousands separators.

    >>> print(format_table(["NAME", "SAMPLES"], [["a", 12000], ["bb", 7]]))
    NAME  SAMPLES
    a      12,000
    bb          7
    """
    is_number = [all(isinstance(row[column], int | float) for row in rows) for column in range(len(header))]
    lines = [list(header), *([_format_cell(value) for value in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    padded = [
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, is_number, strict=True)
        )
        for line in lines
    ]
    return "\n".join(line.rstrip() for line in padded)


def format_fields(fields: Sequence[tuple[str, object]]) -> str:
    """Format (name, value) pairs, one pair per line. Long values are wrapped.

    >>> print(format_fields([("samples", 12000), ("fingerprint", "ab12")]))
    samples      12,000
    fingerprint  ab12
    """
    width = max(len(name) for name, _ in fields)
    indent = " " * (width + 2)
    return "\n".join(
        textwrap.fill(
            f"{name.ljust(width)}  {_format_cell(value)}",
            _TERMINAL_COLUMNS,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
        for name, value in fields
    )


def _format_cell(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        # Names of tasks, files and games may be untrusted.
        return escape_untrusted(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4f}"


class ProgressTimer:
    """Limits progress messages to one per `PROGRESS_INTERVAL` and estimates the remaining time."""

    def __init__(self) -> None:
        self._started = self._last_line = time.monotonic()

    def is_due(self) -> bool:
        """Return whether the next message is due. If so, start a new interval."""
        now = time.monotonic()
        if now - self._last_line < PROGRESS_INTERVAL:
            return False
        self._last_line = now
        return True

    @property
    def elapsed(self) -> float:
        """Number of seconds since the timer was created."""
        return time.monotonic() - self._started

    def remaining_text(self, done: int, total: int | None) -> str:
        """Return the estimated remaining time, such as `, 0:01:40 left`, or an empty string if it is unknown.

        Args:
            done: Number of finished items.
            total: Total number of items. None if it is unknown.
        """
        if total is None or not done:
            return ""
        return f", {format_clock(self.elapsed * (total - done) / done)} left"


def format_clock(seconds: float) -> str:
    """Format a duration as hours, minutes and seconds.

    >>> format_clock(8.4), format_clock(161), format_clock(7384)
    ('0:00:08', '0:02:41', '2:03:04')
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


@contextlib.contextmanager
def progress(
    what: str, unit: str, total: int | None = None, *, quiet: bool = False
) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on stderr. If stderr is not a terminal, print a line about every ten seconds.

    Args:
        what: Description of the work.
        unit: Plural name of the items, such as `samples`.
        total: Number of items. None if it is unknown.
        quiet: If True, show nothing.

    Yields:
        A function to call with the number of items that were finished since the previous call.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        done, timer = 0, ProgressTimer()

        def advance(count: int) -> None:
            nonlocal done
            done += count
            if timer.is_due() and not quiet:
                of_total = "" if total is None else f" of {total:,}"
                rate = f"{done / timer.elapsed:,.0f}/s{timer.remaining_text(done, total)}"
                typer.echo(f"{what}: {done:,}{of_total} {unit}, {rate}", err=True)

        yield advance
        return
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TextColumn(unit), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=quiet) as bar:
        task = bar.add_task(what, total=total)
        yield lambda count: bar.advance(task, count)


@contextlib.contextmanager
def show_activity(what: str, *, err: bool = True) -> Iterator[None]:
    """Show a spinner during work of unknown duration, such as compilation.

    If the output is not a terminal, print a line every ten seconds.

    Args:
        what: Description of the work.
        err: Whether to write to stderr instead of stdout.
    """
    from rich.console import Console

    console = Console(stderr=err)
    if console.is_terminal:
        with console.status(what):
            yield
        return
    timer, finished = ProgressTimer(), threading.Event()

    def print_lines() -> None:
        while not finished.wait(PROGRESS_INTERVAL):
            typer.echo(f"{what}: {format_clock(timer.elapsed)}", err=err)

    thread = threading.Thread(target=print_lines, daemon=True)
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()

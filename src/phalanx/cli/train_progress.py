"""Progress of a training run in the terminal, and a summary at the end."""

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from phalanx.cli.errors import user_errors
from phalanx.cli.output import ProgressTimer, show_activity
from phalanx.formatting import escape_untrusted, format_count

if TYPE_CHECKING:
    from rich.console import Console

    from phalanx.training.algorithm import Algorithm, Progress, TrainResult

_SIGNAL_EXIT_CODE = 128
"""A process that was stopped by signal number N exits with code `_SIGNAL_EXIT_CODE + N`."""


def run_training(
    algorithm: "Algorithm", out: Path, *, command: str, trackers: Sequence[str] = (), **options: Any
) -> None:
    """Train with a progress display, write the report, and print a summary with the paths of the files.

    The process exits with code 130 after Ctrl-C, 143 after SIGTERM, and 1 if the result of the run or the
    report could not be written.

    Args:
        algorithm: Algorithm to train with.
        out: Run folder.
        command: Start of the command that continues an interrupted run, such as `phalanx train ppo`.
        trackers: Names of experiment trackers to log to.
        options: Arguments to `phalanx.training.train`, such as `resume` and `init_from`.
    """
    from rich.console import Console

    from phalanx.logging.handlers.svg import SVGHandler
    from phalanx.logging.handlers.tracker import make_tracker
    from phalanx.training.run import SaveError, train
    from phalanx.training.run_dir import EPISODES, default_handlers

    def make_handlers(folder: Path, config: Any) -> dict[str, Any]:
        files = {**default_handlers(folder, config), "pictures": SVGHandler(folder / EPISODES)}
        return files | {name: make_tracker(name, folder) for name in trackers}

    console = Console()
    show_progress = _progress_bar if console.is_terminal else _progress_lines
    try:
        # The number of updates, which the progress display needs, may depend on data that cannot be read.
        with user_errors(), _show_warnings(), show_progress(console, algorithm) as show:
            result = train(algorithm, out, handlers=make_handlers, show=show, **options)
    except SaveError as error:
        typer.echo(f"Error: {escape_untrusted(str(error))}", err=True)
        raise typer.Exit(1) from error
    is_reported = _summarize(console, algorithm, result, command)
    if result.interrupted and result.signal is not None:
        raise typer.Exit(_SIGNAL_EXIT_CODE + result.signal)
    if not is_reported:
        raise typer.Exit(1)


@contextlib.contextmanager
def _progress_bar(console: "Console", algorithm: "Algorithm") -> Iterator[Callable[["Progress"], None]]:
    from rich import progress as rich_progress

    columns = (
        rich_progress.TextColumn("{task.description}"),
        rich_progress.BarColumn(bar_width=8),
        rich_progress.MofNCompleteColumn(),
        rich_progress.TextColumn("{task.fields[numbers]}"),
        rich_progress.TimeRemainingColumn(),
        rich_progress.TextColumn("left"),
    )
    with rich_progress.Progress(*columns, console=console) as bar:
        task = bar.add_task("compiling", total=algorithm.num_updates, numbers="")

        def show(progress: "Progress") -> None:
            numbers = _format_progress(progress, algorithm.unit)
            bar.update(
                task,
                completed=progress.update,
                total=progress.num_updates,
                description="train",
                numbers=numbers,
            )

        yield show


@contextlib.contextmanager
def _progress_lines(console: "Console", algorithm: "Algorithm") -> Iterator[Callable[["Progress"], None]]:
    """Print a line for the first and the last update, and about every ten seconds in between.

    Yields:
        A function to call with the progress after every update.
    """
    timer, first_update = ProgressTimer(), -1

    def show(progress: "Progress") -> None:
        nonlocal timer, first_update
        total, is_first = progress.num_updates, first_update < 0
        if is_first:
            # Compilation is done, so updates now show how long the remaining ones take.
            activity.close()
            timer, first_update = ProgressTimer(), progress.update
        if timer.is_due() or is_first or progress.update == total:
            remaining = timer.remaining_text(progress.update - first_update, total - first_update)
            numbers = _format_progress(progress, algorithm.unit)
            _print(console, f"update {progress.update}/{total}: {numbers}{remaining}")
        if progress.update == total:
            activity.enter_context(show_activity("evaluating and saving", err=False))

    with contextlib.ExitStack() as activity:
        if console.quiet:
            yield lambda progress: None
        else:
            activity.enter_context(show_activity(f"{algorithm.num_updates} updates; compiling", err=False))
            yield show


def _format_progress(progress: "Progress", unit: str) -> str:
    texts = [f"{progress.counts[unit] / 1000:,.0f}k {_short_unit(unit)} {progress.per_second:,.0f}/s"]
    for name, value in progress.metrics.items():
        number = f"{value:.0%}" if name.endswith(("rate", "accuracy")) else f"{value:.3f}"
        count = f" ({format_count(progress.num_episodes, 'episode')})" if name == "reward_mean" else ""
        texts.append(f"{name.replace('_', ' ')} {number}{count}")
    return " ".join(texts)


def _short_unit(unit: str) -> str:
    """Shorten the name of a unit to its last word, for example `env_steps` to `steps`."""
    return unit.rpartition("_")[2]


def _print(console: "Console", text: str) -> None:
    console.print(text, soft_wrap=True, highlight=False, markup=False)


def _summarize(console: "Console", algorithm: "Algorithm", result: "TrainResult", command: str) -> bool:
    """Print a summary and write the report. Return whether the report was written."""
    from phalanx.logging.report.page import write_report
    from phalanx.training.run_dir import CHECKPOINTS

    amount = f"{result.counts.get(algorithm.unit, 0):,} {_short_unit(algorithm.unit)}"
    status = "Interrupted" if result.interrupted else "Finished"
    lines = list(algorithm.summarize(result))
    lines.append(f"{status} after {result.update} updates, {amount}, {result.seconds:.0f} s of training.")
    report = None
    try:
        report = write_report([result.run_dir], result.run_dir / "report.html")
    except OSError as error:  # a full disk
        lines.append(f"NOT SAVED: the report could not be written: {error.strerror or error}")
    if result.interrupted:
        lines.append(f"Continue with: {command} --out {result.run_dir} --resume")
    lines.append(
        f"Run {result.run_dir}, report {report or 'none'}, checkpoint {result.run_dir / CHECKPOINTS}"
    )
    for line in lines:
        _print(console, line)
    return report is not None


@contextlib.contextmanager
def _show_warnings() -> Iterator[None]:
    """Show Phalanx's log messages above the progress bar.

    The messages are not propagated to the root logger. Otherwise, they would be printed twice if a library
    has added a handler to the root logger.
    """
    from rich.logging import RichHandler

    handler, logger = RichHandler(show_path=False, show_time=False), logging.getLogger("phalanx")
    propagate, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagate

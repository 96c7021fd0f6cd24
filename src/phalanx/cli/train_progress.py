"""Progress of a training run in the terminal, and a summary at the end."""

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from phalanx.cli.errors import user_errors
from phalanx.cli.output import ProgressTimer, show_activity
from phalanx.formatting import escape_untrusted

if TYPE_CHECKING:
    from rich.console import Console

    from phalanx.logging.handlers.handler import Handler
    from phalanx.training.algorithm import Algorithm, Progress, TrainResult

_SIGNALED = 128
"""A process that was stopped by signal N exits with the code `_SIGNALED + N`."""


def run_training(
    algorithm: "Algorithm",
    out: Path,
    *,
    resume: bool = False,
    auto_resume: bool = False,
    extend: bool = False,
    init_from: str | None = None,
    trackers: Sequence[str] = (),
    command: str,
) -> None:
    """Train with a progress display, write the report and print where the files are.

    The process exits with code 130 after Ctrl-C, 143 after SIGTERM, 75 if the connection to another training
    process was lost, and 1 if the last checkpoint or the report could not be written.

    Args:
        algorithm: Algorithm to train with.
        out: Run folder.
        resume: Whether to continue from the newest checkpoint.
        auto_resume: Whether to start the run or, if it has a checkpoint, to continue it.
        extend: Whether to continue a run with more updates than it was started with.
        init_from: Run to take the initial parameters from, as `RUN`, `RUN@STEP` or `RUN@best`. None to
            initialize them randomly.
        trackers: Names of experiment trackers to log to.
        command: Start of the command that continues an interrupted run, such as `phalanx train ppo`.
    """
    from rich.console import Console

    from phalanx.training.process_group import EXIT_CODE_PROCESS_LOST, ProcessLostError
    from phalanx.training.run import train

    console = Console(quiet=not algorithm.mesh.is_first_process)
    shown = _progress_bar if console.is_terminal else _progress_lines
    try:
        with _show_warnings(), shown(console, algorithm) as show, user_errors():
            outcome = train(
                algorithm,
                out,
                resume=resume,
                auto_resume=auto_resume,
                extend=extend,
                init_from=init_from,
                handlers=_handlers(trackers),
                show=show,
            )
    except ProcessLostError as error:
        typer.echo(f"Error: {escape_untrusted(str(error))}", err=True)
        raise typer.Exit(EXIT_CODE_PROCESS_LOST) from error
    kept = not algorithm.mesh.is_first_process or _close(console, algorithm, outcome, command)
    if outcome.interrupted and outcome.signal is not None:
        raise typer.Exit(_SIGNALED + outcome.signal)
    if not kept:
        raise typer.Exit(1)


def _handlers(trackers: Sequence[str]) -> Callable[[Path, Any], Mapping[str, "Handler"]]:
    """Return a function that creates the handlers of a run, which write files, images and to the trackers."""

    def make(folder: Path, config: Any) -> Mapping[str, "Handler"]:
        from phalanx.logging.handlers.svg import SVGHandler
        from phalanx.logging.handlers.tracker import make_tracker
        from phalanx.training.run_dir import EPISODES, default_handlers

        own = {**default_handlers(folder, config), "pictures": SVGHandler(folder / EPISODES)}
        return own | {name: make_tracker(name, folder) for name in trackers}

    return make


@contextlib.contextmanager
def _progress_bar(console: "Console", algorithm: "Algorithm") -> Iterator[Callable[["Progress"], None]]:
    from rich import progress as rich_progress
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=8),
        MofNCompleteColumn(),
        TextColumn("{task.fields[numbers]}"),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    with rich_progress.Progress(*columns, console=console) as bar:
        shown = bar.add_task("compiling", total=algorithm.num_updates, numbers="")

        def show(progress: "Progress") -> None:
            numbers = _numbers(progress, algorithm.unit)
            bar.update(shown, completed=progress.update, description="train", numbers=numbers)

        yield show


@contextlib.contextmanager
def _progress_lines(console: "Console", algorithm: "Algorithm") -> Iterator[Callable[["Progress"], None]]:
    """Print a line for the first and the last update, and about every ten seconds in between.

    Yields:
        A function to call with the progress after every update.
    """
    pace, begun = ProgressTimer(), -1

    def show(progress: "Progress") -> None:
        nonlocal pace, begun
        total, first = progress.num_updates, begun < 0
        if first:
            # Compilation is done, so updates now show how long the remaining ones take.
            silent.close()
            pace, begun = ProgressTimer(), progress.update
        if not (pace.is_due() or first or progress.update == total):
            return
        left = pace.remaining_text(progress.update - begun, total - begun)
        numbers = _numbers(progress, algorithm.unit)
        console.print(
            f"update {progress.update}/{total}: {numbers}{left}",
            soft_wrap=True,
            highlight=False,
            markup=False,
        )
        if progress.update == total:
            silent.enter_context(show_activity("evaluating and saving", err=False))

    with contextlib.ExitStack() as silent:
        if console.quiet:
            yield lambda progress: None
            return
        silent.enter_context(show_activity(f"{algorithm.num_updates} updates; compiling", err=False))
        yield show


def _numbers(progress: "Progress", unit: str) -> str:
    done = f"{progress.counts[unit] / 1000:,.0f}k {_word(unit)} {progress.per_second:,.0f}/s"
    shares = ("rate", "accuracy")
    told = (
        f"{name.replace('_', ' ')} {value:.0%}"
        if name.endswith(shares)
        else f"{name.replace('_', ' ')} {value:.3f}"
        for name, value in progress.metrics.items()
    )
    return " ".join([done, *told])


def _word(unit: str) -> str:
    """Shorten the name of a unit to its last word, for example `env_steps` to `steps`."""
    return unit.rpartition("_")[2]


def _close(console: "Console", algorithm: "Algorithm", outcome: "TrainResult", command: str) -> bool:
    """Print a summary and write the report. Returns whether the last checkpoint and the report were saved."""
    from phalanx.logging.report.page import write_report
    from phalanx.training.run_dir import CHECKPOINTS

    def say(text: str) -> None:
        console.print(text, soft_wrap=True, highlight=False, markup=False)

    for line in algorithm.summarize(outcome):
        say(line)
    ended = "Interrupted" if outcome.interrupted else "Finished"
    done = f"{outcome.counts.get(algorithm.unit, 0):,} {_word(algorithm.unit)}"
    say(f"{ended} after {outcome.update} updates, {done}, {outcome.seconds:.0f} s of training.")
    lost = []
    try:
        report = str(write_report([outcome.run_dir], outcome.run_dir / "report.html"))
    except OSError as error:  # a full disk
        lost.append(f"the report could not be written: {error.strerror or error}")
        report = "none"
    for result in outcome.seeds or [outcome]:
        if not (result.run_dir / CHECKPOINTS / str(result.update)).is_dir():
            lost.append(f"checkpoint {result.update} could not be saved, so the last updates are lost")
    for words in lost:
        say(f"NOT SAVED: {words}")
    if outcome.interrupted:
        say(f"Continue with: {command} --out {outcome.run_dir} --resume")
    say(f"Run {outcome.run_dir}, report {report}, checkpoint {outcome.run_dir / CHECKPOINTS}")
    return not lost


@contextlib.contextmanager
def _show_warnings() -> Iterator[None]:
    """Show the log messages of Phalanx above the progress bar.

    The messages are not propagated to the root logger, because libraries that add a handler to the root
    logger would print them again.
    """
    from rich.logging import RichHandler

    handler = RichHandler(show_path=False, show_time=False)
    loggers = [
        logging.getLogger(name)
        for name in ("phalanx.logging", "phalanx.training", "phalanx.data", "phalanx.puzzles.server")
    ]
    for logger in loggers:
        logger.addHandler(handler)
        logger.propagate = False
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
            logger.propagate = True

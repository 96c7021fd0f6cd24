"""A training on the terminal: its progress while it runs, and where everything is when it ends.

The training itself is in `phalanx.agents.training`.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phalanx.cli.errors import user_errors

if TYPE_CHECKING:
    from rich.console import Console

    from phalanx.agents.training import Experiment, Outcome, Progress
    from phalanx.logs import Handler

MakeHandlers = Callable[[Path, Any], Mapping[str, "Handler"]]


def run_training(
    experiment: "Experiment", out: Path, *, resume: bool = False, trackers: Sequence[str] = ()
) -> "Outcome":
    """Run it, show it, write its report; the last lines say where everything is."""
    from rich.console import Console

    from phalanx.agents.ppo.parallel import is_first_process
    from phalanx.agents.training import train

    console = Console(quiet=not is_first_process())
    say_warnings()
    updates = experiment.ppo.config.num_updates
    with progress_bar(console, updates) as advance, user_errors():

        def show(progress: "Progress") -> None:
            advance(progress.update, _numbers(progress))

        outcome = train(experiment, out, resume=resume, handlers=handlers_for(tuple(trackers)), show=show)
    if is_first_process():
        _close(console, outcome)
    return outcome


def handlers_for(trackers: Sequence[str] = ()) -> MakeHandlers:
    """The handlers of a run: files and pictures, and the trackers that were asked for."""

    def make(folder: Path, config: Any) -> Mapping[str, "Handler"]:
        from phalanx.logs import SVGHandler
        from phalanx.runs.folder import EPISODES, files_only

        handlers = {**files_only(folder, config), "pictures": SVGHandler(folder / EPISODES)}
        if "wandb" in trackers:
            from phalanx.logs import WandbHandler

            handlers["wandb"] = WandbHandler(project="phalanx", name=folder.name, dir=folder)
        if "tensorboard" in trackers:
            from phalanx.logs import TensorBoardHandler

            handlers["tensorboard"] = TensorBoardHandler(folder / "tensorboard")
        return handlers

    return make


Advance = Callable[[int, str], None]
"""How far it is, and what is shown beside."""


@contextlib.contextmanager
def progress_bar(console: "Console", total: int) -> Iterator[Advance]:
    """A bar for a training of so many updates."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=8),
        MofNCompleteColumn(),
        TextColumn("{task.fields[numbers]}"),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    with Progress(*columns, console=console) as bar:
        shown = bar.add_task("compiling", total=total, numbers="")

        def advance(completed: int, numbers: str) -> None:
            bar.update(shown, completed=completed, description="train", numbers=numbers)

        yield advance


def _numbers(progress: "Progress") -> str:
    return (
        f"{progress.environment_steps / 1000:,.0f}k steps {progress.steps_per_second:,.0f}/s "
        f"return {progress.episode_return:.2f} solved {progress.success_rate:.0%}"
    )


def _close(console: "Console", outcome: "Outcome") -> None:
    from phalanx.logs.report import write_report
    from phalanx.runs.checkpoints import FOLDER

    def say(text: str) -> None:
        console.print(text, soft_wrap=True, highlight=False)

    greedy = [line for line in outcome.evaluations if line["mode"] == "greedy"]
    if greedy:
        say(_before_and_after(greedy[0], greedy[-1]))
    for line in outcome.evaluations:
        if line.get("pass_at_k"):
            shares = ", ".join(f"pass@{k} {share:.1%}" for k, share in line["pass_at_k"].items())
            say(f"Sampled attempts on held-out tasks: {shares}")
    ended = "Interrupted" if outcome.interrupted else "Finished"
    say(
        f"{ended} after {outcome.update} updates, {outcome.environment_steps:,} steps, "
        f"{outcome.seconds:.0f} s of training."
    )
    seeds = sorted(outcome.run.glob("seed_*"))
    report = write_report(seeds or [outcome.run], outcome.run / "report.html")
    if outcome.interrupted:
        say(f"Go on with: phalanx train ... --out {outcome.run} --resume")
    say(f"Run {outcome.run}, report {report}, checkpoint {outcome.run / FOLDER}")


def _before_and_after(first: Mapping[str, Any], last: Mapping[str, Any]) -> str:
    what = "Right on held-out queries" if "proved_share" in last else "Solved on held-out tasks"
    lines = [f"{what}: {first['success_rate']:.1%} before, {last['success_rate']:.1%} after"]
    width = max((len(name) for name in last["families"]), default=0)
    for name, score in last["families"].items():
        before = first["families"][name]["success_rate"]
        lines.append(f"  {name:<{width}}  {before:6.1%} -> {score['success_rate']:6.1%}")
    return "\n".join(lines)


def say_warnings() -> None:
    """Complaints of the logger and of the training appear above the bar, one line each."""
    from rich.logging import RichHandler

    for name in ("phalanx.logs", "phalanx.agents"):
        logger = logging.getLogger(name)
        if not logger.handlers:
            logger.addHandler(RichHandler(show_path=False, show_time=False))

"""`phalanx train kge`: a knowledge-graph embedding, with its progress while it trains.

The training itself is in `phalanx.agents.kge_training`.
"""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.cli.errors import UserError, user_errors

if TYPE_CHECKING:
    from rich.console import Console

    from phalanx.agents.kge_training import KGEOutcome, KGEProgress, KGETrainingConfig


def kge(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...",
            help="Settings, as dataset=data/kg/family kge.model=rotate.",
            show_default=False,
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(help="A preset's name (family, umls, wn18rr, countries) or the path of a YAML file."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The run's folder.", show_default="runs/kge, runs/kge-2, ...")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    wandb: Annotated[bool, typer.Option("--wandb", help="Log to Weights & Biases too.")] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Log to TensorBoard too.")] = False,
) -> None:
    """Train a knowledge-graph embedding, and keep the best by validation.

    Ctrl-C saves and stops; the same command with --resume goes on, to the same numbers.
    """
    if resume and out is None:
        raise UserError("--resume needs --out, the folder of the run to go on with")

    from rich.console import Console

    from phalanx.agents import runs
    from phalanx.agents.kge_training import KGEData, train_kge
    from phalanx.cli.training_display import handlers_for

    with user_errors():
        config = _config(preset, overrides or [], out if resume else None)
        data = KGEData.read(config.dataset)
    trackers = [name for name, wanted in (("wandb", wandb), ("tensorboard", tensorboard)) if wanted]
    console = Console()
    with _bar(console, config.kge.epochs) as show, user_errors():
        outcome = train_kge(
            config,
            out or runs.next_free("runs/kge"),
            resume=resume,
            handlers=handlers_for(trackers),
            show=show,
            data=data,
        )
    _close(console, outcome)


def _config(preset: str | None, overrides: list[str], begun: Path | None) -> "KGETrainingConfig":
    from phalanx.agents import runs
    from phalanx.agents.kge_training import KGETrainingConfig, load_kge_training
    from phalanx.core.config import load_config

    if begun is None:
        return load_kge_training(preset, tuple(overrides))
    if preset is not None:
        raise ValueError("--resume takes the run's own config: leave --preset out")
    before = runs.read_config(begun, KGETrainingConfig)
    config = load_config(KGETrainingConfig, None, overrides, base=before)
    runs.check_same_config(begun, before, config)
    return config


@contextlib.contextmanager
def _bar(console: "Console", epochs: int) -> Iterator[Callable[["KGEProgress"], None]]:
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
        shown = bar.add_task("compiling", total=epochs, numbers="")

        def show(progress: "KGEProgress") -> None:
            best = progress.best_mrr_100
            numbers = f"loss {progress.loss:.4f}" + ("" if best is None else f" best MRR {best:.4f}")
            bar.update(shown, completed=progress.epoch, description="train", numbers=numbers)

        yield show


def _close(console: "Console", outcome: "KGEOutcome") -> None:
    from phalanx.agents.kge_training import MODEL
    from phalanx.logs.report import write_report

    def say(text: str) -> None:
        console.print(text, soft_wrap=True, highlight=False)

    figures = outcome.validation
    say(
        f"Validation MRR, filtered: {figures.mrr_100:.4f} against 100 candidates, {figures.mrr:.4f} against "
        f"all entities (epoch {outcome.best_epoch}, the best)"
    )
    ended = "Interrupted" if outcome.interrupted else "Finished"
    say(f"{ended} after {outcome.epoch} epochs, {outcome.seconds:.0f} s of training.")
    report = write_report([outcome.run], outcome.run / "report.html")
    if outcome.interrupted:
        say(f"Go on with: phalanx train kge --out {outcome.run} --resume")
    say(f"Run {outcome.run}, report {report}, embedding {outcome.run / MODEL}")

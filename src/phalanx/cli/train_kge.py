"""`phalanx train kge`: a knowledge-graph embedding, with its progress while it trains.

The training itself is in `phalanx.agents.kge_training`.
"""

from typing import TYPE_CHECKING

from phalanx.cli import training_options as options
from phalanx.cli.errors import user_errors

if TYPE_CHECKING:
    from rich.console import Console

    from phalanx.agents.kge_training import KGEOutcome, KGEProgress


def kge(
    overrides: options.Overrides = None,
    preset: options.Preset = None,
    out: options.Out = None,
    resume: options.Resume = False,
    wandb: options.Wandb = False,
    tensorboard: options.Tensorboard = False,
) -> None:
    """Train a knowledge-graph embedding, and keep the best by validation.

    Ctrl-C saves and stops; the same command with --resume goes on, to the same numbers.
    """
    chosen = options.Chosen("kge", overrides, preset, out, resume, None, wandb, tensorboard)

    from rich.console import Console

    from phalanx.agents.kge_training import KGEData, KGETrainingConfig, load_kge_training, train_kge
    from phalanx.cli.training_display import handlers_for, progress_bar, say_warnings

    with user_errors():
        config = chosen.config(KGETrainingConfig, load_kge_training)
        data = KGEData.read(config.dataset)
    console = Console()
    say_warnings()
    with progress_bar(console, config.kge.epochs) as advance, user_errors():

        def show(progress: "KGEProgress") -> None:
            best = progress.best_mrr_100
            told = "" if best is None else f" best MRR {best:.4f}"
            advance(progress.epoch, f"loss {progress.loss:.4f}{told}")

        outcome = train_kge(
            config,
            chosen.folder(),
            resume=resume,
            handlers=handlers_for(chosen.trackers()),
            show=show,
            data=data,
        )
    _close(console, outcome)


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

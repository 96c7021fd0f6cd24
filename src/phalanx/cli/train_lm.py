"""`phalanx train lm`: a small language model, from a batch plan, a puzzle server or an environment.

The training itself is in `phalanx.agents.lm.training`.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.cli import training_options as options
from phalanx.cli.errors import UserError, user_errors

if TYPE_CHECKING:
    from rich.console import Console

    from phalanx.agents.lm.training import LMOutcome


def lm(
    overrides: options.Overrides = None,
    plan: Annotated[
        Path | None, typer.Option(help="A batch plan (with --dataset), or the batch files made of one.")
    ] = None,
    dataset: Annotated[Path | None, typer.Option(help="The dataset that the plan was made for.")] = None,
    samples: Annotated[
        Path | None, typer.Option(help="A file of samples, as `phalanx arcade collect` writes them.")
    ] = None,
    arcade: Annotated[str | None, typer.Option(help="HOST:PORT of a puzzle server to play on.")] = None,
    games: Annotated[str | None, typer.Option(help="Puzzles to play there, as binary,sudoku.")] = None,
    env: Annotated[str | None, typer.Option(help="Play an environment: arc or proofs.")] = None,
    preset: options.Preset = None,
    out: options.Out = None,
    resume: options.Resume = False,
    wandb: options.Wandb = False,
    tensorboard: options.Tensorboard = False,
) -> None:
    """Train a small language model on packed rows, and write its report.

    Ctrl-C saves and stops; the same command with --resume goes on, to the same numbers.
    """
    settings = [*_source(plan, dataset, samples, arcade, games, env), *(overrides or [])]
    chosen = options.Chosen("lm", settings, preset, out, resume, None, wandb, tensorboard)

    from rich.console import Console

    from phalanx.agents.lm.batches import StreamedBatches
    from phalanx.agents.lm.sources import open_source
    from phalanx.agents.lm.training import LMProgress, LMTrainingConfig, load_lm_training, train_lm
    from phalanx.cli.training_display import handlers_for, progress_bar, say_warnings

    with user_errors():
        config = chosen.config(LMTrainingConfig, load_lm_training)
        source = open_source(config)
    held_out = source.held_out if isinstance(source, StreamedBatches) else ()
    console = Console()
    say_warnings()
    total = min(config.optimiser.num_updates, source.num_batches or config.optimiser.num_updates)
    with progress_bar(console, total) as advance, user_errors():

        def show(progress: LMProgress) -> None:
            advance(progress.update, f"loss {progress.loss:.3f} {progress.tokens_per_second:,.0f} tokens/s")

        outcome = train_lm(
            config,
            source,
            chosen.folder(),
            held_out=held_out,
            resume=resume,
            handlers=handlers_for(chosen.trackers()),
            show=show,
        )
    _close(console, outcome)


def _source(
    plan: Path | None,
    dataset: Path | None,
    samples: Path | None,
    arcade: str | None,
    games: str | None,
    env: str | None,
) -> list[str]:
    """The settings that say where tokens come from."""
    given = {"--plan": plan, "--samples": samples, "--arcade": arcade, "--env": env}
    named = [name for name, value in given.items() if value is not None]
    if len(named) > 1:
        raise UserError(f"{' and '.join(named)} exclude each other: tokens come from one place")
    if dataset is not None and plan is None:
        raise UserError("--dataset belongs to --plan")
    if games is not None and arcade is None:
        raise UserError("--games belongs to --arcade")
    if plan is not None:
        return ["data.source=plan", f"data.path={plan}", *([f"data.dataset={dataset}"] if dataset else [])]
    if samples is not None:
        return ["data.source=samples", f"data.path={samples}"]
    if arcade is not None:
        return [
            "data.source=arcade",
            f"data.address={arcade}",
            *([f"data.games=[{games}]"] if games else []),
        ]
    return [] if env is None else ["data.source=env", f"data.environment={env}"]


def _close(console: "Console", outcome: "LMOutcome") -> None:
    from phalanx.logs.report import write_report
    from phalanx.runs.checkpoints import FOLDER

    def say(text: str) -> None:
        console.print(text, soft_wrap=True, highlight=False)

    if outcome.evaluations:
        first, last = outcome.evaluations[0], outcome.evaluations[-1]
        say(
            f"Loss on held-out samples: {first['loss']:.3f} at update {first['step']}, {last['loss']:.3f} at "
            f"{last['step']}; {last['token_accuracy']:.1%} of the tokens that count are right"
        )
    elif outcome.losses:
        say(f"Loss: {outcome.losses[0]:.3f} at first, {outcome.losses[-1]:.3f} at last")
    share = 1 - outcome.real_tokens / max(outcome.padded_tokens, 1)
    ended = "Interrupted" if outcome.interrupted else "Finished"
    say(
        f"{ended} after {outcome.update} updates, {outcome.real_tokens:,} tokens and {share:.1%} padding, "
        f"{outcome.seconds:.0f} s of training."
    )
    report = write_report([outcome.run], outcome.run / "report.html")
    if outcome.interrupted:
        say(f"Go on with: phalanx train lm --out {outcome.run} --resume")
    say(f"Run {outcome.run}, report {report}, checkpoint {outcome.run / FOLDER}")

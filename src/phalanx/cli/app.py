"""The `phalanx` command: its list of subcommands and the `--version` option."""

import sys
from typing import Annotated

import typer

from phalanx import __version__
from phalanx.cli.errors import UserError
from phalanx.cli.lazy_commands import LazyCommand, lazy_group
from phalanx.extras import MissingExtraError
from phalanx.formatting import escape_untrusted

COMMANDS = {
    "train": LazyCommand("phalanx.cli.train", "Train a policy, embedding or language model.", compiles=True),
    "eval": LazyCommand("phalanx.cli.eval", "Evaluate a training run.", compiles=True),
    "sweep": LazyCommand("phalanx.cli.sweep", "Search for the best settings of a training run."),
    "report": LazyCommand("phalanx.cli.report", "Write an HTML report of a run, or compare runs."),
    "render": LazyCommand(
        "phalanx.cli.render", "Render episodes of a trained policy as GIF or MP4.", compiles=True
    ),
    "export": LazyCommand("phalanx.cli.export", "Export a language model for Hugging Face transformers."),
    "demo": LazyCommand(
        "phalanx.cli.demo", "Train an agent on generated tasks and write a report.", compiles=True
    ),
    "data": LazyCommand("phalanx.cli.data", "Token lengths, batch plans and packed datasets."),
    "arc": LazyCommand("phalanx.cli.arc", "ARC datasets: list, show, download."),
    "kg": LazyCommand("phalanx.cli.kg", "Knowledge graphs: list, download, mine rules, evaluate, query."),
    "puzzles": LazyCommand("phalanx.cli.puzzles", "Text puzzles: list, show, play or collect from a server."),
    "prove": LazyCommand("phalanx.cli.prove", "Prove a query from facts and rules, and show the proof."),
    "serve": LazyCommand("phalanx.cli.serve", "Serve a text environment over OpenEnv.", compiles=True),
    "doctor": LazyCommand("phalanx.cli.doctor", "Check files and run folders for corruption."),
    "info": LazyCommand(
        "phalanx.cli.info", "Show versions and devices; with --environments, the environments."
    ),
}

app = typer.Typer(
    name="phalanx",
    cls=lazy_group(COMMANDS),
    help="Train and evaluate agents that reason: ARC, proofs, puzzles, knowledge graphs and language models.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _print_version(requested: bool) -> bool:
    if requested:
        typer.echo(f"phalanx {__version__}")
        raise typer.Exit
    return requested


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line.

    Exit codes: 0 for success, 2 for invalid input or a library that is not installed, 1 for other errors.
    """
    try:
        app(prog_name="phalanx")
    except (UserError, MissingExtraError) as error:
        typer.echo(f"phalanx: {escape_untrusted(error)}", err=True)
        sys.exit(2)

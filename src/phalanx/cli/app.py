"""The `phalanx` command: its list of commands, `--version`, and the way errors are shown.

Each command is in the module that the list names, and is imported only when it runs.
"""

import sys
from typing import Annotated

import typer

from phalanx import __version__
from phalanx.cli.errors import Mount, UserError, lazy_group

COMMANDS = {
    "demo": Mount(
        "phalanx.cli.demo", "Train the default agent on built-in tasks and write the report.", compiles=True
    ),
    "train": Mount(
        "phalanx.cli.train",
        "Train an agent on ARC or proofs, embeddings, or a language model.",
        compiles=True,
    ),
    "sweep": Mount("phalanx.cli.sweep", "Train with every combination of settings, and compare."),
    "eval": Mount("phalanx.cli.eval", "Measure the policy of a training run.", compiles=True),
    "export": Mount("phalanx.cli.export", "Write a language model as Hugging Face reads it."),
    "info": Mount("phalanx.cli.info", "Show the version, JAX's devices, and which engine is in use."),
    "data": Mount(
        "phalanx.cli.data",
        "Tasks, lengths, batch plans and packs: what comes before training.",
    ),
    "arc": Mount("phalanx.cli.arc", "ARC datasets: list, show, download."),
    "play": Mount("phalanx.cli.play", "Solve ARC tasks in the terminal, or watch a puzzle-server game."),
    "prove": Mount(
        "phalanx.cli.prove", "Prove a query from facts and rules; show the proof as a tree or SVG."
    ),
    "puzzles": Mount("phalanx.cli.puzzles", "List and show text puzzles; collect from a puzzle server."),
    "kg": Mount("phalanx.cli.kg", "Knowledge graphs: list, download, mine rules, evaluate, query."),
    "serve": Mount(
        "phalanx.cli.serve", "Serve an environment to trainers of language models (OpenEnv).", compiles=True
    ),
    "render": Mount(
        "phalanx.cli.render", "Show a trained policy at work, as a GIF or a film.", compiles=True
    ),
    "doctor": Mount("phalanx.cli.doctor", "Say what files and runs are, and whether they are whole."),
    "report": Mount("phalanx.cli.report", "Make one HTML page of a training run, or compare several."),
}

app = typer.Typer(
    name="phalanx",
    cls=lazy_group(COMMANDS),
    help="Train agents that reason; everything moves as a batch.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> bool:
    if wanted:
        typer.echo(f"phalanx {__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Runs the command line and exits with its code: 0, 2 for a user's mistake, 1 for a fault."""
    try:
        app(prog_name="phalanx")
    except UserError as error:
        typer.echo(f"phalanx: {error}", err=True)
        sys.exit(2)

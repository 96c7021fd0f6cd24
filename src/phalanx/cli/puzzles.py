"""`phalanx puzzles`: the kinds of puzzles that are made in process, and one of them in words.

The puzzles themselves are in `phalanx.puzzles`; those of a server are played by `phalanx arcade`.
"""

from typing import Annotated

import typer

from phalanx.cli.errors import user_errors
from phalanx.cli.output import columns, print_json

app = typer.Typer(
    name="puzzles",
    help="Puzzles made in process: list the kinds, show one in words.",
    no_args_is_help=True,
    add_completion=False,
)


@app.command(name="list")
def list_kinds(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, with each difficulty's parameters.")
    ] = False,
) -> None:
    """List the kinds of puzzles."""
    from phalanx.puzzles.kinds import puzzle_kinds

    kinds = puzzle_kinds()
    if as_json:
        print_json(
            [
                {
                    "kind": kind.name,
                    "description": kind.description,
                    "version": kind.version,
                    "has_unique_solution": kind.has_unique_solution,
                    "difficulties": {name: dict(settings) for name, settings in kind.difficulties.items()},
                }
                for kind in kinds
            ]
        )
        return
    rows = [[kind.name, "one" if kind.has_unique_solution else "any", kind.description] for kind in kinds]
    typer.echo(columns(["KIND", "SOLUTIONS", "ABOUT"], rows))


@app.command()
def show(
    kind: Annotated[str, typer.Argument(help="A kind, such as sudoku; `phalanx puzzles list` names them.")],
    seed: Annotated[int, typer.Option(help="What the puzzle is made from.", min=0)] = 0,
    difficulty: Annotated[str, typer.Option(help="easy, medium or hard.")] = "easy",
    single: Annotated[bool, typer.Option("--single", help="Ask for the whole solution at once.")] = False,
    solution: Annotated[bool, typer.Option("--solution", help="Show a solver's answers below.")] = False,
) -> None:
    """Show a puzzle as a language model is asked to solve it."""
    from phalanx.puzzles.env import PuzzleEnvironment

    with user_errors():
        environment = PuzzleEnvironment(kind, difficulty, turns="single" if single else "multi")
        text = environment.reset(seed)
    typer.echo(text)
    if solution:
        typer.echo("\nSolution:\n" + "\n".join(environment.expert_actions() or ()))

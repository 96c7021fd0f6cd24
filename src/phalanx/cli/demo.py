"""`phalanx demo`: trains a policy on generated ARC tasks, like `phalanx train bc --env arc`."""

from pathlib import Path
from typing import Annotated

import typer

from phalanx.cli.errors import user_errors

app = typer.Typer(add_completion=False)


@app.command()
def demo(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Settings, such as num_updates=20."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Run folder. If it exists, a number is appended.")] = Path(
        "out/demo"
    ),
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
) -> None:
    """Train a policy on generated ARC tasks from four families, print the results and write a report."""
    from phalanx.cli.train_progress import run_training
    from phalanx.training.bc import BC, BCConfig
    from phalanx.training.run_dir import next_free_dir

    with user_errors():
        algorithm = BC(BCConfig.load("arc", [f"seed={seed}", *(overrides or [])]))
    run_training(algorithm, next_free_dir(out), command="phalanx train bc")

"""`phalanx demo`: trains a policy on generated ARC tasks, like `phalanx train bc --env arc`."""

from pathlib import Path
from typing import Annotated

import typer

from phalanx.cli.train import train

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
    seed: Annotated[int | None, typer.Option(help="Random seed.", show_default="0")] = None,
) -> None:
    """Train a policy on generated ARC tasks from four families, print the results and write a report."""
    from phalanx.training.run_dir import next_free_dir

    train("bc", overrides, env="arc", seed=seed, out=next_free_dir(out))

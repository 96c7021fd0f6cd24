"""`phalanx demo`: the default agent, trained on built-in tasks, and its report.

It is `phalanx train bc` with the preset `default`, in a folder of its own.
"""

from pathlib import Path
from typing import Annotated

import typer

from phalanx.cli.errors import user_errors

app = typer.Typer(add_completion=False)


@app.command()
def demo(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...", help="Settings, as cloning.num_updates=20.", show_default=False
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option(help="The run's folder; a number is added where there is one already.")
    ] = Path("out/demo"),
    seed: Annotated[int, typer.Option(help="Seed of the training.")] = 0,
) -> None:
    """Train a policy on four families of generated puzzles, print before and after, and write the report."""
    from phalanx.cli.train_progress import run_training
    from phalanx.training.arc_training import CloningTraining
    from phalanx.training.run_dir import next_free_dir

    with user_errors():
        config = CloningTraining.config_type.load(None, (f"seed={seed}", *(overrides or [])))
        algorithm = CloningTraining(config)
    run_training(algorithm, next_free_dir(out), command="phalanx train bc")

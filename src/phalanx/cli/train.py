"""`phalanx train`: one command for each kind of training.

What a training does is in `phalanx.agents`; how it is shown while it runs is in `training_display`.
"""

from pathlib import Path
from typing import Annotated

import typer

from phalanx.cli.errors import UserError, user_errors

app = typer.Typer(name="train", help="Train an agent.", no_args_is_help=True, add_completion=False)


@app.callback()
def _train() -> None:
    pass


@app.command()
def arc(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...", help="Settings, as ppo.num_updates=200.", show_default=False
        ),
    ] = None,
    preset: Annotated[
        str | None, typer.Option(help="A preset's name or the path of a YAML file.", show_default="default")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The run's folder.", show_default="runs/arc, runs/arc-2, ...")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    seeds: Annotated[int | None, typer.Option(min=1, help="Train so many seeds at once (num_seeds).")] = None,
    wandb: Annotated[bool, typer.Option("--wandb", help="Log to Weights & Biases too.")] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Log to TensorBoard too.")] = False,
    coordinator: Annotated[
        str | None, typer.Option(help="HOST:PORT of the first process, where there are several.")
    ] = None,
    process_id: Annotated[int | None, typer.Option(help="Which of them this one is, from 0.")] = None,
    num_processes: Annotated[int | None, typer.Option(help="How many processes there are.")] = None,
) -> None:
    """Train a policy on ARC tasks with PPO, and write its report.

    Ctrl-C saves and stops; the same command with --resume goes on, to the same numbers.
    """
    _connect(coordinator, process_id, num_processes)
    if resume and out is None:
        raise UserError("--resume needs --out, the folder of the run to go on with")
    chosen = [*(overrides or []), *([f"num_seeds={seeds}"] if seeds else [])]

    from phalanx.agents import runs
    from phalanx.agents.arc_training import ArcTrainingConfig, arc_experiment, load_arc_training
    from phalanx.cli.training_display import run_training
    from phalanx.core.config import load_config

    with user_errors():
        if resume and out is not None:
            if preset is not None:
                raise ValueError("--resume takes the run's own config: leave --preset out")
            begun = runs.read_config(out, ArcTrainingConfig)
            config = load_config(ArcTrainingConfig, None, chosen, base=begun)
            runs.check_same_config(out, begun, config)
        else:
            config = load_arc_training(preset, tuple(chosen))
        experiment = arc_experiment(config)
    trackers = [name for name, wanted in (("wandb", wandb), ("tensorboard", tensorboard)) if wanted]
    run_training(experiment, out or runs.next_free("runs/arc"), resume=resume, trackers=trackers)


def _connect(coordinator: str | None, process_id: int | None, num_processes: int | None) -> None:
    """Join the other processes before anything else touches JAX."""
    given = [coordinator is not None, process_id is not None, num_processes is not None]
    if not any(given):
        return
    if coordinator is None or process_id is None or num_processes is None:
        raise UserError("several processes need --coordinator, --process-id and --num-processes together")
    from phalanx.agents.parallel import connect

    with user_errors():
        connect(coordinator, num_processes, process_id)

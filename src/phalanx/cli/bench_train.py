"""`phalanx bench train`: how fast a training is, where its time goes, and what logging costs.

What is measured and how is in `phalanx.agents.benchmark`.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from phalanx.cli.errors import UserError, user_errors

QUICK = (
    "arc.dataset.num_tasks=20",
    "arc.dataset.max_grid_height=3",
    "arc.dataset.max_grid_width=3",
    "network.kind=conv",
    "network.width=8",
    "network.depth=1",
    "ppo.num_steps=4",
    "ppo.epochs=1",
    "ppo.minibatches=2",
    "evaluation.num_tasks=5",
)
"""A training that compiles and runs in seconds; it shows that the measurement works, and no figure."""
_QUICK_ENVIRONMENTS = 16


def train(
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...", help="Settings of the training, as `phalanx train arc` has them."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON line a measurement.")] = False,
    preset: Annotated[str, typer.Option(help="Which training.")] = "default",
    environments: Annotated[int, typer.Option(min=1, help="Environments of the timed training.")] = 1_024,
    logging: Annotated[
        str, typer.Option(help="Environments for the cost of logging, with commas; empty for none.")
    ] = "1024,10000",
    repeats: Annotated[int, typer.Option(min=1, help="Repeats of each measurement.")] = 5,
    rounds: Annotated[
        int, typer.Option(min=1, help="Alternations of logging on and off; fewer where updates take long.")
    ] = 5,
    quick: Annotated[
        bool, typer.Option("--quick", help="A tiny training: a smoke test, not a figure.")
    ] = False,
    peers: Annotated[
        bool, typer.Option("--peers", help="Measure beside JaxARC too, in a venv of its own.")
    ] = False,
) -> None:
    """Train on ARC in whole compiled updates; time environment, policy, learning and logging."""
    sizes = _sizes(logging)

    from phalanx.agents.benchmark import TrainingBenchmark

    with user_errors():
        benchmark = TrainingBenchmark(
            preset=preset,
            overrides=(*(QUICK if quick else ()), *(settings or ())),
            num_envs=_QUICK_ENVIRONMENTS if quick else environments,
            logging_envs=(_QUICK_ENVIRONMENTS,) if quick else sizes,
            repeats=repeats,
            rounds=rounds,
            judged=not quick,
        )
        # Built here so that a bad setting is told before anything runs.
        for size in (benchmark.num_envs, *benchmark.logging_envs):
            benchmark.config(size)
    records = benchmark.run()
    if as_json:
        for record in records:
            typer.echo(json.dumps(record))
    else:
        _print_table(records)
    if peers:
        _run_peers(repeats, quick=quick, as_json=as_json)


def _sizes(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")] if text.strip() else []
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise UserError(f"--logging takes positive whole numbers with commas, as in 1024,10000; got {text!r}")
    return tuple(int(part) for part in parts)


def _print_table(records: Iterable[dict[str, Any]]) -> None:
    """A row for each figure as it is measured, then the conditions they share."""
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table

    table = Table(title="Training on ARC")
    table.add_column("figure")
    table.add_column("environments", justify="right")
    table.add_column("measured")
    table.add_column("target")
    console = Console()
    record: dict[str, Any] = {}
    with Live(table, console=console):
        for record in records:
            verdict = {True: "pass", False: "[bold red]FAIL[/]", None: ""}[record.get("passed")]
            table.add_row(record["figure"], f"{record['environments']:,}", _measured(record), verdict)
    console.print()
    console.print(
        f"{record['grid']} canvas, {record['network']}, {record['num_parameters']:,} parameters; "
        f"{record['nproc']} x {record['cpu']}, load {record['load_average']}, jax {record['jax']}"
    )


def _measured(record: dict[str, Any]) -> str:
    if record["figure"] == "training":
        return (
            f"{record['steps_per_second_median']:,} steps/s (worst {record['steps_per_second_worst']:,}); "
            f"environment {record['environment_share']:.2%}, policy {record['policy_share']:.1%}, "
            f"update {record['update_share']:.1%}"
        )
    return (
        f"{record['overhead']:+.2%} ({record['update_seconds_off']:.3f} s an update without); "
        f"in the logger itself {record['logger_share']:.3%}"
    )


def _run_peers(repeats: int, *, quick: bool, as_json: bool) -> None:
    """Hands over to the comparison, which is not installed with the package."""
    import subprocess
    import sys

    import phalanx

    script = Path(phalanx.__file__).resolve().parents[2] / "benchmarks" / "compare_training.py"
    if not script.is_file():
        raise UserError(
            f"--peers needs a checkout of Phalanx's sources: {script} is not there; leave --peers out"
        )
    options = ["--repeats", str(repeats), *(["--quick"] if quick else []), *(["--json"] if as_json else [])]
    code = subprocess.run([sys.executable, str(script), *options], check=False).returncode
    if code:
        raise typer.Exit(code)

"""`phalanx bench`: steps per second on this machine, one JSON line or one row for each measurement.

What is measured and how is in `phalanx.arc.benchmark`.
"""

import enum
import json
from collections.abc import Iterable
from typing import Annotated, Any

import typer

from phalanx.cli.errors import UserError, user_errors

app = typer.Typer(
    name="bench",
    help="Measure steps per second.",
    no_args_is_help=True,
    add_completion=False,
)


class EngineName(enum.StrEnum):
    """Engines that can be asked for."""

    native = "native"
    xla = "xla"
    auto = "auto"


class FormatName(enum.StrEnum):
    """Action formats that can be asked for."""

    point = "point"
    bbox = "bbox"
    mask = "mask"


@app.callback()
def _bench() -> None:
    pass


@app.command()
def arc(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON line a measurement.")] = False,
    engine: Annotated[EngineName, typer.Option(help="Which engine does the steps.")] = EngineName.auto,
    batch: Annotated[str, typer.Option(help="Batch sizes, with commas.")] = "1,64,1024,16384",
    grid: Annotated[str, typer.Option(help="Rows x columns of the canvas.")] = "30x30",
    action_format: Annotated[
        FormatName, typer.Option("--format", help="How actions name cells.")
    ] = FormatName.bbox,
    observation: Annotated[bool, typer.Option(help="Whether observations are produced.")] = True,
    tasks: Annotated[int, typer.Option(min=1, help="Tasks in the buffer.")] = 1,
    repeats: Annotated[int, typer.Option(min=1, help="Repeats of each measurement.")] = 5,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Steps of each environment in one compiled call.")
    ] = None,
) -> None:
    """Step ARC environments with random operations under auto-reset, in one compiled scan."""
    batches = _batches(batch)
    shape = _shape(grid)

    from phalanx.arc.benchmark import Workload, sweep
    from phalanx.core import native

    with user_errors():
        workload = Workload(
            engine=engine.value,
            grid=shape,
            selection_format=action_format.value,
            observation=observation,
            tasks=tasks,
            steps=steps,
        )
        workload.config  # noqa: B018 - built here so that a bad grid is told before anything runs
    if engine is EngineName.native and not native.available():
        raise UserError(f"the native engine cannot be used: {native.reason()}")
    records = sweep(batches, workload, repeats)
    if as_json:
        for record in records:
            typer.echo(json.dumps(record))
    else:
        _print_table(records)


def _batches(text: str) -> tuple[int, ...]:
    try:
        sizes = tuple(int(part) for part in text.split(","))
    except ValueError:
        sizes = ()
    if not sizes or min(sizes) < 1:
        raise UserError(f"--batch takes positive whole numbers with commas, as in 1,64,1024; got {text!r}")
    return sizes


def _shape(text: str) -> tuple[int, int]:
    rows, _, columns = text.partition("x")
    if not (rows.isdecimal() and columns.isdecimal()):
        raise UserError(f"--grid takes rows x columns, as in 30x30; got {text!r}")
    return int(rows), int(columns)


def _print_table(records: Iterable[dict[str, Any]]) -> None:
    """A table that grows by a row with each measurement, then the conditions they share."""
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table

    table = Table(title="ARC, random operations, auto-reset")
    table.add_column("engine")
    for name in ("batch", "steps/s (median)", "worst", "compile s", "first batch_step s"):
        table.add_column(name, justify="right")
    console = Console()
    record: dict[str, Any] = {}
    with Live(table, console=console):
        for record in records:
            isa = f" ({record['isa']})" if record["isa"] else ""
            table.add_row(
                f"{record['engine']}{isa}",
                f"{record['batch']:,}",
                f"{record['steps_per_second_median']:,}",
                f"{record['steps_per_second_worst']:,}",
                f"{record['compile_seconds']:.2f}",
                f"{record['first_batch_step_seconds']:.2f}",
            )
    console.print()
    seen = "with" if record["observation"] else "without"
    console.print(
        f"{record['grid']} canvas, {record['action_format']} actions, {record['tasks']} task(s), {seen} "
        f"observations, {record['repeats']} repeats; {record['nproc']} x {record['cpu']}, load "
        f"{record['load_average']}, jax {record['jax']}"
    )

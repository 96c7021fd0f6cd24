"""`phalanx bench`: how fast this machine is, one JSON line or one row for each measurement.

What is measured and how is in `phalanx.arc.benchmark` and `phalanx.tokens.benchmark`; training is in
`phalanx.cli.bench_train`, proofs are in `phalanx.cli.bench_proofs`.
"""

import enum
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from phalanx.cli.bench_proofs import proofs
from phalanx.cli.bench_train import train
from phalanx.cli.errors import UserError, user_errors

app = typer.Typer(
    name="bench",
    help="Measure steps per second, and token batching.",
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


app.command()(train)
app.command()(proofs)


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
    from phalanx.core import engine as native

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


@app.command()
def tokens(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON line a measurement.")] = False,
    samples: Annotated[int, typer.Option(min=100, help="Samples to plan and pack.")] = 1_000_000,
    repeats: Annotated[int, typer.Option(min=1, help="Repeats of each measurement.")] = 5,
    peers: Annotated[
        bool, typer.Option("--peers", help="Measure other libraries too, each in a venv of its own.")
    ] = False,
    curve: Annotated[
        Path | None, typer.Option(help="Measure padding against shuffling instead, and draw it to this SVG.")
    ] = None,
) -> None:
    """Plan, pack, save, load and shard token batches of log-normal lengths."""
    if curve is not None:
        if peers:
            raise UserError("--curve and --peers are measured separately: give one of them")
        _token_curve(samples, curve, as_json=as_json)
        return
    from phalanx.tokens.benchmark import Benchmark

    records = Benchmark(samples, repeats).run()
    if as_json:
        for record in records:
            typer.echo(json.dumps(record))
    else:
        _print_token_table(records)
    if peers:
        _run_token_peers(repeats, as_json=as_json)


def _token_curve(samples: int, path: Path, *, as_json: bool) -> None:
    from phalanx.core.files import atomic_write
    from phalanx.tokens.shuffle_curve import draw_curve, measure_curve

    records = list(measure_curve(samples))
    with user_errors(), atomic_write(path, "w") as file:
        draw_curve(records).as_svg(output_file=file)
    if as_json:
        for record in records:
            typer.echo(json.dumps(record))
        return
    from phalanx.cli.printing import columns

    names = ("pool_batches", "batches", "efficiency", "mixing", "drift")
    typer.echo(
        columns([name.upper() for name in names], [[record[name] for name in names] for record in records])
    )
    typer.echo(str(path))


def _run_token_peers(repeats: int, *, as_json: bool) -> None:
    """Hands over to the comparison, which is not installed with the package."""
    import subprocess
    import sys

    import phalanx

    script = Path(phalanx.__file__).resolve().parents[2] / "benchmarks" / "compare_tokens.py"
    if not script.is_file():
        raise UserError(
            f"--peers needs a checkout of Phalanx's sources: {script} is not there; leave --peers out"
        )
    options = ["--repeats", str(repeats), *(["--json"] if as_json else [])]
    code = subprocess.run([sys.executable, str(script), *options], check=False).returncode
    if code:
        raise typer.Exit(code)


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


_TOKEN_FACTS = (
    "distribution",
    "form",
    "rows",
    "planned_samples",
    "efficiency",
    "fill",
    "over_bound",
    "drift",
    "slowest_over_ideal",
    "tokens_per_second",
    "peak_memory_mb",
    "bytes",
)
"""What a row shows beside its times, where the record has it."""


def _print_token_table(records: Iterable[dict[str, Any]]) -> None:
    """A row for each measurement as it is made, then the conditions they share."""
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table

    table = Table(title="Token batches")
    table.add_column("figure")
    for name in ("median s", "worst s"):
        table.add_column(name, justify="right")
    table.add_column("facts")
    table.add_column("target")
    console = Console()
    record: dict[str, Any] = {}
    with Live(table, console=console):
        for record in records:
            facts = [f"{name} {record[name]}" for name in _TOKEN_FACTS if name in record]
            verdict = {True: "pass", False: "[bold red]FAIL[/]", None: ""}[record.get("passed")]
            table.add_row(
                record["figure"],
                f"{record['seconds_median']:.4f}",
                f"{record['seconds_worst']:.4f}",
                ", ".join(facts),
                verdict,
            )
    console.print()
    console.print(
        f"{record['samples']:,} samples, {record['nproc']} x {record['cpu']}, load {record['load_average']}, "
        f"numpy {record['numpy']}"
    )

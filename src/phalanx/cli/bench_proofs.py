"""`phalanx bench proofs`: how fast proofs are stepped, learned and ranked, beside another prover.

What is measured and how is in `phalanx.proofs.benchmark` and `phalanx.agents.proof_benchmark`.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from phalanx.cli.errors import UserError, user_errors

if TYPE_CHECKING:
    from phalanx.proofs.benchmark import ProofBenchmark


def proofs(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON line a measurement.")] = False,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data", "-d", help="The folder of family, wn18rr and countries_s3 [default: generated data].",
            envvar="PHALANX_KG",
        ),
    ] = None,
    engine: Annotated[
        Literal["native", "xla", "both"], typer.Option(help="Which engine finds the successors.")
    ] = "both",
    environments: Annotated[int, typer.Option(min=1, help="Environments stepped together.")] = 256,
    repeats: Annotated[int, typer.Option(min=1, help="Repeats of each measurement.")] = 5,
    quick: Annotated[
        bool, typer.Option("--quick", help="Few and short repeats: a smoke test, not a figure.")
    ] = False,
) -> None:  # fmt: skip
    """Step proof environments with random legal actions; with --data also train and rank."""
    from phalanx.core import engine as native
    from phalanx.proofs.benchmark import ProofBenchmark, engines_at_hand

    if engine == "native" and not native.available():
        raise UserError(f"the native engine cannot be used: {native.reason()}")
    with user_errors():
        benchmark = ProofBenchmark(
            folder=data,
            engines=engines_at_hand() if engine == "both" else (engine,),
            batch=environments,
            repeats=1 if quick else repeats,
            seconds=0.05 if quick else 0.5,
        )
    records = _records(benchmark, quick)
    if as_json:
        for record in records:
            typer.echo(json.dumps(record))
    else:
        _print_table(records)


def _records(benchmark: "ProofBenchmark", quick: bool) -> Iterable[dict[str, Any]]:
    """Every figure of the table, in its order; each is made by `record_of`."""
    yield from benchmark.run()
    if benchmark.folder is not None:
        from phalanx.agents import proof_benchmark

        yield from proof_benchmark.run(benchmark.folder, benchmark.repeats, quick)


def _print_table(records: Iterable[dict[str, Any]]) -> None:
    """A row for each figure as it is measured, then the conditions they share."""
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table

    table = Table(title="Proofs")
    for name in ("figure", "knowledge base"):
        table.add_column(name)
    for name in ("median", "worst", "peer", "times", "compile s", "peak MB"):
        table.add_column(name, justify="right")
    table.add_column("target")
    console = Console()
    record: dict[str, Any] = {}
    peers: dict[str, None] = {}
    with Live(table, console=console):
        for record in records:
            table.add_row(*_row(record))
            peers |= {record["peer"]: None} if "peer" in record else {}
    console.print()
    for peer in peers:
        console.print(f"Peer: {peer}.", highlight=False)
    console.print(
        f"{record['nproc']} x {record['cpu']}, load {record['load_average']}, jax {record['jax']}",
        highlight=False,
    )


def _row(record: dict[str, Any]) -> list[str]:
    peers = record.get("peers", {})
    figure = " ".join(str(record[name]) for name in ("figure", "engine") if name in record)
    return [
        figure,
        record["dataset"],
        f"{record['value']:,} {record['unit']}",
        f"{record['worst']:,}" if "worst" in record else "",
        "\n".join(f"{name} {value:,g}" for name, value in peers.items()),
        "\n".join(f"{record[f'times_{name}']:,g}" for name in peers),
        f"{record['compile_seconds']:.1f}" if "compile_seconds" in record else "",
        f"{record['peak_rss_mb']:,}" if "peak_rss_mb" in record else "",
        {True: "pass", False: "[bold red]FAIL[/]", None: ""}[record.get("passed")],
    ]

"""`phalanx report`: writes the HTML report of a run, or a comparison of several runs."""

from pathlib import Path
from typing import Annotated

import typer

from phalanx.cli.errors import user_errors
from phalanx.formatting import escape_untrusted

app = typer.Typer(add_completion=False)


@app.command()
def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN_DIR", help="Run folders. Several runs are compared.", show_default=False),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="Path of the page.",
            show_default="RUN_DIR/report.html, or compare-OTHERS.html for several runs",
        ),
    ] = None,
) -> None:
    """Write an HTML report of a training run, or compare several runs.

    The page shows curves, evaluations, throughput, settings and sampled episodes, and works offline.
    """
    from phalanx.io.atomic import atomic_write
    from phalanx.logging.report.page import build_page, report_path
    from phalanx.logging.report.run_data import load_run

    with user_errors():
        data = [load_run(run) for run in runs]
        path = report_path(data, out)
    page = build_page(data)
    with user_errors(), atomic_write(path, "w") as file:
        file.write(page)
    for run in data:
        for note in run.notes:
            typer.echo(escape_untrusted(f"{run.name}: {note}"), err=True)
    typer.echo(escape_untrusted(f"Wrote {path} ({len(page) / 1e6:.1f} MB)"))

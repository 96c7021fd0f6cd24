"""`phalanx report`: a training run as one HTML page, or several runs compared in one.

What the page shows is in `phalanx.logging.report`.
"""

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
        typer.Argument(
            metavar="RUN_DIR...", help="A run directory, or several to compare.", show_default=False
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="The page [default: RUN_DIR/report.html, or compare-OTHER.html]."),
    ] = None,
) -> None:
    """Write a page that needs no network: curves, success by family, throughput, config, episodes."""
    from phalanx.logging.report.page import build_page, report_path, save_page
    from phalanx.logging.report.run_data import read_run

    with user_errors():
        data = [read_run(run) for run in runs]
        target = report_path(data, out)
    page = build_page(data)
    with user_errors():
        save_page(page, target)
    for run in data:
        for note in run.notes:
            typer.echo(escape_untrusted(f"{run.name}: {note}"), err=True)
    typer.echo(escape_untrusted(f"Wrote {target} ({len(page) / 1e6:.1f} MB); open it in a browser."))

"""`phalanx data`: one group of commands for each domain's data.

The commands of the ARC data sets are in `data_arc`.
"""

import typer

from phalanx.cli.lazy import Mount, lazy_group

app = typer.Typer(
    name="data",
    cls=lazy_group({"arc": Mount("phalanx.cli.data_arc", "ARC data sets: list, show, download.")}),
    help="List, show and download the data that environments use.",
    no_args_is_help=True,
    add_completion=False,
)


@app.callback()
def _data() -> None:
    pass

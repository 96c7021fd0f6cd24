"""`phalanx data`: one group of commands for each domain's data.

The commands of ARC data sets are in `arc`, those of token batches in the
other modules named here.
"""

import typer

from phalanx.cli.errors import LazyCommand, lazy_group

app = typer.Typer(
    name="data",
    cls=lazy_group(
        {
            "lengths": LazyCommand("phalanx.cli.data.lengths", "Length caches: build, stats."),
            "batchplan": LazyCommand("phalanx.cli.data.plan", "Batch plans: build, info, verify, shard."),
            "batching": LazyCommand(
                "phalanx.cli.data.analyze", "Lengths analyzed: analyze, histogram, suggest."
            ),
            "batch": LazyCommand("phalanx.cli.data.export", "Batch files: generate."),
            "pack": LazyCommand("phalanx.cli.data.pack", "Pack samples into rows of one length."),
        }
    ),
    help="The data that environments use, and token batches: lengths, plans, packs, files.",
    no_args_is_help=True,
    add_completion=False,
)


@app.callback()
def _data() -> None:
    pass

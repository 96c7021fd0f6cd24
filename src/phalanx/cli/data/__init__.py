"""`phalanx data`: counts token lengths, plans batches, packs samples and writes batch files."""

import typer

from phalanx.cli.lazy_commands import LazyCommand, lazy_group

app = typer.Typer(
    name="data",
    cls=lazy_group(
        {
            "lengths": LazyCommand("phalanx.cli.data.lengths", "Length caches: build, stats."),
            "plan": LazyCommand("phalanx.cli.data.plan", "Batch plans: build, info, verify, shard."),
            "analyze": LazyCommand(
                "phalanx.cli.data.analyze", "Analysis of lengths: report, histogram, suggest."
            ),
            "export": LazyCommand("phalanx.cli.data.export", "Write the batches of a plan to files."),
            "pack": LazyCommand("phalanx.cli.data.pack", "Pack samples into rows."),
            # Names that users of chuk-lazarus know.
            "batchplan": LazyCommand("phalanx.cli.data.plan", "Same as `plan`.", hidden=True),
            "batching": LazyCommand("phalanx.cli.data.analyze", "Same as `analyze`.", hidden=True),
            "batch": LazyCommand("phalanx.cli.data.export:batch_app", "Same as `export`.", hidden=True),
        }
    ),
    help="Datasets and token batches: lengths, plans, packing, batch files.",
    no_args_is_help=True,
    add_completion=False,
)


@app.callback()
def _data() -> None:
    pass

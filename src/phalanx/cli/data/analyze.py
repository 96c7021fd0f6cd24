"""`phalanx data analyze`: compares bucketing and packing for the sample lengths of a dataset."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from phalanx.cli.data.options import (
    AsJson,
    BucketEdges,
    CachePath,
    MaxSampleLength,
    load_lengths,
    parse_edges,
)
from phalanx.cli.errors import user_errors
from phalanx.cli.output import format_fields, print_json

if TYPE_CHECKING:
    from phalanx.data.bucket_search import BucketAnalysis
    from phalanx.data.efficiency_report import BucketEfficiencyReport
    from phalanx.data.length_histogram import LengthHistogram

app = typer.Typer(
    help="Analysis of lengths: report, histogram, suggest.", no_args_is_help=True, add_completion=False
)

SvgPath = Annotated[Path | None, typer.Option(help="Also draw a chart to this SVG file.")]


@app.command("analyze", hidden=True)
@app.command()
def report(
    cache: CachePath,
    bucket_edges: BucketEdges = "128,256,512",
    max_sample_length: MaxSampleLength = 2048,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Save the report as JSON.")] = None,
    svg: SvgPath = None,
    as_json: AsJson = False,
) -> None:
    """Compare the given buckets with optimal buckets and with packing, and print recommendations."""
    from phalanx.data.efficiency_report import create_efficiency_report
    from phalanx.data.plans.buckets import BucketSpec

    lengths = load_lengths(cache).table()
    with user_errors():
        spec = BucketSpec(edges=parse_edges(bucket_edges), max_sample_length=max_sample_length)
        found = create_efficiency_report(lengths, spec)
    values = {
        "cache": str(cache),
        **found.model_dump(mode="json"),
        "overall_efficiency": found.overall_efficiency,
        "compared": dict(found.compared()),
    }
    if output is not None:
        import json

        from phalanx.io.atomic import atomic_write

        with user_errors(), atomic_write(output, "w") as file:
            file.write(json.dumps(values, indent=2) + "\n")
    _show(values, found.to_ascii(), found, svg, as_json)


@app.command()
def histogram(
    cache: CachePath,
    bins: Annotated[int, typer.Option(min=1, help="Number of bars.")] = 15,
    width: Annotated[int, typer.Option(min=1, help="Length of the longest bar.")] = 50,
    svg: SvgPath = None,
    as_json: AsJson = False,
) -> None:
    """Show a histogram of the sample lengths."""
    from phalanx.data.length_histogram import compute_length_histogram

    found = compute_length_histogram(load_lengths(cache).table(), num_bins=bins)
    values = {"cache": str(cache), **found.model_dump()}
    _show(values, found.to_ascii(width=width), found, svg, as_json)


@app.command()
def suggest(
    cache: CachePath,
    num_buckets: Annotated[
        int, typer.Option("--num-buckets", "-n", min=2, help="Number of buckets, including the last.")
    ] = 4,
    goal: Annotated[
        Literal["waste", "balance", "memory"],
        typer.Option("--goal", "-g", help="Fewest padded tokens, equal buckets, or fewest attention scores."),
    ] = "waste",
    max_length: Annotated[
        int | None,
        typer.Option(min=1, help="Maximum length of the last bucket.", show_default="the longest sample"),
    ] = None,
    multiple_of: Annotated[int, typer.Option(min=1, help="Edges are multiples of this.")] = 1,
    svg: SvgPath = None,
    as_json: AsJson = False,
) -> None:
    """Find the optimal bucket edges for the lengths of a dataset."""
    from phalanx.data.bucket_search import OptimizationGoal, analyze_bucket_efficiency, suggest_bucket_edges

    lengths = load_lengths(cache).table()
    with user_errors():
        found = suggest_bucket_edges(lengths, num_buckets, OptimizationGoal(goal), max_length, multiple_of)
    fields: list[tuple[str, object]] = [
        ("edges", ",".join(map(str, found.edges))),
        ("max_sample_length", found.max_sample_length),
        ("goal", found.optimization_goal),
        ("efficiency", f"{found.estimated_efficiency:.2%}"),
        ("reason", found.rationale),
    ]
    values = {"cache": str(cache), **found.model_dump(mode="json")}
    analysis = analyze_bucket_efficiency(lengths, found.bucket_spec)
    _show(values, format_fields(fields), analysis, svg, as_json)


def _show(
    values: dict[str, Any],
    text: str,
    chart: "BucketEfficiencyReport | BucketAnalysis | LengthHistogram",
    svg: Path | None,
    as_json: bool,
) -> None:
    """Print `values` as JSON if `as_json` is true, and `text` otherwise.

    If `svg` is not None, also save a drawing of the chart to this path.
    """
    from phalanx.svg import save_svg

    if svg is not None:
        with user_errors():
            save_svg(chart.to_svg(), svg)
    print_json(values) if as_json else typer.echo(text)

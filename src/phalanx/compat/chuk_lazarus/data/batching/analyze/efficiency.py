"""Length histograms, bucket efficiency and reports."""

from typing import Any, ClassVar

from phalanx.compat.renamed import alias
from phalanx.data import bucket_search as _edges
from phalanx.data.bucket_search import (
    BucketAnalysis,
    BucketEfficiency,
    OptimizationGoal,
    analyze_bucket_efficiency,
)
from phalanx.data.efficiency_report import (
    BucketEfficiencyReport as BatchingEfficiencyReport,
    create_efficiency_report,
)
from phalanx.data.length_histogram import (
    HistogramBin,
    LengthHistogram,
    TextBar,
    bar_lines,
    compute_length_histogram,
)
from phalanx.data.lengths import Lengths
from phalanx.data.plans.buckets import BucketSpec
from phalanx.formatting import format_percent


class BucketSuggestion(_edges.BucketSuggestion):
    """`phalanx.data.bucket_search.BucketSuggestion` with the alias `overflow_max` of `max_sample_length`."""

    overflow_max: ClassVar = alias("max_sample_length")


def suggest_bucket_edges(*args: Any, **options: Any) -> BucketSuggestion:
    """Find bucket edges. The arguments are those of `phalanx.data.suggest_bucket_edges`."""
    return BucketSuggestion(**dict(_edges.suggest_bucket_edges(*args, **options)))


def visualize_buckets(lengths: Lengths, bucket_spec: BucketSpec, width: int = 50) -> str:
    """Return a text chart that shows the number of samples and the efficiency of each bucket."""
    bars = []
    for bucket in analyze_bucket_efficiency(lengths, bucket_spec).buckets:
        efficiency = format_percent(bucket.efficiency) if bucket.sample_count else "empty"
        bars.append(TextBar(bucket.label, bucket.sample_count, f"{bucket.sample_count:,} {efficiency:>6}"))
    return "\n".join(["Samples in each bucket, and its efficiency", *bar_lines(bars, width)])


__all__ = [
    "BatchingEfficiencyReport",
    "BucketAnalysis",
    "BucketEfficiency",
    "BucketSuggestion",
    "HistogramBin",
    "LengthHistogram",
    "OptimizationGoal",
    "analyze_bucket_efficiency",
    "compute_length_histogram",
    "create_efficiency_report",
    "suggest_bucket_edges",
    "visualize_buckets",
]

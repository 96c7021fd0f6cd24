"""Length histograms, bucket efficiency and reports."""

from phalanx.data.bucket_edges import (
    BucketAnalysis,
    BucketEfficiency,
    BucketSuggestion,
    OptimizationGoal,
    analyze_bucket_efficiency,
    suggest_bucket_edges,
)
from phalanx.data.efficiency_report import BatchingEfficiencyReport, create_efficiency_report
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


def visualize_buckets(lengths: Lengths, bucket_spec: BucketSpec, width: int = 50) -> str:
    """Return a text chart of the samples in each bucket and its efficiency."""
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

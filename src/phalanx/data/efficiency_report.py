"""Report on how much padding a dataset needs with length buckets and with packing."""

import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

from phalanx.config import FrozenModel, check_type
from phalanx.data.bucket_search import (
    BucketAnalysis,
    BucketSuggestion,
    OptimizationGoal,
    analyze_counts,
    suggest_bucket_edges,
)
from phalanx.data.length_histogram import (
    LengthHistogram,
    TextBar,
    bar_lines,
    compute_length_histogram,
    count_lengths,
)
from phalanx.data.lengths import Lengths, LengthTable, as_length_table
from phalanx.data.metrics import PaddingMetrics
from phalanx.data.packing import PackingMode, pack_lengths
from phalanx.data.plans.buckets import BucketSpec
from phalanx.formatting import format_compact, format_percent

if TYPE_CHECKING:
    import drawsvg as draw

_COLUMNS = 80
_MIN_IMPROVEMENT = 0.02
_CROWDED_FRACTION = 0.8


class PackingEstimate(PaddingMetrics):
    """Estimated result of packing samples into rows."""

    mode: PackingMode
    """Algorithm that assigns samples to rows."""
    capacity: int
    """Row length in tokens, which is the maximum length of the last bucket."""
    total_samples: int
    """Number of packed samples. Samples that are not in any bucket are not packed."""
    num_packs: int
    """Number of rows."""


class BucketEfficiencyReport(FrozenModel):
    """Efficiency of length buckets for a dataset, compared with optimal buckets and with packing."""

    length_histogram: LengthHistogram
    """Histogram of all lengths, including those of samples that are not in any bucket."""
    bucket_analysis: BucketAnalysis
    """Efficiency of the given buckets."""
    suggestions: tuple[BucketSuggestion, ...]
    """Optimal bucket edges for each `OptimizationGoal`. The number of buckets is the same as in
    `bucket_analysis`."""
    packing: PackingEstimate
    """Estimated result of packing the samples that are in the buckets."""
    recommendations: tuple[str, ...]
    """Recommendations as sentences, starting with the most important one."""

    @property
    def total_samples(self) -> int:
        """Number of samples in the buckets."""
        return self.bucket_analysis.total_samples

    @property
    def total_tokens(self) -> int:
        """Number of tokens in the buckets, without padding."""
        return self.bucket_analysis.total_tokens

    @property
    def total_padded(self) -> int:
        """Number of tokens in the buckets, including padding."""
        return self.bucket_analysis.padded_tokens

    @property
    def overall_efficiency(self) -> float:
        """Fraction of the tokens in the given buckets that are not padding, from 0 to 1."""
        return self.bucket_analysis.overall_efficiency

    def compared(self) -> tuple[tuple[str, float], ...]:
        """Return the name of each compared method, and the fraction of its tokens that are not padding."""
        return (
            ("these buckets", self.overall_efficiency),
            *((f"best for {s.optimization_goal}", s.estimated_efficiency) for s in self.suggestions),
            ("packing", self.packing.efficiency),
        )

    def to_ascii(self) -> str:
        """Return the report as text with at most 80 columns."""
        bars = [TextBar(name, value, f"{format_percent(value, 2):>7}") for name, value in self.compared()]
        suggestions = [_wrap(f"{s.optimization_goal}: {s.edges_text}") for s in self.suggestions]
        sections = [
            [self.length_histogram.to_ascii()],
            ["Buckets", self.bucket_analysis.to_ascii()],
            ["Compared", "Tokens without padding / tokens including padding", *bar_lines(bars, full=1.0)],
            ["Suggested edges", *suggestions],
            ["Recommendations", *(_wrap(f"- {text}") for text in self.recommendations)],
        ]
        return "\n\n".join("\n".join(section) for section in sections)

    def to_svg(self) -> "draw.Drawing":
        """Draw the real tokens and the padding for the given buckets, for optimal buckets and for packing."""
        from phalanx.svg import Bar, bar_chart, titled_drawing

        best = max(efficiency for _, efficiency in self.compared())
        bars = []
        for name, efficiency in self.compared():
            padded = round(self.total_tokens / efficiency)
            note = f"{format_percent(efficiency)} of {format_compact(padded)}"
            bars.append(Bar(name.capitalize(), self.total_tokens, padded, note, efficiency == best))
        subtitle = (
            f"{self.total_samples:,} samples, {format_compact(self.total_tokens)} real tokens; packed into "
            f"{self.packing.num_packs:,} rows of {self.packing.capacity:,}"
        )
        chart = bar_chart(bars, ("real tokens", "padding"))
        return titled_drawing(chart, "Padded tokens: buckets and packing", subtitle)


def create_efficiency_report(
    lengths: Lengths, bucket_spec: BucketSpec, packing_mode: PackingMode = PackingMode.BEST_FIT_DECREASING
) -> BucketEfficiencyReport:
    """Compare the given buckets with optimal buckets and with packing, and make recommendations."""
    check_type(bucket_spec, BucketSpec, "bucket_spec")
    table = as_length_table(lengths)
    counts = count_lengths(table)
    analysis = analyze_counts(counts, bucket_spec)
    capacity = bucket_spec.max_sample_length
    if not analysis.total_samples:
        raise ValueError(
            f"all buckets are empty: lengths are {counts.values[0]} to {counts.values[-1]}, but buckets have "
            f"lengths {bucket_spec.min_length} to {capacity}"
        )
    # Only the samples in the buckets, so that all values describe the same samples.
    inside = (table.lengths >= bucket_spec.min_length) & (table.lengths <= capacity)
    kept = LengthTable.from_arrays(None, table.lengths[inside])
    suggestions = tuple(
        suggest_bucket_edges(kept, bucket_spec.num_buckets, goal, capacity) for goal in OptimizationGoal
    )
    num_packs = int(pack_lengths(kept.lengths, capacity, packing_mode).max()) + 1
    packing = PackingEstimate(
        mode=packing_mode,
        capacity=capacity,
        total_samples=len(kept),
        total_tokens=analysis.total_tokens,
        padded_tokens=num_packs * capacity,
        num_packs=num_packs,
    )
    return BucketEfficiencyReport(
        length_histogram=compute_length_histogram(table),
        bucket_analysis=analysis,
        suggestions=suggestions,
        packing=packing,
        recommendations=tuple(_recommend(analysis, suggestions[0], packing, int(counts.values[-1]))),
    )


def _recommend(
    analysis: BucketAnalysis, best: BucketSuggestion, packing: PackingEstimate, longest: int
) -> Iterator[str]:
    """Yield recommendations, starting with the most important one. There is at least one."""
    spec, padded_now = analysis.bucket_spec, analysis.padded_tokens
    if analysis.too_long:
        yield (
            f"{analysis.too_long:,} samples are longer than max_sample_length {spec.max_sample_length} and "
            f"are skipped; raise it to {longest} to keep them, or cut or split them."
        )
    if too_short := analysis.skipped_samples - analysis.too_long:
        yield f"{too_short:,} samples are shorter than min_length {spec.min_length} and are skipped."
    given, optimal = analysis.overall_efficiency, best.estimated_efficiency
    packed = f"Packing into rows of {packing.capacity} is {format_percent(packing.efficiency, 2)} full"
    if packing.efficiency > max(given, optimal) + _MIN_IMPROVEMENT:
        yield (
            f"{packed}, where these buckets are {format_percent(given, 2)} and the best {best.num_buckets} "
            f"buckets {format_percent(optimal, 2)}: {1 - packing.padded_tokens / padded_now:.0%} fewer "
            f"padded tokens. Pack if the model keeps segments apart (segment ids or cu_seqlens)."
        )
    else:
        possible = format_percent(max(given, optimal), 2)
        yield f"{packed}, buckets can be {possible}: stay with buckets, which are simpler."
    if optimal > given + _MIN_IMPROVEMENT:
        padded = round(analysis.total_tokens / optimal)
        yield (
            f"If you pad to buckets, {best.edges_text} gives {format_percent(optimal, 2)} with as many "
            f"buckets: {1 - padded / padded_now:.0%} fewer padded tokens."
        )
    *others, last = [bucket.label for bucket in analysis.buckets if not bucket.sample_count] or [""]
    if last:
        names = f"buckets {', '.join(others)} and {last}" if others else f"bucket {last}"
        yield f"No sample is in {names}; its edge could serve elsewhere."
    fullest = max(analysis.buckets, key=lambda bucket: bucket.sample_count)
    share = fullest.sample_count / analysis.total_samples
    if share > _CROWDED_FRACTION and len(analysis.buckets) > 2:
        yield f"Bucket {fullest.label} holds {share:.0%} of the samples; put more edges inside it."


def _wrap(text: str) -> str:
    return textwrap.fill(
        text, _COLUMNS, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )

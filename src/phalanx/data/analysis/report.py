"""The efficiency report: lengths, buckets, better buckets, packing, and what to do about it, in one object.

Each part on its own is in `histogram`, `efficiency` and `phalanx.data`.
"""

import textwrap

import numpy as np

from phalanx.config import FrozenModel, check_type
from phalanx.data.bucket_search import (
    BucketAnalysis,
    BucketSuggestion,
    OptimizationGoal,
    analyze_counts,
    suggest_bucket_edges,
)
from phalanx.data.length_analysis import (
    Bar,
    LengthCounts,
    LengthHistogram,
    bar_lines,
    compute_length_histogram,
    count_lengths,
)
from phalanx.data.lengths import Lengths, LengthTable, as_length_table
from phalanx.data.packing import pack_lengths
from phalanx.data.packing_config import PackingMode
from phalanx.data.plans.buckets import BucketSpec
from phalanx.formatting import format_percent

_COLUMNS = 80
_WORTH_SAYING = 0.02
_CROWDED = 0.8


class PackingEstimate(FrozenModel):
    """What packing whole samples into rows of one length would give."""

    mode: PackingMode
    """How samples choose their rows."""
    capacity: int
    """Tokens in a row: the longest length that the buckets take."""
    total_samples: int
    """Samples packed: the same that the buckets take."""
    total_tokens: int
    """Real tokens."""
    num_packs: int
    """Rows needed."""

    @property
    def padded_tokens(self) -> int:
        """Tokens of all rows."""
        return self.num_packs * self.capacity

    @property
    def efficiency(self) -> float:
        """Real over padded tokens, at most 1."""
        return self.total_tokens / self.padded_tokens if self.padded_tokens else 1.0

    @property
    def packing_ratio(self) -> float:
        """Samples in a row, on average."""
        return self.total_samples / self.num_packs if self.num_packs else 0.0


class BatchingEfficiencyReport(FrozenModel):
    """How a dataset's lengths meet a set of buckets, beside the best buckets and beside packing."""

    length_histogram: LengthHistogram
    """All samples."""
    bucket_analysis: BucketAnalysis
    """The given buckets."""
    suggestions: tuple[BucketSuggestion, ...]
    """The best edges for each goal, with as many buckets as were given; waste first."""
    packing: PackingEstimate
    """The same samples packed."""
    recommendations: tuple[str, ...]
    """What to do, the most important first."""

    @property
    def total_samples(self) -> int:
        """Samples that the buckets take."""
        return self.bucket_analysis.total_samples

    @property
    def total_tokens(self) -> int:
        """Real tokens of those."""
        return self.bucket_analysis.total_tokens

    @property
    def total_padded(self) -> int:
        """Those tokens and their padding."""
        return self.bucket_analysis.padded_tokens

    @property
    def overall_efficiency(self) -> float:
        """Real over padded tokens in the given buckets, at most 1."""
        return self.bucket_analysis.overall_efficiency

    def compared(self) -> tuple[tuple[str, float], ...]:
        """Real over padded tokens of every way that the report compares, by name."""
        return (
            ("these buckets", self.overall_efficiency),
            *((f"best for {s.optimization_goal}", s.estimated_efficiency) for s in self.suggestions),
            ("packing", self.packing.efficiency),
        )

    def to_ascii(self) -> str:
        """The whole report in at most 80 columns."""
        bars = [Bar(name, value, f"{format_percent(value, 2):>7}") for name, value in self.compared()]
        parts = [
            self.length_histogram.to_ascii(),
            self.bucket_analysis.to_ascii(),
            "\n".join(["Real tokens of all padded tokens", *bar_lines(bars, full=1.0)]),
            "\n".join(_wrapped(f"{s.optimization_goal}: {_edges_text(s)}") for s in self.suggestions),
            "\n".join(_wrapped(f"- {text}") for text in self.recommendations),
        ]
        titles = ("", "Buckets", "Compared", "Suggested edges", "Recommendations")
        return "\n\n".join(f"{t}\n{p}" if t else p for t, p in zip(titles, parts, strict=True))


def create_efficiency_report(
    lengths: Lengths, bucket_spec: BucketSpec, packing_mode: PackingMode = PackingMode.BEST_FIT_DECREASING
) -> BatchingEfficiencyReport:
    """Analyze the lengths against the buckets, the best buckets and packing, and say what to do."""
    check_type(bucket_spec, BucketSpec, "bucket_spec")
    table = as_length_table(lengths)
    counts = count_lengths(table)
    analysis = analyze_counts(counts, bucket_spec)
    if not analysis.total_samples:
        raise ValueError(
            f"no bucket takes any sample: lengths are {counts.values[0]} to {counts.values[-1]}, "
            f"buckets take {bucket_spec.min_length} to {bucket_spec.overflow_max}"
        )
    # Only what the buckets take, so that every figure speaks of the same samples.
    inside = (table.lengths >= bucket_spec.min_length) & (table.lengths <= bucket_spec.overflow_max)
    kept = LengthTable.from_arrays(None, table.lengths[inside])
    suggestions = tuple(
        suggest_bucket_edges(kept, bucket_spec.num_buckets, goal, bucket_spec.overflow_max)
        for goal in OptimizationGoal
    )
    packing = PackingEstimate(
        mode=packing_mode,
        capacity=bucket_spec.overflow_max,
        total_samples=len(kept),
        total_tokens=int(kept.lengths.sum(dtype=np.int64)),
        num_packs=int(pack_lengths(kept.lengths, bucket_spec.overflow_max, packing_mode).max()) + 1,
    )
    return BatchingEfficiencyReport(
        length_histogram=compute_length_histogram(table),
        bucket_analysis=analysis,
        suggestions=suggestions,
        packing=packing,
        recommendations=tuple(_recommendations(counts, analysis, suggestions[0], packing)),
    )


def _recommendations(
    counts: LengthCounts, analysis: BucketAnalysis, best: BucketSuggestion, packing: PackingEstimate
) -> list[str]:
    """Advice, of which there is always some: at the least, that all is well."""
    spec = analysis.bucket_spec
    advice = []
    if analysis.too_long:
        advice.append(
            f"{analysis.too_long:,} samples are longer than overflow_max {spec.overflow_max} and are "
            f"skipped; raise it to {counts.values[-1]} to keep them, or cut or split them."
        )
    if analysis.skipped_samples > analysis.too_long:
        short = analysis.skipped_samples - analysis.too_long
        advice.append(f"{short:,} samples are shorter than min_length {spec.min_length} and are skipped.")
    given, can_be = analysis.overall_efficiency, max(analysis.overall_efficiency, best.estimated_efficiency)
    packed = f"Packing into rows of {packing.capacity} is {format_percent(packing.efficiency, 2)} full"
    if packing.efficiency > can_be + _WORTH_SAYING:
        advice.append(
            f"{packed}, where these buckets are {format_percent(given, 2)} and the best "
            f"{best.num_buckets} buckets "
            f"{format_percent(best.estimated_efficiency, 2)}: "
            f"{_fewer(analysis.padded_tokens, packing.padded_tokens)} padded tokens. Pack if the model "
            f"keeps segments apart (segment ids or cu_seqlens)."
        )
    else:
        advice.append(
            f"{packed}, buckets can be {format_percent(can_be, 2)}: stay with buckets, which are simpler."
        )
    if best.estimated_efficiency > given + _WORTH_SAYING:
        padded = round(analysis.total_tokens / best.estimated_efficiency)
        advice.append(
            f"If you pad to buckets, {_edges_text(best)} gives "
            f"{format_percent(best.estimated_efficiency, 2)} with "
            f"as many buckets: {_fewer(analysis.padded_tokens, padded)} padded tokens."
        )
    advice += _about_single_buckets(analysis)
    return advice


def _about_single_buckets(analysis: BucketAnalysis) -> list[str]:
    advice = []
    empty = [bucket.label for bucket in analysis.buckets if not bucket.sample_count]
    if empty:
        advice.append(f"No sample is in {_listed('bucket', empty)}; its edge could serve elsewhere.")
    fullest = max(analysis.buckets, key=lambda bucket: bucket.sample_count)
    share = fullest.sample_count / analysis.total_samples
    if share > _CROWDED and len(analysis.buckets) > 2:
        advice.append(f"Bucket {fullest.label} holds {share:.0%} of the samples; put more edges inside it.")
    return advice


def _listed(noun: str, names: list[str]) -> str:
    return f"{noun} {names[0]}" if len(names) == 1 else f"{noun}s {', '.join(names[:-1])} and {names[-1]}"


def _fewer(before: int, after: int) -> str:
    return f"{1 - after / before:.0%} fewer"


def _edges_text(suggestion: BucketSuggestion) -> str:
    edges = ",".join(map(str, suggestion.edges))
    return f"{edges} (overflow {suggestion.overflow_max})"


def _wrapped(text: str) -> str:
    return textwrap.fill(
        text, _COLUMNS, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )

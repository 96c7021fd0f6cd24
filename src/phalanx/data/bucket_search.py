"""Search for optimal bucket edges, and a report that compares buckets with packing."""

import textwrap
from collections.abc import Callable
from enum import StrEnum
from typing import TypeAlias

import numpy as np
from jaxtyping import Int64

from phalanx.config import FrozenModel, check_type
from phalanx.data.length_analysis import (
    BucketAnalysis,
    LengthCounts,
    LengthHistogram,
    TextBar,
    analyze_counts,
    bar_lines,
    compute_length_histogram,
    count_lengths,
)
from phalanx.data.lengths import Lengths, LengthTable, as_length_table
from phalanx.data.packing import PackingMode, pack_lengths
from phalanx.data.plans.buckets import BucketSpec
from phalanx.formatting import format_percent

_COLUMNS = 80
_MIN_IMPROVEMENT = 0.02
_CROWDED_FRACTION = 0.8

_Indices: TypeAlias = Int64[np.ndarray, " cases"]


class OptimizationGoal(StrEnum):
    """Objective for which bucket edges are optimized."""

    MINIMIZE_WASTE = "waste"
    """Minimize the number of padding tokens."""
    BALANCE_BUCKETS = "balance"
    """Make the numbers of samples in the buckets equal, by minimizing the sum of their squares."""
    MINIMIZE_MEMORY = "memory"
    """Minimize the memory of attention scores, by minimizing the sum of squared padded lengths."""

    @classmethod
    def _missing_(cls, value: object) -> "OptimizationGoal | None":
        # chuk-lazarus uses the names of the members.
        return cls.__members__.get(str(value).upper())


class BucketSuggestion(FrozenModel):
    """Suggested bucket edges."""

    edges: tuple[int, ...]
    """Maximum length of each bucket except the last, in tokens."""
    max_sample_length: int
    """Maximum length of the last bucket, in tokens."""
    rationale: str
    """Explanation of the suggestion."""
    estimated_efficiency: float
    """Number of tokens without padding divided by the number of tokens including padding."""
    optimization_goal: OptimizationGoal

    @property
    def num_buckets(self) -> int:
        """Number of buckets, including the overflow bucket."""
        return len(self.edges) + 1

    @property
    def bucket_spec(self) -> BucketSpec:
        """Buckets with these edges."""
        return BucketSpec(edges=self.edges, max_sample_length=self.max_sample_length)


def suggest_bucket_edges(
    lengths: Lengths,
    num_buckets: int = 4,
    goal: OptimizationGoal = OptimizationGoal.MINIMIZE_WASTE,
    max_length: int | None = None,
    multiple_of: int = 1,
) -> BucketSuggestion:
    """Find the optimal bucket edges with dynamic programming.

    Args:
        lengths: Mapping from sample ids to lengths, or a `LengthTable`.
        num_buckets: Number of buckets, including the overflow bucket. There are fewer buckets only if there
            are fewer different lengths.
        goal: Objective of the optimization.
        max_length: Maximum length of the last bucket. Longer samples are ignored. By default, the length of
            the longest sample.
        multiple_of: Edges are multiples of this value.

    >>> suggest_bucket_edges({"a": 2, "b": 3, "c": 9}, num_buckets=2).edges
    (3,)
    """
    if num_buckets < 2:
        raise ValueError(f"num_buckets must be at least 2: one edge and the overflow, got {num_buckets}")
    if multiple_of < 1:
        raise ValueError(f"multiple_of must be at least 1, got {multiple_of}")
    everything = count_lengths(lengths)
    # There is always at least one edge below the last one.
    top = max(2, int(everything.values[-1]) if max_length is None else max_length)
    kept = everything.between(1, top)
    if not kept.samples:
        raise ValueError(
            f"every sample is longer than max_length {top}; the shortest has {everything.values[0]} tokens"
        )
    ends = _possible_ends(kept, top, multiple_of)
    found = min(num_buckets, len(ends.values))
    chosen = _best_ends(ends, found, goal)
    edges = tuple(chosen[:-1])
    analysis = analyze_counts(kept, BucketSpec(edges=edges, max_sample_length=top))
    return BucketSuggestion(
        edges=edges,
        max_sample_length=top,
        rationale=_rationale(goal, found, num_buckets, everything.samples - kept.samples, top),
        estimated_efficiency=analysis.overall_efficiency,
        optimization_goal=goal,
    )


def _possible_ends(counts: LengthCounts, top: int, multiple_of: int) -> LengthCounts:
    """Return the possible bucket edges, and the number of samples between each edge and the previous one."""
    ends = np.minimum(-(-counts.values // multiple_of) * multiple_of, top)
    always = [top - 1, top] if ends[0] == top else [top]
    values, group = np.unique(np.append(ends, always), return_inverse=True)
    sums = np.zeros(len(values), np.int64)
    np.add.at(sums, group[: len(ends)], counts.counts)
    return LengthCounts(values, sums)


def _best_ends(ends: LengthCounts, num_buckets: int, goal: OptimizationGoal) -> list[int]:
    """Return the maximum length of each optimal bucket.

    Let best[k][j] be the minimum cost of dividing the first j possible edges into k buckets. It is the
    minimum of best[k-1][i] + cost(i, j) over the start i of the last bucket. All three costs satisfy the
    quadrangle inequality, so the optimal i does not decrease with j, which makes each round almost linear.
    """
    below = np.concatenate([[0], np.cumsum(ends.counts)])
    weight = np.concatenate([[0], ends.values])
    if goal == OptimizationGoal.MINIMIZE_MEMORY:
        weight = weight**2

    def cost(begin: _Indices, end: _Indices) -> _Indices:
        samples = below[end] - below[begin]
        return samples**2 if goal == OptimizationGoal.BALANCE_BUCKETS else samples * weight[end]

    total = len(ends.values)
    best = cost(np.zeros(total + 1, np.int64), np.arange(total + 1))
    begins = []
    for k in range(2, num_buckets + 1):
        begin = np.zeros(total + 1, np.int64)
        stride = 1 << max(0, total.bit_length() - 1)
        while stride:
            # Every second multiple of the stride; its neighbors were solved in earlier rounds.
            rows = np.arange(k, total + 1)[stride - 1 :: 2 * stride]
            low = np.where(rows - stride >= k, begin[np.maximum(rows - stride, 0)], k - 1)
            high = np.where(rows + stride <= total, begin[np.minimum(rows + stride, total)], rows - 1)
            begin[rows] = _row_minima(best, cost, rows, low, np.minimum(high, rows - 1))
            stride //= 2
        rows = np.arange(k, total + 1)
        best = np.concatenate([np.zeros(k, np.int64), best[begin[k:]] + cost(begin[k:], rows)])
        begins.append(begin)
    chosen = [total]
    for begin in reversed(begins):
        chosen.append(int(begin[chosen[-1]]))
    return [int(ends.values[j - 1]) for j in reversed(chosen)]


def _row_minima(
    best: Int64[np.ndarray, " ends"],
    cost: Callable[[_Indices, _Indices], _Indices],
    rows: Int64[np.ndarray, " rows"],
    low: Int64[np.ndarray, " rows"],
    high: Int64[np.ndarray, " rows"],
) -> Int64[np.ndarray, " rows"]:
    """Return for each row the first index from `low` to `high` at which `best + cost` is minimal."""
    counts = high - low + 1
    starts = np.concatenate([[0], np.cumsum(counts)])
    indices = np.repeat(low - starts[:-1], counts) + np.arange(starts[-1])
    values = best[indices] + cost(indices, np.repeat(rows, counts))
    least = np.repeat(np.minimum.reduceat(values, starts[:-1]), counts)
    hits = np.flatnonzero(values == least)
    return indices[hits[np.searchsorted(hits, starts[:-1])]]


def _rationale(goal: OptimizationGoal, found: int, wanted: int, left_out: int, top: int) -> str:
    reasons = {
        OptimizationGoal.MINIMIZE_WASTE: f"no other {found} buckets need fewer padded tokens",
        OptimizationGoal.BALANCE_BUCKETS: f"no other {found} buckets are more balanced",
        OptimizationGoal.MINIMIZE_MEMORY: f"no other {found} buckets need fewer padded attention scores",
    }
    text = reasons[goal]
    if found < wanted:
        text += f"; {wanted} were requested, but there are only {found} possible ends"
    if left_out:
        text += f"; {left_out:,} samples longer than {top} are ignored"
    return text


class PackingEstimate(FrozenModel):
    """Estimated result of packing samples into rows."""

    mode: PackingMode
    capacity: int
    """Row length in tokens, which is the maximum length of the buckets."""
    total_samples: int
    """Number of samples, which is the same as in the buckets."""
    total_tokens: int
    """Number of tokens without padding."""
    num_packs: int
    """Number of rows."""

    @property
    def padded_tokens(self) -> int:
        """Number of tokens including padding."""
        return self.num_packs * self.capacity

    @property
    def efficiency(self) -> float:
        """Number of tokens without padding divided by the number of tokens including padding."""
        return self.total_tokens / self.padded_tokens if self.padded_tokens else 1.0

    @property
    def packing_ratio(self) -> float:
        """Mean number of samples per row."""
        return self.total_samples / self.num_packs if self.num_packs else 0.0


class BatchingEfficiencyReport(FrozenModel):
    """Efficiency of length buckets for a dataset, compared with optimal buckets and with packing."""

    length_histogram: LengthHistogram
    bucket_analysis: BucketAnalysis
    """Efficiency of the given buckets."""
    suggestions: tuple[BucketSuggestion, ...]
    """Optimal bucket edges for each goal, with the same number of buckets."""
    packing: PackingEstimate
    """Estimate for packing the same samples."""
    recommendations: tuple[str, ...]
    """Recommendations, starting with the most important one."""

    @property
    def total_samples(self) -> int:
        """Number of samples in the buckets."""
        return self.bucket_analysis.total_samples

    @property
    def total_tokens(self) -> int:
        """Number of tokens without padding."""
        return self.bucket_analysis.total_tokens

    @property
    def total_padded(self) -> int:
        """Number of tokens including padding."""
        return self.bucket_analysis.padded_tokens

    @property
    def overall_efficiency(self) -> float:
        """Efficiency of the given buckets."""
        return self.bucket_analysis.overall_efficiency

    def compared(self) -> tuple[tuple[str, float], ...]:
        """Return the name and the efficiency of each compared method."""
        return (
            ("these buckets", self.overall_efficiency),
            *((f"best for {s.optimization_goal}", s.estimated_efficiency) for s in self.suggestions),
            ("packing", self.packing.efficiency),
        )

    def to_ascii(self) -> str:
        """Return the report as text with at most 80 columns."""
        bars = [TextBar(name, value, f"{format_percent(value, 2):>7}") for name, value in self.compared()]
        parts = [
            self.length_histogram.to_ascii(),
            self.bucket_analysis.to_ascii(),
            "\n".join(["Tokens without padding / tokens including padding", *bar_lines(bars, full=1.0)]),
            "\n".join(_wrapped(f"{s.optimization_goal}: {_edges_text(s)}") for s in self.suggestions),
            "\n".join(_wrapped(f"- {text}") for text in self.recommendations),
        ]
        titles = ("", "Buckets", "Compared", "Suggested edges", "Recommendations")
        return "\n\n".join(f"{t}\n{p}" if t else p for t, p in zip(titles, parts, strict=True))


def create_efficiency_report(
    lengths: Lengths, bucket_spec: BucketSpec, packing_mode: PackingMode = PackingMode.BEST_FIT_DECREASING
) -> BatchingEfficiencyReport:
    """Compare the given buckets with optimal buckets and with packing, and give recommendations."""
    check_type(bucket_spec, BucketSpec, "bucket_spec")
    table = as_length_table(lengths)
    counts = count_lengths(table)
    analysis = analyze_counts(counts, bucket_spec)
    if not analysis.total_samples:
        raise ValueError(
            f"all buckets are empty: lengths are {counts.values[0]} to {counts.values[-1]}, but buckets have "
            f"lengths {bucket_spec.min_length} to {bucket_spec.max_sample_length}"
        )
    # Only the samples in the buckets, so that all values describe the same samples.
    inside = (table.lengths >= bucket_spec.min_length) & (table.lengths <= bucket_spec.max_sample_length)
    kept = LengthTable.from_arrays(None, table.lengths[inside])
    suggestions = tuple(
        suggest_bucket_edges(kept, bucket_spec.num_buckets, goal, bucket_spec.max_sample_length)
        for goal in OptimizationGoal
    )
    packing = PackingEstimate(
        mode=packing_mode,
        capacity=bucket_spec.max_sample_length,
        total_samples=len(kept),
        total_tokens=int(kept.lengths.sum(dtype=np.int64)),
        num_packs=int(pack_lengths(kept.lengths, bucket_spec.max_sample_length, packing_mode).max()) + 1,
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
    """Return recommendations, starting with the most important one. There is at least one."""
    spec = analysis.bucket_spec
    advice = []
    if analysis.too_long:
        advice.append(
            f"{analysis.too_long:,} samples are longer than max_sample_length {spec.max_sample_length} and "
            f"are skipped; raise it to {counts.values[-1]} to keep them, or cut or split them."
        )
    if analysis.skipped_samples > analysis.too_long:
        short = analysis.skipped_samples - analysis.too_long
        advice.append(f"{short:,} samples are shorter than min_length {spec.min_length} and are skipped.")
    given, can_be = analysis.overall_efficiency, max(analysis.overall_efficiency, best.estimated_efficiency)
    packed = f"Packing into rows of {packing.capacity} is {format_percent(packing.efficiency, 2)} full"
    if packing.efficiency > can_be + _MIN_IMPROVEMENT:
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
    if best.estimated_efficiency > given + _MIN_IMPROVEMENT:
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
    if share > _CROWDED_FRACTION and len(analysis.buckets) > 2:
        advice.append(f"Bucket {fullest.label} holds {share:.0%} of the samples; put more edges inside it.")
    return advice


def _listed(noun: str, names: list[str]) -> str:
    return f"{noun} {names[0]}" if len(names) == 1 else f"{noun}s {', '.join(names[:-1])} and {names[-1]}"


def _fewer(before: int, after: int) -> str:
    return f"{1 - after / before:.0%} fewer"


def _edges_text(suggestion: BucketSuggestion) -> str:
    edges = ",".join(map(str, suggestion.edges))
    return f"{edges} (overflow {suggestion.max_sample_length})"


def _wrapped(text: str) -> str:
    return textwrap.fill(
        text, _COLUMNS, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )

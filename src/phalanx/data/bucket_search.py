"""Padding efficiency of length buckets, and search for optimal bucket edges."""

from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from jaxtyping import Int64

from phalanx.config import FrozenModel, check_type
from phalanx.data.length_histogram import LengthCounts, count_lengths
from phalanx.data.lengths import Lengths
from phalanx.data.metrics import PaddingMetrics
from phalanx.data.plans.buckets import BucketSpec
from phalanx.formatting import format_compact, format_percent
from phalanx.ragged import counts_to_offsets, expand_ranges

if TYPE_CHECKING:
    import drawsvg as draw

_Indices: TypeAlias = Int64[np.ndarray, " cases"]


class BucketEfficiency(PaddingMetrics):
    """Number of samples and amount of padding in one bucket."""

    bucket_id: int
    """Index of the bucket. Bucket 0 holds the shortest samples."""
    min_length: int
    """Minimum sample length of the bucket, in tokens."""
    max_length: int
    """Maximum sample length of the bucket, in tokens. Samples in the bucket are padded to this length."""
    sample_count: int
    """Number of samples in the bucket."""

    @property
    def waste_tokens(self) -> int:
        """Number of padding tokens."""
        return self.padded_tokens - self.total_tokens

    @property
    def waste_percentage(self) -> float:
        """Percentage of the tokens that are padding, from 0 to 100."""
        return 100 * self.padding_waste

    @property
    def label(self) -> str:
        """Range of lengths as text, such as `129-256`."""
        return f"{self.min_length}-{self.max_length}"


class BucketAnalysis(FrozenModel):
    """Efficiency of all buckets, and the number of samples that are not in any bucket."""

    bucket_spec: BucketSpec
    """Bucket boundaries."""
    buckets: tuple[BucketEfficiency, ...]
    """Efficiency of each bucket, including empty buckets."""
    skipped_samples: int
    """Number of samples that are not in any bucket. They are not included in the other counts."""
    skipped_tokens: int
    """Number of tokens in the skipped samples."""
    too_long: int
    """Number of skipped samples that are longer than `max_sample_length`. The other skipped samples are
    shorter than `min_length`."""

    @property
    def total_samples(self) -> int:
        """Number of samples in all buckets."""
        return sum(bucket.sample_count for bucket in self.buckets)

    @property
    def total_tokens(self) -> int:
        """Number of tokens in all buckets, without padding."""
        return sum(bucket.total_tokens for bucket in self.buckets)

    @property
    def padded_tokens(self) -> int:
        """Number of tokens in all buckets, including padding."""
        return sum(bucket.padded_tokens for bucket in self.buckets)

    @property
    def overall_efficiency(self) -> float:
        """Fraction of the tokens that are not padding, from 0 to 1. It is 1 if all buckets are empty."""
        return self.total_tokens / self.padded_tokens if self.padded_tokens else 1.0

    @property
    def overall_waste(self) -> float:
        """Fraction of the tokens that are padding, from 0 to 1."""
        return 1 - self.overall_efficiency

    @property
    def empty_buckets(self) -> int:
        """Number of buckets without samples."""
        return sum(bucket.sample_count == 0 for bucket in self.buckets)

    def to_ascii(self) -> str:
        """Return the analysis as a text table with at most 80 columns."""
        header = ("bucket", "lengths", "samples", "tokens", "padded", "full")
        rows: list[tuple[str, ...]] = [
            (
                str(bucket.bucket_id),
                bucket.label,
                f"{bucket.sample_count:,}",
                f"{bucket.total_tokens:,}",
                f"{bucket.padded_tokens:,}",
                format_percent(bucket.efficiency) if bucket.sample_count else "empty",
            )
            for bucket in self.buckets
        ]
        counts = (f"{n:,}" for n in (self.total_samples, self.total_tokens, self.padded_tokens))
        rows.append(("all", "", *counts, format_percent(self.overall_efficiency)))
        lines = ["{:>6} {:>17} {:>13} {:>15} {:>15} {:>7}".format(*row) for row in (header, *rows)]
        if self.skipped_samples:
            lines.append(
                f"skipped: {self.skipped_samples:,} samples ({self.skipped_tokens:,} tokens), "
                f"{self.too_long:,} longer than {self.bucket_spec.max_sample_length}"
            )
        return "\n".join(lines)

    def to_svg(self) -> "draw.Drawing":
        """Draw a bar chart of the number of tokens in each bucket, with and without padding."""
        from phalanx.svg import Bar, bar_chart, titled_drawing

        bars = [
            Bar(
                f"{bucket.min_length:,}–{bucket.max_length:,}",
                bucket.total_tokens,
                bucket.padded_tokens,
                f"{format_percent(bucket.efficiency)} of {format_compact(bucket.padded_tokens)}"
                if bucket.sample_count
                else "empty",
            )
            for bucket in self.buckets
        ]
        skipped = f"; {self.skipped_samples:,} samples skipped" if self.skipped_samples else ""
        subtitle = (
            f"{format_percent(self.overall_efficiency)} of {format_compact(self.padded_tokens)} padded "
            f"tokens are real; {self.total_samples:,} samples{skipped}"
        )
        chart = bar_chart(bars, ("real tokens", "padding"))
        return titled_drawing(chart, "Padding in each bucket", subtitle)


def analyze_bucket_efficiency(lengths: Lengths, bucket_spec: BucketSpec) -> BucketAnalysis:
    """Compute the padding in each bucket, with samples padded to the maximum length of their bucket."""
    check_type(bucket_spec, BucketSpec, "bucket_spec")
    return analyze_counts(count_lengths(lengths), bucket_spec)


def analyze_counts(counts: LengthCounts, bucket_spec: BucketSpec) -> BucketAnalysis:
    """Analyze buckets like `analyze_bucket_efficiency`, given the number of samples with each length."""
    buckets = []
    for bucket_id in range(bucket_spec.num_buckets):
        low, high = bucket_spec.get_bucket_range(bucket_id)
        inside = counts.between(low, high)
        buckets.append(
            BucketEfficiency(
                bucket_id=bucket_id,
                min_length=low,
                max_length=high,
                sample_count=inside.samples,
                total_tokens=inside.tokens,
                padded_tokens=inside.samples * high,
            )
        )
    return BucketAnalysis(
        bucket_spec=bucket_spec,
        buckets=tuple(buckets),
        skipped_samples=counts.samples - sum(bucket.sample_count for bucket in buckets),
        skipped_tokens=counts.tokens - sum(bucket.total_tokens for bucket in buckets),
        too_long=int(counts.counts[counts.values > bucket_spec.max_sample_length].sum()),
    )


class OptimizationGoal(StrEnum):
    """Objective for which bucket edges are optimized."""

    MINIMIZE_WASTE = "waste"
    """Minimize the number of padding tokens."""
    BALANCE_BUCKETS = "balance"
    """Put about the same number of samples in each bucket, by minimizing the sum of the squared counts."""
    MINIMIZE_MEMORY = "memory"
    """Minimize the memory for attention scores, by minimizing the sum of squared padded lengths."""

    @classmethod
    def _missing_(cls, value: object) -> "OptimizationGoal | None":
        # chuk-lazarus uses the member names.
        return cls.__members__.get(str(value).upper())


_ADVANTAGES = {
    OptimizationGoal.MINIMIZE_WASTE: "need fewer padded tokens",
    OptimizationGoal.BALANCE_BUCKETS: "are more balanced",
    OptimizationGoal.MINIMIZE_MEMORY: "need fewer padded attention scores",
}


class BucketSuggestion(FrozenModel):
    """Suggested bucket edges."""

    edges: tuple[int, ...]
    """Maximum length of each bucket except the last, in tokens."""
    max_sample_length: int
    """Maximum length of the last bucket, in tokens."""
    rationale: str
    """Sentence that explains the suggestion."""
    estimated_efficiency: float
    """Fraction of the tokens in the suggested buckets that are not padding, from 0 to 1."""
    optimization_goal: OptimizationGoal
    """Objective for which the edges are optimal."""

    @property
    def num_buckets(self) -> int:
        """Number of buckets, including the last one, which ends at `max_sample_length`."""
        return len(self.edges) + 1

    @property
    def bucket_spec(self) -> BucketSpec:
        """Bucket boundaries with the suggested edges and maximum length."""
        return BucketSpec(edges=self.edges, max_sample_length=self.max_sample_length)

    @property
    def edges_text(self) -> str:
        """Edges as text, such as `128,256 (maximum 512)`."""
        return f"{','.join(map(str, self.edges))} (maximum {self.max_sample_length})"


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
        num_buckets: Number of buckets, including the last one, which ends at `max_length`. The result has
            fewer buckets only if there are not enough distinct lengths.
        goal: Objective of the optimization.
        max_length: Maximum length of the last bucket. Longer samples are ignored. Must be greater than
            `multiple_of`, so that there can be an edge below it. Defaults to the length of the longest
            sample, but at least `multiple_of + 1`.
        multiple_of: Edges are multiples of this value.

    >>> suggest_bucket_edges({"a": 2, "b": 3, "c": 9}, num_buckets=2).edges
    (3,)
    """
    if num_buckets < 2:
        raise ValueError(f"num_buckets must be at least 2: one edge and the overflow, got {num_buckets}")
    if multiple_of < 1:
        raise ValueError(f"multiple_of must be at least 1, got {multiple_of}")
    if max_length is not None and max_length <= multiple_of:
        raise ValueError(f"max_length must be greater than multiple_of ({multiple_of}), got {max_length}")
    everything = count_lengths(lengths)
    # There must be room for at least one edge below the maximum length.
    top = max(multiple_of + 1, int(everything.values[-1])) if max_length is None else max_length
    kept = everything.between(1, top)
    if not kept.samples:
        raise ValueError(
            f"every sample is longer than max_length {top}; the shortest has {everything.values[0]} tokens"
        )
    ends = _possible_ends(kept, top, multiple_of)
    found = min(num_buckets, len(ends.values))
    edges = tuple(_best_ends(ends, found, goal)[:-1])
    rationale = f"no other {found} buckets {_ADVANTAGES[goal]}"
    if found < num_buckets:
        rationale += f"; {num_buckets} were requested, but there are only {found} possible ends"
    if ignored := everything.samples - kept.samples:
        rationale += f"; {ignored:,} samples longer than {top} are ignored"
    return BucketSuggestion(
        edges=edges,
        max_sample_length=top,
        rationale=rationale,
        estimated_efficiency=analyze_counts(
            kept, BucketSpec(edges=edges, max_sample_length=top)
        ).overall_efficiency,
        optimization_goal=goal,
    )


def _possible_ends(counts: LengthCounts, top: int, multiple_of: int) -> LengthCounts:
    """Return the possible maximum lengths of buckets, and the number of samples with each rounded-up length.

    Lengths are rounded up to a multiple of `multiple_of`, but to at most `top`.
    """
    ends = np.minimum(-(-counts.values // multiple_of) * multiple_of, top)
    always = [(top - 1) // multiple_of * multiple_of, top] if ends[0] == top else [top]
    values, group = np.unique(np.append(ends, always), return_inverse=True)
    sums = np.zeros(len(values), np.int64)
    np.add.at(sums, group[: len(ends)], counts.counts)
    return LengthCounts(values, sums)


def _best_ends(ends: LengthCounts, num_buckets: int, goal: OptimizationGoal) -> list[int]:
    """Return the maximum length of each optimal bucket.

    Let best[k][j] be the minimum cost of dividing the first j possible ends into k buckets. It is the minimum
    of best[k-1][i] + cost(i, j) over the start i of the last bucket. For every `OptimizationGoal`, the cost
    satisfies the quadrangle inequality, so the optimal i does not decrease with j. Therefore, computing
    best[k] from best[k-1] takes almost linear time.
    """
    below = counts_to_offsets(ends.counts)
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
    """For each j in `rows`, return the smallest i from `low` to `high` that minimizes best[i] + cost(i, j).

    `low` and `high` are inclusive and have one entry per row.
    """
    counts = high - low + 1
    starts = counts_to_offsets(counts)
    owners, indices = expand_ranges(low, counts)
    values = best[indices] + cost(indices, rows[owners])
    least = np.repeat(np.minimum.reduceat(values, starts[:-1]), counts)
    hits = np.flatnonzero(values == least)
    return indices[hits[np.searchsorted(hits, starts[:-1])]]

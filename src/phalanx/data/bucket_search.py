"""What padding to buckets costs, bucket by bucket, and which edges would cost the least.

What packing would cost, and advice, are in `report`.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import TypeAlias

import numpy as np
from jaxtyping import Int64

from phalanx.config import FrozenModel, check_type
from phalanx.data.length_analysis import Bar, LengthCounts, bar_lines, count_lengths
from phalanx.data.lengths import Lengths
from phalanx.data.plans.buckets import BucketSpec
from phalanx.formatting import format_percent


class BucketEfficiency(FrozenModel):
    """One bucket: who is in it and how much of it is padding."""

    bucket_id: int
    """Which bucket."""
    min_length: int
    """The shortest length it takes."""
    max_length: int
    """The longest, to which its samples are padded."""
    sample_count: int
    """Samples in it."""
    total_tokens: int
    """Real tokens."""
    padded_tokens: int
    """Real tokens and padding."""

    @property
    def efficiency(self) -> float:
        """Real over padded tokens, at most 1; 1 for an empty bucket, which wastes nothing."""
        return self.total_tokens / self.padded_tokens if self.padded_tokens else 1.0

    @property
    def waste_tokens(self) -> int:
        """Padding alone."""
        return self.padded_tokens - self.total_tokens

    @property
    def waste_percentage(self) -> float:
        """Padding in per cent of the padded tokens."""
        return 100 * (1 - self.efficiency)

    @property
    def label(self) -> str:
        """Its lengths: `129-256`."""
        return f"{self.min_length}-{self.max_length}"


class BucketAnalysis(FrozenModel):
    """Every bucket, and the samples that no bucket takes."""

    bucket_spec: BucketSpec
    """What was analyzed."""
    buckets: tuple[BucketEfficiency, ...]
    """All of them, empty ones too."""
    skipped_samples: int
    """Samples that no bucket takes; they count in none of the other figures."""
    skipped_tokens: int
    """The tokens of those."""
    too_long: int
    """How many of the skipped are longer than `overflow_max`; the others are shorter than `min_length`."""

    @property
    def total_samples(self) -> int:
        """Samples in buckets."""
        return sum(bucket.sample_count for bucket in self.buckets)

    @property
    def total_tokens(self) -> int:
        """Real tokens in buckets."""
        return sum(bucket.total_tokens for bucket in self.buckets)

    @property
    def padded_tokens(self) -> int:
        """Real tokens and padding."""
        return sum(bucket.padded_tokens for bucket in self.buckets)

    @property
    def overall_efficiency(self) -> float:
        """Real over padded tokens, at most 1; 1 if nothing is in any bucket."""
        return self.total_tokens / self.padded_tokens if self.padded_tokens else 1.0

    @property
    def overall_waste(self) -> float:
        """Padding over padded tokens, 0 to 1."""
        return 1 - self.overall_efficiency

    @property
    def empty_buckets(self) -> int:
        """Buckets without samples."""
        return sum(bucket.sample_count == 0 for bucket in self.buckets)

    def to_ascii(self) -> str:
        """A table of at most 80 columns."""
        lines = [f"{'bucket':>6} {'lengths':>17} {'samples':>13} {'tokens':>15} {'padded':>15} {'full':>7}"]
        for bucket in self.buckets:
            full = format_percent(bucket.efficiency) if bucket.sample_count else "empty"
            lines.append(
                f"{bucket.bucket_id:>6} {bucket.label:>17} {bucket.sample_count:>13,} "
                f"{bucket.total_tokens:>15,} {bucket.padded_tokens:>15,} {full:>7}"
            )
        lines.append(
            f"{'all':>6} {'':>17} {self.total_samples:>13,} {self.total_tokens:>15,} "
            f"{self.padded_tokens:>15,} {format_percent(self.overall_efficiency):>7}"
        )
        if self.skipped_samples:
            lines.append(
                f"skipped: {self.skipped_samples:,} samples ({self.skipped_tokens:,} tokens), "
                f"{self.too_long:,} longer than {self.bucket_spec.overflow_max}"
            )
        return "\n".join(lines)


def analyze_bucket_efficiency(lengths: Lengths, bucket_spec: BucketSpec) -> BucketAnalysis:
    """What padding every sample to its bucket's longest length costs."""
    check_type(bucket_spec, BucketSpec, "bucket_spec")
    return analyze_counts(count_lengths(lengths), bucket_spec)


def analyze_counts(counts: LengthCounts, bucket_spec: BucketSpec) -> BucketAnalysis:
    """The same from counts by length."""
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
        too_long=int(counts.counts[counts.values > bucket_spec.overflow_max].sum()),
    )


def visualize_buckets(lengths: Lengths, bucket_spec: BucketSpec, width: int = 50) -> str:
    """How many samples each bucket holds, as bars, with how full each is beside it."""
    analysis = analyze_bucket_efficiency(lengths, bucket_spec)
    bars = []
    for bucket in analysis.buckets:
        full = format_percent(bucket.efficiency) if bucket.sample_count else "empty"
        bars.append(Bar(bucket.label, bucket.sample_count, f"{bucket.sample_count:,} {full:>6}"))
    return "\n".join(["Samples in each bucket, and how full it is", *bar_lines(bars, width)])


_Places: TypeAlias = Int64[np.ndarray, " cases"]


class OptimizationGoal(StrEnum):
    """What the edges are chosen for."""

    MINIMIZE_WASTE = "waste"
    """As few padded tokens as there can be."""
    BALANCE_BUCKETS = "balance"
    """As many samples in one bucket as in another (the least sum of squared counts)."""
    MINIMIZE_MEMORY = "memory"
    """As few padded attention scores as there can be: each sample counts the square of its padded length."""

    @classmethod
    def _missing_(cls, value: object) -> "OptimizationGoal | None":
        # chuk-lazarus writes the name of the member.
        return cls.__members__.get(str(value).upper())


class BucketSuggestion(FrozenModel):
    """Edges, and what they would give."""

    edges: tuple[int, ...]
    """Longest length of each bucket but the last."""
    overflow_max: int
    """Longest length of the last bucket."""
    rationale: str
    """Why these."""
    estimated_efficiency: float
    """Real over padded tokens with these edges, at most 1."""
    optimization_goal: OptimizationGoal
    """What they were chosen for."""

    @property
    def num_buckets(self) -> int:
        """The overflow bucket counts."""
        return len(self.edges) + 1

    @property
    def bucket_spec(self) -> BucketSpec:
        """The buckets themselves."""
        return BucketSpec(edges=self.edges, overflow_max=self.overflow_max)


def suggest_bucket_edges(
    lengths: Lengths,
    num_buckets: int = 4,
    goal: OptimizationGoal = OptimizationGoal.MINIMIZE_WASTE,
    max_length: int | None = None,
    multiple_of: int = 1,
) -> BucketSuggestion:
    """The best `num_buckets` buckets (the overflow bucket is one of them) for the goal.

    The last bucket ends at `max_length`, by default the longest sample; longer samples are left out. Edges
    are multiples of `multiple_of`. There are fewer buckets only where there are fewer different lengths.

    >>> suggest_bucket_edges({"a": 2, "b": 3, "c": 9}, num_buckets=2).edges
    (3,)
    """
    if num_buckets < 2:
        raise ValueError(f"num_buckets must be at least 2: one edge and the overflow, got {num_buckets}")
    if multiple_of < 1:
        raise ValueError(f"multiple_of must be at least 1, got {multiple_of}")
    everything = count_lengths(lengths)
    # One bucket is not a choice: there is always an edge below the last end.
    top = max(2, int(everything.values[-1]) if max_length is None else max_length)
    kept = everything.between(1, top)
    if not kept.samples:
        raise ValueError(f"every sample is longer than max_length {top}; the least is {everything.values[0]}")
    ends = _possible_ends(kept, top, multiple_of)
    found = min(num_buckets, len(ends.values))
    chosen = _best_ends(ends, found, goal)
    edges = tuple(chosen[:-1])
    analysis = analyze_counts(kept, BucketSpec(edges=edges, overflow_max=top))
    return BucketSuggestion(
        edges=edges,
        overflow_max=top,
        rationale=_rationale(goal, found, num_buckets, everything.samples - kept.samples, top),
        estimated_efficiency=analysis.overall_efficiency,
        optimization_goal=goal,
    )


def _possible_ends(counts: LengthCounts, top: int, multiple_of: int) -> LengthCounts:
    """Where a bucket may end, and how many samples lie between each end and the one before."""
    ends = np.minimum(-(-counts.values // multiple_of) * multiple_of, top)
    always = [top - 1, top] if ends[0] == top else [top]
    values, group = np.unique(np.append(ends, always), return_inverse=True)
    sums = np.zeros(len(values), np.int64)
    np.add.at(sums, group[: len(ends)], counts.counts)
    return LengthCounts(values, sums)


def _best_ends(ends: LengthCounts, num_buckets: int, goal: OptimizationGoal) -> list[int]:
    """The ends of the best buckets.

    Let best[k][j] be the least cost of the first j ends in k buckets: the least of best[k-1][i] + cost(i, j)
    over the place i where the last bucket begins. All three costs satisfy the quadrangle inequality, so the
    best i never decreases with j; that makes each round nearly linear.
    """
    below = np.concatenate([[0], np.cumsum(ends.counts)])
    weight = np.concatenate([[0], ends.values])
    if goal == OptimizationGoal.MINIMIZE_MEMORY:
        weight = weight**2

    def cost(begin: _Places, end: _Places) -> _Places:
        samples = below[end] - below[begin]
        return samples**2 if goal == OptimizationGoal.BALANCE_BUCKETS else samples * weight[end]

    total = len(ends.values)
    best = cost(np.zeros(total + 1, np.int64), np.arange(total + 1))
    begins = []
    for k in range(2, num_buckets + 1):
        begin = np.zeros(total + 1, np.int64)
        stride = 1 << max(0, total.bit_length() - 1)
        while stride:
            # Every second multiple of the stride; its neighbors were solved in the rounds before.
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
    best: Int64[np.ndarray, " places"],
    cost: Callable[[_Places, _Places], _Places],
    rows: Int64[np.ndarray, " rows"],
    low: Int64[np.ndarray, " rows"],
    high: Int64[np.ndarray, " rows"],
) -> Int64[np.ndarray, " rows"]:
    """For each row the first place from low to high where best + cost is least."""
    counts = high - low + 1
    starts = np.concatenate([[0], np.cumsum(counts)])
    places = np.repeat(low - starts[:-1], counts) + np.arange(starts[-1])
    values = best[places] + cost(places, np.repeat(rows, counts))
    least = np.repeat(np.minimum.reduceat(values, starts[:-1]), counts)
    hits = np.flatnonzero(values == least)
    return places[hits[np.searchsorted(hits, starts[:-1])]]


def _rationale(goal: OptimizationGoal, found: int, wanted: int, left_out: int, top: int) -> str:
    reasons = {
        OptimizationGoal.MINIMIZE_WASTE: f"no other {found} buckets need fewer padded tokens",
        OptimizationGoal.BALANCE_BUCKETS: f"no other {found} buckets share the samples more evenly",
        OptimizationGoal.MINIMIZE_MEMORY: f"no other {found} buckets need fewer padded attention scores",
    }
    text = reasons[goal]
    if found < wanted:
        text += f"; {wanted} were asked for, but only {found} different lengths can end a bucket"
    if left_out:
        text += f"; {left_out:,} samples longer than {top} are left out"
    return text

"""Length histograms, and the efficiency of length buckets."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64

from phalanx.config import FrozenModel, check_type
from phalanx.data.lengths import Lengths, as_length_table
from phalanx.data.plans.buckets import BucketSpec
from phalanx.formatting import format_percent

# Columns for labels and notes next to the bars; if they need more, the bars become shorter.
_MARGIN = 30
_MAX_BINCOUNT = 1 << 22


class LengthCounts(NamedTuple):
    """Distinct lengths in ascending order, and the number of samples of each."""

    values: Int64[np.ndarray, " distinct"]
    counts: Int64[np.ndarray, " distinct"]

    @property
    def samples(self) -> int:
        """Number of samples."""
        return int(self.counts.sum())

    @property
    def tokens(self) -> int:
        """Number of tokens."""
        return int(self.values @ self.counts)

    def between(self, low: int, high: int) -> "LengthCounts":
        """Return the lengths from `low` to `high`, both inclusive."""
        first, last = np.searchsorted(self.values, (low, high + 1))
        return LengthCounts(self.values[first:last], self.counts[first:last])

    def percentile(self, percent: float) -> int:
        """Return the smallest length that at least `percent` of the samples do not exceed."""
        rank = max(1, int(np.ceil(self.samples * percent / 100)))
        return int(self.values[np.searchsorted(np.cumsum(self.counts), rank)])


def count_lengths(lengths: Lengths) -> LengthCounts:
    """Count the samples of each length."""
    array = as_length_table(lengths).lengths
    if not len(array):
        raise ValueError("there are no samples to analyze")
    if array.max() < _MAX_BINCOUNT:
        counts = np.bincount(array)
        values = np.flatnonzero(counts)
        return LengthCounts(values.astype(np.int64), counts[values].astype(np.int64))
    values, counts = np.unique(array, return_counts=True)
    return LengthCounts(values.astype(np.int64), counts.astype(np.int64))


class HistogramBin(FrozenModel):
    """One bin of a histogram."""

    min_length: int
    """Minimum length, inclusive."""
    max_length: int
    """Maximum length, exclusive."""
    count: int
    """Number of samples."""
    percentage: float
    """Percentage of all samples, from 0 to 100."""

    @property
    def label(self) -> str:
        """Range of lengths, both inclusive, such as `1-128`."""
        last = self.max_length - 1
        return str(last) if last == self.min_length else f"{self.min_length}-{last}"


class LengthHistogram(FrozenModel):
    """Distribution of lengths. Percentiles are lengths that occur."""

    bins: tuple[HistogramBin, ...]
    """Adjacent bins, beginning with the shortest sample."""
    total_samples: int
    total_tokens: int
    min_length: int
    max_length: int
    mean_length: float
    median_length: int
    """Same as `p50`."""
    std_length: float
    """Standard deviation."""
    p25: int
    """25th percentile: a quarter of the samples are at most this long."""
    p50: int
    p75: int
    p90: int
    p95: int
    p99: int

    def to_ascii(self, width: int = 50) -> str:
        """Return bars of at most `width` columns, in lines of at most `width` + 30, and statistics."""
        bars = [TextBar(b.label, b.count, f"{b.count:,} {b.percentage:5.1f}%") for b in self.bins]
        lines = [f"Lengths of {self.total_samples:,} samples ({self.total_tokens:,} tokens)"]
        lines += bar_lines(bars, width)
        lines.append(f"min {self.min_length}  mean {self.mean_length:.1f}  max {self.max_length}")
        lines.append(f"p50 {self.p50}  p90 {self.p90}  p95 {self.p95}  p99 {self.p99}")
        return "\n".join(lines)


def compute_length_histogram(
    lengths: Lengths, num_bins: int = 10, bin_width: int | None = None
) -> LengthHistogram:
    """Compute a histogram of lengths.

    Args:
        lengths: Lengths by sample id, or a length table.
        num_bins: Number of bins, of equal width up to rounding.
        bin_width: Width of a bin; overrides `num_bins`.
    """
    counts = count_lengths(lengths)
    low, high = int(counts.values[0]), int(counts.values[-1])
    span = high - low + 1
    if bin_width is not None:
        if bin_width < 1:
            raise ValueError(f"bin_width must be at least 1, got {bin_width}")
        edges = low + bin_width * np.arange(-(-span // bin_width) + 1)
    else:
        if num_bins < 1:
            raise ValueError(f"num_bins must be at least 1, got {num_bins}")
        # If there are more bins than lengths, bins have width 1 and the last ones are empty.
        edges = low + max(span, num_bins) * np.arange(num_bins + 1) // num_bins
    running = np.concatenate([[0], np.cumsum(counts.counts)])
    inside = np.diff(running[np.searchsorted(counts.values, edges)]).tolist()
    samples, tokens = counts.samples, counts.tokens
    mean = tokens / samples
    deviation = np.sqrt(((counts.values - mean) ** 2) @ counts.counts / samples)
    return LengthHistogram(
        bins=tuple(
            HistogramBin(min_length=a, max_length=b, count=n, percentage=100 * n / samples)
            for a, b, n in zip(edges.tolist(), edges[1:].tolist(), inside, strict=False)
        ),
        total_samples=samples,
        total_tokens=tokens,
        min_length=low,
        max_length=high,
        mean_length=mean,
        median_length=counts.percentile(50),
        std_length=float(deviation),
        p25=counts.percentile(25),
        p50=counts.percentile(50),
        p75=counts.percentile(75),
        p90=counts.percentile(90),
        p95=counts.percentile(95),
        p99=counts.percentile(99),
    )


class TextBar(NamedTuple):
    """One line of a text chart."""

    label: str
    value: float
    note: str


def bar_lines(bars: Sequence[TextBar], width: int = 50, full: float | None = None) -> list[str]:
    """Return a text chart with lines of at most `width` + 30 columns.

    Args:
        bars: Labels, values and notes.
        width: Maximum length of a bar.
        full: Value of the longest bar; by default the largest value.

    >>> print(*bar_lines([TextBar("a", 4, "4"), TextBar("bb", 2, "2")], width=4), sep=chr(10))
     a |####| 4
    bb |##  | 2
    """
    if width < 1:
        raise ValueError(f"width must be at least 1 column, got {width}")
    label = max((len(bar.label) for bar in bars), default=0)
    note = max((len(bar.note) for bar in bars), default=0)
    room = max(1, min(width, width + _MARGIN - label - note - len(" || ")))
    top = max((bar.value for bar in bars), default=0) if full is None else full
    return [
        f"{bar.label:>{label}} |{_marks(bar.value, top, room):<{room}}| {bar.note:>{note}}".rstrip()
        for bar in bars
    ]


def _marks(value: float, top: float, room: int) -> str:
    """Return a bar; a positive value that is too small for one mark is a dot."""
    count = min(room, round(room * value / top)) if top > 0 else 0
    return "#" * count if count or value <= 0 else "."


class BucketEfficiency(FrozenModel):
    """Samples and padding of one bucket."""

    bucket_id: int
    min_length: int
    max_length: int
    """Maximum length, to which its samples are padded."""
    sample_count: int
    total_tokens: int
    """Tokens without padding."""
    padded_tokens: int
    """Tokens including padding."""

    @property
    def efficiency(self) -> float:
        """Tokens without padding over tokens including padding; 1 for an empty bucket."""
        return self.total_tokens / self.padded_tokens if self.padded_tokens else 1.0

    @property
    def waste_tokens(self) -> int:
        """Number of padding tokens."""
        return self.padded_tokens - self.total_tokens

    @property
    def waste_percentage(self) -> float:
        """Percentage of the tokens that are padding."""
        return 100 * (1 - self.efficiency)

    @property
    def label(self) -> str:
        """Range of lengths, such as `129-256`."""
        return f"{self.min_length}-{self.max_length}"


class BucketAnalysis(FrozenModel):
    """Efficiency of all buckets, and the samples that are in none."""

    bucket_spec: BucketSpec
    buckets: tuple[BucketEfficiency, ...]
    """All buckets, including empty ones."""
    skipped_samples: int
    """Samples in no bucket. They are not included in the other values."""
    skipped_tokens: int
    """Tokens of these samples."""
    too_long: int
    """Skipped samples that are longer than `overflow_max`; the others are shorter than `min_length`."""

    @property
    def total_samples(self) -> int:
        """Number of samples in buckets."""
        return sum(bucket.sample_count for bucket in self.buckets)

    @property
    def total_tokens(self) -> int:
        """Tokens without padding."""
        return sum(bucket.total_tokens for bucket in self.buckets)

    @property
    def padded_tokens(self) -> int:
        """Tokens including padding."""
        return sum(bucket.padded_tokens for bucket in self.buckets)

    @property
    def overall_efficiency(self) -> float:
        """Tokens without padding over tokens including padding; 1 if all buckets are empty."""
        return self.total_tokens / self.padded_tokens if self.padded_tokens else 1.0

    @property
    def overall_waste(self) -> float:
        """Fraction of the tokens that are padding."""
        return 1 - self.overall_efficiency

    @property
    def empty_buckets(self) -> int:
        """Number of buckets without samples."""
        return sum(bucket.sample_count == 0 for bucket in self.buckets)

    def to_ascii(self) -> str:
        """Return a table of at most 80 columns."""
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
    """Compute how much padding is needed if every sample is padded to its bucket's maximum length."""
    check_type(bucket_spec, BucketSpec, "bucket_spec")
    return analyze_counts(count_lengths(lengths), bucket_spec)


def analyze_counts(counts: LengthCounts, bucket_spec: BucketSpec) -> BucketAnalysis:
    """Compute the same from counts by length."""
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

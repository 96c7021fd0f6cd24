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
    """Distinct lengths in ascending order, and the number of samples with each length."""

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
        """Return only the lengths from `low` to `high`, both inclusive."""
        first, last = np.searchsorted(self.values, (low, high + 1))
        return LengthCounts(self.values[first:last], self.counts[first:last])

    def percentile(self, percent: float) -> int:
        """Return the smallest length such that at least `percent` percent of the samples are not longer."""
        rank = max(1, int(np.ceil(self.samples * percent / 100)))
        return int(self.values[np.searchsorted(np.cumsum(self.counts), rank)])


def count_lengths(lengths: Lengths) -> LengthCounts:
    """Count the samples with each length."""
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
        """Range of lengths as text, both ends inclusive, such as `1-128`."""
        last = self.max_length - 1
        return str(last) if last == self.min_length else f"{self.min_length}-{last}"


class LengthHistogram(FrozenModel):
    """Histogram and statistics of sample lengths. Every percentile is a length that occurs."""

    bins: tuple[HistogramBin, ...]
    """Adjacent bins, starting with the shortest sample."""
    total_samples: int
    total_tokens: int
    min_length: int
    max_length: int
    mean_length: float
    median_length: int
    """Same as `p50`."""
    std_length: float
    """Standard deviation of the lengths."""
    p25: int
    """25th percentile: a quarter of the samples have at most this length."""
    p50: int
    p75: int
    p90: int
    p95: int
    p99: int

    def to_ascii(self, width: int = 50) -> str:
        """Return the histogram as a text chart, followed by statistics.

        Bars have at most `width` columns, and lines have at most `width + 30` columns.
        """
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
        lengths: Mapping from sample ids to lengths, or a `LengthTable`.
        num_bins: Number of bins, which have the same width up to rounding.
        bin_width: Width of a bin. Overrides `num_bins`. None uses `num_bins`.
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
    """A bar of a text chart."""

    label: str
    value: float
    note: str


def bar_lines(bars: Sequence[TextBar], width: int = 50, full: float | None = None) -> list[str]:
    """Return the lines of a text chart, with at most `width + 30` columns.

    Args:
        bars: Label, value and note of each bar.
        width: Maximum length of a bar in characters.
        full: Value of a bar with the maximum length. By default, the largest value.

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
    """Return a bar of `#` characters.

    A positive value that is too small for one character is shown as a dot.
    """
    count = min(room, round(room * value / top)) if top > 0 else 0
    return "#" * count if count or value <= 0 else "."


class BucketEfficiency(FrozenModel):
    """Number of samples and amount of padding in one bucket."""

    bucket_id: int
    min_length: int
    max_length: int
    """Maximum length of the bucket, to which its samples are padded."""
    sample_count: int
    total_tokens: int
    """Number of tokens without padding."""
    padded_tokens: int
    """Number of tokens including padding."""

    @property
    def efficiency(self) -> float:
        """Fraction of the tokens that are not padding, from 0 to 1. It is 1 for an empty bucket."""
        return self.total_tokens / self.padded_tokens if self.padded_tokens else 1.0

    @property
    def waste_tokens(self) -> int:
        """Number of padding tokens."""
        return self.padded_tokens - self.total_tokens

    @property
    def waste_percentage(self) -> float:
        """Percentage of the tokens that are padding, from 0 to 100."""
        return 100 * (1 - self.efficiency)

    @property
    def label(self) -> str:
        """Range of lengths as text, such as `129-256`."""
        return f"{self.min_length}-{self.max_length}"


class BucketAnalysis(FrozenModel):
    """Efficiency of all buckets, and the number of samples that are not in any bucket."""

    bucket_spec: BucketSpec
    buckets: tuple[BucketEfficiency, ...]
    """All buckets, including empty ones."""
    skipped_samples: int
    """Number of samples that are not in any bucket. They are not included in the other values."""
    skipped_tokens: int
    """Number of tokens in the skipped samples."""
    too_long: int
    """Number of skipped samples that are longer than `max_sample_length`. The others are shorter than
    `min_length`."""

    @property
    def total_samples(self) -> int:
        """Number of samples in buckets."""
        return sum(bucket.sample_count for bucket in self.buckets)

    @property
    def total_tokens(self) -> int:
        """Number of tokens without padding."""
        return sum(bucket.total_tokens for bucket in self.buckets)

    @property
    def padded_tokens(self) -> int:
        """Number of tokens including padding."""
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
                f"{self.too_long:,} longer than {self.bucket_spec.max_sample_length}"
            )
        return "\n".join(lines)


def analyze_bucket_efficiency(lengths: Lengths, bucket_spec: BucketSpec) -> BucketAnalysis:
    """Measure the padding if every sample is padded to the maximum length of its bucket."""
    check_type(bucket_spec, BucketSpec, "bucket_spec")
    return analyze_counts(count_lengths(lengths), bucket_spec)


def analyze_counts(counts: LengthCounts, bucket_spec: BucketSpec) -> BucketAnalysis:
    """Measure the padding like `analyze_bucket_efficiency`, given the number of samples with each length."""
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

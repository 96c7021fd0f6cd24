"""Histograms of sample lengths."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Int64

from phalanx.config import FrozenModel
from phalanx.data.lengths import Lengths, as_length_table
from phalanx.ragged import counts_to_offsets

if TYPE_CHECKING:
    import drawsvg as draw

# Columns for labels and notes next to the bars. If these need more columns, the bars become shorter.
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
        """Number of tokens in all samples."""
        return int(self.values @ self.counts)

    def between(self, low: int, high: int) -> "LengthCounts":
        """Return the counts of the lengths from `low` to `high`, both inclusive."""
        first, last = np.searchsorted(self.values, (low, high + 1))
        return LengthCounts(self.values[first:last], self.counts[first:last])

    def percentile(self, percent: float) -> int:
        """Return the smallest length that is greater than or equal to `percent` percent of all lengths."""
        rank = max(1, int(np.ceil(self.samples * percent / 100)))
        return int(self.values[np.searchsorted(np.cumsum(self.counts), rank)])


def count_lengths(lengths: Lengths) -> LengthCounts:
    """Count the samples with each length. Raise `ValueError` if there are no samples."""
    array = as_length_table(lengths).lengths
    if not len(array):
        raise ValueError("there are no samples to analyze")
    if array.max() < _MAX_BINCOUNT:
        counts = np.bincount(array)
        values = np.flatnonzero(counts)
        return LengthCounts(values, counts[values])
    values, counts = np.unique(array, return_counts=True)
    return LengthCounts(values.astype(np.int64), counts)


class HistogramBin(FrozenModel):
    """One bin of a histogram."""

    min_length: int
    """Minimum length, inclusive."""
    max_length: int
    """Exclusive upper bound on the lengths in the bin."""
    count: int
    """Number of samples in the bin."""
    percentage: float
    """Percentage of all samples that are in the bin, from 0 to 100."""

    @property
    def label(self) -> str:
        """Range of lengths as text, such as `1-128`. Both ends are inclusive."""
        last = self.max_length - 1
        return str(last) if last == self.min_length else f"{self.min_length}-{last}"


class LengthHistogram(FrozenModel):
    """Histogram and statistics of sample lengths.

    Each percentile is the length of an actual sample, without interpolation.
    """

    bins: tuple[HistogramBin, ...]
    """Adjacent bins in ascending order of length."""
    total_samples: int
    """Number of samples."""
    total_tokens: int
    """Number of tokens in all samples."""
    min_length: int
    max_length: int
    mean_length: float
    median_length: int
    """Median of the lengths, which is also available as `p50`."""
    std_length: float
    """Standard deviation of the lengths."""
    p25: int
    """25th percentile. At least a quarter of the samples have at most this length."""
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

    def to_svg(self) -> "draw.Drawing":
        """Draw the histogram, and mark the median and the 90th percentile."""
        from phalanx.svg import histogram, titled_drawing

        chart = histogram(
            [b.min_length for b in self.bins] + [self.bins[-1].max_length],
            [b.count for b in self.bins],
            [f"{b.label}: {b.count:,} samples" for b in self.bins],
            {"p50": self.p50, "p90": self.p90},
        )
        subtitle = (
            f"{self.total_samples:,} samples, {self.total_tokens:,} tokens; mean {self.mean_length:,.0f}, "
            f"p50 {self.p50:,}, p90 {self.p90:,}, longest {self.max_length:,}"
        )
        return titled_drawing(chart, "Sample lengths", subtitle)


def compute_length_histogram(
    lengths: Lengths, num_bins: int = 10, bin_width: int | None = None
) -> LengthHistogram:
    """Compute a histogram of lengths.

    Args:
        lengths: Mapping from sample ids to lengths, or a `LengthTable`.
        num_bins: Number of bins, which have the same width up to rounding.
        bin_width: Width of a bin in tokens. If it is given, `num_bins` is ignored.
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
    running = counts_to_offsets(counts.counts)
    inside = np.diff(running[np.searchsorted(counts.values, edges)]).tolist()
    samples, tokens = counts.samples, counts.tokens
    mean = tokens / samples
    percentiles = {f"p{percent}": counts.percentile(percent) for percent in (25, 50, 75, 90, 95, 99)}
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
        median_length=percentiles["p50"],
        std_length=float(np.sqrt(((counts.values - mean) ** 2) @ counts.counts / samples)),
        **percentiles,
    )


class TextBar(NamedTuple):
    """A bar of a text chart."""

    label: str
    """Text to the left of the bar."""
    value: float
    """Value shown by the bar. The length of a bar is proportional to its value."""
    note: str
    """Text to the right of the bar."""


def bar_lines(bars: Sequence[TextBar], width: int = 50, full: float | None = None) -> list[str]:
    """Return the lines of a text chart, with at most `width + 30` columns.

    A bar consists of `#` characters. A positive value that is too small for one character is shown as a dot.

    Args:
        bars: Label, value and note of each bar.
        width: Maximum length of a bar in characters.
        full: Value of a bar with the maximum length. Defaults to the largest value.

    >>> print(*bar_lines([TextBar("a", 4, "4"), TextBar("bb", 2, "2")], width=4), sep=chr(10))
     a |####| 4
    bb |##  | 2
    """
    if width < 1:
        raise ValueError(f"width must be at least 1 column, got {width}")
    label = max(len(bar.label) for bar in bars)
    note = max(len(bar.note) for bar in bars)
    columns = max(1, min(width, width + _MARGIN - label - note - len(" || ")))
    top = max(bar.value for bar in bars) if full is None else full
    lines = []
    for bar in bars:
        count = min(columns, round(columns * bar.value / top)) if top > 0 else 0
        marks = "#" * count if count or bar.value <= 0 else "."
        lines.append(f"{bar.label:>{label}} |{marks:<{columns}}| {bar.note:>{note}}".rstrip())
    return lines

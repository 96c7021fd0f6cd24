"""How lengths are distributed: counts, histograms and percentiles, and bars of plain ASCII to show them.

What buckets and packing make of the lengths is in `efficiency` and `report`; pictures are in `charts`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64

from phalanx.config import FrozenModel
from phalanx.data.lengths import Lengths, as_length_table

SIDES = 30
"""Columns that labels and notes may take beside the bars; where they need more, the bars give way."""
_COUNTED_DIRECTLY = 1 << 22


class LengthCounts(NamedTuple):
    """Each length that occurs, ascending, and how many samples have it: all that padding depends on."""

    values: Int64[np.ndarray, " distinct"]
    counts: Int64[np.ndarray, " distinct"]

    @property
    def samples(self) -> int:
        """All of them."""
        return int(self.counts.sum())

    @property
    def tokens(self) -> int:
        """Of all samples together."""
        return int(self.values @ self.counts)

    def between(self, low: int, high: int) -> "LengthCounts":
        """Those of a length from `low` to `high`, both inside."""
        first, last = np.searchsorted(self.values, (low, high + 1))
        return LengthCounts(self.values[first:last], self.counts[first:last])

    def percentile(self, percent: float) -> int:
        """The smallest length that at least this many per cent of the samples do not exceed."""
        rank = max(1, int(np.ceil(self.samples * percent / 100)))
        return int(self.values[np.searchsorted(np.cumsum(self.counts), rank)])


def count_lengths(lengths: Lengths) -> LengthCounts:
    """The distinct lengths and their counts; no samples at all are an error."""
    array = as_length_table(lengths).lengths
    if not len(array):
        raise ValueError("there are no samples: nothing to analyze")
    if array.max() < _COUNTED_DIRECTLY:
        counts = np.bincount(array)
        values = np.flatnonzero(counts)
        return LengthCounts(values.astype(np.int64), counts[values].astype(np.int64))
    values, counts = np.unique(array, return_counts=True)
    return LengthCounts(values.astype(np.int64), counts.astype(np.int64))


class HistogramBin(FrozenModel):
    """One bar of a histogram."""

    min_length: int
    """The shortest length in it."""
    max_length: int
    """The shortest length beyond it."""
    count: int
    """Samples in it."""
    percentage: float
    """Of all samples, 0 to 100."""

    @property
    def label(self) -> str:
        """Its lengths, both inside: `1-128`."""
        last = self.max_length - 1
        return str(last) if last == self.min_length else f"{self.min_length}-{last}"


class LengthHistogram(FrozenModel):
    """The distribution of lengths; percentiles are lengths that occur."""

    bins: tuple[HistogramBin, ...]
    """Side by side, from the shortest sample on."""
    total_samples: int
    """All samples."""
    total_tokens: int
    """Of all samples together."""
    min_length: int
    """The shortest sample."""
    max_length: int
    """The longest sample."""
    mean_length: float
    """Tokens for each sample."""
    median_length: int
    """The same as `p50`."""
    std_length: float
    """Standard deviation of the lengths."""
    p25: int
    """A quarter of the samples are at most this long."""
    p50: int
    """Half of the samples are at most this long."""
    p75: int
    """Three quarters are."""
    p90: int
    """90 per cent are."""
    p95: int
    """95 per cent are."""
    p99: int
    """99 per cent are."""

    def to_ascii(self, width: int = 50) -> str:
        """Bars of at most `width` columns in lines of at most `width` + 30, and the figures below."""
        bars = [Bar(b.label, b.count, f"{b.count:,} {b.percentage:5.1f}%") for b in self.bins]
        lines = [f"Lengths of {self.total_samples:,} samples ({self.total_tokens:,} tokens)"]
        lines += bar_lines(bars, width)
        lines.append(f"min {self.min_length}  mean {self.mean_length:.1f}  max {self.max_length}")
        lines.append(f"p50 {self.p50}  p90 {self.p90}  p95 {self.p95}  p99 {self.p99}")
        return "\n".join(lines)


def compute_length_histogram(
    lengths: Lengths, num_bins: int = 10, bin_width: int | None = None
) -> LengthHistogram:
    """Exactly `num_bins` bins, as equal in width as whole numbers allow, or as many as `bin_width` needs."""
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
        # More bins than lengths in between: bins of one length, the last ones empty.
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


class Bar(NamedTuple):
    """One line: a label, a bar as long as the value, a note."""

    label: str
    value: float
    note: str


def bar_lines(bars: Sequence[Bar], width: int = 50, full: float | None = None) -> list[str]:
    """Lines of at most `width` + 30 columns, `full` (or the largest value) as long as the bars can be.

    >>> print(*bar_lines([Bar("a", 4, "4"), Bar("bb", 2, "2")], width=4), sep=chr(10))
     a |####| 4
    bb |##  | 2
    """
    if width < 1:
        raise ValueError(f"width must be at least 1 column, got {width}")
    label = max((len(bar.label) for bar in bars), default=0)
    note = max((len(bar.note) for bar in bars), default=0)
    room = max(1, min(width, width + SIDES - label - note - len(" || ")))
    top = max((bar.value for bar in bars), default=0) if full is None else full
    return [
        f"{bar.label:>{label}} |{_marks(bar.value, top, room):<{room}}| {bar.note:>{note}}".rstrip()
        for bar in bars
    ]


def _marks(value: float, top: float, room: int) -> str:
    """Something that is there but too little for a mark shows as a dot."""
    count = min(room, round(room * value / top)) if top > 0 else 0
    return "#" * count if count or value <= 0 else "."

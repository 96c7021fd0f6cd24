"""What padding to buckets costs: real over padded tokens, bucket by bucket.

Which edges would cost less is in `suggestion`; what packing would cost, and advice, in `report`.
"""

from pydantic import BaseModel, ConfigDict

from phalanx.tokens.buckets import BucketSpec
from phalanx.tokens.histogram import LengthCounts, count_lengths
from phalanx.tokens.lengths import Lengths
from phalanx.tokens.terminal_bars import Bar, bar_lines, percent


class BucketEfficiency(BaseModel):
    """One bucket: who is in it and how much of it is padding."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

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


class BucketAnalysis(BaseModel):
    """Every bucket, and the samples that no bucket takes."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    bucket_spec: BucketSpec
    """What was analysed."""
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
            full = percent(bucket.efficiency) if bucket.sample_count else "empty"
            lines.append(
                f"{bucket.bucket_id:>6} {bucket.label:>17} {bucket.sample_count:>13,} "
                f"{bucket.total_tokens:>15,} {bucket.padded_tokens:>15,} {full:>7}"
            )
        lines.append(
            f"{'all':>6} {'':>17} {self.total_samples:>13,} {self.total_tokens:>15,} "
            f"{self.padded_tokens:>15,} {percent(self.overall_efficiency):>7}"
        )
        if self.skipped_samples:
            lines.append(
                f"skipped: {self.skipped_samples:,} samples ({self.skipped_tokens:,} tokens), "
                f"{self.too_long:,} longer than {self.bucket_spec.overflow_max}"
            )
        return "\n".join(lines)


def analyze_bucket_efficiency(lengths: Lengths, bucket_spec: BucketSpec) -> BucketAnalysis:
    """What padding every sample to its bucket's longest length costs."""
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
        full = percent(bucket.efficiency) if bucket.sample_count else "empty"
        bars.append(Bar(bucket.label, bucket.sample_count, f"{bucket.sample_count:,} {full:>6}"))
    return "\n".join(["Samples in each bucket, and how full it is", *bar_lines(bars, width)])

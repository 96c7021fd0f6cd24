"""Tallies of batching: real and padded tokens, loss tokens, skipped samples, shapes, by bucket and in all.

Distributions of length and advice on edges are in `phalanx.data.analysis`.
"""

from typing import Any

import numpy as np
from jaxtyping import Int64
from pydantic import BaseModel, Field

from phalanx.data.plans.arrays import EpochBatches
from phalanx.data.plans.buckets import BucketId, BucketSpec, BucketStats


class BatchShapeHistogram(BaseModel, extra="forbid", use_attribute_docstrings=True):
    """How often each shape occurred: what a compiler will see."""

    shapes: dict[str, int] = Field(default_factory=dict)
    """Batches of each shape, written "rows x length"; of those whose length was told."""
    bucket_counts: dict[BucketId, int] = Field(default_factory=dict)
    """Batches of each bucket."""
    bucket_samples: dict[BucketId, int] = Field(default_factory=dict)
    """Samples in those batches."""

    def record_batch(
        self,
        bucket_id: BucketId,
        batch_size: int,
        max_length: int | None = None,
        *,
        times: int = 1,
        samples: int | None = None,
    ) -> None:
        """Count a batch of `batch_size` rows (or `times` such), which hold `samples` in all if packed."""
        _positive("batch_size", batch_size)
        _positive("times", times)
        if max_length is not None:
            _positive("max_length", max_length)
            shape = f"{batch_size} x {max_length}"
            self.shapes[shape] = self.shapes.get(shape, 0) + times
        held = batch_size * times if samples is None else samples
        self.bucket_counts[bucket_id] = self.bucket_counts.get(bucket_id, 0) + times
        self.bucket_samples[bucket_id] = self.bucket_samples.get(bucket_id, 0) + held

    @property
    def total_batches(self) -> int:
        """All batches."""
        return sum(self.bucket_counts.values())

    @property
    def total_samples(self) -> int:
        """All samples."""
        return sum(self.bucket_samples.values())

    def bucket_fraction(self, bucket_id: BucketId) -> float:
        """The part of all samples that came from this bucket."""
        return _ratio(self.bucket_samples.get(bucket_id, 0), self.total_samples)


class BatchMetrics(BaseModel, extra="forbid", use_attribute_docstrings=True):
    """What an epoch's batches hold and what they waste."""

    total_tokens: int = 0
    """Real tokens."""
    padded_tokens: int = 0
    """Real tokens and padding."""
    loss_tokens: int = 0
    """Tokens that carry loss."""
    total_samples: int = 0
    """Samples in batches."""
    skipped_samples: int = 0
    """Samples in no batch."""
    total_batches: int = 0
    """Batches."""
    total_time_seconds: float = 0.0
    """Time recorded with `record_time`."""
    bucket_stats: dict[BucketId, BucketStats] = Field(default_factory=dict)
    """The same by bucket, for buckets that hold something."""
    shape_histogram: BatchShapeHistogram = Field(default_factory=BatchShapeHistogram)
    """How often each shape occurred."""

    def record_sample(
        self,
        bucket_id: BucketId,
        length: int,
        loss_tokens: int,
        bucket_max_length: int,
        *,
        padded_length: int | None = None,
    ) -> None:
        """Count one sample, padded to its bucket's longest length or to `padded_length`."""
        if not 0 <= loss_tokens <= length:
            raise ValueError(f"a sample of {length} tokens cannot have {loss_tokens} loss tokens")
        stats = self.bucket_stats.setdefault(
            bucket_id, BucketStats(bucket_id=bucket_id, bucket_max_length=bucket_max_length)
        )
        stats.add_sample(length, padded_length)
        self.total_samples += 1
        self.total_tokens += length
        self.padded_tokens += bucket_max_length if padded_length is None else padded_length
        self.loss_tokens += loss_tokens

    def record_batch(self, bucket_id: BucketId, batch_size: int, max_length: int | None = None) -> None:
        """Count one batch, and its shape where its length is told; samples are counted by `record_sample`."""
        self.shape_histogram.record_batch(bucket_id, batch_size, max_length)
        self.total_batches += 1

    def record_skip(self, count: int = 1) -> None:
        """Count samples that are in no batch."""
        _positive("count", count)
        self.skipped_samples += count

    def record_time(self, seconds: float) -> None:
        """Add time spent on these batches."""
        if seconds < 0:
            raise ValueError(f"time must not be negative, got {seconds}")
        self.total_time_seconds += seconds

    @property
    def efficiency(self) -> float:
        """Real over padded tokens; 1 when there is nothing to pad."""
        return self.total_tokens / self.padded_tokens if self.padded_tokens else 1.0

    @property
    def padding_tokens(self) -> int:
        """Padding alone."""
        return self.padded_tokens - self.total_tokens

    @property
    def padding_waste(self) -> float:
        """Padding over padded tokens."""
        return 1.0 - self.efficiency

    @property
    def loss_efficiency(self) -> float:
        """Loss tokens over padded tokens."""
        return _ratio(self.loss_tokens, self.padded_tokens)

    @property
    def tokens_per_second(self) -> float:
        """Real tokens over the recorded time; 0 without one."""
        return _ratio(self.total_tokens, self.total_time_seconds)

    @property
    def effective_tokens_per_second(self) -> float:
        """Tokens that carry loss over the recorded time; 0 without one."""
        return _ratio(self.loss_tokens, self.total_time_seconds)

    @property
    def samples_per_second(self) -> float:
        """Samples over the recorded time; 0 without one."""
        return _ratio(self.total_samples, self.total_time_seconds)

    @property
    def avg_batch_size(self) -> float:
        """Samples in a batch, on average."""
        return _ratio(self.total_samples, self.total_batches)

    @property
    def skip_rate(self) -> float:
        """Skipped over all samples."""
        return _ratio(self.skipped_samples, self.skipped_samples + self.total_samples)

    def summary(self) -> dict[str, Any]:
        """The figures as numbers, ratios rounded to four places; rates only once a time was recorded."""
        figures: dict[str, Any] = {
            "total_samples": self.total_samples,
            "total_batches": self.total_batches,
            "efficiency": round(self.efficiency, 4),
            "padding_waste": round(self.padding_waste, 4),
            "loss_efficiency": round(self.loss_efficiency, 4),
            "total_tokens": self.total_tokens,
            "padded_tokens": self.padded_tokens,
            "loss_tokens": self.loss_tokens,
            "avg_batch_size": round(self.avg_batch_size, 4),
            "skipped_samples": self.skipped_samples,
            "skip_rate": round(self.skip_rate, 4),
        }
        if self.total_time_seconds:
            figures["tokens_per_second"] = round(self.tokens_per_second, 1)
            figures["effective_tokens_per_second"] = round(self.effective_tokens_per_second, 1)
            figures["samples_per_second"] = round(self.samples_per_second, 1)
        return figures

    def bucket_summary(self) -> list[dict[str, Any]]:
        """One row of numbers for each bucket that holds something, shortest first."""
        return [
            {
                "bucket_id": bucket,
                "max_length": stats.bucket_max_length,
                "samples": stats.sample_count,
                "batches": self.shape_histogram.bucket_counts.get(bucket, 0),
                "total_tokens": stats.total_tokens,
                "padded_tokens": stats.padded_tokens,
                "efficiency": round(stats.efficiency, 4),
                "padding_waste": round(stats.padding_ratio, 4),
                "avg_length": round(stats.avg_length, 2),
            }
            for bucket, stats in sorted(self.bucket_stats.items())
        ]


def compute_metrics(
    batches: EpochBatches,
    lengths: Int64[np.ndarray, " samples"],
    spec: BucketSpec,
    skipped: int,
    loss_tokens: int | None = None,
) -> BatchMetrics:
    """The metrics of an epoch's batches; `lengths` are those of the samples in the batches' order.

    Without a count of loss tokens every real token is taken to carry loss.
    """
    real, counts, padded = batches.sums(lengths), batches.counts, batches.padded_tokens
    metrics = BatchMetrics(
        total_tokens=int(real.sum()),
        padded_tokens=int(padded.sum()),
        loss_tokens=int(real.sum()) if loss_tokens is None else loss_tokens,
        total_samples=int(counts.sum()),
        skipped_samples=skipped,
        total_batches=len(batches),
    )
    for bucket in np.unique(batches.bucket_ids).tolist():
        here = batches.bucket_ids == bucket
        metrics.bucket_stats[bucket] = BucketStats(
            bucket_id=bucket,
            bucket_max_length=spec.get_bucket_max_length(bucket),
            sample_count=int(counts[here].sum()),
            total_tokens=int(real[here].sum()),
            padded_tokens=int(padded[here].sum()),
        )
    _record_shapes(metrics.shape_histogram, batches)
    return metrics


def _record_shapes(histogram: BatchShapeHistogram, batches: EpochBatches) -> None:
    shapes = np.stack([batches.bucket_ids, batches.row_counts, batches.max_lens], axis=1)
    unique, inverse, times = np.unique(shapes, axis=0, return_inverse=True, return_counts=True)
    samples = np.bincount(inverse.ravel(), weights=batches.counts, minlength=len(unique)).astype(np.int64)
    for (bucket, rows, length), number, held in zip(
        unique.tolist(), times.tolist(), samples.tolist(), strict=True
    ):
        histogram.record_batch(bucket, rows, length, times=number, samples=held)


def _positive(name: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0

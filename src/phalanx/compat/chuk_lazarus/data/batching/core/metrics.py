"""Metrics that are updated one batch or sample at a time."""

from typing import Any, ClassVar

from pydantic import BaseModel, Field

from phalanx.compat.chuk_lazarus.data.batching.core.buckets import BucketId, BucketStats
from phalanx.compat.renamed import alias
from phalanx.data.metrics import BatchMetrics as _BatchMetrics


class BatchShapeHistogram(BaseModel, extra="forbid"):
    """Number of batches by shape and by bucket, and number of samples by bucket."""

    shapes: dict[str, int] = Field(default_factory=dict)
    """Number of batches by shape, such as `8 x 512`. Batches without a known row length are not counted."""
    bucket_counts: dict[BucketId, int] = Field(default_factory=dict)
    """Number of batches by bucket."""
    bucket_samples: dict[BucketId, int] = Field(default_factory=dict)
    """Number of samples by bucket."""

    def record_batch(self, bucket_id: BucketId, batch_size: int, max_length: int | None = None) -> None:
        """Count one batch. Its shape is counted if `max_length` is given."""
        if batch_size < 1 or (max_length is not None and max_length < 1):
            raise ValueError(f"batch_size and max_length must be at least 1, got {batch_size}, {max_length}")
        if max_length is not None:
            shape = f"{batch_size} x {max_length}"
            self.shapes[shape] = self.shapes.get(shape, 0) + 1
        self.bucket_counts[bucket_id] = self.bucket_counts.get(bucket_id, 0) + 1
        self.bucket_samples[bucket_id] = self.bucket_samples.get(bucket_id, 0) + batch_size

    @property
    def total_batches(self) -> int:
        """Number of batches."""
        return sum(self.bucket_counts.values())

    @property
    def total_samples(self) -> int:
        """Number of samples."""
        return sum(self.bucket_samples.values())

    def bucket_fraction(self, bucket_id: BucketId) -> float:
        """Return the size of a bucket as a fraction of all samples, or 0 if there are no samples."""
        return self.bucket_samples.get(bucket_id, 0) / max(self.total_samples, 1)


class BatchMetrics(_BatchMetrics, frozen=False):
    """`phalanx.data.BatchMetrics` with chuk-lazarus's attribute names, and with `record_*` methods that
    update the metrics."""

    total_time_seconds: float = 0.0
    """Total time recorded by `record_time`, in seconds."""
    bucket_stats: dict[BucketId, BucketStats] = Field(default_factory=dict)
    """Metrics of the buckets that are not empty."""
    shape_histogram: BatchShapeHistogram = Field(default_factory=BatchShapeHistogram)
    """Number of batches of each shape, and number of batches and samples in each bucket."""

    total_samples: ClassVar = alias("num_samples")
    total_batches: ClassVar = alias("num_batches")
    skipped_samples: ClassVar = alias("num_skipped")
    avg_batch_size: ClassVar = alias("mean_batch_size")

    def record_sample(
        self, bucket_id: BucketId, length: int, loss_tokens: int, bucket_max_length: int
    ) -> None:
        """Count one sample, padded to its bucket's maximum length."""
        if not 0 <= loss_tokens <= length:
            raise ValueError(f"loss_tokens must be between 0 and {length}, got {loss_tokens}")
        empty = BucketStats(bucket_id=bucket_id, max_length=bucket_max_length)
        self.bucket_stats.setdefault(bucket_id, empty).add_sample(length)
        self.num_samples += 1
        self.total_tokens += length
        self.padded_tokens += bucket_max_length
        self.loss_tokens += loss_tokens

    def record_batch(self, bucket_id: BucketId, batch_size: int, max_length: int | None = None) -> None:
        """Count one batch. Its shape is counted only if `max_length` is given.

        The samples are counted only in `shape_histogram`. `record_sample` counts them in the other metrics.
        """
        self.shape_histogram.record_batch(bucket_id, batch_size, max_length)
        self.num_batches += 1

    def record_skip(self, count: int = 1) -> None:
        """Add `count` to the number of skipped samples, which are not in any batch."""
        self.num_skipped += count

    def record_time(self, seconds: float) -> None:
        """Add `seconds` to the total time, which is used to compute rates such as `tokens_per_second`."""
        if seconds < 0:
            raise ValueError(f"time must not be negative, got {seconds}")
        self.total_time_seconds += seconds

    @property
    def tokens_per_second(self) -> float:
        """Number of tokens per second, not counting padding. 0 if no time was recorded."""
        return self._per_second(self.total_tokens)

    @property
    def effective_tokens_per_second(self) -> float:
        """Tokens per second, including only tokens that count toward the loss. 0 if no time was recorded."""
        return self._per_second(self.loss_tokens)

    @property
    def samples_per_second(self) -> float:
        """Number of samples per second. 0 if no time was recorded."""
        return self._per_second(self.num_samples)

    @property
    def skip_rate(self) -> float:
        """Skipped samples as a fraction of all samples, batched or skipped. 0 if there are no samples."""
        return self.num_skipped / max(self.num_skipped + self.num_samples, 1)

    def _per_second(self, count: int) -> float:
        return count / self.total_time_seconds if self.total_time_seconds else 0.0

    def summary(self) -> dict[str, Any]:
        """Return the most important metrics, rounded. Rates are included only if a time was recorded."""
        counts = ("total_samples", "total_batches", "skipped_samples")
        tokens = ("total_tokens", "padded_tokens", "loss_tokens")
        ratios = ("efficiency", "padding_waste", "loss_efficiency", "avg_batch_size", "skip_rate")
        values = {name: round(getattr(self, name), 4) for name in (*counts, *tokens, *ratios)}
        if self.total_time_seconds:
            rates = ("tokens_per_second", "effective_tokens_per_second", "samples_per_second")
            values |= {name: round(getattr(self, name), 1) for name in rates}
        return values

    def bucket_summary(self) -> list[dict[str, Any]]:
        """Return the metrics of each nonempty bucket, in ascending order of sample length."""
        return [
            {
                "bucket_id": bucket,
                "max_length": stats.max_length,
                "samples": stats.num_samples,
                "batches": self.shape_histogram.bucket_counts.get(bucket, 0),
                "total_tokens": stats.total_tokens,
                "padded_tokens": stats.padded_tokens,
                "efficiency": round(stats.efficiency, 4),
                "padding_waste": round(stats.padding_waste, 4),
                "avg_length": round(stats.avg_length, 2),
            }
            for bucket, stats in sorted(self.bucket_stats.items())
        ]


def convert_metrics(metrics: _BatchMetrics) -> BatchMetrics:
    """Convert `phalanx.data.BatchMetrics` to the subclass in this module."""
    return BatchMetrics(
        **dict(metrics),
        bucket_stats={bucket.bucket_id: BucketStats(**dict(bucket)) for bucket in metrics.buckets},
        shape_histogram=BatchShapeHistogram(
            shapes={shape.replace("x", " x "): count for shape, count in metrics.shapes.items()},
            bucket_counts={bucket.bucket_id: bucket.num_batches for bucket in metrics.buckets},
            bucket_samples={bucket.bucket_id: bucket.num_samples for bucket in metrics.buckets},
        ),
    )


__all__ = ["BatchMetrics", "BatchShapeHistogram"]

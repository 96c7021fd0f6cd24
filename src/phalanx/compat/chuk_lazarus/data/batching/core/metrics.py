"""Mutable metrics of batches."""

from typing import Any

from pydantic import BaseModel, Field

from phalanx.compat.chuk_lazarus.data.batching.core.buckets import BucketId, BucketStats
from phalanx.data.metrics import BatchMetrics as _BatchMetrics


class BatchShapeHistogram(BaseModel, extra="forbid", use_attribute_docstrings=True):
    """Number of batches of each shape."""

    shapes: dict[str, int] = Field(default_factory=dict)
    """Number of batches by shape, such as `8 x 512`, if their length is known."""
    bucket_counts: dict[BucketId, int] = Field(default_factory=dict)
    """Number of batches by bucket."""
    bucket_samples: dict[BucketId, int] = Field(default_factory=dict)
    """Number of samples by bucket."""

    def record_batch(self, bucket_id: BucketId, batch_size: int, max_length: int | None = None) -> None:
        """Count one batch, and its shape if its length is given."""
        _positive("batch_size", batch_size)
        if max_length is not None:
            _positive("max_length", max_length)
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
        """Return the fraction of the samples in a bucket."""
        return _ratio(self.bucket_samples.get(bucket_id, 0), self.total_samples)


class BatchMetrics(BaseModel, extra="forbid", use_attribute_docstrings=True):
    """Mutable counts of batches."""

    total_tokens: int = 0
    """Tokens without padding."""
    padded_tokens: int = 0
    """Tokens including padding."""
    loss_tokens: int = 0
    """Tokens that count in the loss."""
    total_samples: int = 0
    """Samples in batches."""
    skipped_samples: int = 0
    """Samples in no batch."""
    total_batches: int = 0
    """Number of batches."""
    total_time_seconds: float = 0.0
    """Time added by `record_time`."""
    bucket_stats: dict[BucketId, BucketStats] = Field(default_factory=dict)
    """Counts by bucket, for buckets that are not empty."""
    shape_histogram: BatchShapeHistogram = Field(default_factory=BatchShapeHistogram)
    """Number of batches of each shape."""

    def record_sample(
        self, bucket_id: BucketId, length: int, loss_tokens: int, bucket_max_length: int
    ) -> None:
        """Count one sample, padded to its bucket's maximum length."""
        if not 0 <= loss_tokens <= length:
            raise ValueError(f"loss_tokens must be between 0 and {length}, got {loss_tokens}")
        stats = self.bucket_stats.setdefault(
            bucket_id, BucketStats(bucket_id=bucket_id, bucket_max_length=bucket_max_length)
        )
        stats.add_sample(length)
        self.total_samples += 1
        self.total_tokens += length
        self.padded_tokens += bucket_max_length
        self.loss_tokens += loss_tokens

    def record_batch(self, bucket_id: BucketId, batch_size: int, max_length: int | None = None) -> None:
        """Count one batch, and its shape if its length is given; `record_sample` counts samples."""
        self.shape_histogram.record_batch(bucket_id, batch_size, max_length)
        self.total_batches += 1

    def record_skip(self, count: int = 1) -> None:
        """Count samples in no batch."""
        _positive("count", count)
        self.skipped_samples += count

    def record_time(self, seconds: float) -> None:
        """Add time."""
        if seconds < 0:
            raise ValueError(f"time must not be negative, got {seconds}")
        self.total_time_seconds += seconds

    @property
    def efficiency(self) -> float:
        """Fraction of the tokens that are not padding; 1 without tokens."""
        return self.total_tokens / self.padded_tokens if self.padded_tokens else 1.0

    @property
    def padding_tokens(self) -> int:
        """Number of padding tokens."""
        return self.padded_tokens - self.total_tokens

    @property
    def padding_waste(self) -> float:
        """Fraction of the tokens that are padding."""
        return 1.0 - self.efficiency

    @property
    def loss_efficiency(self) -> float:
        """Fraction of all tokens that count in the loss."""
        return _ratio(self.loss_tokens, self.padded_tokens)

    @property
    def tokens_per_second(self) -> float:
        """Tokens without padding per second; 0 without a time."""
        return _ratio(self.total_tokens, self.total_time_seconds)

    @property
    def effective_tokens_per_second(self) -> float:
        """Tokens that count in the loss per second; 0 without a time."""
        return _ratio(self.loss_tokens, self.total_time_seconds)

    @property
    def samples_per_second(self) -> float:
        """Samples per second; 0 without a time."""
        return _ratio(self.total_samples, self.total_time_seconds)

    @property
    def avg_batch_size(self) -> float:
        """Mean number of samples per batch."""
        return _ratio(self.total_samples, self.total_batches)

    @property
    def skip_rate(self) -> float:
        """Fraction of the samples that were skipped."""
        return _ratio(self.skipped_samples, self.skipped_samples + self.total_samples)

    def summary(self) -> dict[str, Any]:
        """Return all values, with ratios rounded to four digits; rates only if a time was recorded."""
        values: dict[str, Any] = {
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
            values["tokens_per_second"] = round(self.tokens_per_second, 1)
            values["effective_tokens_per_second"] = round(self.effective_tokens_per_second, 1)
            values["samples_per_second"] = round(self.samples_per_second, 1)
        return values

    def bucket_summary(self) -> list[dict[str, Any]]:
        """Return the values of each bucket that is not empty, shortest first."""
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


def convert_metrics(metrics: _BatchMetrics) -> "BatchMetrics":
    """Convert the metrics of `phalanx.data`."""
    converted = BatchMetrics(
        total_tokens=metrics.total_tokens,
        padded_tokens=metrics.padded_tokens,
        loss_tokens=metrics.loss_tokens,
        total_samples=metrics.num_samples,
        skipped_samples=metrics.num_skipped,
        total_batches=metrics.num_batches,
    )
    histogram = converted.shape_histogram
    histogram.shapes = {shape.replace("x", " x "): count for shape, count in metrics.shapes.items()}
    for bucket in metrics.buckets:
        converted.bucket_stats[bucket.bucket_id] = BucketStats(
            bucket_id=bucket.bucket_id,
            bucket_max_length=bucket.max_length,
            sample_count=bucket.num_samples,
            total_tokens=bucket.total_tokens,
            padded_tokens=bucket.padded_tokens,
        )
        histogram.bucket_counts[bucket.bucket_id] = bucket.num_batches
        histogram.bucket_samples[bucket.bucket_id] = bucket.num_samples
    return converted


def _positive(name: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")


def _ratio(part: float, total: float) -> float:
    return part / total if total else 0.0

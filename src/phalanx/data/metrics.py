"""Metrics of batches, such as token counts, padding, skipped samples, batch shapes and buckets."""

from typing import Any

import numpy as np
from jaxtyping import Int8, Int32
from pydantic import Field

from phalanx.config import FrozenModel
from phalanx.data.packing import PackLayout
from phalanx.data.plans.buckets import BucketSpec
from phalanx.data.plans.epoch import EpochBatches


class PaddingMetrics(FrozenModel):
    """Number of tokens with and without padding."""

    total_tokens: int = 0
    """Number of tokens, excluding padding and separators."""
    padded_tokens: int = 0
    """Number of tokens, including padding and separators."""

    @property
    def efficiency(self) -> float:
        """Fraction of the tokens that are neither padding nor separators. 1 if there are no tokens."""
        return self.total_tokens / self.padded_tokens if self.padded_tokens else 1.0

    @property
    def padding_waste(self) -> float:
        """Fraction of the tokens that are padding or separators, from 0 to 1."""
        return 1.0 - self.efficiency


class BucketMetrics(PaddingMetrics):
    """Metrics for the batches of one bucket."""

    bucket_id: int
    """Index of the bucket. Bucket 0 holds the shortest samples."""
    max_length: int
    """Maximum sample length of the bucket, in tokens."""
    num_batches: int
    """Number of batches."""
    num_samples: int
    """Number of samples in all batches."""


class BatchMetrics(PaddingMetrics):
    """Token counts and padding in a set of batches or packed rows."""

    num_batches: int = 0
    """Number of batches."""
    num_rows: int = 0
    """Number of rows in all batches."""
    num_samples: int = 0
    """Number of samples in all batches."""
    loss_tokens: int = 0
    """Number of tokens that count toward the loss. If the loss masks are unknown, every token counts."""
    separator_tokens: int = 0
    """Number of separator tokens between the samples of a row."""
    num_skipped: int = 0
    """Number of samples that are not in any batch."""
    shapes: dict[str, int] = Field(default_factory=dict)
    """Number of batches of each shape. Keys are strings such as `"8x512"` (rows x row length)."""
    buckets: tuple[BucketMetrics, ...] = ()
    """Metrics of the nonempty buckets, in ascending order of sample length."""

    @property
    def padding_tokens(self) -> int:
        """Number of padding tokens."""
        return self.padded_tokens - self.total_tokens - self.separator_tokens

    @property
    def loss_efficiency(self) -> float:
        """Fraction of all tokens, including padding, that count toward the loss. 0 if there are no tokens."""
        return self.loss_tokens / max(self.padded_tokens, 1)

    @property
    def packing_ratio(self) -> float:
        """Mean number of samples per row. 0 if there are no rows."""
        return self.num_samples / max(self.num_rows, 1)

    @property
    def mean_batch_size(self) -> float:
        """Mean number of samples per batch. 0 if there are no batches."""
        return self.num_samples / self.num_batches if self.num_batches else 0.0

    def summary(self) -> dict[str, Any]:
        """Return the most important metrics as a dictionary. Ratios are rounded to four decimal places."""
        counts = ("num_batches", "num_rows", "num_samples", "num_skipped")
        tokens = ("total_tokens", "padded_tokens", "loss_tokens", "separator_tokens", "padding_tokens")
        ratios = ("efficiency", "padding_waste", "loss_efficiency", "packing_ratio", "mean_batch_size")
        return {name: round(getattr(self, name), 4) for name in (*counts, *tokens, *ratios)}


def compute_metrics(
    batches: EpochBatches,
    lengths: Int32[np.ndarray, " samples"],
    bucket_spec: BucketSpec,
    *,
    num_skipped: int = 0,
    loss_tokens: int | None = None,
) -> BatchMetrics:
    """Compute the metrics of an epoch.

    Args:
        batches: Batches of the epoch.
        lengths: Lengths of the samples, in the order in which they appear in the batches.
        bucket_spec: Bucket boundaries.
        num_skipped: Number of samples that are not in any batch.
        loss_tokens: Number of tokens that count toward the loss. If None, every token counts.
    """
    tokens = batches.batch_sums(lengths.astype(np.int64))
    counts, padded = batches.counts, batches.padded_tokens
    buckets = []
    for bucket in np.unique(batches.bucket_ids).tolist():
        inside = batches.bucket_ids == bucket
        buckets.append(
            BucketMetrics(
                bucket_id=bucket,
                max_length=bucket_spec.get_bucket_max_length(bucket),
                num_batches=int(inside.sum()),
                num_samples=int(counts[inside].sum()),
                total_tokens=int(tokens[inside].sum()),
                padded_tokens=int(padded[inside].sum()),
            )
        )
    shapes, times = np.unique(
        np.stack([batches.row_counts, batches.max_lens], axis=1), axis=0, return_counts=True
    )
    return BatchMetrics(
        num_batches=len(batches),
        num_rows=int(batches.row_counts.sum()),
        num_samples=int(counts.sum()),
        total_tokens=int(tokens.sum()),
        padded_tokens=int(padded.sum()),
        loss_tokens=int(tokens.sum()) if loss_tokens is None else loss_tokens,
        num_skipped=num_skipped,
        shapes={
            f"{rows}x{width}": count
            for (rows, width), count in zip(shapes.tolist(), times.tolist(), strict=True)
        },
        buckets=tuple(buckets),
    )


def compute_packing_metrics(
    layout: PackLayout, loss_mask: Int8[np.ndarray, "rows width"] | None = None
) -> BatchMetrics:
    """Compute the metrics of packed rows, treated as one batch.

    Without `loss_mask`, every token counts toward the loss.
    """
    tokens, spans = int(layout.lengths.sum(dtype=np.int64)), int(layout.spans.sum(dtype=np.int64))
    return BatchMetrics(
        num_batches=int(len(layout) > 0),
        num_rows=len(layout),
        num_samples=len(layout.samples),
        total_tokens=tokens,
        padded_tokens=len(layout) * layout.width,
        loss_tokens=tokens if loss_mask is None else int(np.count_nonzero(loss_mask)),
        separator_tokens=spans - tokens,
        num_skipped=len(layout.skipped),
        shapes={f"{len(layout)}x{layout.width}": 1} if len(layout) else {},
    )

"""Buckets, sampler and metrics."""

from phalanx.compat.chuk_lazarus.data.batching.core.buckets import BucketId, BucketSpec, BucketStats
from phalanx.compat.chuk_lazarus.data.batching.core.metrics import BatchMetrics, BatchShapeHistogram
from phalanx.compat.chuk_lazarus.data.batching.core.sampler import BatchSpec, TokenBudgetBatchSampler

__all__ = [
    "BatchMetrics",
    "BatchShapeHistogram",
    "BatchSpec",
    "BucketId",
    "BucketSpec",
    "BucketStats",
    "TokenBudgetBatchSampler",
]

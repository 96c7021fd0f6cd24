"""Token-budget sampler with asynchronous iteration."""

from collections.abc import AsyncIterator, Mapping
from functools import cached_property
from typing import Any

from phalanx.compat.chuk_lazarus.data.batching.core.metrics import BatchMetrics, convert_metrics
from phalanx.data.plans.batch_plan import BatchSpec
from phalanx.data.token_budget_sampler import TokenBudgetBatchSampler as _TokenBudgetBatchSampler


class BucketSizes(dict[int, int]):
    """Number of samples by bucket, which can be called as a function."""

    def __call__(self) -> "BucketSizes":
        return self


class TokenBudgetBatchSampler(_TokenBudgetBatchSampler):
    """`phalanx.data.TokenBudgetBatchSampler` with asynchronous iteration and mutable metrics."""

    @cached_property
    def bucket_sizes(self) -> Any:
        """Number of samples in each bucket."""
        buckets = self.bucket_spec.get_bucket_ids(self._selected.lengths).tolist()
        return BucketSizes({bucket: buckets.count(bucket) for bucket in range(self.bucket_spec.num_buckets)})

    async def iter_epoch(
        self, epoch: int = 0, interleave_buckets: bool | None = None, *, start: int = 0
    ) -> AsyncIterator[BatchSpec]:
        """Iterate over the batches of an epoch asynchronously."""
        for batch in self.iter_batches(epoch, interleave_buckets, start=start):
            yield batch

    def compute_metrics(  # type: ignore[override]
        self, loss_tokens_per_sample: Mapping[str, int] | None = None, epoch: int = 0
    ) -> BatchMetrics:
        """Compute token counts and padding of an epoch's batches."""
        return convert_metrics(super().compute_metrics(loss_tokens_per_sample, epoch))


__all__ = ["BatchSpec", "TokenBudgetBatchSampler"]

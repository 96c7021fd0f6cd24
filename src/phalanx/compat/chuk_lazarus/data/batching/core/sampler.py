"""Token-budget sampler with asynchronous iteration."""

import dataclasses
from collections.abc import AsyncIterator, Iterator
from functools import cached_property
from typing import Any

from phalanx.compat.chuk_lazarus.data.batching.core.metrics import BatchMetrics, convert_metrics
from phalanx.data.plans import batch_plan as _plans
from phalanx.data.token_budget_sampler import TokenBudgetBatchSampler as _TokenBudgetBatchSampler


class BatchSpec(_plans.BatchSpec):
    """`phalanx.data.BatchSpec` with the names of chuk-lazarus."""

    @property
    def batch_size(self) -> int:
        """Number of samples."""
        return self.num_samples


class BucketSizes(dict[int, int]):
    """Mapping from bucket to number of samples.

    Calling the mapping returns the mapping itself, because `bucket_sizes` is a method in chuk-lazarus.
    """

    def __call__(self) -> "BucketSizes":
        return self


class TokenBudgetBatchSampler(_TokenBudgetBatchSampler):
    """`phalanx.data.TokenBudgetBatchSampler` with asynchronous iteration and chuk-lazarus's metrics."""

    @cached_property
    def bucket_sizes(self) -> Any:
        """Number of samples in each bucket."""
        return BucketSizes(super().bucket_sizes)

    def iter_batches(self, *args: Any, **options: Any) -> Iterator[BatchSpec]:
        """Iterate over the batches of an epoch. The arguments are those of `phalanx.data`."""
        for batch in super().iter_batches(*args, **options):
            yield BatchSpec(*(getattr(batch, field.name) for field in dataclasses.fields(batch)))

    async def iter_epoch(self, *args: Any, **options: Any) -> AsyncIterator[BatchSpec]:
        """Iterate over the batches of an epoch asynchronously. The arguments are those of `iter_batches`."""
        for batch in self.iter_batches(*args, **options):
            yield batch

    def compute_metrics(self, *args: Any, **options: Any) -> BatchMetrics:
        """Compute statistics of an epoch's batches, such as token counts and padding.

        The arguments are those of `phalanx.data.TokenBudgetBatchSampler.compute_metrics`.
        """
        return convert_metrics(super().compute_metrics(*args, **options))


__all__ = ["BatchSpec", "TokenBudgetBatchSampler"]

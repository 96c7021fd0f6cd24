"""Token-budget sampler with asynchronous iteration."""

from collections.abc import AsyncIterator
from typing import Any, ClassVar

from phalanx.compat.chuk_lazarus.data.batching.core.metrics import BatchMetrics, convert_metrics
from phalanx.compat.renamed import RenamedAttributes
from phalanx.data.plans.batch_plan import BatchSpec
from phalanx.data.token_budget_sampler import TokenBudgetBatchSampler as _TokenBudgetBatchSampler


class TokenBudgetBatchSampler(RenamedAttributes, _TokenBudgetBatchSampler):
    """`phalanx.data.TokenBudgetBatchSampler` with asynchronous iteration and mutable metrics."""

    renamed: ClassVar = dict.fromkeys(
        ("bucket_sizes", "get_bucket_distribution"), "compute_metrics().bucket_summary()"
    )

    async def iter_epoch(self, *args: Any, **options: Any) -> AsyncIterator[BatchSpec]:
        """Iterate over the batches of an epoch asynchronously. The arguments are those of `iter_batches`."""
        for batch in self.iter_batches(*args, **options):
            yield batch

    def compute_metrics(self, *args: Any, **options: Any) -> BatchMetrics:
        """Compute statistics of an epoch's batches, such as token counts and padding."""
        return convert_metrics(super().compute_metrics(*args, **options))


__all__ = ["BatchSpec", "TokenBudgetBatchSampler"]

"""PyTorch batch sampler that limits the number of tokens in a batch."""

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Literal

import numpy as np

from phalanx.config import check_type
from phalanx.data.lengths import Lengths, SkippedSample, as_length_table
from phalanx.data.metrics import BatchMetrics, compute_metrics
from phalanx.data.plans.batch_plan import BatchSpec, EpochPlan
from phalanx.data.plans.batching_config import BatchingConfig
from phalanx.data.plans.buckets import BucketId, BucketSpec
from phalanx.data.plans.epoch import KeptSamples, epoch_seed, plan_epoch, select_samples


class TokenBudgetBatchSampler:
    """Batch sampler that fills each batch with as many samples as the token budget allows.

    Padding counts toward the token budget. Every sample that fits in a batch is used exactly once per epoch,
    unless `drop_last` drops it. The order depends only on the seed and the epoch. Pass the sampler as the
    `batch_sampler` of a PyTorch `DataLoader`, and call `set_epoch` before each epoch. The sampler yields
    lists of indices, or lists of sample ids if `yields` is "ids".
    """

    def __init__(
        self,
        lengths: Lengths,
        bucket_spec: BucketSpec,
        token_budget: int,
        seed: int = 42,
        drop_last: bool = False,
        *,
        yields: Literal["rows", "ids"] = "rows",
    ) -> None:
        """Create a sampler that forms batches from samples in the same bucket.

        For other settings, use `from_config`.

        Args:
            lengths: Mapping from sample ids to lengths, or a `LengthTable`.
            bucket_spec: Bucket boundaries.
            token_budget: Maximum number of tokens in a batch, including padding.
            seed: Seed for the shuffle.
            drop_last: Drop incomplete batches.
            yields: Yield indices into `lengths` ("rows") or sample ids ("ids").
        """
        check_type(bucket_spec, BucketSpec, "bucket_spec")
        config = BatchingConfig.predictable(
            token_budget,
            bucket_spec.edges,
            bucket_spec.max_sample_length,
            seed,
            min_length=bucket_spec.min_length,
            drop_last=drop_last,
        )
        self._init(lengths, config, yields)

    @classmethod
    def from_config(
        cls, lengths: Lengths, config: BatchingConfig, *, yields: Literal["rows", "ids"] = "rows"
    ) -> "TokenBudgetBatchSampler":
        """Create a sampler from a `BatchingConfig`."""
        check_type(config, BatchingConfig, "batching_config")
        sampler = cls.__new__(cls)
        sampler._init(lengths, config, yields)
        return sampler

    def _init(self, lengths: Lengths, config: BatchingConfig, yields: Literal["rows", "ids"]) -> None:
        if yields not in ("rows", "ids"):
            raise ValueError(f"yields must be 'rows' or 'ids', got {yields!r}")
        self.config = config
        self.bucket_spec = config.bucket_spec
        """Bucket boundaries."""
        self.token_budget = config.token_budget
        """Maximum number of tokens in a batch, including padding."""
        self.table = as_length_table(lengths)
        self.epoch = 0
        self._yields = yields
        self._selected: KeptSamples = select_samples(self.table, config)
        self.num_samples = self._selected.num_kept
        """Number of samples that are neither too short nor too long to be in a batch."""
        self.num_skipped = self._selected.num_skipped
        """Number of samples that are in no batch because they are too short or too long."""
        self._latest: tuple[int, bool, EpochPlan] | None = None

    @property
    def skipped(self) -> tuple[SkippedSample, ...]:
        """Samples that are in no batch because they are too short or too long, with the reason for each."""
        return self._selected.skipped

    @cached_property
    def bucket_sizes(self) -> dict[BucketId, int]:
        """Number of samples in each bucket, including empty buckets."""
        buckets = self.bucket_spec.get_bucket_ids(self._selected.lengths)
        return dict(enumerate(np.bincount(buckets, minlength=self.bucket_spec.num_buckets).tolist()))

    def get_bucket_distribution(self) -> dict[BucketId, float]:
        """Return the fraction of the samples that are in each bucket."""
        return {bucket: size / max(self.num_samples, 1) for bucket, size in self.bucket_sizes.items()}

    def plan_epoch(self, epoch: int = 0, interleave_buckets: bool | None = None) -> EpochPlan:
        """Return the batches of an epoch. The result of the last call is cached.

        Args:
            epoch: Epoch number.
            interleave_buckets: If not None, overrides `BatchingConfig.interleave_buckets`.
        """
        interleave = self.config.interleave_buckets if interleave_buckets is None else interleave_buckets
        if self._latest is None or self._latest[:2] != (epoch, interleave):
            batches = plan_epoch(self._selected, epoch, interleave_buckets=interleave)
            plan = EpochPlan(epoch, epoch_seed(self.config.seed, epoch), batches, self.table)
            self._latest = (epoch, interleave, plan)
        return self._latest[2]

    def iter_batches(self, epoch: int = 0, interleave_buckets: bool | None = None) -> Iterator[BatchSpec]:
        """Iterate over the batches of an epoch. The arguments are those of `plan_epoch`."""
        return iter(self.plan_epoch(epoch, interleave_buckets))

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch for iteration and `len()`."""
        if epoch < 0:
            raise ValueError(f"epoch must be at least 0, got {epoch}")
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.plan_epoch(self.epoch))

    def __iter__(self) -> Iterator[list[int] | list[str]]:
        batches = self.plan_epoch(self.epoch).batches
        for batch in range(len(batches)):
            rows = batches.order[batches.offsets[batch] : batches.offsets[batch + 1]].tolist()
            yield rows if self._yields == "rows" else [str(self.table.ids[row]) for row in rows]

    def estimate_batches_per_epoch(self) -> int:
        """Return the number of batches in epoch 0.

        In predictable mode, every epoch has this number of batches. In throughput mode, the number may differ
        slightly.
        """
        return len(self.plan_epoch(0))

    def compute_metrics(
        self, loss_tokens_per_sample: Mapping[str, int] | None = None, epoch: int = 0
    ) -> BatchMetrics:
        """Compute statistics of an epoch's batches, such as token counts and padding.

        Args:
            loss_tokens_per_sample: Mapping from sample ids to the number of tokens that count toward the
                loss. If it is None, every token counts.
            epoch: Epoch number.
        """
        plan = self.plan_epoch(epoch)
        loss_tokens = None
        if loss_tokens_per_sample is not None:
            loss_tokens = self._count_loss_tokens(loss_tokens_per_sample, plan)
        return compute_metrics(
            plan.batches,
            plan.lengths,
            self.bucket_spec,
            num_skipped=len(self.table) - plan.num_samples,
            loss_tokens=loss_tokens,
        )

    def _count_loss_tokens(self, loss_tokens: Mapping[str, int], plan: EpochPlan) -> int:
        total = 0
        for row in plan.batches.order.tolist():
            sample, length = self.table.ids[row], int(self.table.lengths[row])
            if sample not in loss_tokens:
                raise ValueError(f"loss_tokens_per_sample has no entry for sample {sample!r}")
            if not 0 <= loss_tokens[sample] <= length:
                raise ValueError(
                    f"sample {sample!r} has {length} tokens, but loss_tokens_per_sample says "
                    f"{loss_tokens[sample]} of them count"
                )
            total += loss_tokens[sample]
        return total

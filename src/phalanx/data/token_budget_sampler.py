"""PyTorch batch sampler that limits the number of tokens in a batch."""

from collections.abc import Iterator, Mapping

from phalanx.config import check_type
from phalanx.data.lengths import Lengths, SkippedSample
from phalanx.data.metrics import BatchMetrics, compute_metrics
from phalanx.data.plans.batch_plan import BatchPlanBuilder, BatchSpec, EpochPlan
from phalanx.data.plans.batching_config import BatchingConfig
from phalanx.data.plans.buckets import BucketSpec


class TokenBudgetBatchSampler:
    """Batch sampler that puts as many samples in a batch as a token budget allows, including padding.

    Every sample that fits in a batch is used exactly once per epoch, unless `drop_last` drops it. The order
    depends only on the seed and the epoch. Pass the sampler as `batch_sampler` of a PyTorch `DataLoader`, and
    call `set_epoch` before each epoch. It yields lists of indices into the lengths.
    """

    def __init__(
        self,
        lengths: Lengths,
        bucket_spec: BucketSpec,
        token_budget: int,
        seed: int = 42,
        drop_last: bool = False,
    ) -> None:
        """Create a sampler in predictable mode. Use `from_config` for other settings.

        Args:
            lengths: Mapping from sample ids to lengths, or a `LengthTable`.
            bucket_spec: Bucket boundaries.
            token_budget: Maximum number of tokens in a batch, including padding.
            seed: Seed for the shuffle.
            drop_last: Drop incomplete batches.
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
        self._init(lengths, config)

    @classmethod
    def from_config(cls, lengths: Lengths, config: BatchingConfig) -> "TokenBudgetBatchSampler":
        """Create a sampler from a `BatchingConfig`."""
        sampler = cls.__new__(cls)
        sampler._init(lengths, config)
        return sampler

    def _init(self, lengths: Lengths, config: BatchingConfig) -> None:
        self.config = config
        self.epoch = 0
        self._builder = BatchPlanBuilder(lengths, config)
        self._latest: EpochPlan | None = None

    @property
    def bucket_spec(self) -> BucketSpec:
        """Bucket boundaries."""
        return self.config.bucket_spec

    @property
    def token_budget(self) -> int:
        """Maximum number of tokens in a batch, including padding."""
        return self.config.token_budget

    @property
    def num_samples(self) -> int:
        """Number of samples that fit in a batch."""
        return self._builder.selected.num_kept

    @property
    def num_skipped(self) -> int:
        """Number of samples that are in no batch because they are too short or too long."""
        return self._builder.selected.num_skipped

    @property
    def skipped(self) -> tuple[SkippedSample, ...]:
        """Samples that are in no batch because they are too short or too long, with the reason for each."""
        return self._builder.selected.skipped

    def plan_epoch(self, epoch: int = 0) -> EpochPlan:
        """Return the batches of an epoch. The result of the last call is cached."""
        if self._latest is None or self._latest.epoch != epoch:
            self._latest = self._builder.plan_epoch(epoch)
        return self._latest

    def iter_batches(self, epoch: int = 0) -> Iterator[BatchSpec]:
        """Iterate over the batches of an epoch."""
        return iter(self.plan_epoch(epoch))

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that iteration and `len()` refer to."""
        if epoch < 0:
            raise ValueError(f"epoch must be at least 0, got {epoch}")
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.plan_epoch(self.epoch))

    def __iter__(self) -> Iterator[list[int]]:
        batches = self.plan_epoch(self.epoch).batches
        for batch in range(len(batches)):
            yield batches.order[batches.offsets[batch] : batches.offsets[batch + 1]].tolist()

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
            loss_tokens_per_sample: Mapping from sample ids to the number of tokens that count in the loss. If
                it is None, every token counts.
            epoch: Epoch number.
        """
        plan = self.plan_epoch(epoch)
        loss_tokens = None
        if loss_tokens_per_sample is not None:
            loss_tokens = _count_loss_tokens(loss_tokens_per_sample, plan)
        return compute_metrics(
            plan.batches,
            plan.lengths,
            self.bucket_spec,
            num_skipped=len(plan.table) - plan.num_samples,
            loss_tokens=loss_tokens,
        )


def _count_loss_tokens(loss_tokens: Mapping[str, int], plan: EpochPlan) -> int:
    total = 0
    for row in plan.batches.order.tolist():
        sample, length = plan.table.ids[row], int(plan.table.lengths[row])
        if sample not in loss_tokens:
            raise ValueError(f"loss_tokens_per_sample has no entry for sample {sample!r}")
        if not 0 <= loss_tokens[sample] <= length:
            raise ValueError(
                f"sample {sample!r} has {length} tokens, but loss_tokens_per_sample says "
                f"{loss_tokens[sample]} of them count"
            )
        total += loss_tokens[sample]
    return total

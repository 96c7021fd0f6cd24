"""The token-budget sampler: batches of sample ids, epoch after epoch, made when asked for.

Batches that are planned once, saved, sharded and packed are `BatchPlan`s.
"""

from collections.abc import AsyncIterator, Iterator, Mapping
from functools import cached_property
from typing import Literal

import numpy as np
from pydantic import Field

from phalanx.config import FrozenModel, check_type
from phalanx.data.lengths import Lengths, SkippedSample, as_length_table
from phalanx.data.metrics import BatchMetrics, compute_metrics
from phalanx.data.plans.arrays import EpochBatches
from phalanx.data.plans.batching_config import BatchingConfig, BatchingMode, PadPolicy
from phalanx.data.plans.buckets import BucketId, BucketSpec
from phalanx.data.plans.epoch import plan_epoch
from phalanx.data.plans.filter import SelectedSamples, select_samples


class BatchSpec(FrozenModel):
    """One batch: which samples, and how long its rows are."""

    sample_ids: tuple[str, ...]
    """The samples, in the order of the rows."""
    bucket_id: BucketId
    """The bucket of its longest sample."""
    max_length: int = Field(ge=1)
    """How long each row is once padded."""
    token_count: int = Field(ge=0)
    """Real tokens."""
    lengths: tuple[int, ...] = ()
    """Length of each sample, where known."""

    @property
    def batch_size(self) -> int:
        """Samples in the batch."""
        return len(self.sample_ids)

    @property
    def padded_token_count(self) -> int:
        """Real tokens and padding."""
        return self.batch_size * self.max_length


class BucketSizes(dict[BucketId, int]):
    """Samples by bucket; it may be called, as in chuk-lazarus, and then gives itself."""

    def __call__(self) -> "BucketSizes":
        return self


class TokenBudgetBatchSampler:
    """Batches that hold as many samples as a token budget allows, padding included.

    Every kept sample comes exactly once an epoch; the order depends on seed and epoch alone. Samples that fit
    no batch are listed in `skipped`. As a `batch_sampler` of a PyTorch `DataLoader` it yields lists of row
    numbers (the position of each sample in `lengths`), or of ids with `yields="ids"`; call `set_epoch` before
    each epoch.
    """

    def __init__(
        self,
        lengths: Lengths,
        bucket_spec: BucketSpec,
        token_budget: int,
        seed: int = 42,
        drop_last: bool = False,
        *,
        mode: BatchingMode = BatchingMode.PREDICTABLE,
        pad_policy: PadPolicy | None = None,
        pool_batches: int = 128,
        yields: Literal["rows", "ids"] = "rows",
    ) -> None:
        check_type(bucket_spec, BucketSpec, "bucket_spec")
        default = (
            PadPolicy.PAD_TO_BUCKET if mode is BatchingMode.PREDICTABLE else PadPolicy.PAD_TO_MAX_IN_BATCH
        )
        config = BatchingConfig(
            mode=mode,
            pad_policy=pad_policy or default,
            token_budget=token_budget,
            bucket_edges=bucket_spec.edges,
            overflow_max=bucket_spec.overflow_max,
            min_length=bucket_spec.min_length,
            seed=seed,
            drop_last=drop_last,
            pool_batches=pool_batches,
        )
        self._start(lengths, config, yields)

    @classmethod
    def from_config(
        cls, lengths: Lengths, config: BatchingConfig, *, yields: Literal["rows", "ids"] = "rows"
    ) -> "TokenBudgetBatchSampler":
        """A sampler with every setting of a config."""
        sampler = cls.__new__(cls)
        sampler._start(lengths, config, yields)
        return sampler

    def _start(self, lengths: Lengths, config: BatchingConfig, yields: Literal["rows", "ids"]) -> None:
        if yields not in ("rows", "ids"):
            raise ValueError(f"yields must be 'rows' or 'ids', got {yields!r}")
        self.config = config
        self.table = as_length_table(lengths)
        self.epoch = 0
        self._yields = yields
        self._filtered: SelectedSamples = select_samples(self.table, config)
        self._latest: tuple[int, bool, EpochBatches] | None = None

    @property
    def bucket_spec(self) -> BucketSpec:
        """The buckets."""
        return self.config.bucket_spec

    @property
    def token_budget(self) -> int:
        """Most tokens in a batch, padding included."""
        return self.config.token_budget

    @property
    def num_samples(self) -> int:
        """Samples that are kept."""
        return self._filtered.num_kept

    @property
    def num_skipped(self) -> int:
        """Samples that fit no batch."""
        return self._filtered.num_skipped

    @property
    def skipped(self) -> tuple[SkippedSample, ...]:
        """Every sample that fits no batch, with the reason."""
        return self._filtered.skipped

    @cached_property
    def bucket_sizes(self) -> BucketSizes:
        """Kept samples in each bucket, empty buckets included."""
        buckets = self.bucket_spec.get_bucket_ids(self._filtered.lengths)
        sizes = np.bincount(buckets, minlength=self.bucket_spec.num_buckets)
        return BucketSizes(enumerate(sizes.tolist()))

    def get_bucket_distribution(self) -> dict[BucketId, float]:
        """The part of the kept samples that falls into each bucket."""
        return {bucket: size / max(self.num_samples, 1) for bucket, size in self.bucket_sizes.items()}

    def batches(self, epoch: int = 0, interleave_buckets: bool | None = None) -> EpochBatches:
        """One epoch's batches as arrays; the latest epoch is kept."""
        interleave = self.config.interleave_buckets if interleave_buckets is None else interleave_buckets
        if self._latest is None or self._latest[:2] != (epoch, interleave):
            arrays = plan_epoch(self._filtered, epoch, interleave_buckets=interleave)
            self._latest = (epoch, interleave, arrays)
        return self._latest[2]

    def dropped(self, epoch: int = 0) -> tuple[SkippedSample, ...]:
        """The kept samples that this epoch leaves out because of `drop_last`."""
        return self._filtered.dropped(self.batches(epoch))

    def iter_batches(
        self, epoch: int = 0, interleave_buckets: bool | None = None, *, start: int = 0
    ) -> Iterator[BatchSpec]:
        """The batches of an epoch, from batch `start` on."""
        arrays = self.batches(epoch, interleave_buckets)
        if not 0 <= start <= len(arrays):
            raise ValueError(f"epoch {epoch} has {len(arrays)} batches, so none begins at {start}")
        return (self._spec(arrays, batch) for batch in range(start, len(arrays)))

    async def iter_epoch(
        self, epoch: int = 0, interleave_buckets: bool | None = None, *, start: int = 0
    ) -> AsyncIterator[BatchSpec]:
        """`iter_batches` for `async for`."""
        for batch in self.iter_batches(epoch, interleave_buckets, start=start):
            yield batch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that `iter()` and `len()` speak of."""
        if epoch < 0:
            raise ValueError(f"epochs count from 0, got {epoch}")
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.batches(self.epoch))

    def __iter__(self) -> Iterator[list[int] | list[str]]:
        arrays = self.batches(self.epoch)
        for batch in range(len(arrays)):
            rows = arrays.order[arrays.offsets[batch] : arrays.offsets[batch + 1]].tolist()
            yield rows if self._yields == "rows" else [str(self.table.ids[row]) for row in rows]

    def estimate_batches_per_epoch(self) -> int:
        """Batches of epoch 0: of every epoch in predictable mode, of about every epoch in throughput mode."""
        return len(self.batches(0))

    def compute_metrics(
        self, loss_tokens_per_sample: Mapping[str, int] | None = None, epoch: int = 0
    ) -> BatchMetrics:
        """What an epoch's batches hold and waste; without loss counts every real token carries loss."""
        arrays = self.batches(epoch)
        lengths = self.table.lengths[arrays.order].astype(np.int64)
        loss = None
        if loss_tokens_per_sample is not None:
            loss = self._loss_tokens(loss_tokens_per_sample, arrays)
        skipped = len(self.table) - len(arrays.order)
        return compute_metrics(arrays, lengths, self.bucket_spec, skipped, loss)

    def _loss_tokens(self, loss: Mapping[str, int], arrays: EpochBatches) -> int:
        total = 0
        for row in arrays.order.tolist():
            sample, length = self.table.ids[row], int(self.table.lengths[row])
            if sample not in loss:
                raise ValueError(f"loss_tokens_per_sample has no entry for sample {sample!r}")
            if not 0 <= loss[sample] <= length:
                raise ValueError(f"sample {sample!r} of {length} tokens has {loss[sample]} loss tokens")
            total += loss[sample]
        return total

    def _spec(self, arrays: EpochBatches, batch: int) -> BatchSpec:
        rows = arrays.order[arrays.offsets[batch] : arrays.offsets[batch + 1]]
        lengths = self.table.lengths[rows]
        # Made of checked parts, so not checked again: a million samples would pay for it.
        return BatchSpec.model_construct(
            sample_ids=tuple([str(self.table.ids[row]) for row in rows.tolist()]),
            bucket_id=int(arrays.bucket_ids[batch]),
            max_length=int(arrays.max_lens[batch]),
            token_count=int(lengths.sum()),
            lengths=tuple(lengths.tolist()),
        )

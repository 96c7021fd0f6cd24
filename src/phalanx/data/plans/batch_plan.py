"""Batch plans, which contain all batches of all epochs and can be resumed on any number of ranks."""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, overload, runtime_checkable

import numpy as np
from jaxtyping import Int32
from pydantic import Field, ValidationError

from phalanx.config import FrozenModel
from phalanx.data.lengths import Lengths, LengthTable, SkippedSample, as_length_table
from phalanx.data.metrics import BatchMetrics, compute_metrics
from phalanx.data.packing import OverlongPolicy, PackingConfig, PackLayout
from phalanx.data.plans.batching_config import BatchingConfig, PadPolicy
from phalanx.data.plans.epoch import EpochBatches, SelectedSamples, epoch_seed, plan_epoch, select_samples
from phalanx.data.plans.plan_fingerprint import digest_plan
from phalanx.data.plans.sharding import (
    ShardBalance,
    ShardedEpoch,
    ShardInfo,
    ShardPolicy,
    ShardSpec,
    measure_balance,
    shard_epoch,
)

if TYPE_CHECKING:
    from phalanx.data.samples import Sample

PLAN_VERSION = 3


@dataclasses.dataclass(frozen=True, eq=False)
class BatchSpec:
    """The samples of one batch, and how they are arranged in rows."""

    epoch: int
    index: int
    """Index of the batch within its epoch. In a streaming plan, the index of the step."""
    bucket_id: int
    """Index of the bucket that the longest row belongs to. Always 0 in a streaming plan."""
    packed: bool
    """Whether a row may contain more than one sample."""
    layout: PackLayout
    """Rows of the batch. `layout.samples` has indices into `samples`, or into `table` if `samples` is
    None."""
    table: LengthTable | None = None
    """Ids and lengths of the dataset. None in a streaming plan whose sources return samples."""
    samples: "Sequence[Sample] | None" = None
    """The samples themselves. Only streaming plans set them, because a source may be readable only once."""

    @cached_property
    def sample_ids(self) -> tuple[str, ...]:
        """Ids of the samples, row by row."""
        indices = self.layout.samples.tolist()
        if self.samples is not None:
            return tuple([self.samples[index].sample_id for index in indices])
        assert self.table is not None
        ids = self.table.ids
        return tuple([str(ids[index]) for index in indices])

    @property
    def packs(self) -> tuple[tuple[str, ...], ...] | None:
        """Ids of the samples in each row; None if the batch is not packed."""
        if not self.packed:
            return None
        ids = self.sample_ids
        return tuple(ids[a:b] for a, b in itertools.pairwise(self.layout.offsets.tolist()))

    @property
    def lengths(self) -> tuple[int, ...]:
        """Number of tokens of each sample in the batch."""
        return tuple(self.layout.lengths.tolist())

    @property
    def max_length(self) -> int:
        """Row length after padding, in tokens."""
        return self.layout.width

    @property
    def batch_size(self) -> int:
        """Number of samples in the batch."""
        return len(self.layout.samples)

    @property
    def num_packs(self) -> int:
        """Number of rows in the batch."""
        return len(self.layout)

    @property
    def token_count(self) -> int:
        """Number of tokens in the batch, without padding."""
        return int(self.layout.lengths.sum(dtype=np.int64))

    @property
    def padded_token_count(self) -> int:
        """Number of tokens in the batch, including padding."""
        return self.num_packs * self.max_length

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BatchSpec) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash((self.epoch, self.index, self.sample_ids))

    def _key(self) -> tuple[Any, ...]:
        rows = tuple(self.layout.offsets.tolist())
        return (
            self.epoch,
            self.index,
            self.bucket_id,
            self.packed,
            self.sample_ids,
            self.lengths,
            rows,
            self.max_length,
        )


@runtime_checkable
class PlanIterator(Iterator[BatchSpec], Protocol):
    """Iterator over the batches of one rank.

    Its state is small enough for checkpoints and the same on every rank.
    """

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the plan as JSON-compatible values."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state that `state_dict` returned, possibly on a different number of ranks."""
        ...


@runtime_checkable
class Plan(Protocol):
    """Interface of plans, which yield batches in a fixed order: `BatchPlan` and `StreamingPlan`."""

    @property
    def fingerprint(self) -> str:
        """Short digest of everything that determines the batches."""
        ...

    @property
    def num_batches(self) -> int | None:
        """Number of batches in the plan. None if it is unbounded."""
        ...

    def batches(self, rank: int = 0, world_size: int | ShardSpec = 1) -> PlanIterator:
        """Return an iterator over the batches of one rank.

        Args:
            rank: Rank, from 0 to `world_size - 1`.
            world_size: Number of ranks, or a `ShardSpec` with all sharding settings.
        """
        ...


class EpochPlan(Sequence[BatchSpec]):
    """The batches of one epoch, as a sequence of `BatchSpec` objects that are created on access."""

    def __init__(
        self,
        epoch: int,
        seed: int,
        batches: EpochBatches,
        table: LengthTable,
        packing: PackingConfig | None = None,
    ) -> None:
        self.epoch = epoch
        self.seed = seed
        """Seed of the epoch's shuffle, derived from the plan's seed and the epoch number."""
        self.batches = batches
        """The batches as arrays."""
        self.table = table
        """Ids and lengths of the dataset."""
        self.packing = packing

    def with_batches(self, batches: EpochBatches) -> "EpochPlan":
        """Return a copy of this epoch with other batches."""
        return EpochPlan(self.epoch, self.seed, batches, self.table, self.packing)

    @cached_property
    def lengths(self) -> Int32[np.ndarray, " samples"]:
        """Number of tokens of each sample, in the order in which the samples appear in the batches."""
        lengths = self.table.lengths[self.batches.order]
        if self.packing is not None and self.packing.overlong is OverlongPolicy.TRUNCATE:
            return np.minimum(lengths, np.int32(self.packing.max_length))
        return lengths

    @property
    def num_batches(self) -> int:
        """Number of batches."""
        return len(self.batches)

    @property
    def num_samples(self) -> int:
        """Number of samples in all batches."""
        return len(self.batches.order)

    @property
    def total_tokens(self) -> int:
        """Number of tokens in all batches, without padding."""
        return int(self.lengths.sum(dtype=np.int64))

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[BatchSpec]:
        return (self._spec(index) for index in range(len(self)))

    @overload
    def __getitem__(self, index: int) -> BatchSpec: ...
    @overload
    def __getitem__(self, index: slice) -> list[BatchSpec]: ...
    def __getitem__(self, index: int | slice) -> BatchSpec | list[BatchSpec]:
        selected = range(len(self))[index]
        return self._spec(selected) if isinstance(selected, int) else [self._spec(i) for i in selected]

    def _spec(self, index: int) -> BatchSpec:
        batches, packing = self.batches, self.packing
        begin, end = int(batches.offsets[index]), int(batches.offsets[index + 1])
        if batches.pack_offsets is None:
            offsets = np.arange(end - begin + 1, dtype=np.int64)
        else:
            first, last = np.searchsorted(batches.pack_offsets, (begin, end))
            offsets = batches.pack_offsets[first : last + 1] - begin
        packed = batches.pack_offsets is not None
        layout = PackLayout(
            samples=batches.order[begin:end],
            lengths=self.lengths[begin:end],
            offsets=offsets,
            width=int(batches.max_lens[index]),
            separator_token_id=packing.separator_token_id if packed and packing is not None else None,
            separator_loss=packing is None or packing.separator_loss,
        )
        return BatchSpec(self.epoch, index, int(batches.bucket_ids[index]), packed, layout, self.table)


class BatchPlanMeta(FrozenModel):
    """Settings and inputs that a plan was built from."""

    dataset_hash: str = ""
    """String that identifies the dataset. Empty if it was not given."""
    tokenizer_hash: str = ""
    """String that identifies the tokenizer that the lengths were computed with. Empty if it was not given."""
    batching: BatchingConfig
    """Batching settings."""
    packing: PackingConfig | None = None
    """Packing settings. None if samples are not packed."""
    num_epochs: int = Field(ge=0)
    """Number of epochs in the plan."""
    created_at: str = Field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    """UTC time at which the plan was built, in ISO 8601 format. Not part of the fingerprint."""
    shard: ShardInfo | None = None
    """Rank and sharding settings if this plan is a shard. None for a complete plan."""
    version: int = PLAN_VERSION
    """Version of the planning algorithm and file format."""


class MissingEpochError(ValueError, KeyError):
    """Raised for an epoch that is not in the plan."""

    # KeyError would put the message in quotes.
    __str__ = Exception.__str__


@dataclasses.dataclass(frozen=True, eq=False)
class BatchPlan:
    """Batches of one or more epochs over one dataset. Immutable; implements `Plan`."""

    meta: BatchPlanMeta
    """Settings and inputs that the plan was built from."""
    table: LengthTable
    """Ids and lengths of all samples, including skipped ones."""
    epochs: tuple[EpochPlan, ...]
    """Epochs in ascending order."""

    @property
    def num_epochs(self) -> int:
        """Number of epochs."""
        return len(self.epochs)

    @property
    def num_batches(self) -> int:
        """Number of batches in all epochs."""
        return sum(len(epoch) for epoch in self.epochs)

    @property
    def num_skipped(self) -> int:
        """Number of samples that are too short or too long for every batch."""
        return self._selected.num_skipped

    @property
    def skipped(self) -> tuple[SkippedSample, ...]:
        """The samples that are too short or too long for every batch, with the reason for each."""
        return self._selected.skipped

    def dropped(self, epoch: int) -> tuple[SkippedSample, ...]:
        """Return the samples that `drop_last` leaves out of an epoch, although they would fit in a batch."""
        self._require_complete("list the dropped samples of")
        return self._selected.dropped(self.get_epoch(epoch).batches)

    @cached_property
    def _selected(self) -> SelectedSamples:
        return select_samples(self.table, self.meta.batching, self.meta.packing)

    @cached_property
    def full_hash(self) -> str:
        """SHA-256 of the settings and of every batch, as 64 hexadecimal digits."""
        used = np.zeros(len(self.table), bool)
        for epoch in self.epochs:
            used[epoch.batches.order] = True
        batching, packing = self.meta.batching, self.meta.packing
        settings = {
            "version": self.meta.version,
            "dataset": self.meta.dataset_hash,
            "tokenizer": self.meta.tokenizer_hash,
            "batching": batching.digest(),
            "packing": None if packing is None else [packing.model_dump(mode="json"), batching.pool_batches],
        }
        return digest_plan(
            settings, self.table, ((epoch.epoch, epoch.batches) for epoch in self.epochs), used
        )

    def adopt_fingerprint(self, full_hash: str) -> None:
        """Set `full_hash` to a value that was computed for the same plan before, for example on another rank.

        Hashing a large plan takes time, and this avoids doing it again.
        """
        if len(full_hash) != 64:
            raise ValueError(f"full_hash must have 64 characters, got {full_hash!r}")
        self.__dict__["full_hash"] = full_hash

    @property
    def fingerprint(self) -> str:
        """First 16 characters of `full_hash`."""
        return self.full_hash[:16]

    def get_epoch(self, epoch: int) -> EpochPlan:
        """Return an epoch by its number. Raises `MissingEpochError` if it is not in the plan."""
        for plan in self.epochs:
            if plan.epoch == epoch:
                return plan
        numbers = [plan.epoch for plan in self.epochs]
        available = f"epochs {numbers[0]} to {numbers[-1]}" if numbers else "no epochs"
        raise MissingEpochError(f"the plan has {available}, not epoch {epoch}")

    def iter_epoch(self, epoch: int) -> Iterator[BatchSpec]:
        """Return an iterator over the batches of one epoch."""
        return iter(self.get_epoch(epoch))

    def batches(self, rank: int = 0, world_size: int | ShardSpec = 1) -> "BatchPlanIterator":
        """Return an iterator over the batches of one rank in all epochs.

        Each rank computes its own batches without communication. All ranks have the same number of batches.

        Args:
            rank: Rank, from 0 to `world_size - 1`.
            world_size: Number of ranks, or a `ShardSpec` with all sharding settings.
        """
        return BatchPlanIterator(self, rank, ShardSpec.resolve(world_size))

    def shard(
        self,
        rank: int,
        world_size: int | ShardSpec,
        policy: ShardPolicy | str = ShardPolicy.SPLIT,
        balance: bool = False,
        d_model: int | None = None,
    ) -> "BatchPlan":
        """Return the plan of one rank. All ranks have the same number of batches per epoch.

        Args:
            rank: Rank, from 0 to `world_size - 1`.
            world_size: Number of ranks, or a `ShardSpec`, in which case the remaining arguments are ignored.
            policy: How to proceed if the number of batches is not divisible by the number of ranks.
            balance: Whether the batches of a step should have about the same cost on all ranks.
            d_model: Hidden size of the transformer, used to estimate the cost of a batch in FLOPs. If it is
                None, only the cost of attention is balanced.
        """
        self._require_complete("shard")
        spec = ShardSpec.resolve(world_size, policy, balance, d_model)
        spec.check_rank(rank)
        settings = {name: getattr(spec, name) for name in ShardSpec.model_fields}
        info = ShardInfo(rank=rank, plan_fingerprint=self.fingerprint, **settings)
        epochs = [epoch.with_batches(self.shard_epoch(epoch, spec).shard(rank)) for epoch in self.epochs]
        return BatchPlan(self.meta.model_copy(update={"shard": info}), self.table, tuple(epochs))

    def remaining(
        self,
        epoch: int,
        step: int,
        world_size: int | ShardSpec = 1,
        policy: ShardPolicy | str = ShardPolicy.SPLIT,
        balance: bool = False,
        d_model: int | None = None,
    ) -> "BatchPlan":
        """Return a plan of the batches that are left after each rank has processed `step` batches of `epoch`.

        Shard the result to continue on a different number of ranks without losing or repeating samples of the
        epoch.

        Args:
            epoch: Number of the current epoch.
            step: Number of batches of this epoch that each rank has processed.
            world_size: Number of ranks so far, or the `ShardSpec` so far.
            policy: Shard policy so far. Ignored, like the following arguments, if `world_size` is a
                `ShardSpec`.
            balance: Whether ranks were balanced so far.
            d_model: Hidden size that was used for balancing so far.
        """
        self._require_complete("take the remainder of")
        current = self.get_epoch(epoch)
        sharded = self.shard_epoch(current, ShardSpec.resolve(world_size, policy, balance, d_model))
        left = current.with_batches(sharded.remaining(step))
        epochs = (left, *(plan for plan in self.epochs if plan.epoch > epoch))
        return BatchPlan(self.meta.model_copy(update={"num_epochs": len(epochs)}), self.table, epochs)

    def measure_balance(
        self,
        epoch: int,
        world_size: int | ShardSpec,
        policy: ShardPolicy | str = ShardPolicy.SPLIT,
        balance: bool = True,
        d_model: int | None = None,
    ) -> ShardBalance:
        """Measure how evenly the work of one epoch is divided among ranks.

        The arguments are those of `shard`.
        """
        plan = self.get_epoch(epoch)
        spec = ShardSpec.resolve(world_size, policy, balance, d_model)
        return measure_balance(self.shard_epoch(plan, spec), plan.lengths, spec.d_model)

    def compute_metrics(self, epoch: int = 0) -> BatchMetrics:
        """Compute statistics of an epoch's batches, such as token counts and padding."""
        plan = self.get_epoch(epoch)
        skipped = 0 if self.meta.shard is not None else len(self.table) - plan.num_samples
        return compute_metrics(
            plan.batches, plan.lengths, self.meta.batching.bucket_spec, num_skipped=skipped
        )

    def check_samples(self, samples: Mapping[str, Any]) -> None:
        """Raise `ValueError` unless every sample in the batches is a key of `samples`."""
        used = np.zeros(len(self.table), bool)
        for epoch in self.epochs:
            used[epoch.batches.order] = True
        missing = [str(name) for name in itertools.compress(self.table.ids, used) if name not in samples]
        if missing:
            names = ", ".join(map(repr, missing[:3])) + (", ..." if len(missing) > 3 else "")
            raise ValueError(
                f"the plan was built for another dataset: {len(missing)} of its {int(used.sum())} samples "
                f"are "
                f"not in this one ({names}); build a plan from the lengths of this dataset, with the same ids"
            )

    def shard_epoch(self, epoch: EpochPlan, spec: ShardSpec) -> ShardedEpoch:
        """Divide the batches of one epoch among ranks."""
        pad_to_longest = self.meta.batching.pad_policy is PadPolicy.PAD_TO_MAX_IN_BATCH
        return shard_epoch(epoch.batches, epoch.lengths, spec, pad_to_longest=pad_to_longest, seed=epoch.seed)

    def shard_epoch_for_rank(
        self,
        epoch: EpochPlan,
        rank: int,
        spec: ShardSpec,
        earlier: tuple[tuple[int, ShardSpec], ...] = (),
    ) -> EpochPlan:
        """Return the batches of one rank in an epoch.

        Args:
            epoch: Epoch of this plan.
            rank: Rank, from 0 to `spec.world_size - 1`.
            spec: How batches are divided among ranks.
            earlier: Pairs of a number of steps and a `ShardSpec`, one for each different number of ranks with
                which the beginning of the epoch was processed. These batches are excluded.
        """
        for step, previous in earlier:
            epoch = epoch.with_batches(self.shard_epoch(epoch, previous).remaining(step))
        if spec.world_size == 1:
            return epoch
        return epoch.with_batches(self.shard_epoch(epoch, spec).shard(rank))

    def _require_complete(self, action: str) -> None:
        if self.meta.shard is not None:
            shard = self.meta.shard
            raise ValueError(
                f"cannot {action} a shard (rank {shard.rank} of {shard.world_size}); use the complete plan"
            )


class BatchPlanState(FrozenModel):
    """Position of a `BatchPlanIterator`, as stored in checkpoints."""

    plan: str
    """Fingerprint of the plan."""
    epoch: int
    """Number of the current epoch."""
    step: int = Field(ge=0)
    """Number of batches that each rank has used in this epoch since the number of ranks last changed."""
    shard: ShardSpec
    """Current sharding settings."""
    earlier: tuple[tuple[int, ShardSpec], ...] = ()
    """Pairs of a number of steps and a `ShardSpec`, one for each previous number of ranks in this epoch."""


def resolve_state(plan: BatchPlan, spec: ShardSpec, state: Mapping[str, Any]) -> BatchPlanState:
    """Validate a saved state and adapt it to the current number of ranks.

    Args:
        plan: Plan that the state belongs to.
        spec: Current sharding settings.
        state: Result of `BatchPlanIterator.state_dict`.

    Raises:
        ValueError: If the state is from another plan, or if a sharding setting other than `world_size`
            differs.
    """
    try:
        loaded = BatchPlanState.model_validate(dict(state))
    except ValidationError as error:
        raise ValueError(f"not the state of a batch plan: {error}") from error
    if loaded.plan != plan.fingerprint:
        raise ValueError(
            f"the state is from plan {loaded.plan}, but this is plan {plan.fingerprint}: the dataset, the "
            f"settings or the seed differ"
        )
    if loaded.shard.model_copy(update={"world_size": spec.world_size}) != spec:
        raise ValueError(
            f"the state was saved with {loaded.shard!r}, but the current settings are {spec!r}; only "
            f"world_size may differ"
        )
    if loaded.shard == spec:
        return loaded
    plan._require_complete("resume on another number of ranks with")
    earlier = (*loaded.earlier, (loaded.step, loaded.shard))
    return loaded.model_copy(update={"step": 0, "shard": spec, "earlier": earlier})


class BatchPlanIterator(Iterator[BatchSpec]):
    """Iterator over the batches of one rank in all epochs of a plan. Implements `PlanIterator`."""

    def __init__(self, plan: BatchPlan, rank: int, spec: ShardSpec) -> None:
        spec.check_rank(rank)
        if spec.world_size > 1:
            plan._require_complete("shard")
        self._plan, self._rank, self._spec = plan, rank, spec
        self._number = 0
        self._step = 0
        self._earlier: tuple[tuple[int, ShardSpec], ...] = ()
        self._current: EpochPlan | None = None

    def __next__(self) -> BatchSpec:
        while self._number < len(self._plan.epochs):
            if self._current is None:
                self._current = self._shard_current()
            if self._step < len(self._current):
                self._step += 1
                return self._current[self._step - 1]
            self._number += 1
            self._step, self._earlier, self._current = 0, (), None
        raise StopIteration

    def state_dict(self) -> dict[str, Any]:
        """Return the position as JSON-compatible values, which are the same on every rank."""
        number = min(self._number, len(self._plan.epochs) - 1)
        epoch = self._plan.epochs[number].epoch if self._plan.epochs else 0
        step = self._step
        if self._number > number:
            step = len(self._shard_current(number))
        return BatchPlanState(
            plan=self._plan.fingerprint, epoch=epoch, step=step, shard=self._spec, earlier=self._earlier
        ).model_dump(mode="json")

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state that `state_dict` returned.

        If the number of ranks differs, the rest of the epoch is divided among the current ranks.

        Raises:
            ValueError: If the state is from another plan, or if a sharding setting other than `world_size`
                differs.
        """
        loaded = resolve_state(self._plan, self._spec, state)
        number = self._plan.epochs.index(self._plan.get_epoch(loaded.epoch))
        current = self._shard_current(number, loaded.earlier)
        if loaded.step > len(current):
            raise ValueError(
                f"epoch {loaded.epoch} has {len(current)} batches, but the state is at batch {loaded.step}"
            )
        self._number, self._step, self._earlier = number, loaded.step, loaded.earlier
        self._current = current

    def skip(self, count: int) -> None:
        """Skip the next `count` batches without creating them. Raises `ValueError` if there are fewer."""
        while count > 0 and self._number < len(self._plan.epochs):
            if self._current is None:
                self._current = self._shard_current()
            taken = min(count, len(self._current) - self._step)
            self._step += taken
            count -= taken
            if count > 0:
                self._number += 1
                self._step, self._earlier, self._current = 0, (), None
        if count > 0:
            raise ValueError(f"cannot skip that many batches: the plan ends {count} batches earlier")

    def remaining_batches(self) -> Iterator[tuple[EpochPlan, int]]:
        """Yield the epoch and the index of each remaining batch, without creating the batches."""
        for number in range(self._number, len(self._plan.epochs)):
            is_current = number == self._number
            epoch = self._shard_current(number, self._earlier if is_current else ())
            for index in range(self._step if is_current else 0, len(epoch)):
                yield epoch, index

    def _shard_current(
        self, number: int | None = None, earlier: tuple[tuple[int, ShardSpec], ...] | None = None
    ) -> EpochPlan:
        epoch = self._plan.epochs[self._number if number is None else number]
        return self._plan.shard_epoch_for_rank(
            epoch, self._rank, self._spec, self._earlier if earlier is None else earlier
        )


class BatchPlanBuilder:
    """Builds batch plans from sample lengths. The constructor validates lengths and settings."""

    def __init__(
        self,
        lengths: Lengths,
        batching_config: BatchingConfig,
        dataset_hash: str = "",
        tokenizer_hash: str = "",
        packing: PackingConfig | None = None,
    ) -> None:
        """Create a builder.

        Args:
            lengths: Mapping from sample ids to lengths, or a `LengthTable`.
            batching_config: Batching settings.
            dataset_hash: String that identifies the dataset. Part of the plan's fingerprint.
            tokenizer_hash: String that identifies the tokenizer. Part of the plan's fingerprint.
            packing: Packing settings. None puts one sample in each row.
        """
        self.table = as_length_table(lengths)
        self.batching_config = batching_config
        self.dataset_hash = dataset_hash
        self.tokenizer_hash = tokenizer_hash
        self.packing = packing
        self._selected = select_samples(self.table, batching_config, packing)

    @property
    def num_skipped(self) -> int:
        """Number of samples that are too short or too long for every batch."""
        return self._selected.num_skipped

    @property
    def skipped(self) -> tuple[SkippedSample, ...]:
        """The samples that are too short or too long for every batch, with the reason for each."""
        return self._selected.skipped

    def build(self, num_epochs: int = 1) -> BatchPlan:
        """Build a plan with epochs 0 to `num_epochs - 1`."""
        if num_epochs < 1:
            raise ValueError(f"num_epochs must be at least 1, got {num_epochs}")
        return self.build_epochs(range(num_epochs))

    def build_epochs(self, epochs: range) -> BatchPlan:
        """Build a plan with the given epoch numbers."""
        seed = self.batching_config.seed
        plans = [
            EpochPlan(
                epoch, epoch_seed(seed, epoch), plan_epoch(self._selected, epoch), self.table, self.packing
            )
            for epoch in epochs
        ]
        meta = BatchPlanMeta(
            dataset_hash=self.dataset_hash,
            tokenizer_hash=self.tokenizer_hash,
            batching=self.batching_config,
            packing=self.packing,
            num_epochs=len(plans),
        )
        return BatchPlan(meta, self.table, tuple(plans))

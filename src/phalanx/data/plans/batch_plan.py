"""Batch plans, which contain all batches of all epochs. Training can be resumed on any number of ranks."""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, overload, runtime_checkable

import numpy as np
from jaxtyping import Bool, Int32
from pydantic import Field, ValidationError

from phalanx.config import AnyModel, FrozenModel, format_validation_error
from phalanx.data.lengths import Lengths, LengthTable, SkippedSample, as_length_table
from phalanx.data.metrics import BatchMetrics, compute_metrics
from phalanx.data.packing import OverlongPolicy, PackingConfig, PackLayout
from phalanx.data.plans.batching_config import BatchingConfig, PadPolicy
from phalanx.data.plans.epoch import EpochBatches, KeptSamples, epoch_seed, plan_epoch, select_samples
from phalanx.data.plans.plan_fingerprint import digest_plan
from phalanx.data.plans.sharding import (
    ShardBalance,
    ShardedEpoch,
    ShardInfo,
    ShardingConfig,
    shard_epoch,
)

if TYPE_CHECKING:
    from phalanx.data.samples import Sample

PLAN_VERSION = 3


@dataclasses.dataclass(frozen=True, eq=False)
class BatchSpec:
    """The samples of one batch, and how they are arranged in rows."""

    epoch: int
    """Epoch number, counted from 0. Always 0 in a streaming plan."""
    index: int
    """Index of the batch within its epoch. In a streaming plan, the index of the step."""
    bucket_id: int
    """Index of the bucket that the longest row belongs to. Always 0 in a streaming plan."""
    packed: bool
    """True if a row may contain more than one sample."""
    layout: PackLayout
    """Rows of the batch. The elements of `layout.samples` are indices into `samples`, or into `table` if
    `samples` is None."""
    table: LengthTable | None = None
    """Ids and lengths of the samples in the batch, and possibly of other samples in the dataset. None if
    `samples` is set."""
    samples: "Sequence[Sample] | None" = None
    """Samples of the batch in a streaming plan. They are stored here because the sources of a streaming plan
    may be readable only once. None in a batch plan, and in a streaming plan whose sources only have
    lengths."""

    @cached_property
    def sample_ids(self) -> tuple[str, ...]:
        """Ids of the samples, row by row."""
        indices = self.layout.samples.tolist()
        if self.samples is not None:
            return tuple([self.samples[index].sample_id for index in indices])
        assert self.table is not None
        return tuple([str(self.table.ids[index]) for index in indices])

    @property
    def packs(self) -> tuple[tuple[str, ...], ...] | None:
        """Ids of the samples in each row. None if the batch is not packed."""
        if not self.packed:
            return None
        return tuple(self.sample_ids[a:b] for a, b in itertools.pairwise(self.layout.offsets.tolist()))

    @property
    def lengths(self) -> tuple[int, ...]:
        """Number of tokens in each sample of the batch."""
        return tuple(self.layout.lengths.tolist())

    @property
    def max_length(self) -> int:
        """Row length after padding, in tokens."""
        return self.layout.width

    @property
    def num_samples(self) -> int:
        """Number of samples in the batch."""
        return len(self.layout.samples)

    @property
    def num_rows(self) -> int:
        """Number of rows in the batch."""
        return len(self.layout)

    @property
    def token_count(self) -> int:
        """Number of tokens in the batch, without padding."""
        return int(self.layout.lengths.sum(dtype=np.int64))

    @property
    def padded_token_count(self) -> int:
        """Number of tokens in the batch, including padding."""
        return self.num_rows * self.max_length

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BatchSpec) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash((self.epoch, self.index, self.sample_ids))

    def _key(self) -> tuple[Any, ...]:
        samples = self.packs or self.sample_ids
        return self.epoch, self.index, self.bucket_id, self.packed, samples, self.lengths, self.max_length


@runtime_checkable
class PlanIterator(Iterator[BatchSpec], Protocol):
    """Iterator over the batches of one rank.

    The state of the iterator is small enough for checkpoints, and is the same on every rank.
    """

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the plan as JSON-compatible values."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state that `state_dict` returned, possibly on a different number of ranks."""


@runtime_checkable
class Plan(Protocol):
    """Interface of `BatchPlan` and `StreamingPlan`, which yield batches in a fixed order."""

    @property
    def fingerprint(self) -> str:
        """Short digest of everything that determines the batches."""

    @property
    def num_batches(self) -> int | None:
        """Number of batches in the plan. None if it is unknown, as in a streaming plan."""

    def batches(self, rank: int = 0, world_size: int | ShardingConfig = 1) -> PlanIterator:
        """Return an iterator over the batches of one rank.

        Args:
            rank: Rank, from 0 to `world_size - 1`.
            world_size: Number of ranks, or a `ShardingConfig` with all sharding settings.
        """


@dataclasses.dataclass(frozen=True, eq=False)
class EpochPlan(Sequence[BatchSpec]):
    """The batches of one epoch, as a sequence of `BatchSpec` objects that are created on access."""

    epoch: int
    """Epoch number, counted from 0."""
    seed: int
    """Seed for this epoch's shuffle, derived from the plan's seed and the epoch number."""
    batches: EpochBatches
    """The batches as arrays."""
    table: LengthTable
    """Ids and lengths of all samples in the dataset."""
    packing: PackingConfig | None = None
    """Packing settings. None if samples are not packed."""

    @cached_property
    def lengths(self) -> Int32[np.ndarray, " samples"]:
        """Number of tokens in each sample, in the order in which the samples appear in the batches."""
        lengths = self.table.lengths[self.batches.order]
        if self.packing is not None and self.packing.overlong is OverlongPolicy.TRUNCATE:
            return np.minimum(lengths, np.int32(self.packing.max_length))
        return lengths

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

    @overload
    def __getitem__(self, index: int) -> BatchSpec: ...
    @overload
    def __getitem__(self, index: slice) -> list[BatchSpec]: ...
    def __getitem__(self, index: int | slice) -> BatchSpec | list[BatchSpec]:
        selected = range(len(self))[index]
        return self._spec(selected) if isinstance(selected, int) else [self._spec(i) for i in selected]

    def _spec(self, index: int) -> BatchSpec:
        batches, packing = self.batches, self.packing
        packed = batches.pack_offsets is not None
        begin, end = int(batches.offsets[index]), int(batches.offsets[index + 1])
        if batches.pack_offsets is None:
            offsets = np.arange(end - begin + 1, dtype=np.int64)
        else:
            first, last = np.searchsorted(batches.pack_offsets, (begin, end))
            offsets = batches.pack_offsets[first : last + 1] - begin
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
    """Settings of a plan, and hashes that identify the data from which it was built."""

    dataset_hash: str = ""
    """String that identifies the dataset. Empty if it was not given."""
    tokenizer_hash: str = ""
    """String that identifies the tokenizer used to compute the lengths. Empty if it was not given."""
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
    """Batches of one or more epochs over one dataset. A plan is immutable and implements `Plan`."""

    meta: BatchPlanMeta
    """Settings of the plan, and hashes that identify the data from which it was built."""
    table: LengthTable
    """Ids and lengths of all samples, including skipped ones."""
    epochs: tuple[EpochPlan, ...]
    """Epochs in ascending order."""

    def __repr__(self) -> str:
        counts = (
            f"num_samples={len(self.table)}, num_epochs={self.num_epochs}, num_batches={self.num_batches}"
        )
        return f"BatchPlan({counts})"

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
        """Number of samples that are in no batch because they are too short or too long."""
        return self._selected.num_skipped

    @property
    def skipped(self) -> tuple[SkippedSample, ...]:
        """Samples that are in no batch because they are too short or too long, with the reason for each."""
        return self._selected.skipped

    @cached_property
    def _selected(self) -> KeptSamples:
        return select_samples(self.table, self.meta.batching, self.meta.packing)

    @cached_property
    def _is_used(self) -> Bool[np.ndarray, " samples"]:
        used = np.zeros(len(self.table), bool)
        for epoch in self.epochs:
            used[epoch.batches.order] = True
        return used

    @cached_property
    def full_hash(self) -> str:
        """SHA-256 of the settings and of every batch, as 64 hexadecimal digits."""
        meta, batching = self.meta, self.meta.batching
        packing = (
            None if meta.packing is None else [meta.packing.model_dump(mode="json"), batching.pool_batches]
        )
        settings = {
            "version": meta.version,
            "dataset": meta.dataset_hash,
            "tokenizer": meta.tokenizer_hash,
            "batching": batching.digest(),
            "packing": packing,
        }
        epochs = [(epoch.epoch, epoch.batches) for epoch in self.epochs]
        return digest_plan(settings, self.table, epochs, self._is_used)

    def adopt_fingerprint(self, full_hash: str) -> None:
        """Set `full_hash` to a value that was already computed for this plan, for example on another rank.

        This avoids the cost of hashing a large plan again.
        """
        if len(full_hash) != 64:
            raise ValueError(f"full_hash must have 64 characters, got {full_hash!r}")
        self.__dict__["full_hash"] = full_hash

    @property
    def fingerprint(self) -> str:
        """First 16 characters of `full_hash`."""
        return self.full_hash[:16]

    def get_epoch(self, epoch: int) -> EpochPlan:
        """Return the plan of an epoch. Raises `MissingEpochError` if the epoch is not in the batch plan."""
        for plan in self.epochs:
            if plan.epoch == epoch:
                return plan
        numbers = [plan.epoch for plan in self.epochs]
        available = f"epochs {numbers[0]} to {numbers[-1]}" if numbers else "no epochs"
        raise MissingEpochError(f"the plan has {available}, not epoch {epoch}")

    def iter_epoch(self, epoch: int) -> Iterator[BatchSpec]:
        """Return an iterator over the batches of the epoch with this number."""
        return iter(self.get_epoch(epoch))

    def batches(self, rank: int = 0, world_size: int | ShardingConfig = 1) -> "BatchPlanIterator":
        """Return an iterator over the batches of one rank in all epochs.

        Each rank computes its own batches without communication. All ranks have the same number of batches.

        Args:
            rank: Rank, from 0 to `world_size - 1`.
            world_size: Number of ranks, or a `ShardingConfig` with all sharding settings.
        """
        return BatchPlanIterator(self, rank, ShardingConfig.resolve(world_size))

    def shard(self, rank: int, world_size: int | ShardingConfig, **settings: Any) -> "BatchPlan":
        """Return a plan with only the batches of one rank.

        All ranks have the same number of batches per epoch.

        Args:
            rank: Rank, from 0 to `world_size - 1`.
            world_size: Number of ranks, or a `ShardingConfig` with all sharding settings.
            **settings: Other fields of `ShardingConfig`, such as `balance=True`, if `world_size` is a number.
        """
        self._require_complete("shard")
        spec = ShardingConfig.resolve(world_size, **settings)
        spec.check_rank(rank)
        info = ShardInfo(**{**dict(spec), "rank": rank, "plan_fingerprint": self.fingerprint})
        epochs = [self.epoch_for_rank(epoch, rank, spec) for epoch in self.epochs]
        return BatchPlan(self.meta.model_copy(update={"shard": info}), self.table, tuple(epochs))

    def remaining(
        self, epoch: int, step: int, world_size: int | ShardingConfig = 1, **settings: Any
    ) -> "BatchPlan":
        """Return a plan of the batches that are left after each rank has processed `step` batches of `epoch`.

        Shard the result to continue on a different number of ranks without losing or repeating samples of the
        epoch.

        Args:
            epoch: Number of the current epoch.
            step: Number of batches of this epoch that each rank has processed.
            world_size: Number of ranks that have processed the epoch so far, or a `ShardingConfig` with all
                sharding settings that were used.
            **settings: If `world_size` is a number, the other sharding settings that were used, as fields of
                `ShardingConfig`.
        """
        self._require_complete("take the remainder of")
        current = self.get_epoch(epoch)
        left = self._divide(current, ShardingConfig.resolve(world_size, **settings)).remaining(step)
        later = [plan for plan in self.epochs if plan.epoch > epoch]
        epochs = (dataclasses.replace(current, batches=left), *later)
        return BatchPlan(self.meta.model_copy(update={"num_epochs": len(epochs)}), self.table, epochs)

    def measure_balance(self, epoch: int, world_size: int | ShardingConfig, **settings: Any) -> ShardBalance:
        """Measure how evenly the work of one epoch is divided among ranks.

        Args:
            epoch: Epoch number.
            world_size: Number of ranks, or a `ShardingConfig` with all sharding settings.
            **settings: Other fields of `ShardingConfig`, such as `balance=True`, if `world_size` is a number.
        """
        plan = self.get_epoch(epoch)
        spec = ShardingConfig.resolve(world_size, **settings)
        return self._divide(plan, spec).measure_balance(plan.lengths, spec.d_model)

    def compute_metrics(self, epoch: int = 0) -> BatchMetrics:
        """Compute statistics of an epoch's batches, such as token counts and padding."""
        plan = self.get_epoch(epoch)
        skipped = 0 if self.meta.shard is not None else len(self.table) - plan.num_samples
        return compute_metrics(
            plan.batches, plan.lengths, self.meta.batching.bucket_spec, num_skipped=skipped
        )

    def check_samples(self, samples: Mapping[str, Any]) -> None:
        """Raise `ValueError` unless `samples` contains the id of every sample in the batches."""
        used = itertools.compress(self.table.ids, self._is_used)
        missing = [str(name) for name in used if name not in samples]
        if missing:
            names = ", ".join(map(repr, missing[:3])) + (", ..." if len(missing) > 3 else "")
            raise ValueError(
                f"the plan was built for another dataset: {len(missing)} of its {self._is_used.sum()} "
                f"samples are not in this one ({names}); build a plan from the lengths of this dataset, with "
                f"the same ids"
            )

    def epoch_for_rank(
        self,
        epoch: EpochPlan,
        rank: int,
        spec: ShardingConfig,
        earlier: tuple[tuple[int, ShardingConfig], ...] = (),
    ) -> EpochPlan:
        """Return the batches of one rank in an epoch.

        Args:
            epoch: Epoch of this plan.
            rank: Rank, from 0 to `spec.world_size - 1`.
            spec: Sharding settings.
            earlier: Steps of the epoch that were already taken on a different number of ranks, earliest
                first. Each pair consists of a number of steps and the `ShardingConfig` with which they were
                taken. The batches of these steps are excluded.
        """
        for step, previous in earlier:
            left = self._divide(epoch, previous).remaining(step)
            epoch = dataclasses.replace(epoch, batches=left)
        return dataclasses.replace(epoch, batches=self._divide(epoch, spec).shard(rank))

    def _divide(self, epoch: EpochPlan, spec: ShardingConfig) -> ShardedEpoch:
        """Divide the batches of an epoch among ranks."""
        pad_to_longest = self.meta.batching.pad_policy is PadPolicy.PAD_TO_MAX_IN_BATCH
        return shard_epoch(epoch.batches, epoch.lengths, spec, pad_to_longest=pad_to_longest, seed=epoch.seed)

    def _require_complete(self, action: str) -> None:
        shard = self.meta.shard
        if shard is not None:
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
    shard: ShardingConfig
    """Current sharding settings."""
    earlier: tuple[tuple[int, ShardingConfig], ...] = ()
    """Steps of this epoch that were taken before the number of ranks last changed, earliest first. Each pair
    consists of a number of steps and the `ShardingConfig` with which they were taken."""


def validate_state(cls: type[AnyModel], state: Mapping[str, Any], owner: str) -> AnyModel:
    """Convert a saved state to an instance of `cls`, which is a Pydantic model.

    Raises `ValueError` if the state has another format. The message contains `owner`, such as "a batch plan".
    """
    try:
        return cls.model_validate(dict(state))
    except ValidationError as error:
        problems = "; ".join(format_validation_error(error, cls).splitlines())
        raise ValueError(f"not the state of {owner}: {problems}") from error


def resolve_state(plan: BatchPlan, spec: ShardingConfig, state: Mapping[str, Any]) -> BatchPlanState:
    """Validate a saved state and adapt it to the current number of ranks.

    Args:
        plan: Plan to which the state belongs.
        spec: Current sharding settings.
        state: Result of `BatchPlanIterator.state_dict`.

    Raises:
        ValueError: If the state is from another plan, or if a sharding setting other than `world_size`
            differs.
    """
    loaded = validate_state(BatchPlanState, state, "a batch plan")
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
    """Iterator over the batches of one rank in all epochs of a plan.

    It implements `PlanIterator`, so it can be resumed with `state_dict` and `load_state_dict`.
    """

    def __init__(self, plan: BatchPlan, rank: int, spec: ShardingConfig) -> None:
        spec.check_rank(rank)
        if spec.world_size > 1:
            plan._require_complete("shard")
        self._plan, self._rank, self._spec = plan, rank, spec
        self._open(0)

    def _open(self, number: int, step: int = 0, earlier: tuple[tuple[int, ShardingConfig], ...] = ()) -> None:
        """Go to a step of an epoch. The epoch is sharded only when a batch is requested.

        Args:
            number: Index of the epoch in `BatchPlan.epochs`.
            step: Number of batches of this rank to skip.
            earlier: Steps that were taken on a different number of ranks, as in `BatchPlanState.earlier`.
        """
        self._number, self._step, self._earlier = number, step, earlier
        self._sharded: EpochPlan | None = None

    @property
    def _current(self) -> EpochPlan:
        if self._sharded is None:
            epoch = self._plan.epochs[self._number]
            self._sharded = self._plan.epoch_for_rank(epoch, self._rank, self._spec, self._earlier)
        return self._sharded

    def _advance(self, count: int) -> int:
        """Move forward by `count` batches, or to the end if fewer are left.

        Returns the number of missing batches, which is 0 if at least `count` batches were left.
        """
        last = len(self._plan.epochs) - 1
        while count > 0 and last >= 0:
            taken = min(count, len(self._current) - self._step)
            self._step += taken
            count -= taken
            if count == 0 or self._number == last:
                break
            self._open(self._number + 1)
        return count

    def __next__(self) -> BatchSpec:
        if self._advance(1):
            raise StopIteration
        return self._current[self._step - 1]

    def skip(self, count: int) -> None:
        """Skip the next `count` batches without creating them. Raises `ValueError` if there are fewer."""
        if missing := self._advance(count):
            raise ValueError(f"cannot skip that many batches: the plan ends {missing} batches earlier")

    def state_dict(self) -> dict[str, Any]:
        """Return the position as JSON-compatible values, which are the same on every rank."""
        epoch = self._plan.epochs[self._number].epoch if self._plan.epochs else 0
        return BatchPlanState(
            plan=self._plan.fingerprint, epoch=epoch, step=self._step, shard=self._spec, earlier=self._earlier
        ).model_dump(mode="json")

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state that `state_dict` returned.

        If the number of ranks differs, the rest of the epoch is divided among the current ranks.

        Raises:
            ValueError: If the state is from another plan, or if a sharding setting other than `world_size`
                differs.
        """
        loaded = resolve_state(self._plan, self._spec, state)
        epoch = self._plan.get_epoch(loaded.epoch)
        sharded = self._plan.epoch_for_rank(epoch, self._rank, self._spec, loaded.earlier)
        if loaded.step > len(sharded):
            raise ValueError(
                f"epoch {loaded.epoch} has {len(sharded)} batches, but the state is at batch {loaded.step}"
            )
        self._open(self._plan.epochs.index(epoch), loaded.step, loaded.earlier)


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
            packing: Packing settings. If None, each row contains one sample.
        """
        self.table = as_length_table(lengths)
        self.batching_config = batching_config
        self.dataset_hash = dataset_hash
        self.tokenizer_hash = tokenizer_hash
        self.packing = packing
        self._selected = select_samples(self.table, batching_config, packing)

    def build(self, num_epochs: int = 1) -> BatchPlan:
        """Build a plan with epochs 0 to `num_epochs - 1`."""
        if num_epochs < 1:
            raise ValueError(f"num_epochs must be at least 1, got {num_epochs}")
        return self.build_epochs(range(num_epochs))

    def build_epochs(self, epochs: range) -> BatchPlan:
        """Build a plan for the given range of epochs."""
        seed, table, packing = self.batching_config.seed, self.table, self.packing
        plans = [
            EpochPlan(epoch, epoch_seed(seed, epoch), plan_epoch(self._selected, epoch), table, packing)
            for epoch in epochs
        ]
        meta = BatchPlanMeta(
            dataset_hash=self.dataset_hash,
            tokenizer_hash=self.tokenizer_hash,
            batching=self.batching_config,
            packing=packing,
            num_epochs=len(plans),
        )
        return BatchPlan(meta, table, tuple(plans))

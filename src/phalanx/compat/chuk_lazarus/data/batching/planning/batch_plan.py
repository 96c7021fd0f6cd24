"""Batch plans as Pydantic models, which can be built by hand and converted to `phalanx.data` plans."""

import asyncio
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from pydantic import BaseModel, Field, PrivateAttr, model_validator

from phalanx.compat.chuk_lazarus.data.batching.core.metrics import BatchMetrics, convert_metrics
from phalanx.compat.chuk_lazarus.data.batching.planning.predictability import BatchingConfig
from phalanx.compat.renamed import alias
from phalanx.config import FrozenModel
from phalanx.data.lengths import LengthTable
from phalanx.data.plans import batch_plan as _plans, plan_files as _files
from phalanx.data.plans.batch_plan import MissingEpochError
from phalanx.data.plans.batching_config import BatchingMode, PadPolicy
from phalanx.data.plans.epoch import EpochBatches
from phalanx.ragged import counts_to_offsets

# Batching settings that are part of chuk-lazarus's metadata. There, the seed is called `base_seed`.
_BATCHING_FIELDS = ("bucket_edges", "overflow_max", "token_budget", "pad_policy")


class MicrobatchSpec(FrozenModel):
    """The samples of one batch, and the length of its rows."""

    samples: tuple[str, ...] = Field(min_length=1)
    """Sample ids, row by row."""
    packs: tuple[tuple[str, ...], ...] | None = None
    """Sample ids of each row. Concatenated, they equal `samples`. None if every row has one sample."""
    bucket_id: int
    """Index of the bucket that the longest row belongs to."""
    max_len: int = Field(ge=1)
    """Row length after padding, in tokens."""
    index: int = Field(ge=0)
    """Index of the batch within its epoch."""
    lengths: tuple[int, ...] = ()
    """Number of tokens in each sample. Empty if the lengths are unknown."""

    # The names in `phalanx.data`.
    sample_ids: ClassVar = alias("samples")
    max_length: ClassVar = alias("max_len")

    @model_validator(mode="after")
    def _check_parts(self) -> "MicrobatchSpec":
        if self.packs is not None and sum(self.packs, ()) != self.samples:
            raise ValueError("packs must have the same samples as `samples`, in the same order")
        if self.lengths and len(self.lengths) != len(self.samples):
            raise ValueError(f"{len(self.samples)} samples but {len(self.lengths)} lengths")
        return self

    @property
    def batch_size(self) -> int:
        """Number of samples."""
        return len(self.samples)

    @property
    def num_packs(self) -> int:
        """Number of rows."""
        return len(self.samples) if self.packs is None else len(self.packs)

    @property
    def token_count(self) -> int:
        """Number of tokens without padding. 0 if the lengths are unknown."""
        return sum(self.lengths)

    @property
    def padded_token_count(self) -> int:
        """Number of tokens including padding."""
        return self.num_packs * self.max_len

    @classmethod
    def from_spec(cls, spec: _plans.BatchSpec) -> "MicrobatchSpec":
        """Convert a `BatchSpec` of `phalanx.data` to this class."""
        lengths = spec.lengths
        # Not validated, because a plan is consistent and may have many batches.
        return cls.model_construct(
            samples=spec.sample_ids,
            packs=spec.packs,
            bucket_id=spec.bucket_id,
            max_len=spec.max_length,
            index=spec.index,
            lengths=lengths if 0 not in lengths else (),
        )


class EpochPlan(BaseModel, extra="forbid"):
    """The batches of one epoch."""

    epoch: int = Field(ge=0)
    """Epoch number, counted from 0."""
    microbatches: tuple[MicrobatchSpec, ...]
    """The batches in training order."""
    seed: int = 0
    """Seed for this epoch's shuffle."""
    total_samples: int = 0
    """Number of samples in all batches. If 0, it is computed from the batches."""
    total_tokens: int = 0
    """Number of tokens in all batches. If 0 and all lengths are known, it is computed from the batches."""

    def __init__(self, epoch: int, microbatches: Iterable[Any] = (), seed: int = 0, **fields: Any) -> None:
        super().__init__(epoch=epoch, microbatches=tuple(microbatches), seed=seed, **fields)

    @model_validator(mode="after")
    def _check_totals(self) -> "EpochPlan":
        packed = [spec.packs is not None for spec in self.microbatches]
        if any(packed) != all(packed):
            raise ValueError("some microbatches have packs and some do not; a plan packs all or none")
        totals = {"samples": sum(len(spec.samples) for spec in self.microbatches)}
        if all(spec.lengths for spec in self.microbatches):
            totals["tokens"] = sum(spec.token_count for spec in self.microbatches)
        for name, total in totals.items():
            given = getattr(self, f"total_{name}")
            if given not in (0, total):
                raise ValueError(f"epoch {self.epoch} has {total} {name}, not total_{name}={given}")
            setattr(self, f"total_{name}", total)
        return self

    @classmethod
    def from_epoch(cls, epoch: _plans.EpochPlan) -> "EpochPlan":
        """Convert an `EpochPlan` of `phalanx.data` to this class."""
        return cls.model_construct(
            epoch=epoch.epoch,
            microbatches=tuple(map(MicrobatchSpec.from_spec, epoch)),
            seed=epoch.seed,
            total_samples=epoch.num_samples,
            total_tokens=epoch.total_tokens,
        )

    @property
    def num_microbatches(self) -> int:
        """Number of batches."""
        return len(self.microbatches)

    def __len__(self) -> int:
        return len(self.microbatches)

    def __iter__(self) -> Iterator[MicrobatchSpec]:  # type: ignore[override]
        return iter(self.microbatches)

    def __getitem__(self, index: Any) -> Any:
        return self.microbatches[index]


class BatchPlanMeta(_plans.BatchPlanMeta):
    """Settings and inputs of a plan.

    Batching settings such as `token_budget` can be passed directly instead of in a `batching` config.
    """

    @model_validator(mode="before")
    @classmethod
    def _collect_batching(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        values = dict(values)
        if "pack_config" in values:
            values["packing"] = values.pop("pack_config")
        if "batching" not in values:
            found = {name: values.pop(name) for name in _BATCHING_FIELDS if name in values}
            if "base_seed" in values:
                found["seed"] = values.pop("base_seed")
            if found.get("pad_policy") == PadPolicy.PAD_TO_BUCKET:
                found["mode"] = BatchingMode.PREDICTABLE
            values["batching"] = BatchingConfig(**found)
        return values

    @classmethod
    def create(
        cls,
        dataset_hash: str,
        tokenizer_hash: str,
        batching_config: BatchingConfig,
        num_epochs: int,
        pack_config: Any = None,
    ) -> "BatchPlanMeta":
        """Create the metadata for a plan that is built by hand."""
        return cls(
            dataset_hash=dataset_hash,
            tokenizer_hash=tokenizer_hash,
            batching=batching_config,
            packing=pack_config,
            num_epochs=num_epochs,
        )

    pack_config: ClassVar = alias("packing")
    bucket_edges: ClassVar = alias("batching.bucket_edges")
    overflow_max: ClassVar = alias("batching.max_sample_length")
    token_budget: ClassVar = alias("batching.token_budget")
    pad_policy: ClassVar = alias("batching.pad_policy")
    base_seed: ClassVar = alias("batching.seed")


class BatchPlan(BaseModel, extra="forbid"):
    """Epochs of batches, created by a builder, loaded from a file, or built by hand with `add_epoch`."""

    meta: BatchPlanMeta
    """Settings and inputs that the plan was built from."""
    epochs: dict[int, EpochPlan] = Field(default_factory=dict)
    """Epochs by number."""
    _arrays: _plans.BatchPlan | None = PrivateAttr(None)

    def __init__(self, meta: BatchPlanMeta, epochs: Mapping[int, EpochPlan] | None = None) -> None:
        super().__init__(meta=meta, epochs=dict(epochs or {}))

    @classmethod
    def from_arrays(cls, plan: _plans.BatchPlan) -> "BatchPlan":
        """Convert a `BatchPlan` of `phalanx.data` to this class."""
        batching = BatchingConfig.model_construct(**dict(plan.meta.batching))
        converted = cls.model_construct(
            meta=BatchPlanMeta.model_construct(**{**dict(plan.meta), "batching": batching}),
            epochs={epoch.epoch: EpochPlan.from_epoch(epoch) for epoch in plan.epochs},
        )
        converted._arrays = plan
        return converted

    def add_epoch(self, epoch_plan: EpochPlan) -> None:
        """Add an epoch, or replace the one with the same number."""
        if self.meta.shard is not None:
            raise ValueError("cannot add an epoch to a shard; use the complete plan")
        epochs = {**self.epochs, epoch_plan.epoch: epoch_plan}
        known = _collect_lengths(epochs.values(), {}).as_dict()
        self.epochs = {number: _add_lengths(epoch, known) for number, epoch in epochs.items()}
        self.meta = self.meta.model_copy(update={"num_epochs": len(epochs)})
        self._arrays = None

    @property
    def arrays(self) -> _plans.BatchPlan:
        """This plan, converted to a `BatchPlan` of `phalanx.data`."""
        if self._arrays is None:
            self._arrays = self.to_arrays({})
        return self._arrays

    def to_arrays(self, lengths: Mapping[str, int]) -> _plans.BatchPlan:
        """Convert to a `BatchPlan` of `phalanx.data`, adding sample lengths that the batches lack.

        Args:
            lengths: Mapping from sample ids to lengths, used for samples whose length is not given by any
                batch. Samples whose length is not known from either source get length 0.
        """
        table = _collect_lengths(self.epochs.values(), lengths)
        rows = {name: row for row, name in enumerate(table.ids)}
        packing = self.meta.packing
        epochs = [
            _plans.EpochPlan(number, epoch.seed, _to_batches(epoch.microbatches, rows), table, packing)
            for number, epoch in sorted(self.epochs.items())
        ]
        meta = _plans.BatchPlanMeta.model_construct(**dict(self.meta))
        plan = _plans.BatchPlan(meta, table, tuple(epochs))
        if lengths:
            # The additional lengths would change the fingerprint.
            plan.adopt_fingerprint(self.full_hash)
        return plan

    table: ClassVar = alias("arrays.table")
    full_hash: ClassVar = alias("arrays.full_hash")
    fingerprint: ClassVar = alias("arrays.fingerprint")
    num_epochs: ClassVar = alias("arrays.num_epochs")
    total_microbatches: ClassVar = alias("arrays.num_batches")

    def get_epoch(self, epoch: int) -> EpochPlan:
        """Return an epoch by its number. Raises `MissingEpochError` if it is not in the plan."""
        return self.epochs[self.arrays.get_epoch(epoch).epoch]

    def iter_epoch(self, epoch: int) -> Iterator[MicrobatchSpec]:
        """Iterate over the batches of one epoch."""
        return iter(self.get_epoch(epoch))

    def iter_from(self, epoch: int, microbatch_idx: int = 0) -> Iterator[tuple[int, int, MicrobatchSpec]]:
        """Iterate over all batches as (epoch, index, batch), starting at `microbatch_idx` in `epoch`."""
        first = self.get_epoch(epoch)
        if not 0 <= microbatch_idx <= len(first):
            raise ValueError(
                f"microbatch_idx must be between 0 and {len(first)} in epoch {epoch}, got {microbatch_idx}"
            )
        batches = (
            (number, index, spec)
            for number in sorted(self.epochs)
            if number >= epoch
            for index, spec in enumerate(self.epochs[number])
        )
        return itertools.islice(batches, microbatch_idx, None)

    def shard(self, rank: int, world_size: int, **settings: Any) -> "BatchPlan":
        """Return the plan for one rank. `settings` are passed to `phalanx.data.BatchPlan.shard`."""
        return BatchPlan.from_arrays(self.arrays.shard(rank, world_size, **settings))

    def compute_metrics(self, epoch: int = 0) -> BatchMetrics:
        """Compute statistics of an epoch's batches, such as token counts and padding."""
        return convert_metrics(self.arrays.compute_metrics(epoch))


def _collect_lengths(epochs: Iterable[EpochPlan], given: Mapping[str, int]) -> LengthTable:
    """Return the ids and lengths of all samples.

    Lengths that the epochs do not contain are taken from `given`, or set to 0.
    """
    lengths: dict[str, int] = {}
    for spec in itertools.chain.from_iterable(epochs):
        for name, length in zip(spec.samples, spec.lengths or itertools.repeat(0), strict=False):
            known = lengths.get(name, 0)
            if known and length and known != length:
                raise ValueError(f"sample {name!r} has {known} tokens in one epoch and {length} in another")
            lengths[name] = known or length
    counts = [length or given.get(name, 0) for name, length in lengths.items()]
    return LengthTable(list(lengths), np.array(counts, np.int32)).trust()


def _add_lengths(epoch: EpochPlan, known: Mapping[str, int]) -> EpochPlan:
    """Return a copy of an epoch with the lengths in `known` added to its batches.

    A batch is left unchanged if the length of any of its samples is unknown.
    """
    specs = []
    for spec in epoch.microbatches:
        lengths = tuple(known[name] for name in spec.samples)
        specs.append(spec.model_copy(update={"lengths": lengths}) if all(lengths) else spec)
    return epoch.model_copy(update={"microbatches": tuple(specs)})


def _to_batches(specs: Sequence[MicrobatchSpec], rows: Mapping[str, int]) -> EpochBatches:
    packs = [len(pack) for spec in specs for pack in spec.packs or ()]
    return EpochBatches(
        np.array([rows[name] for spec in specs for name in spec.samples], np.int32),
        counts_to_offsets(np.array([len(spec.samples) for spec in specs], np.int64)),
        np.array([spec.bucket_id for spec in specs], np.int16),
        np.array([spec.max_len for spec in specs], np.int32),
        counts_to_offsets(np.array(packs, np.int64)) if packs else None,
    )


class BatchPlanBuilder(_plans.BatchPlanBuilder):
    """`phalanx.data.BatchPlanBuilder` with an asynchronous `build` method and a `pack_config` argument."""

    def __init__(self, *args: Any, pack_config: Any = None, **settings: Any) -> None:
        if pack_config is not None:
            settings["packing"] = pack_config
        super().__init__(*args, **settings)

    async def build(self, num_epochs: int = 1) -> BatchPlan:  # type: ignore[override]
        """Build a plan without blocking the event loop."""
        return await asyncio.to_thread(self.build_sync, num_epochs)

    def build_sync(self, num_epochs: int = 1) -> BatchPlan:
        """Build a plan with epochs 0 to `num_epochs - 1`."""
        return BatchPlan.from_arrays(super().build(num_epochs))


def save_batch_plan(plan: BatchPlan, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Write a plan to a folder, or to a file that ends in `.plan`."""
    _files.save_batch_plan(plan.arrays, path, overwrite=overwrite)


def load_batch_plan(path: str | os.PathLike[str], **options: Any) -> BatchPlan:
    """Load a plan. The options are those of `phalanx.data.load_batch_plan`."""
    return BatchPlan.from_arrays(_files.load_batch_plan(path, **options))


async def save_batch_plan_async(plan: BatchPlan, path: str | os.PathLike[str], **options: Any) -> None:
    """Write a plan without blocking the event loop."""
    await asyncio.to_thread(save_batch_plan, plan, path, **options)


async def load_batch_plan_async(path: str | os.PathLike[str], **options: Any) -> BatchPlan:
    """Load a plan without blocking the event loop."""
    return await asyncio.to_thread(load_batch_plan, path, **options)


__all__ = [
    "BatchPlan",
    "BatchPlanBuilder",
    "BatchPlanMeta",
    "EpochPlan",
    "MicrobatchSpec",
    "MissingEpochError",
    "load_batch_plan",
    "load_batch_plan_async",
    "save_batch_plan",
    "save_batch_plan_async",
]

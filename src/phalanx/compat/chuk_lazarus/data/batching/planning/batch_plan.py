"""Batch plans as Pydantic models, which can be built by hand and converted to the plans of `phalanx.data`."""

import asyncio
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, model_validator

from phalanx.compat.chuk_lazarus.data.batching.core.metrics import BatchMetrics, convert_metrics
from phalanx.compat.chuk_lazarus.data.batching.planning.packing import PackingConfig
from phalanx.compat.renamed import alias
from phalanx.config import FrozenModel
from phalanx.data.lengths import Lengths, LengthTable, SkippedSample
from phalanx.data.plans import batch_plan as _plans, plan_files as _files
from phalanx.data.plans.batch_plan import MissingEpochError
from phalanx.data.plans.batching_config import BatchingConfig, BatchingMode, PadPolicy
from phalanx.data.plans.epoch import EpochBatches, counts_to_offsets

_BATCHING_FIELDS = ("bucket_edges", "overflow_max", "token_budget", "pad_policy")


class MicrobatchSpec(FrozenModel):
    """One batch: its samples, and how long its rows are."""

    samples: tuple[str, ...]
    """Sample ids, row after row."""
    packs: tuple[tuple[str, ...], ...] | None = None
    """Sample ids of each row, which together are `samples`; None for one sample per row."""
    bucket_id: int
    max_len: int = Field(ge=1)
    """Row length after padding."""
    index: int = Field(ge=0)
    """Number of the batch in its epoch."""
    lengths: tuple[int, ...] = ()
    """Length of each sample; empty if they are unknown."""

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
        """Tokens without padding."""
        return sum(self.lengths)

    @property
    def padded_token_count(self) -> int:
        """Tokens including padding."""
        return self.num_packs * self.max_len

    @classmethod
    def from_spec(cls, spec: _plans.BatchSpec) -> "MicrobatchSpec":
        """Convert a batch of `phalanx.data`."""
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


class EpochPlan(BaseModel):
    """The batches of one epoch."""

    model_config = ConfigDict(extra="forbid")

    epoch: int = Field(ge=0)
    microbatches: tuple[MicrobatchSpec, ...]
    seed: int = 0
    total_samples: int = 0
    total_tokens: int = 0

    def __init__(
        self,
        epoch: int,
        microbatches: Iterable[MicrobatchSpec | Mapping[str, Any]] = (),
        seed: int = 0,
        **fields: Any,
    ) -> None:
        super().__init__(epoch=epoch, microbatches=tuple(microbatches), seed=seed, **fields)

    @model_validator(mode="after")
    def _check_totals(self) -> "EpochPlan":
        for number, spec in enumerate(self.microbatches):
            if not spec.samples:
                raise ValueError(f"microbatches[{number}] has no samples")
        packed = [spec.packs is not None for spec in self.microbatches]
        if any(packed) != all(packed):
            raise ValueError("some microbatches have packs and some do not; a plan packs all or none")
        samples = sum(len(spec.samples) for spec in self.microbatches)
        if self.total_samples not in (0, samples):
            raise ValueError(
                f"epoch {self.epoch} has {samples} samples, not total_samples={self.total_samples}"
            )
        self.total_samples = samples
        if all(spec.lengths for spec in self.microbatches):
            tokens = sum(spec.token_count for spec in self.microbatches)
            if self.total_tokens not in (0, tokens):
                raise ValueError(
                    f"epoch {self.epoch} has {tokens} tokens, not total_tokens={self.total_tokens}"
                )
            self.total_tokens = tokens
        return self

    @classmethod
    def from_epoch(cls, epoch: _plans.EpochPlan) -> "EpochPlan":
        """Convert an epoch of `phalanx.data`."""
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
    """What a plan was built from. The batching settings can be given one by one."""

    @model_validator(mode="before")
    @classmethod
    def _collect_batching(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        values = dict(values)
        if "pack_config" in values:
            values["packing"] = values.pop("pack_config")
        if "batching" in values:
            return values
        found = {name: values.pop(name) for name in _BATCHING_FIELDS if name in values}
        if "base_seed" in values:
            found["seed"] = values.pop("base_seed")
        if PadPolicy(found.get("pad_policy", PadPolicy.PAD_TO_MAX_IN_BATCH)) is PadPolicy.PAD_TO_BUCKET:
            found["mode"] = BatchingMode.PREDICTABLE
        return {**values, "batching": BatchingConfig(**found)}

    @classmethod
    def create(
        cls,
        dataset_hash: str,
        tokenizer_hash: str,
        batching_config: BatchingConfig,
        num_epochs: int,
        pack_config: PackingConfig | None = None,
    ) -> "BatchPlanMeta":
        """Create the metadata of a plan that is built by hand."""
        return cls(
            dataset_hash=dataset_hash,
            tokenizer_hash=tokenizer_hash,
            batching=batching_config,
            packing=pack_config,
            num_epochs=num_epochs,
        )

    pack_config: ClassVar = alias("packing")
    bucket_edges: ClassVar = alias("batching.bucket_edges")
    overflow_max: ClassVar = alias("batching.overflow_max")
    token_budget: ClassVar = alias("batching.token_budget")
    pad_policy: ClassVar = alias("batching.pad_policy")
    base_seed: ClassVar = alias("batching.seed")


class BatchPlan(BaseModel):
    """Epochs of batches, from a builder, a file, or built by hand with `add_epoch`."""

    model_config = ConfigDict(extra="forbid")

    meta: BatchPlanMeta
    epochs: dict[int, EpochPlan] = Field(default_factory=dict)
    """Epochs by number."""
    _arrays: _plans.BatchPlan | None = PrivateAttr(None)

    def __init__(self, meta: BatchPlanMeta, epochs: Mapping[int, EpochPlan] | None = None) -> None:
        super().__init__(meta=meta, epochs=dict(epochs or {}))

    @classmethod
    def from_arrays(cls, plan: _plans.BatchPlan) -> "BatchPlan":
        """Convert a plan of `phalanx.data`."""
        converted = cls.model_construct(
            meta=BatchPlanMeta.model_construct(**dict(plan.meta)),
            epochs={epoch.epoch: EpochPlan.from_epoch(epoch) for epoch in plan.epochs},
        )
        converted._arrays = plan
        return converted

    def to_arrays(self, lengths: Mapping[str, int] | None = None) -> _plans.BatchPlan:
        """Convert to a plan of `phalanx.data`.

        Args:
            lengths: Lengths of samples that the batches do not contain; otherwise they are 0.
        """
        if self._arrays is not None and lengths is None:
            return self._arrays
        table = _collect_lengths(self.epochs.values(), lengths or {})
        rows = {name: row for row, name in enumerate(table.ids)}
        packing = self.meta.packing
        epochs = [
            _plans.EpochPlan(number, epoch.seed, _to_batches(epoch.microbatches, rows), table, packing)
            for number, epoch in sorted(self.epochs.items())
        ]
        meta = _plans.BatchPlanMeta.model_construct(**dict(self.meta))
        plan = _plans.BatchPlan(meta, table, tuple(epochs))
        if lengths is None:
            self._arrays = plan
        else:
            plan.adopt_fingerprint(self.full_hash)
        return plan

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
    def table(self) -> LengthTable:
        """Ids and lengths of all samples."""
        return self.to_arrays().table

    @property
    def num_epochs(self) -> int:
        """Number of epochs."""
        return len(self.epochs)

    @property
    def total_microbatches(self) -> int:
        """Number of batches in all epochs."""
        return sum(len(epoch) for epoch in self.epochs.values())

    @property
    def num_skipped(self) -> int:
        """Number of samples that fit in no batch; 0 for a plan that was built by hand."""
        arrays = self.to_arrays()
        return arrays.num_skipped if arrays.table.lengths.all() else 0

    @property
    def skipped(self) -> tuple[SkippedSample, ...]:
        """Every sample that fits in no batch, with the reason."""
        return self.to_arrays().skipped if self.num_skipped else ()

    @property
    def full_hash(self) -> str:
        """SHA-256 of the settings and of every batch."""
        return self.to_arrays().full_hash

    @property
    def fingerprint(self) -> str:
        """First 16 characters of `full_hash`."""
        return self.full_hash[:16]

    def get_epoch(self, epoch: int) -> EpochPlan:
        """Return one epoch."""
        if epoch not in self.epochs:
            self.to_arrays().get_epoch(epoch)
        return self.epochs[epoch]

    def iter_epoch(self, epoch: int) -> Iterator[MicrobatchSpec]:
        """Iterate over the batches of one epoch."""
        return iter(self.get_epoch(epoch))

    def iter_from(self, epoch: int, microbatch_idx: int = 0) -> Iterator[tuple[int, int, MicrobatchSpec]]:
        """Iterate over (epoch, index, batch) from one batch to the end of the plan."""
        first = self.get_epoch(epoch)
        if not 0 <= microbatch_idx <= len(first):
            raise ValueError(
                f"microbatch_idx must be between 0 and {len(first)} in epoch {epoch}, got {microbatch_idx}"
            )
        return (
            (number, index, self.epochs[number][index])
            for number in sorted(self.epochs)
            if number >= epoch
            for index in range(microbatch_idx if number == epoch else 0, len(self.epochs[number]))
        )

    def shard(self, rank: int, world_size: int, **settings: Any) -> "BatchPlan":
        """Return the plan of one rank; the settings are those of `phalanx.data.BatchPlan.shard`."""
        return BatchPlan.from_arrays(self.to_arrays().shard(rank, world_size, **settings))

    def compute_metrics(self, epoch: int = 0) -> BatchMetrics:
        """Compute token counts and padding of an epoch's batches."""
        return convert_metrics(self.to_arrays().compute_metrics(epoch))


def _collect_lengths(epochs: Iterable[EpochPlan], given: Mapping[str, int]) -> LengthTable:
    """Return the ids and lengths of all samples; an unknown length is 0."""
    lengths: dict[str, int] = {}
    for epoch in epochs:
        for spec in epoch.microbatches:
            for name, length in itertools.zip_longest(spec.samples, spec.lengths, fillvalue=0):
                known = lengths.setdefault(str(name), int(length))
                if known and length and known != length:
                    raise ValueError(
                        f"sample {name!r} has {known} tokens in one epoch and {length} in another"
                    )
                lengths[str(name)] = known or int(length)
    for name, length in lengths.items():
        lengths[name] = length or given.get(name, 0)
    return LengthTable(list(lengths), np.array(list(lengths.values()), np.int32)).trust()


def _add_lengths(epoch: EpochPlan, known: Mapping[str, int]) -> EpochPlan:
    """Return an epoch with the lengths that other epochs contain."""
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
    """`phalanx.data.BatchPlanBuilder` with an asynchronous `build`."""

    def __init__(
        self,
        lengths: Lengths,
        batching_config: BatchingConfig,
        dataset_hash: str = "",
        tokenizer_hash: str = "",
        pack_config: Any = None,
        *,
        packing: Any = None,
    ) -> None:
        super().__init__(lengths, batching_config, dataset_hash, tokenizer_hash, packing or pack_config)

    async def build(self, num_epochs: int = 1) -> BatchPlan:  # type: ignore[override]
        """Build a plan without blocking the event loop."""
        return await asyncio.to_thread(self.build_sync, num_epochs)

    def build_sync(self, num_epochs: int = 1) -> BatchPlan:
        """Build a plan."""
        return BatchPlan.from_arrays(super().build(num_epochs))


def save_batch_plan(plan: BatchPlan, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Write a plan to a folder."""
    _files.save_batch_plan(plan.to_arrays(), path, overwrite=overwrite)


def load_batch_plan(path: str | os.PathLike[str], **options: Any) -> BatchPlan:
    """Load a plan; the options are those of `phalanx.data.load_batch_plan`."""
    return BatchPlan.from_arrays(_files.load_batch_plan(path, **options))


async def save_batch_plan_async(
    plan: BatchPlan, path: str | os.PathLike[str], *, overwrite: bool = False
) -> None:
    """Write a plan without blocking the event loop."""
    await asyncio.to_thread(save_batch_plan, plan, path, overwrite=overwrite)


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

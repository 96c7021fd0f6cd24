"""Making plans, and making them again: whether one comes out the same and, if not, what differs first.

How an epoch's batches come about is in `ordering`; that two plans differ is told by their fingerprints.
"""

import asyncio
from typing import Literal

import numpy as np
from jaxtyping import Int32

from phalanx.config import FrozenModel
from phalanx.data.lengths import Lengths, LengthTable, SkippedSample, as_length_table
from phalanx.data.packing_config import OverlongPolicy, PackingConfig
from phalanx.data.plans.arrays import MicrobatchSpec
from phalanx.data.plans.batch_plan import BatchPlan, BatchPlanMeta
from phalanx.data.plans.batching_config import BatchingConfig
from phalanx.data.plans.epoch import epoch_seed, plan_epoch
from phalanx.data.plans.epoch_plan import EpochPlan
from phalanx.data.plans.filter import select_samples

_SHOWN = 4
"""Samples of a batch that a message names."""


class BatchPlanBuilder:
    """Plans epochs of batches; lengths and settings are checked at once, batches made by `build`."""

    def __init__(
        self,
        lengths: Lengths,
        batching_config: BatchingConfig,
        dataset_hash: str = "",
        tokenizer_hash: str = "",
        packing: PackingConfig | None = None,
        *,
        pack_config: PackingConfig | None = None,
    ) -> None:
        """`pack_config` is what chuk-lazarus calls `packing`."""
        packing = pack_config if packing is None else packing
        self.table = as_length_table(lengths)
        self.batching_config = batching_config
        self.dataset_hash = dataset_hash
        self.tokenizer_hash = tokenizer_hash
        self.packing = packing
        self._filtered = select_samples(self.table, batching_config, packing)

    @property
    def num_skipped(self) -> int:
        """Samples that fit no batch."""
        return self._filtered.num_skipped

    @property
    def skipped(self) -> tuple[SkippedSample, ...]:
        """Every sample that fits no batch, with the reason."""
        return self._filtered.skipped

    async def build(self, num_epochs: int = 1) -> BatchPlan:
        """`build_now` without blocking the event loop."""
        return await asyncio.to_thread(self.build_now, num_epochs)

    def build_now(self, num_epochs: int = 1) -> BatchPlan:
        """Plan epochs 0 to `num_epochs` - 1."""
        if num_epochs < 1:
            raise ValueError(f"a plan needs at least one epoch, got num_epochs={num_epochs}")
        return self._build(range(num_epochs))

    def _build(self, epochs: range) -> BatchPlan:
        cuts = self.packing is not None and self.packing.overlong is OverlongPolicy.TRUNCATE
        longest = self.packing.max_length if self.packing is not None and cuts else None
        seed = self.batching_config.seed
        plans = [
            EpochPlan.of(
                epoch, epoch_seed(seed, epoch), plan_epoch(self._filtered, epoch), self.table, longest
            )
            for epoch in epochs
        ]
        meta = BatchPlanMeta(
            dataset_hash=self.dataset_hash,
            tokenizer_hash=self.tokenizer_hash,
            batching=self.batching_config,
            pack_config=self.packing,
            num_epochs=len(plans),
        )
        return BatchPlan(meta, self.table, tuple(plans))


class PlanDifference(FrozenModel):
    """Why two plans differ, and where first."""

    cause: Literal["config", "membership", "lengths", "order"]
    """What changed first: the settings, which samples there are, how long they are, or only their order."""
    message: str
    """In words."""
    epoch: int | None = None
    """The first epoch with another batch; None if all batches are the same."""
    batch: int | None = None
    """The first batch in it that differs."""


def compare_plans(expected: BatchPlan, found: BatchPlan) -> PlanDifference | None:
    """None if both hold the same batches made by the same settings, else what differs."""
    rows = _rows_in(expected.table, found.table)
    place = _first_batch(expected, found, rows)
    epoch, batch, where = (None, None, "") if place is None else place
    cause: Literal["config", "membership", "lengths", "order"] = "order"
    if words := _settings(expected.meta, found.meta):
        cause = "config"
    elif words := _members(expected.table, found.table):
        cause = "membership"
    elif words := _lengths(expected.table, found.table, rows):
        cause = "lengths"
    elif place is None:
        return None
    else:
        words = "the same samples and lengths, arranged otherwise"
    message = f"{cause} changed: {words}"
    return PlanDifference(
        cause=cause, message=f"{message}; {where}" if where else message, epoch=epoch, batch=batch
    )


def verify_batch_plan(plan: BatchPlan, lengths: Lengths) -> PlanDifference | None:
    """None if planning these lengths with the plan's own settings gives the plan again, else what differs.

    A shard is made again by sharding the plan made again. What `remaining` gives is not a plan of its own and
    cannot be made again: verify the whole plan instead.
    """
    meta = plan.meta
    builder = BatchPlanBuilder(
        lengths, meta.batching, meta.dataset_hash, meta.tokenizer_hash, meta.pack_config
    )
    first = plan.epochs[0].epoch if plan.epochs else 0
    again = builder._build(range(first, first + plan.num_epochs))
    if meta.shard is not None:
        again = again.shard(meta.shard.rank, meta.shard)
    return compare_plans(plan, again)


def _settings(expected: BatchPlanMeta, found: BatchPlanMeta) -> str:
    old, new = expected.model_dump(mode="json"), found.model_dump(mode="json")
    for meta in (old, new):
        del meta["created_at"]
        if meta["shard"] is not None:
            del meta["shard"]["plan_fingerprint"]
        meta |= {f"batching.{name}": value for name, value in meta.pop("batching").items()}
    changes = [f"{name} was {old[name]!r}, now {new[name]!r}" for name in old if old[name] != new[name]]
    return ", ".join(changes)


def _members(expected: LengthTable, found: LengthTable) -> str:
    missing = _first_absent(expected, found)
    extra = _first_absent(found, expected)
    words = [f"{len(expected)} samples before, {len(found)} now"]
    if missing is not None:
        words.append(f"{missing!r} is gone")
    if extra is not None:
        words.append(f"{extra!r} is new")
    return ", ".join(words) if len(words) > 1 else ""


def _first_absent(table: LengthTable, other: LengthTable) -> str | None:
    there = set(other.ids)
    return next((str(sample) for sample in table.ids if sample not in there), None)


def _lengths(expected: LengthTable, found: LengthTable, rows: Int32[np.ndarray, " found"]) -> str:
    """Both tables hold the same ids here."""
    differs = expected.lengths[rows] != found.lengths
    if not differs.any():
        return ""
    row = int(np.argmax(differs))
    return (
        f"sample {found.ids[row]!r} had {expected.lengths[rows[row]]} tokens, now {found.lengths[row]} "
        f"({int(differs.sum())} samples changed)"
    )


def _rows_in(expected: LengthTable, found: LengthTable) -> Int32[np.ndarray, " found"]:
    """For each row of `found` the row of the same id in `expected`; new ids get numbers beyond."""
    where = {sample: row for row, sample in enumerate(expected.ids)}
    beyond = len(expected)
    return np.fromiter(
        (where.get(sample, beyond + row) for row, sample in enumerate(found.ids)), np.int32, len(found)
    )


def _first_batch(
    expected: BatchPlan, found: BatchPlan, rows: Int32[np.ndarray, " found"]
) -> tuple[int, int, str] | None:
    for old, new in zip(expected.epochs, found.epochs, strict=False):
        if old.epoch != new.epoch:
            return old.epoch, 0, f"expected epoch {old.epoch}, found epoch {new.epoch}"
        batch = _first_in_epoch(old, new, rows)
        if batch is not None:
            where = f"first batch that differs: epoch {old.epoch}, batch {batch}"
            return old.epoch, batch, f"{where}: expected {_shown(old, batch)}, found {_shown(new, batch)}"
    if expected.num_epochs != found.num_epochs:
        longer = max(expected, found, key=lambda plan: plan.num_epochs)
        epoch = longer.epochs[min(expected.num_epochs, found.num_epochs)].epoch
        return epoch, 0, f"expected {expected.num_epochs} epochs, found {found.num_epochs}"
    return None


def _first_in_epoch(old: EpochPlan, new: EpochPlan, rows: Int32[np.ndarray, " found"]) -> int | None:
    a, b = old.batches, new.batches
    batches = min(len(a), len(b))
    samples = min(len(a.order), len(b.order))
    first = [batches] if len(a) != len(b) else []
    for differs in (
        a.offsets[1 : batches + 1] != b.offsets[1 : batches + 1],
        a.max_lens[:batches] != b.max_lens[:batches],
        a.bucket_ids[:batches] != b.bucket_ids[:batches],
        a.row_counts[:batches] != b.row_counts[:batches],
    ):
        if differs.any():
            first.append(int(np.argmax(differs)))
    moved = a.order[:samples] != rows[b.order[:samples]]
    moved |= old.lengths[:samples] != new.lengths[:samples]
    if moved.any():
        first.append(int(np.searchsorted(a.offsets, int(np.argmax(moved)), side="right")) - 1)
    if a.pack_offsets is not None and b.pack_offsets is not None:
        packs = min(len(a.pack_offsets), len(b.pack_offsets))
        cut = a.pack_offsets[:packs] != b.pack_offsets[:packs]
        if cut.any():
            start = int(a.pack_offsets[int(np.argmax(cut)) - 1])
            first.append(int(np.searchsorted(a.offsets, start, side="right")) - 1)
    return min(first) if first else None


def _shown(epoch: EpochPlan, batch: int) -> str:
    if batch >= len(epoch):
        return "none"
    spec: MicrobatchSpec = epoch[batch]
    more = f" and {len(spec.samples) - _SHOWN} more" if len(spec.samples) > _SHOWN else ""
    return f"{list(spec.samples[:_SHOWN])}{more}, {spec.num_packs} x {spec.max_len}"

"""What tells two plans apart: the cause, and the first batch that differs.

Whether they differ at all is quicker told by their fingerprints.
"""

from typing import Literal

import numpy as np
from jaxtyping import Int32
from pydantic import BaseModel, ConfigDict

from phalanx.tokens.lengths import LengthTable
from phalanx.tokens.microbatch import MicrobatchSpec
from phalanx.tokens.plan import BatchPlan, BatchPlanMeta, EpochPlan

_SHOWN = 4
"""Samples of a batch that a message names."""


class PlanDifference(BaseModel):
    """Why two plans differ, and where first."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

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
    return f"{list(spec.samples[:_SHOWN])}{more}, {spec.batch_size} x {spec.max_len}"

"""Compares batch plans to find the first difference and its cause, and checks reproducibility."""

import itertools
from typing import Literal

import numpy as np
from jaxtyping import Int32

from phalanx.config import FrozenModel
from phalanx.data.lengths import Lengths, LengthTable
from phalanx.data.plans.batch_plan import BatchPlan, BatchPlanBuilder, BatchPlanMeta, BatchSpec

# Maximum number of samples of a batch that a message lists.
_NUM_LISTED = 4


class PlanDifference(FrozenModel):
    """The first difference between two plans."""

    cause: Literal["config", "membership", "lengths", "order"]
    """What differs: the settings (`config`), the set of samples (`membership`), the sample lengths
    (`lengths`), or only the order of the samples (`order`). If several of these differ, the one that comes
    first in this list is reported."""
    message: str
    """Description of the difference."""
    epoch: int | None = None
    """Number of the first epoch in which a batch differs. None if all batches are equal."""
    batch: int | None = None
    """Index of the first batch in `epoch` that differs. None if all batches are equal."""


def compare_plans(expected: BatchPlan, found: BatchPlan) -> PlanDifference | None:
    """Return the first difference between two plans, or None if their settings and batches are equal."""
    rows = _match_rows(expected.table, found.table)
    location = _first_difference(expected, found)
    cause: Literal["config", "membership", "lengths", "order"] = "order"
    text = "the same samples and lengths in a different order" if location is not None else ""
    if settings := _compare_settings(expected.meta, found.meta):
        cause, text = "config", settings
    elif members := _compare_members(expected.table, found.table, rows):
        cause, text = "membership", members
    elif lengths := _compare_lengths(expected.table, found.table, rows):
        cause, text = "lengths", lengths
    if not text:
        return None
    epoch, batch, where = location or (None, None, "")
    message = f"{cause} changed: {text}" + (f"; {where}" if where else "")
    return PlanDifference(cause=cause, message=message, epoch=epoch, batch=batch)


def verify_batch_plan(plan: BatchPlan, lengths: Lengths) -> PlanDifference | None:
    """Rebuild a plan from lengths and the plan's own settings, and compare the new plan with the original.

    A shard is compared with the same shard of the new plan. The result of `BatchPlan.remaining` cannot be
    verified. Verify the complete plan instead.

    Args:
        plan: Plan to verify.
        lengths: Mapping from sample ids to lengths, or a `LengthTable`.

    Returns:
        The first difference, or None if the plans are equal.
    """
    meta = plan.meta
    builder = BatchPlanBuilder(lengths, meta.batching, meta.dataset_hash, meta.tokenizer_hash, meta.packing)
    first = plan.epochs[0].epoch if plan.epochs else 0
    again = builder.build_epochs(range(first, first + plan.num_epochs))
    if meta.shard is not None:
        again = again.shard(meta.shard.rank, meta.shard)
    return compare_plans(plan, again)


def _compare_settings(expected: BatchPlanMeta, found: BatchPlanMeta) -> str:
    old, new = expected.model_dump(mode="json"), found.model_dump(mode="json")
    for meta in (old, new):
        del meta["created_at"]
        if meta["shard"] is not None:
            del meta["shard"]["plan_fingerprint"]
        meta |= {f"batching.{name}": value for name, value in meta.pop("batching").items()}
    changes = [f"{name} was {old[name]!r}, now {new[name]!r}" for name in old if old[name] != new[name]]
    return ", ".join(changes)


def _compare_members(expected: LengthTable, found: LengthTable, rows: Int32[np.ndarray, " found"]) -> str:
    missing = np.setdiff1d(np.arange(len(expected)), rows)
    changes = [f"{str(expected.ids[row])!r} is missing" for row in missing[:1].tolist()]
    new = np.flatnonzero(rows >= len(expected))
    changes += [f"{str(found.ids[row])!r} is new" for row in new[:1].tolist()]
    return ", ".join([f"{len(expected)} samples before, {len(found)} now", *changes]) if changes else ""


def _compare_lengths(expected: LengthTable, found: LengthTable, rows: Int32[np.ndarray, " found"]) -> str:
    differs = expected.lengths[rows] != found.lengths
    if not differs.any():
        return ""
    row = int(np.argmax(differs))
    return (
        f"sample {found.ids[row]!r} had {expected.lengths[rows[row]]} tokens, now {found.lengths[row]} "
        f"({int(differs.sum())} samples changed)"
    )


def _match_rows(expected: LengthTable, found: LengthTable) -> Int32[np.ndarray, " found"]:
    """Return the index in `expected` of each sample of `found`.

    Samples that are not in `expected` get consecutive indices that start at `len(expected)`.
    """
    index = {sample: row for row, sample in enumerate(expected.ids)}
    new = len(expected)
    return np.fromiter(
        (index.get(sample, new + row) for row, sample in enumerate(found.ids)), np.int32, len(found)
    )


def _first_difference(expected: BatchPlan, found: BatchPlan) -> tuple[int, int, str] | None:
    """Return the epoch and index of the first different batch, and a description of the difference."""
    if expected.full_hash == found.full_hash:
        return None
    for old, new in zip(expected.epochs, found.epochs, strict=False):
        if old.epoch != new.epoch:
            return old.epoch, 0, f"expected epoch {old.epoch}, found epoch {new.epoch}"
        for batch, (before, after) in enumerate(itertools.zip_longest(old, new)):
            if before != after:
                where = f"first different batch: epoch {old.epoch}, batch {batch}"
                return old.epoch, batch, f"{where}: expected {_describe(before)}, found {_describe(after)}"
    if expected.num_epochs != found.num_epochs:
        longer = max(expected, found, key=lambda plan: plan.num_epochs)
        epoch = longer.epochs[min(expected.num_epochs, found.num_epochs)].epoch
        return epoch, 0, f"expected {expected.num_epochs} epochs, found {found.num_epochs}"
    return None


def _describe(spec: BatchSpec | None) -> str:
    if spec is None:
        return "none"
    more = f" and {spec.num_samples - _NUM_LISTED} more" if spec.num_samples > _NUM_LISTED else ""
    return f"{list(spec.sample_ids[:_NUM_LISTED])}{more}, {spec.num_rows} x {spec.max_length}"

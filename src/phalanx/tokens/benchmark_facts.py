"""What is found out about plans and packs while they are measured, and the conditions of a measurement.

What is measured is in `benchmark` and `shuffle_curve`.
"""

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Int32

from phalanx.tokens.packing.packed_batch import PackedBatch
from phalanx.tokens.plans.plan import BatchPlan


def plan_facts(plan: BatchPlan) -> dict[str, Any]:
    """Batches, how much of them is real, and how much the mean length differs between an epoch's ends."""
    metrics = plan.compute_metrics(0)
    epoch = plan.get_epoch(0)
    batches = epoch.batches
    tenth = max(1, len(batches) // 10)
    first, last = batches.offsets[tenth], batches.offsets[-1 - tenth]
    ends = epoch.lengths[:first].mean(), epoch.lengths[last:].mean()
    return {
        "batches": len(batches),
        "efficiency": round(metrics.efficiency, 6),
        "drift": round(abs(float(ends[1] - ends[0])) / float(epoch.lengths.mean()), 6),
    }


def bin_facts(
    bins: Int32[np.ndarray, " samples"], lengths: Int32[np.ndarray, " samples"], capacity: int
) -> dict[str, Any]:
    """Bins beside the fewest that could do; a bin that holds too much or nothing is an error."""
    fill = np.bincount(bins, weights=lengths)
    if fill.max() > capacity or fill.min() < 1:
        raise AssertionError(f"a bin of {capacity} holds {fill.max():g} or {fill.min():g}")
    tokens = int(lengths.sum(dtype=np.int64))
    bound = -(-tokens // capacity)
    return {
        "bins": len(fill),
        "lower_bound": bound,
        "over_bound": round((len(fill) - bound) / bound, 8),
        "fill": round(tokens / (len(fill) * capacity), 6),
    }


def check_packs(batch: PackedBatch, tokens: Int32[np.ndarray, " tokens"], offsets: np.ndarray) -> None:
    """Every segment of every pack holds its sample's tokens, and what is left is padding."""
    layout = batch.layout
    real = batch.segment_ids > 0
    if int(real.sum()) != int(layout.lengths.sum()) or len(np.unique(layout.samples)) != len(offsets) - 1:
        raise AssertionError("tokens or samples were lost or repeated")
    starts = np.repeat(offsets[layout.samples], layout.lengths)
    if not np.array_equal(batch.input_ids[real], tokens[starts + batch.position_ids[real]]):
        raise AssertionError("a segment does not hold its sample's tokens")
    if batch.loss_mask[~real].any():
        raise AssertionError("padding counts in the loss")


def peak_memory_mb(call: Callable[[], Any]) -> float:
    """The most memory that a call holds beyond what is held before it, arrays included."""
    tracemalloc.start()
    try:
        result = call()
        peak = tracemalloc.get_traced_memory()[1]
        del result
    finally:
        tracemalloc.stop()
    return round(peak / 2**20, 1)


def conditions() -> dict[str, Any]:
    """The machine and NumPy, as every measurement names them."""
    from phalanx.core.machine import machine

    return {"numpy": np.__version__, **machine()}

"""The lengths and settings that every token benchmark uses, and what is found out about plans and packs.

Needs NumPy only: the runners of other libraries take the same lengths. What is measured is in `tokens`.
"""

import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from phalanx.data import BatchPlan, TokenBatch

EDGES = (128, 256, 512, 1024)
OVERFLOW = 2048
BUDGET = 16_384
CAPACITY = 2048
SEED = 0


def draw_lengths(distribution: str, samples: int) -> np.ndarray:
    """`lognormal` with mean about 300, clipped to 1..2048; or `hard` to pack: uniform from 300 to 1300."""
    rng = np.random.default_rng(SEED)
    if distribution == "hard":
        return rng.integers(300, 1301, samples).astype(np.int32)
    drawn = rng.lognormal(math.log(300) - 0.5, 1.0, samples)
    return np.clip(np.rint(drawn), 1, OVERFLOW).astype(np.int32)


def draw_tokens(lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of samples with these lengths, one behind the other, and the offsets of the samples."""
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    return np.arange(offsets[-1], dtype=np.int32) % np.int32(50_000), offsets


def plan_facts(plan: "BatchPlan") -> dict[str, Any]:
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


def bin_facts(bins: np.ndarray, lengths: np.ndarray, capacity: int = CAPACITY) -> dict[str, Any]:
    """Bins beside the fewest that could do; a bin that holds too much or nothing is an error."""
    fill = np.bincount(bins, weights=lengths)
    if fill.max() > capacity or fill.min() < 1 or len(bins) != len(lengths):
        raise AssertionError(f"a bin of {capacity} holds {fill.max():g} or {fill.min():g}")
    tokens = int(lengths.sum(dtype=np.int64))
    bound = -(-tokens // capacity)
    return {
        "bins": len(fill),
        "lower_bound": bound,
        "over_bound": round((len(fill) - bound) / bound, 8),
        "fill": round(tokens / (len(fill) * capacity), 6),
    }


def check_packs(batch: "TokenBatch", tokens: np.ndarray, offsets: np.ndarray) -> None:
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

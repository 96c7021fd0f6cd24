"""Drawing slots of a replay buffer, by priority and among those that fit.

What a draw hands out and counts is in `replay_buffer`.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64

from phalanx.streams.replay_config import SampleFilter
from phalanx.streams.sum_tree import SumTree
from phalanx.streams.types import StreamSample

_TRIES = 4
_CANDIDATES = 8
"""Before all samples are looked at, this many for each that is wanted are drawn from all, a few times."""


class Handles(NamedTuple):
    """Which samples were drawn, for giving them new priorities."""

    slots: Int64[np.ndarray, " count"]
    serials: Int64[np.ndarray, " count"]
    """Which addition to the buffer each was, from 0."""


class ReplayDraw(NamedTuple):
    """What `draw` gives."""

    samples: list[StreamSample]
    weights: Float64[np.ndarray, " count"]
    """Importance weights, (size x probability) to the power of -beta, over the largest of them."""
    handles: Handles


def draw_slots(
    rng: np.random.Generator,
    n: int,
    tree: SumTree,
    columns: dict[str, np.ndarray],
    size: int,
    wanted: SampleFilter,
) -> Int64[np.ndarray, " drawn"]:
    """`n` slots in proportion to their weights among those that fit; none where none fits."""
    if n == 0 or size == 0:
        return np.zeros(0, np.int64)
    if wanted.is_open:
        if tree.total <= 0.0:
            raise ValueError(f"all {size} samples have priority 0, so none can be drawn")
        return tree.find(_points(rng, n, tree.total))
    found: list[np.ndarray] = []
    for _ in range(_TRIES if tree.total > 0.0 else 0):
        candidates = tree.find(_points(rng, _CANDIDATES * n, tree.total))
        found.append(candidates[wanted.fits(columns, candidates)])
        if sum(map(len, found)) >= n:
            return np.concatenate(found)[:n]
    return _scan(rng, n, tree, columns, size, wanted)


def _scan(
    rng: np.random.Generator,
    n: int,
    tree: SumTree,
    columns: dict[str, np.ndarray],
    size: int,
    wanted: SampleFilter,
) -> Int64[np.ndarray, " drawn"]:
    slots = np.flatnonzero(wanted.fits(columns, slice(0, size)))
    if len(slots) == 0:
        return slots
    sums = np.cumsum(tree.get(slots))
    if sums[-1] <= 0.0:
        raise ValueError(f"all {len(slots)} samples that fit have priority 0, so none can be drawn")
    # A weight of 0 leaves its sum where it was, and "right" passes over it.
    return slots[np.searchsorted(sums, _points(rng, n, float(sums[-1])), side="right")]


def _points(rng: np.random.Generator, n: int, total: float) -> np.ndarray:
    # A product may round up to the total itself, which lies behind the last stretch.
    return np.minimum(rng.random(n) * total, np.nextafter(total, 0.0))


def draw_uniform(rng: np.random.Generator, n: int, size: int) -> Int64[np.ndarray, " drawn"]:
    """`n` different slots, or all of them, in random order."""
    return rng.choice(size, min(n, size), replace=False)

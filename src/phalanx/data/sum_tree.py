"""Which slots are drawn and which give way: a tree of sums over weights, evictions, and filtered draws.

What the weights are (priorities to some power), and what the slots hold, is decided in `buffer`.
"""

import heapq
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64

from phalanx.data.replay.config import SampleFilter
from phalanx.data.samples import StreamSample


class SumTree:
    """Weights by slot. Every inner node is the sum of its two children, made anew whenever one changes, so
    that no error builds up; slot `s` is node `leaves + s`, and node `i` has children `2i` and `2i + 1`."""

    def __init__(self, capacity: int) -> None:
        self._leaves = 1 << max(capacity - 1, 1).bit_length()
        self._nodes = np.zeros(2 * self._leaves, np.float64)

    @property
    def capacity(self) -> int:
        """Slots that it has room for."""
        return self._leaves

    @property
    def total(self) -> float:
        """The sum of all weights."""
        return float(self._nodes[1])

    @property
    def nbytes(self) -> int:
        """Memory that it takes."""
        return self._nodes.nbytes

    def get(self, slots: Int64[np.ndarray, " count"]) -> Float64[np.ndarray, " count"]:
        """The weights of some slots."""
        return self._nodes[self._leaves + slots]

    def set(self, slots: Int64[np.ndarray, " count"], weights: Float64[np.ndarray, " count"]) -> None:
        """Give slots new weights; of a slot that is named twice the last counts."""
        if len(slots) == 0:
            return
        self._nodes[self._leaves + slots] = weights
        if 16 * len(slots) > self._leaves:
            self._sum_all()
            return
        nodes = np.sort(self._leaves + slots)
        while nodes[0] > 1:
            nodes = nodes >> 1
            if len(nodes) > 1:
                nodes = nodes[np.concatenate([[True], nodes[1:] != nodes[:-1]])]
            self._nodes[nodes] = self._nodes[2 * nodes] + self._nodes[2 * nodes + 1]

    def find(self, points: Float64[np.ndarray, " count"]) -> Int64[np.ndarray, " count"]:
        """The slots whose stretches of the sum hold the points, which lie from 0 to below `total`.

        A slot of weight 0 is never found while the total is above 0.
        """
        nodes = np.ones(len(points), np.int64)
        rest = points.copy()
        for _ in range(self._leaves.bit_length() - 1):
            left = self._nodes[2 * nodes]
            # Rounding may leave a point at the very end of the left part; nothing must fall into an empty
            # right part because of it.
            right = (rest >= left) & (self._nodes[2 * nodes + 1] > 0.0)
            rest -= np.where(right, left, 0.0)
            nodes = 2 * nodes + right
        return nodes - self._leaves

    def grow(self, capacity: int) -> None:
        """Make room for more slots; weights stay."""
        if capacity <= self._leaves:
            return
        old = self._nodes[self._leaves :]
        self.__init__(capacity)  # type: ignore[misc]
        self._nodes[self._leaves : self._leaves + len(old)] = old
        self._sum_all()

    def clear(self) -> None:
        """All weights 0."""
        self._nodes[:] = 0.0

    def _sum_all(self) -> None:
        end = self._leaves
        while end > 1:
            self._nodes[end // 2 : end] = self._nodes[end : 2 * end : 2] + self._nodes[end + 1 : 2 * end : 2]
            end //= 2


class Placement(NamedTuple):
    """Where new samples go. One that makes way for a later one of the same batch is not named."""

    slots: Int64[np.ndarray, " placed"]
    rows: Int64[np.ndarray, " placed"]
    """Which of the new samples each slot takes."""


def place_in_turn(turn: int, count: int, size: int) -> tuple[int, Placement]:
    """The oldest goes: slots in turn from `turn`, and the turn after them. At most `size` new samples."""
    rows = np.arange(count, dtype=np.int64)
    return (turn + count) % size, Placement((turn + rows) % size, rows)


def place_randomly(rng: np.random.Generator, count: int, size: int) -> Placement:
    """Any goes, new ones among them."""
    slots = rng.integers(0, size, count)
    # The last of those that drew one slot stays: the first from behind.
    unique, from_behind = np.unique(slots[::-1], return_index=True)
    return Placement(unique, count - 1 - from_behind)


def place_by_priority(
    priorities: Float64[np.ndarray, " size"],
    serials: Int64[np.ndarray, " size"],
    new_priorities: Float64[np.ndarray, " count"],
    new_serials: Int64[np.ndarray, " count"],
) -> Placement:
    """The lowest priority goes, and of several the oldest (the smallest serial); new ones among them."""
    candidates = _lowest(priorities, serials, len(new_priorities))
    # No sample beyond the lowest `count` can go: each new one makes only one of them go.
    heap = list(
        zip(
            priorities[candidates].tolist(),
            serials[candidates].tolist(),
            candidates.tolist(),
            strict=True,
        )
    )
    heapq.heapify(heap)
    taken: dict[int, int] = {}
    for row, new in enumerate(zip(new_priorities.tolist(), new_serials.tolist(), strict=True)):
        slot = heap[0][2]
        heapq.heapreplace(heap, (*new, slot))
        taken[slot] = row
    return Placement(np.array(list(taken), np.int64), np.array(list(taken.values()), np.int64))


def _lowest(
    priorities: Float64[np.ndarray, " size"], serials: Int64[np.ndarray, " size"], count: int
) -> Int64[np.ndarray, " count"]:
    """The slots of the `count` lowest priorities; of equal ones, the oldest."""
    if count >= len(priorities):
        return np.arange(len(priorities))
    bound = priorities.min() if count == 1 else np.partition(priorities, count - 1)[count - 1]
    below = np.flatnonzero(priorities < bound)
    ties = np.flatnonzero(priorities == bound)
    needed = count - len(below)
    if needed < len(ties):
        ties = ties[np.argpartition(serials[ties], needed - 1)[:needed]]
    return np.concatenate([below, ties])


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

"""Weighted random sampling with a sum tree."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Bool, Float64, Int64

# If only some slots may be drawn, `_CANDIDATES_PER_SAMPLE` candidates per sample are first drawn from all
# slots, up to `_NUM_ATTEMPTS` times. All slots are scanned only if too few of these candidates are allowed.
_NUM_ATTEMPTS = 4
_CANDIDATES_PER_SAMPLE = 8

SlotMask = Callable[[np.ndarray | slice], Bool[np.ndarray, " count"]]
"""Function that takes slots and returns a boolean array that is true for slots that may be drawn."""


class SumTree:
    """Binary tree of sums for sampling slots in proportion to their weights.

    The nodes are stored in one array. Node 1 is the root, and node i has the children 2 i and 2 i + 1. The
    second half of the array contains the leaves, which are the weights of the slots. An inner node is
    recomputed from its children when one of them changes, so rounding errors do not accumulate.
    """

    def __init__(self, capacity: int) -> None:
        self._leaves = 1 << max(capacity - 1, 1).bit_length()
        self._nodes = np.zeros(2 * self._leaves, np.float64)

    @property
    def total(self) -> float:
        """Sum of all weights."""
        return float(self._nodes[1])

    def get(self, slots: Int64[np.ndarray, " count"]) -> Float64[np.ndarray, " count"]:
        """Return the weights of the given slots."""
        return self._nodes[self._leaves + slots]

    def set(self, slots: Int64[np.ndarray, " count"], weights: Float64[np.ndarray, " count"]) -> None:
        """Set the weights of the given slots. If a slot occurs more than once, its last weight is used."""
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
        """Return, for each point, the slot that contains it.

        The slots are intervals that follow each other, starting at 0. The length of a slot is its weight.
        Points must be at least 0 and less than `total`. A slot with weight 0 is never returned as long as the
        total is positive.
        """
        nodes = np.ones(len(points), np.int64)
        rest = points.copy()
        for _ in range(self._leaves.bit_length() - 1):
            left = self._nodes[2 * nodes]
            # Rounding may put a point at the end of the left child; it must not go to an empty right child.
            right = (rest >= left) & (self._nodes[2 * nodes + 1] > 0.0)
            rest -= np.where(right, left, 0.0)
            nodes = 2 * nodes + right
        return nodes - self._leaves

    def grow(self, capacity: int) -> None:
        """Increase the number of slots. Existing weights are kept."""
        if capacity <= self._leaves:
            return
        old = self._nodes[self._leaves :]
        self.__init__(capacity)  # type: ignore[misc]
        self._nodes[self._leaves : self._leaves + len(old)] = old
        self._sum_all()

    def _sum_all(self) -> None:
        end = self._leaves
        while end > 1:
            self._nodes[end // 2 : end] = self._nodes[end : 2 * end : 2] + self._nodes[end + 1 : 2 * end : 2]
            end //= 2


def draw_slots(
    rng: np.random.Generator, n: int, tree: SumTree, size: int, allowed: SlotMask | None = None
) -> Int64[np.ndarray, " drawn"]:
    """Draw `n` slots with replacement, in proportion to their weights.

    Args:
        rng: Random generator.
        n: Number of slots to draw.
        tree: Weights of the slots.
        size: Number of slots in use.
        allowed: Function that determines which slots may be drawn. If none may be drawn, the result is empty.
            By default, all slots may be drawn.
    """
    if n == 0 or size == 0:
        return np.zeros(0, np.int64)
    if allowed is None:
        if tree.total <= 0.0:
            raise ValueError(f"all {size} samples have priority 0, so none can be drawn")
        return tree.find(_draw_points(rng, n, tree.total))
    found: list[np.ndarray] = []
    for _ in range(_NUM_ATTEMPTS if tree.total > 0.0 else 0):
        candidates = tree.find(_draw_points(rng, _CANDIDATES_PER_SAMPLE * n, tree.total))
        found.append(candidates[allowed(candidates)])
        if sum(map(len, found)) >= n:
            return np.concatenate(found)[:n]
    slots = np.flatnonzero(allowed(slice(0, size)))
    if len(slots) == 0:
        return slots
    sums = np.cumsum(tree.get(slots))
    if sums[-1] <= 0.0:
        raise ValueError(f"all {len(slots)} samples that match the filter have priority 0")
    # side="right" passes over slots with weight 0.
    return slots[np.searchsorted(sums, _draw_points(rng, n, float(sums[-1])), side="right")]


def _draw_points(rng: np.random.Generator, n: int, total: float) -> np.ndarray:
    # The product may be rounded up to the total, which is after the last slot.
    return np.minimum(rng.random(n) * total, np.nextafter(total, 0.0))

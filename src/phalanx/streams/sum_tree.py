"""A binary tree of sums over weights: drawing in proportion to a weight takes as many steps as it has levels.

What the weights are (priorities to some power) is decided in `replay_buffer`.
"""

import numpy as np
from jaxtyping import Float64, Int64


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

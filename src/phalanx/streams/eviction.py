"""Which samples of a full buffer make way for new ones, for many new ones at once.

Each function gives what adding the new samples one after the other would; storing them is the buffer's.
"""

import heapq
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64


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

"""The packing rules in Python, for machines without the compiled code; both give the same bins.

Best-fit decreasing works over the histogram of lengths, so it is quick here too. The hybrid mode is in
`pattern_packing`; the public entry is `assignment`.
"""

import bisect
import heapq
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32

from phalanx.tokens.packing_config import PackingMode


class Run(NamedTuple):
    """The next `samples` of a length go to `first_bin` and the bins after it, `per_bin` in each."""

    length: int
    first_bin: int
    per_bin: int
    samples: int


class Packing(NamedTuple):
    """Bins for a histogram of lengths."""

    runs: list[Run]
    bins: int


class OpenBins:
    """Ranges (first, how many) of equally full bins by the room they have left; the first opened first."""

    def __init__(self) -> None:
        self._rooms: list[int] = []
        self._heaps: dict[int, list[tuple[int, int]]] = {}

    def put(self, room: int, bins: tuple[int, int]) -> None:
        """Bins that have this room left."""
        heap = self._heaps.setdefault(room, [])
        if not heap:
            bisect.insort(self._rooms, room)
        heapq.heappush(heap, bins)

    def tightest(self, length: int) -> int | None:
        """The smallest room of at least `length`, if there is one."""
        at = bisect.bisect_left(self._rooms, length)
        return self._rooms[at] if at < len(self._rooms) else None

    def take(self, room: int) -> tuple[int, int]:
        """The first opened with this room."""
        heap = self._heaps[room]
        bins = heapq.heappop(heap)
        if not heap:
            self._rooms.remove(room)
        return bins


def pack(
    lengths: Int32[np.ndarray, " samples"], capacity: int, mode: PackingMode
) -> Int32[np.ndarray, " samples"]:
    """The bin of each sample; lengths must be in 1..capacity."""
    in_order: dict[PackingMode, Callable[[list[int], int], list[int]]] = {
        PackingMode.GREEDY: _next_fit,
        PackingMode.FIRST_FIT: _first_fit,
        PackingMode.BEST_FIT: _best_fit,
    }
    if mode in in_order:
        return np.asarray(in_order[mode](lengths.tolist(), capacity), np.int32)
    counts = np.bincount(lengths, minlength=capacity + 1).tolist()
    if mode is PackingMode.HYBRID:
        from phalanx.tokens.pattern_packing import hybrid

        return _deal(lengths, hybrid(counts, capacity).runs)
    return _deal(lengths, best_fit_decreasing(counts, capacity).runs)


def best_fit_decreasing(counts: list[int], capacity: int) -> Packing:
    """The longest first, each into the fullest bin with room; `counts[length]` samples of each length.

    Equal lengths follow one another, and once the tightest bin has taken one sample it is the tightest for
    the next, until it is full. So equally full bins are filled alike, a range of them at a time.
    """
    runs: list[Run] = []
    bins = 0
    open_bins = OpenBins()
    present = [length for length, count in enumerate(counts) if count > 0]
    for length in reversed(present):
        left = counts[length]
        while left > 0:
            tightest = open_bins.tightest(length)
            room = capacity if tightest is None else tightest
            each = room // length
            if tightest is None:
                first, size = bins, -(-left // each)
                bins += size
            else:
                first, size = open_bins.take(room)
            filled = min(size, left // each)
            rest = left - filled * each if filled < size else 0
            partly = int(rest > 0)
            runs.append(Run(length, first, each, filled * each + rest))
            end = first + filled
            for room_left, start, number in (
                (room - each * length, first, filled),
                (room - rest * length, end, partly),
                (room, end + partly, size - filled - partly),
            ):
                if number > 0 and room_left >= present[0]:
                    open_bins.put(room_left, (start, number))
            left -= filled * each + rest
    return Packing(runs, bins)


def _deal(lengths: Int32[np.ndarray, " samples"], runs: list[Run]) -> Int32[np.ndarray, " samples"]:
    bins = np.empty(len(lengths), np.int32)
    if not runs:
        return bins
    # Runs of one length keep their order; samples of one length too.
    table = np.asarray(runs, np.int64)
    table = table[np.argsort(table[:, 0], kind="stable")]
    _, first_bin, per_bin, count = table.T
    within = np.arange(len(lengths)) - np.repeat(np.cumsum(count) - count, count)
    order = np.argsort(lengths, kind="stable")
    bins[order] = np.repeat(first_bin, count) + within // np.repeat(per_bin, count)
    return bins


def _next_fit(lengths: list[int], capacity: int) -> list[int]:
    bins = []
    bin_, room = 0, capacity
    for length in lengths:
        if length > room:
            bin_, room = bin_ + 1, capacity
        room -= length
        bins.append(bin_)
    return bins


def _first_fit(lengths: list[int], capacity: int) -> list[int]:
    # A tree of maxima over the rooms of the bins, unopened ones included.
    leaves = 1 << max(len(lengths) - 1, 0).bit_length()
    room = [capacity] * (2 * leaves)
    bins = []
    for length in lengths:
        node = 1
        while node < leaves:
            node = 2 * node + (room[2 * node] < length)
        bins.append(node - leaves)
        room[node] -= length
        while node > 1:
            node //= 2
            most = max(room[2 * node], room[2 * node + 1])
            if room[node] == most:
                break
            room[node] = most
    return bins


def _best_fit(lengths: list[int], capacity: int) -> list[int]:
    open_bins = OpenBins()
    bins = []
    opened = 0
    for length in lengths:
        tightest = open_bins.tightest(length)
        if tightest is None:
            room, bin_ = capacity, opened
            opened += 1
        else:
            room, (bin_, _) = tightest, open_bins.take(tightest)
        if room > length:
            open_bins.put(room - length, (bin_, 1))
        bins.append(bin_)
    return bins

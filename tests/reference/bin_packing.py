"""Reference implementation of the packing algorithms in Python."""

import bisect
import heapq
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32

from phalanx.data.packing import PackingMode


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
    if mode is PackingMode.SUBSET_SUM:
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


# They count work and not time, so that the result is the same on every machine.
_TABLE_WORDS = 1 << 23
_WORK_WORDS = 1 << 29


class Strategy(NamedTuple):
    """A way to choose among the ways to fill a bin. None is the best for all lengths."""

    one_part: int
    """This part of the capacity may stay empty if longer samples can then be used (0: nothing may), which
    helps where few samples have the same length."""
    mix: bool
    """Bins without a sample longer than half a bin take the shortest beside the longest, so that at the end
    there are not only short ones left, which fill bins badly."""


_STRATEGIES = (
    Strategy(0, False),
    Strategy(0, True),
    Strategy(256, False),
    Strategy(512, True),
    Strategy(32, False),
)


class SubsetSums:
    """Row `level` has bit `s` set when some samples of the `level` shortest distinct lengths sum to `s`.

    Rows are computed when they are asked for, and again when a count below them has changed enough.
    """

    def __init__(self, counts: list[int], capacity: int) -> None:
        self.capacity = capacity
        self.words = capacity // 64 + 1
        self.lengths = [length for length, count in enumerate(counts) if count > 0]
        self.work = 0
        self._all = [counts[length] for length in self.lengths]
        self._bits = (1 << (capacity + 1)) - 1

    def fits_in_memory(self) -> bool:
        """Whether the table is small enough to be worth its work."""
        return (len(self.lengths) + 1) * self.words <= _TABLE_WORDS

    def restart(self) -> None:
        """All samples are there again. The work done so far still counts."""
        self.left = list(self._all)
        self.rows = [1]

    def use(self, level: int, count: int) -> None:
        """Take samples of a length away."""
        before = self._useful(level)
        self.left[level] -= count
        if self._useful(level) != before:
            del self.rows[level + 1 :]

    def levels_up_to(self, longest: int, limit: int) -> int:
        """How many of the distinct lengths below `limit` are at most `longest`."""
        return bisect.bisect_right(self.lengths, longest, 0, limit)

    def largest(self, level: int, limit: int) -> int:
        """The largest sum of at most `limit` that the `level` shortest lengths reach."""
        while len(self.rows) <= level:
            self._add_row()
        return (self.rows[level] & ((2 << limit) - 1)).bit_length() - 1

    def _useful(self, level: int) -> int:
        # Samples of a length beyond those that one bin can hold change no sum.
        return min(self.left[level], self.capacity // self.lengths[level])

    def _add_row(self) -> None:
        level = len(self.rows) - 1
        row, rest, step = self.rows[-1], self._useful(level), 1
        self.work += self.words
        # Any number up to the count is a sum of these steps: 1, 2, 4, ... and what is left.
        while rest > 0:
            taken = min(step, rest)
            row |= row << (taken * self.lengths[level]) & self._bits
            rest -= taken
            step *= 2
            self.work += self.words
        self.rows.append(row)


def hybrid(counts: list[int], capacity: int) -> Packing:
    """The packing with the fewest bins that best-fit decreasing and the strategies find."""
    best = best_fit_decreasing(counts, capacity)
    least = _lower_bound(counts, capacity)
    sums = SubsetSums(counts, capacity)
    if not sums.fits_in_memory():
        return best
    for strategy in _STRATEGIES:
        if best.bins == least or sums.work > _WORK_WORDS:
            break
        filled = _fill_by_patterns(sums, capacity, strategy)
        if filled.bins < best.bins:
            best = filled
    return best


def _lower_bound(counts: list[int], capacity: int) -> int:
    """No packing needs fewer: tokens must go somewhere, and samples longer than half a bin share none."""
    tokens = sum(length * count for length, count in enumerate(counts))
    return max(-(-tokens // capacity), sum(counts[capacity // 2 + 1 :]))


def _fill_by_patterns(sums: SubsetSums, capacity: int, strategy: Strategy) -> Packing:
    runs: list[Run] = []
    bins = 0
    top = len(sums.lengths) - 1
    sums.restart()
    while sums.work <= _WORK_WORDS:
        while top >= 0 and sums.left[top] == 0:
            top -= 1
        if top < 0:
            return Packing(runs, bins)
        pattern = _find_pattern(sums, top, capacity, strategy)
        times = min(sums.left[level] // each for level, each in pattern)
        for level, each in pattern:
            runs.append(Run(sums.lengths[level], bins, each, times * each))
            sums.use(level, times * each)
        bins += times
    rest = [0] * (capacity + 1)
    for level in range(top + 1):
        rest[sums.lengths[level]] = sums.left[level]
    others = best_fit_decreasing(rest, capacity)
    runs.extend(run._replace(first_bin=run.first_bin + bins) for run in others.runs)
    return Packing(runs, bins + others.bins)


def _find_pattern(sums: SubsetSums, top: int, capacity: int, strategy: Strategy) -> list[tuple[int, int]]:
    """Levels and how many of each: a bin with the longest length left, as full as the strategy asks for."""
    length = sums.lengths[top]
    room = capacity - length
    most, copies, level, found = -1, 0, 0, 0
    for more in range(min(sums.left[top] - 1, room // length), -1, -1):
        if most == room:
            break
        rest = room - more * length
        below = sums.levels_up_to(rest, top)
        total = sums.largest(below, rest)
        if more * length + total > most:
            most, copies, level, found = more * length + total, more + 1, below, total
    pattern = [(top, copies)]
    mix = strategy.mix and length <= capacity // 2
    spare = capacity // strategy.one_part if strategy.one_part > 0 else 0
    # The other samples must sum to at least `low` and at most `high`.
    high = capacity - copies * length
    low = min(found, max(high - spare, 0))
    while low > 0:
        level = sums.levels_up_to(high, level)
        if mix:
            level = _fewest_levels(sums, level, low, high)
        level -= 1
        # All rows below are there by now, and this is where the time goes, so they are read directly.
        row, part = sums.rows[level], sums.lengths[level]
        step = 1 if mix else -1
        each = 1 if mix else min(sums.left[level], high // part)
        while each > 0 and (row & ((2 << high - each * part) - 1)).bit_length() <= low - each * part:
            each += step
        if each > 0:
            pattern.append((level, each))
        high -= each * part
        low -= each * part
    return pattern


def _fewest_levels(sums: SubsetSums, levels: int, low: int, high: int) -> int:
    """The fewest of the shortest lengths, out of `levels`, that reach a sum in low..high."""
    least = 1
    while least < levels:
        middle = (least + levels) // 2
        if sums.largest(middle, high) >= low:
            levels = middle
        else:
            least = middle + 1
    return levels

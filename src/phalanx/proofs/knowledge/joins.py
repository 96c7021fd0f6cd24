"""Sets of pairs of constants in sorted arrays, and the joins of rows of bindings with them.

Which relations are joined, and why, is up to `chaining`, `cost_tables` and `leave_one_out`.
"""

import functools
from collections.abc import Iterator, Mapping

import numpy as np
from jaxtyping import Int, Int32, Int64

CHUNK_ROWS = 1 << 21
"""A join hands out its rows in pieces of about this many, so that its memory is bounded."""

Bindings = dict[int, np.ndarray]
"""The values of variables (negative) and of constants, one column each; all of one length."""

Matches = Iterator[tuple[np.ndarray, np.ndarray]]
"""Rows of bindings and, beside each, the place of a pair that goes with it."""


class SortedPairs:
    """Pairs (first, second) below `size`, each as the number `first * size + second`, sorted and unique."""

    def __init__(self, codes: Int64[np.ndarray, " pairs"], size: int) -> None:
        self.codes = codes
        self.size = size

    def __len__(self) -> int:
        return len(self.codes)

    @functools.cached_property
    def first(self) -> np.ndarray:
        return self.codes // self.size

    @functools.cached_property
    def second(self) -> np.ndarray:
        return self.codes - self.first * self.size

    @functools.cached_property
    def _by_second(self) -> tuple[np.ndarray, np.ndarray]:
        """The pairs' places in the order of (second, first), and their swapped numbers in that order."""
        swapped = self.second * self.size + self.first
        order = np.argsort(swapped, kind="stable")
        return order, swapped[order]

    def places(self, codes: Int64[np.ndarray, " codes"]) -> Int64[np.ndarray, " codes"]:
        """The place of each code, -1 for those that are not among the pairs."""
        return places_in(self.codes, codes)

    def match(self, bindings: Mapping[int, np.ndarray], rows: int, variables: tuple[int, int]) -> Matches:
        """Every way in which a pair agrees with what a row binds; there are `rows` rows."""
        left, right = variables
        first, second = bindings.get(left), bindings.get(right)
        if first is not None and second is not None:
            found = self.places(first * self.size + second)
            kept = np.flatnonzero(found >= 0)
            yield kept, found[kept]
        elif first is not None:
            yield from _runs(self.codes, first, self.size)
        elif second is not None:
            order, swapped = self._by_second
            for kept, at in _runs(swapped, second, self.size):
                yield kept, order[at]
        else:
            free = np.flatnonzero(self.first == self.second) if left == right else np.arange(len(self))
            step = max(1, CHUNK_ROWS // max(1, len(free)))
            for start in range(0, rows, step):
                some = np.arange(start, min(start + step, rows))
                yield np.repeat(some, len(free)), np.tile(free, len(some))

    def bind(
        self, bindings: Bindings, variables: tuple[int, int], rows: np.ndarray, at: np.ndarray
    ) -> Bindings:
        """The bindings of matched rows, with the matched pairs' values."""
        joined = {variable: column[rows] for variable, column in bindings.items()}
        for variable, column in zip(variables, (self.first, self.second), strict=True):
            if variable not in joined:
                joined[variable] = column[at]
        return joined


def places_in(
    sorted_codes: Int64[np.ndarray, " pairs"], codes: Int64[np.ndarray, "*codes"]
) -> Int64[np.ndarray, "*codes"]:
    """Where each code stands in a sorted array, -1 for those that are not in it."""
    if not len(sorted_codes):
        return np.full(codes.shape, -1)
    at = np.minimum(np.searchsorted(sorted_codes, codes), len(sorted_codes) - 1)
    return np.where(sorted_codes[at] == codes, at, -1)


def merged(parts: list[np.ndarray]) -> Int64[np.ndarray, " codes"]:
    """All codes of the parts, sorted, each once."""
    if not parts:
        return np.zeros(0, np.int64)
    return np.unique(parts[0] if len(parts) == 1 else np.concatenate(parts))


def _runs(sorted_codes: np.ndarray, heads: np.ndarray, size: int) -> Matches:
    """Rows and places of the codes from `head * size` up to the next head's, in bounded pieces."""
    low = np.searchsorted(sorted_codes, heads * size)
    counts = np.searchsorted(sorted_codes, heads * size + size) - low
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    cuts = np.searchsorted(ends, np.arange(CHUNK_ROWS, total, CHUNK_ROWS)) + 1
    for start, stop in zip([0, *cuts], [*cuts, len(heads)], strict=True):
        rows, places = expanded(low[start:stop], counts[start:stop])
        if len(rows):
            yield rows + start, places


def expanded(
    starts: Int[np.ndarray, " ranges"], counts: Int[np.ndarray, " ranges"]
) -> tuple[Int64[np.ndarray, " places"], Int64[np.ndarray, " places"]]:
    """The places of all ranges, one range after the other, and beside each the number of its range.

    >>> [array.tolist() for array in expanded(np.array([7, 3]), np.array([1, 2]))]
    [[0, 1, 1], [7, 3, 4]]
    """
    rows = np.repeat(np.arange(len(counts)), counts)
    return rows, np.arange(len(rows)) + np.repeat(starts - (np.cumsum(counts) - counts), counts)


class KnownArguments:
    """The arguments that triples have on one side (1 or 2), by their predicate and their other argument."""

    def __init__(self, triples: Int32[np.ndarray, "triples 3"], side: int) -> None:
        self._side = side
        self._size = 1 + int(triples[:, 3 - side].max(initial=0))
        cells = self._cells(triples)
        order = np.argsort(cells, kind="stable")
        self._sorted, self.arguments = cells[order], triples[order, side]

    def ranges(self, queries: Int32[np.ndarray, "queries 3"]) -> tuple[np.ndarray, np.ndarray]:
        """Where among `arguments` those of each query begin, and how many they are."""
        cells = self._cells(queries)
        begins = np.searchsorted(self._sorted, cells)
        counts = np.searchsorted(self._sorted, cells, side="right") - begins
        return begins, np.where(queries[:, 3 - self._side] < self._size, counts, 0)

    def _cells(self, triples: np.ndarray) -> np.ndarray:
        return triples[:, 0].astype(np.int64) * self._size + triples[:, 3 - self._side]

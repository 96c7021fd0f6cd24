"""Sets of tuples of constants in sorted arrays, and the joins of rows of bindings with them.

Which relations are joined, and why, is up to `chaining`, `cost_tables` and `leave_one_out`.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from jaxtyping import Int, Int32, Int64

CHUNK_ROWS = 1 << 21
"""A join hands out its rows in pieces of about this many, so that its memory is bounded."""

Bindings = dict[int, np.ndarray]
"""The values of variables (negative) and of constants, one column each; all of one length."""

Matches = Iterator[tuple[np.ndarray, np.ndarray]]
"""Rows of bindings and, beside each, the place of a tuple that goes with it."""


class SortedTuples:
    """Tuples of `arity` numbers below `size`, each as one number in that base, sorted and unique."""

    def __init__(self, codes: Int64[np.ndarray, " tuples"], size: int, arity: int) -> None:
        self.codes = codes
        self.size = size
        self.arity = arity
        self._orders: dict[tuple[int, ...], tuple[np.ndarray | None, np.ndarray]] = {}

    def __len__(self) -> int:
        return len(self.codes)

    @functools.cached_property
    def columns(self) -> tuple[np.ndarray, ...]:
        """The first numbers of all tuples, the second ones, and so on."""
        return columns_of(self.codes, self.size, self.arity)

    def _in_order(self, places: tuple[int, ...]) -> tuple[np.ndarray | None, np.ndarray]:
        """The tuples' order by these columns before the others (None: as they are), and their codes so."""
        if places not in self._orders:
            rest = tuple(place for place in range(self.arity) if place not in places)
            if (*places, *rest) == tuple(range(self.arity)):
                self._orders[places] = None, self.codes
            else:
                turned = codes_of([self.columns[place] for place in (*places, *rest)], self.size)
                order = np.argsort(turned, kind="stable")
                self._orders[places] = order, turned[order]
        return self._orders[places]

    def places(self, codes: Int64[np.ndarray, " codes"]) -> Int64[np.ndarray, " codes"]:
        """The place of each code, -1 for those that are not among the tuples."""
        return places_in(self.codes, codes)

    def match(self, bindings: Mapping[int, np.ndarray], rows: int, variables: tuple[int, ...]) -> Matches:
        """Every way in which a tuple agrees with what a row binds; there are `rows` rows."""
        bound = tuple(place for place, variable in enumerate(variables) if variable in bindings)
        values = [bindings[variables[place]] for place in bound]
        if len(bound) == self.arity:
            found = self.places(codes_of(values, self.size))
            kept = np.flatnonzero(found >= 0)
            yield kept, found[kept]
            return
        alike = self._alike(variables, bound)
        if bound:
            order, codes = self._in_order(bound)
            step = self.size ** (self.arity - len(bound))
            for kept, at in _runs(codes, codes_of(values, self.size), step):
                places = at if order is None else order[at]
                yield (kept, places) if alike is None else (kept[alike[places]], places[alike[places]])
            return
        free = np.arange(len(self)) if alike is None else np.flatnonzero(alike)
        step = max(1, CHUNK_ROWS // max(1, len(free)))
        for start in range(0, rows, step):
            some = np.arange(start, min(start + step, rows))
            yield np.repeat(some, len(free)), np.tile(free, len(some))

    def _alike(self, variables: tuple[int, ...], bound: tuple[int, ...]) -> np.ndarray | None:
        """Which tuples have equal numbers where one free variable stands twice; None where none does."""
        alike = None
        for place, variable in enumerate(variables):
            first = variables.index(variable)
            if first < place and place not in bound:
                same = self.columns[first] == self.columns[place]
                alike = same if alike is None else alike & same
        return alike

    def bind(
        self, bindings: Bindings, variables: tuple[int, ...], rows: np.ndarray, at: np.ndarray
    ) -> Bindings:
        """The bindings of matched rows, with the matched tuples' values."""
        joined = {variable: column[rows] for variable, column in bindings.items()}
        for variable, column in zip(variables, self.columns, strict=True):
            if variable not in joined:
                joined[variable] = column[at]
        return joined


def codes_of(columns: Sequence[np.ndarray] | np.ndarray, size: int) -> Int64[np.ndarray, " codes"]:
    """One number for each row of some columns of numbers below `size`."""
    code = columns[0].astype(np.int64)
    for column in columns[1:]:
        code = code * size + column
    return code


def columns_of(codes: Int64[np.ndarray, " codes"], size: int, arity: int) -> tuple[np.ndarray, ...]:
    """The columns that `codes_of` was given."""
    columns = []
    for _ in range(arity - 1):
        codes, last = np.divmod(codes, size)
        columns.append(last)
    return (codes, *reversed(columns))


def places_in(
    sorted_codes: Int64[np.ndarray, " tuples"], codes: Int64[np.ndarray, "*codes"]
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


def _runs(sorted_codes: np.ndarray, heads: np.ndarray, step: int) -> Matches:
    """Rows and places of the codes from `head * step` up to the next head's, in bounded pieces."""
    low = np.searchsorted(sorted_codes, heads * step)
    counts = np.searchsorted(sorted_codes, heads * step + step) - low
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

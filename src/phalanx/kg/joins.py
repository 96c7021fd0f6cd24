"""Relational joins of variable bindings with sets of integer tuples. The sets are stored as sorted arrays."""

import functools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from jaxtyping import Int64

from phalanx.ragged import expand_ranges

MAX_CHUNK_ROWS = 1 << 21
"""Approximate maximum number of rows that a join yields at a time. It limits memory use."""

Bindings = dict[int, np.ndarray]
"""A table of variable bindings: a dictionary from each term to its column of values.

All columns have the same length. Variables are negative numbers. A constant is a non-negative number, and all
values of its column are the constant itself.
"""

Matches = Iterator[tuple[np.ndarray, np.ndarray]]
"""Iterator over chunks of matches. A match is a row of the bindings together with a tuple that matches it.
Each chunk is a pair of arrays with one entry per match: the index of the row, and the index of the tuple."""


class SortedTuples:
    """A sorted set of integer tuples, each encoded as one number.

    Args:
        codes: Distinct encoded tuples in ascending order; see `encode_tuples`.
        size: Base of the encoding. All elements of the tuples must be less than this number.
        arity: Number of elements in each tuple.
    """

    def __init__(self, codes: Int64[np.ndarray, " tuples"], size: int, arity: int) -> None:
        self.codes = codes
        self.size = size
        self.arity = arity
        self._orders: dict[tuple[int, ...], tuple[np.ndarray, np.ndarray]] = {}

    def __len__(self) -> int:
        return len(self.codes)

    @functools.cached_property
    def columns(self) -> tuple[np.ndarray, ...]:
        """The decoded tuples, as one array per position of a tuple."""
        return decode_tuples(self.codes, self.size, self.arity)

    def _sorted_by(self, positions: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """Sort the tuples by the elements at the given positions, and then by the remaining elements.

        Returns:
            The permutation that sorts the tuples, and the sorted codes. In these codes, the elements at the
            given positions come first.
        """
        if positions not in self._orders:
            rest = (position for position in range(self.arity) if position not in positions)
            codes = encode_tuples([self.columns[position] for position in (*positions, *rest)], self.size)
            order = np.argsort(codes, kind="stable")
            self._orders[positions] = order, codes[order]
        return self._orders[positions]

    def match(self, bindings: Mapping[int, np.ndarray], num_rows: int, terms: tuple[int, ...]) -> Matches:
        """Find all matches between rows of the bindings and tuples, and yield them in chunks.

        A tuple matches a row if it contains the row's value at every position whose term is bound, and equal
        values at all positions with the same free variable.

        Args:
            bindings: Values of the terms that are already bound.
            num_rows: Number of rows in the bindings. It is needed because `bindings` may have no columns.
            terms: Term (variable or constant) at each position of a tuple.
        """
        bound = tuple(position for position, term in enumerate(terms) if term in bindings)
        values = [bindings[terms[position]] for position in bound]
        if len(bound) == self.arity:
            found = find_sorted(self.codes, encode_tuples(values, self.size))
            rows = np.flatnonzero(found >= 0)
            yield rows, found[rows]
            return
        consistent = self._repeated_variables_agree(terms, bound)
        if bound:
            order, codes = self._sorted_by(bound)
            step = self.size ** (self.arity - len(bound))
            for rows, found in _match_prefixes(codes, encode_tuples(values, self.size), step):
                indices = order[found]
                kept = slice(None) if consistent is None else consistent[indices]
                yield rows[kept], indices[kept]
            return
        free = np.arange(len(self)) if consistent is None else np.flatnonzero(consistent)
        step = max(1, MAX_CHUNK_ROWS // max(1, len(free)))
        for start in range(0, num_rows, step):
            some = np.arange(start, min(start + step, num_rows))
            yield np.repeat(some, len(free)), np.tile(free, len(some))

    def _repeated_variables_agree(self, terms: tuple[int, ...], bound: tuple[int, ...]) -> np.ndarray | None:
        """Return a mask of tuples in which each repeated free variable has the same value at all positions.

        Returns None if no free variable is repeated.

        Args:
            terms: Term at each position of a tuple.
            bound: Positions whose terms are bound. The variables at all other positions are free.
        """
        agree = None
        for position, term in enumerate(terms):
            first = terms.index(term)
            if first < position and position not in bound:
                same = self.columns[first] == self.columns[position]
                agree = same if agree is None else agree & same
        return agree

    def bind(
        self, bindings: Bindings, terms: tuple[int, ...], rows: np.ndarray, indices: np.ndarray
    ) -> Bindings:
        """Return the matched rows of the bindings, with new columns for variables that were not yet bound.

        Args:
            bindings: The bindings before the match.
            terms: Term at each position of a tuple.
            rows: Indices of the matched rows of the bindings.
            indices: Index of the matching tuple for each of these rows.
        """
        joined = {term: column[rows] for term, column in bindings.items()}
        for term, column in zip(terms, self.columns, strict=True):
            if term not in joined:
                joined[term] = column[indices]
        return joined


def encode_tuples(columns: Sequence[np.ndarray] | np.ndarray, size: int) -> Int64[np.ndarray, " codes"]:
    """Encode each tuple of integers as one number, whose digits in base `size` are the elements of the tuple.

    Args:
        columns: Elements of the tuples, as one array per position of a tuple.
        size: Base of the encoding. All elements must be less than this number.
    """
    code = columns[0].astype(np.int64)
    for column in columns[1:]:
        code = code * size + column
    return code


def decode_tuples(codes: Int64[np.ndarray, " codes"], size: int, arity: int) -> tuple[np.ndarray, ...]:
    """Decode the result of `encode_tuples`, and return one array per position of a tuple."""
    columns = []
    for _ in range(arity - 1):
        codes, last = np.divmod(codes, size)
        columns.append(last)
    return (codes, *reversed(columns))


def find_sorted(
    sorted_codes: Int64[np.ndarray, " tuples"], codes: Int64[np.ndarray, "*codes"]
) -> Int64[np.ndarray, "*codes"]:
    """Return the index of each code in a sorted array; -1 for codes that are not in the array."""
    if not len(sorted_codes):
        return np.full(codes.shape, -1)
    indices = np.minimum(np.searchsorted(sorted_codes, codes), len(sorted_codes) - 1)
    return np.where(sorted_codes[indices] == codes, indices, -1)


def merge_codes(parts: list[np.ndarray]) -> Int64[np.ndarray, " codes"]:
    """Return the sorted union of arrays of codes."""
    return np.unique(np.concatenate([np.zeros(0, np.int64), *parts]))


def _match_prefixes(sorted_codes: np.ndarray, prefixes: np.ndarray, step: int) -> Matches:
    """Find all codes in the interval [prefix * step, (prefix + 1) * step) of each prefix.

    Yields:
        Chunks of matches. Each chunk consists of the index of the prefix and the index of the code for each
        match.
    """
    low = np.searchsorted(sorted_codes, prefixes * step)
    counts = np.searchsorted(sorted_codes, prefixes * step + step) - low
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    cuts = np.searchsorted(ends, np.arange(MAX_CHUNK_ROWS, total, MAX_CHUNK_ROWS)) + 1
    for start, stop in zip([0, *cuts], [*cuts, len(prefixes)], strict=True):
        rows, indices = expand_ranges(low[start:stop], counts[start:stop])
        if len(rows):
            yield rows + start, indices

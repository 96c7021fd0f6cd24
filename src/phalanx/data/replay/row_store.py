"""Rows of small integers, kept end to end in chunks that are only ever appended to.

A row never moves under a reader: space comes back when all rows of a chunk are gone, or when live rows are
copied to the end. What the rows mean (tokens, texts) is known to `rows`.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Int32, Int64

CHUNK_ITEMS = 1 << 18


class RowPlaces(NamedTuple):
    """Where rows lie."""

    chunks: Int32[np.ndarray, " rows"]
    starts: Int32[np.ndarray, " rows"]
    lengths: Int32[np.ndarray, " rows"]


class Piece(NamedTuple):
    """Room in one chunk for the items from `begin` to `end` of what is being added."""

    begin: int
    end: int
    room: np.ndarray


class RowStore:
    """Chunks of rows. Those of one chunk share a dtype; each dtype has one chunk that is still filling."""

    def __init__(self, chunk_items: int = CHUNK_ITEMS) -> None:
        self._chunk_items = chunk_items
        self._chunks: dict[int, np.ndarray] = {}
        self._used: dict[int, int] = {}
        self._live: dict[int, int] = {}
        self._filling: dict[np.dtype, int] = {}
        self._next = 0

    @property
    def live_items(self) -> int:
        """Items of rows that are not released."""
        return sum(self._live.values())

    @property
    def dead_items(self) -> int:
        """Items of released rows whose chunks are still held."""
        return sum(self._used.values()) - self.live_items

    @property
    def nbytes(self) -> int:
        """Memory that the used parts of the chunks take."""
        return sum(used * self._chunks[chunk].itemsize for chunk, used in self._used.items())

    def chunks(self) -> dict[int, np.ndarray]:
        """The chunks, by number, for a reader that outlives changes."""
        return dict(self._chunks)

    def row(self, chunk: int, start: int, length: int) -> np.ndarray:
        """One row, as a view."""
        return self._chunks[chunk][start : start + length]

    def append(self, values: np.ndarray, lengths: Int32[np.ndarray, " rows"]) -> RowPlaces:
        """Add rows, none of them empty, that lie end to end in `values`, and say where they went."""
        places, pieces = self.reserve(values.dtype, lengths)
        for piece in pieces:
            piece.room[:] = values[piece.begin : piece.end]
        return places

    def reserve(self, dtype: np.dtype, lengths: Int32[np.ndarray, " rows"]) -> tuple[RowPlaces, list[Piece]]:
        """Places for rows, none of them empty, and the room that the caller writes them to, end to end."""
        ends = np.cumsum(lengths, dtype=np.int64)
        chunks = np.zeros(len(lengths), np.int32)
        starts = np.zeros(len(lengths), np.int32)
        pieces = []
        first = 0
        while first < len(lengths):
            begin = int(ends[first - 1]) if first else 0
            chunk = self._chunk_for(dtype, int(lengths[first]))
            used = self._used[chunk]
            room = len(self._chunks[chunk]) - used
            last = int(np.searchsorted(ends, begin + room, side="right"))
            end = int(ends[last - 1])
            pieces.append(Piece(begin, end, self._chunks[chunk][used : used + end - begin]))
            chunks[first:last] = chunk
            starts[first:last] = ends[first:last] - lengths[first:last] - begin + used
            self._used[chunk] += end - begin
            self._live[chunk] += end - begin
            first = last
        return RowPlaces(chunks, starts, lengths), pieces

    def release(self, places: RowPlaces) -> None:
        """Give up rows; a chunk goes with its last row."""
        numbers, inverse = np.unique(places.chunks, return_inverse=True)
        counts = np.bincount(inverse, weights=places.lengths, minlength=len(numbers)).astype(np.int64)
        for chunk, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            self._live[chunk] -= count
            if self._live[chunk] == 0:
                self._drop_if_spent(chunk)

    def needs_compaction(self) -> bool:
        """Whether released rows take more than a quarter of what the live ones do, and a few chunks."""
        return self.dead_items > self.live_items // 4 + 4 * self._chunk_items

    def sparse_chunks(self) -> list[int]:
        """Chunks, emptiest first, that together hold at least half of the released items."""
        full = [chunk for chunk in self._chunks if chunk not in self._filling.values()]
        full.sort(key=lambda chunk: (self._live[chunk] / max(self._used[chunk], 1), chunk))
        wanted, chosen, freed = self.dead_items // 2, [], 0
        for chunk in full:
            if freed >= wanted:
                break
            chosen.append(chunk)
            freed += self._used[chunk] - self._live[chunk]
        return chosen

    def gather(self, places: RowPlaces) -> np.ndarray:
        """Copies of rows, end to end, in the widest of their dtypes."""
        return gather_rows(self._chunks, places)

    def clear(self) -> None:
        """Give up everything; chunk numbers are not used again."""
        for table in (self._chunks, self._used, self._live, self._filling):
            table.clear()

    def _chunk_for(self, dtype: np.dtype, length: int) -> int:
        chunk = self._filling.get(dtype)
        if chunk is not None:
            if len(self._chunks[chunk]) - self._used[chunk] >= length:
                return chunk
            del self._filling[dtype]
            if self._live[chunk] == 0:
                self._drop(chunk)
        chunk = self._next
        self._next += 1
        self._chunks[chunk] = np.empty(max(self._chunk_items, length), dtype)
        self._used[chunk] = self._live[chunk] = 0
        self._filling[dtype] = chunk
        return chunk

    def _drop_if_spent(self, chunk: int) -> None:
        """Let go of a chunk without live rows, unless most of it is still to be filled."""
        for dtype, filling in self._filling.items():
            if filling == chunk:
                if 2 * self._used[chunk] < len(self._chunks[chunk]):
                    return
                del self._filling[dtype]
                break
        self._drop(chunk)

    def _drop(self, chunk: int) -> None:
        del self._chunks[chunk], self._used[chunk], self._live[chunk]


def gather_rows(chunks: dict[int, np.ndarray], places: RowPlaces) -> np.ndarray:
    """Copies of rows, end to end, in the widest of their dtypes."""
    if len(places.chunks) == 0:
        return np.zeros(0, np.uint8)
    numbers = np.unique(places.chunks)
    dtype = np.result_type(*(chunks[chunk].dtype for chunk in numbers.tolist()))
    lengths = places.lengths.astype(np.int64)
    offsets = np.cumsum(lengths) - lengths
    out = np.empty(int(lengths.sum()), dtype)
    for chunk in numbers.tolist():
        rows = np.flatnonzero(places.chunks == chunk)
        inside = _within(lengths[rows])
        to = np.repeat(offsets[rows], lengths[rows]) + inside
        out[to] = chunks[chunk][np.repeat(places.starts[rows], lengths[rows]) + inside]
    return out


def _within(lengths: Int64[np.ndarray, " rows"]) -> Int64[np.ndarray, " items"]:
    """0, 1, ... of each row, end to end."""
    ends = np.cumsum(lengths)
    return np.arange(int(ends[-1]), dtype=np.int64) - np.repeat(ends - lengths, lengths)

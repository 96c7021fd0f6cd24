"""Samples as columns: numbers in arrays by slot, tokens and texts as rows of a store; and snapshots of them.

Which slot a sample takes, and which one has to go, is decided in `buffer`.
"""

import hashlib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import cached_property
from itertools import chain, pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Int32, Int64

from phalanx.data.replay.row_store import RowPlaces, RowStore, gather_rows
from phalanx.data.sample_bytes import RECORD, PackedSample
from phalanx.data.samples import StreamSample

NUMBERS: tuple[str, ...] = RECORD.names or ()
_PLACES = ("token_chunk", "token_start", "token_count", "text_chunk", "text_start", "text_count")
Slots: TypeAlias = np.ndarray | slice
"""Some slots, in order; a slice where they lie side by side, which is quicker."""
_WIDE_TOP, _NARROW_TOP = np.uint32(1 << 31), np.uint16(1 << 15)


def _empty_columns(size: int) -> dict[str, np.ndarray]:
    columns = {name: np.zeros(size, RECORD[name]) for name in NUMBERS}
    columns |= {name: np.zeros(size, np.int32) for name in _PLACES}
    columns["serial"] = np.zeros(size, np.int64)
    columns["id_hash"] = np.zeros(size, np.int64)
    columns["hashed"] = np.zeros(size, bool)
    return columns


class RowView:
    """Some samples, in order, that stay as they are whatever happens to where they came from."""

    def __init__(
        self,
        columns: dict[str, np.ndarray],
        token_chunks: dict[int, np.ndarray],
        text_chunks: dict[int, np.ndarray],
    ) -> None:
        self.columns = columns
        self.token_chunks = token_chunks
        self.text_chunks = text_chunks

    def __len__(self) -> int:
        return len(self.columns["serial"])

    def sample(self, row: int) -> StreamSample:
        """One sample, made anew."""
        return self.select(slice(row, row + 1)).samples()[0]

    def samples(self) -> list[StreamSample]:
        """All of them; quicker than one by one."""
        records = np.empty(len(self), RECORD)
        for name in NUMBERS:
            records[name] = self.columns[name]
        record_bytes, size = records.tobytes(), RECORD.itemsize
        made = []
        places = zip(*(self.columns[name].tolist() for name in _PLACES), strict=True)
        for row, (chunk, start, count, text_chunk, text_start, text_count) in enumerate(places):
            tokens, mask = split_mask(self.token_chunks[chunk][start : start + count])
            text = self.text_chunks[text_chunk][text_start : text_start + text_count].tobytes()
            record = record_bytes[row * size : (row + 1) * size]
            made.append(
                StreamSample.from_packed(PackedSample(tokens.tobytes(), mask.tobytes(), text, record))
            )
        return made

    def select(self, rows: Slots) -> "RowView":
        """Some of them, in the order of `rows`."""
        columns = {name: column[rows] for name, column in self.columns.items()}
        return RowView(columns, self.token_chunks, self.text_chunks)

    def id_bytes(self) -> list[bytes]:
        """All sample ids as they are stored."""
        every = self.gather_texts().tobytes()
        ends = np.cumsum(self.columns["text_count"], dtype=np.int64).tolist()
        return [every[a:b].partition(b"\0")[0] for a, b in pairwise([0, *ends])]

    def sample_ids(self) -> list[str]:
        """All sample ids."""
        return [found.decode("utf-8", "surrogatepass") for found in self.id_bytes()]

    def gather_tokens(self) -> np.ndarray:
        """All stored tokens end to end, as uint32 with the mask in the top bit."""
        places = self.places("token")
        narrow = np.array([c.dtype == np.uint16 for c in self.token_chunks.values()], bool)
        if not narrow.any():
            return gather_rows(self.token_chunks, places).astype(np.uint32, copy=False)
        numbers = np.array(list(self.token_chunks), np.int32)
        out = np.empty(int(places.lengths.sum(dtype=np.int64)), np.uint32)
        is_narrow = np.isin(places.chunks, numbers[narrow])
        for rows, widen in ((is_narrow, True), (~is_narrow, False)):
            values = gather_rows(self.token_chunks, RowPlaces(*(part[rows] for part in places)))
            if widen:
                tokens, mask = split_mask(values.astype(np.uint16, copy=False))
                values = tokens.astype(np.uint32) | (mask.astype(np.uint32) << 31)
            out[np.repeat(rows, places.lengths)] = values
        return out

    def gather_texts(self) -> np.ndarray:
        """All texts end to end."""
        return gather_rows(self.text_chunks, self.places("text"))

    def places(self, kind: str) -> RowPlaces:
        """Where the rows of a kind ("token" or "text") lie."""
        columns = self.columns
        return RowPlaces(columns[f"{kind}_chunk"], columns[f"{kind}_start"], columns[f"{kind}_count"])


class BufferSnapshot:
    """Samples, oldest first, that stay as they are; each is made when asked for."""

    def __init__(self, view: RowView, total_added: int, total_evicted: int) -> None:
        self.view = view
        self.total_added = total_added
        """Samples that had ever been added to the buffer."""
        self.total_evicted = total_evicted
        self.timestamp = datetime.now(UTC)

    def __len__(self) -> int:
        return len(self.view)

    def __getitem__(self, row: int) -> StreamSample:
        size = len(self.view)
        if not -size <= row < size:
            raise IndexError(f"there is no sample {row} in a snapshot of {size}")
        return self.view.sample(row % size)

    def __iter__(self) -> Iterator[StreamSample]:
        return (self.view.sample(row) for row in range(len(self.view)))

    @property
    def size(self) -> int:
        """Samples in it."""
        return len(self.view)

    @cached_property
    def samples(self) -> tuple[StreamSample, ...]:
        """All of them."""
        return tuple(self.view.samples())

    @property
    def lengths(self) -> Int32[np.ndarray, " size"]:
        """Tokens of each."""
        return self.view.columns["length"]

    @property
    def serials(self) -> Int64[np.ndarray, " size"]:
        """Which addition to the buffer each was, from 0."""
        return self.view.columns["serial"]

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """A name for each, no two alike: the sample id, or `id#serial` where that is taken already."""
        names: dict[str, None] = {}
        for sample_id, serial in zip(self.view.sample_ids(), self.serials.tolist(), strict=True):
            name = sample_id
            while name in names:
                name = f"{name}#{serial}"
            names[name] = None
        return tuple(names)

    @cached_property
    def row_of(self) -> dict[str, int]:
        """From a name in `ids` to its row."""
        return {name: row for row, name in enumerate(self.ids)}

    def get_lengths(self) -> dict[str, int]:
        """{name: length}, as plans take it."""
        return dict(zip(self.ids, self.lengths.tolist(), strict=True))

    def digest(self) -> str:
        """SHA-256 of names, tokens and masks."""
        found = hashlib.sha256("\0".join(self.ids).encode("utf-8", "surrogatepass"))
        found.update(self.view.columns["token_count"].tobytes())
        found.update(self.view.gather_tokens().astype("<u4").tobytes())
        return found.hexdigest()


class PackedColumns(NamedTuple):
    """Packed samples, part by part."""

    tokens: Sequence[bytes]
    masks: Sequence[bytes]
    texts: Sequence[bytes]
    records: Sequence[bytes]

    @classmethod
    def of(cls, samples: Sequence[PackedSample]) -> "PackedColumns":
        """The parts of some samples."""
        # One pass over all, then slices: each sample is fetched into the cache once. Not zip: its thousands
        # of iterators would set off the garbage collector.
        parts = list(chain.from_iterable(samples))
        return cls(*(parts[part::4] for part in range(4)))

    def select(self, rows: Sequence[int]) -> "PackedColumns":
        """Those of some of them."""
        return PackedColumns(*([part[row] for row in rows] for part in self))


class SampleRows:
    """Samples by slot; slots are written over, and the space of what was there comes back."""

    def __init__(self) -> None:
        self.columns = _empty_columns(0)
        self.tokens = RowStore()
        self.texts = RowStore()

    @property
    def capacity(self) -> int:
        """Slots that there are."""
        return len(self.columns["serial"])

    @property
    def nbytes(self) -> int:
        """Memory that the samples take."""
        return sum(column.nbytes for column in self.columns.values()) + self.tokens.nbytes + self.texts.nbytes

    def grow(self, capacity: int) -> None:
        """Make room for more slots."""
        for name, column in self.columns.items():
            larger = np.zeros(capacity, column.dtype)
            larger[: len(column)] = column
            self.columns[name] = larger

    def write(
        self,
        slots: Int64[np.ndarray, " count"],
        serials: Int64[np.ndarray, " count"],
        records: np.ndarray,
        samples: "PackedColumns",
    ) -> None:
        """Put samples in slots that are empty or released; `records` are their numbers."""
        tokens = np.frombuffer(b"".join(samples.tokens), np.uint32)
        mask = np.frombuffer(b"".join(samples.masks), np.uint8)
        counts = np.fromiter(map(len, samples.masks), np.int32, len(samples.masks))
        self.write_tokens(slots, serials, records, tokens, mask, counts, samples.texts)

    def write_tokens(
        self,
        slots: Int64[np.ndarray, " count"],
        serials: Int64[np.ndarray, " count"],
        records: np.ndarray,
        tokens: np.ndarray,
        mask: np.ndarray,
        counts: np.ndarray,
        texts: Sequence[bytes],
    ) -> None:
        """The same with tokens and their mask that lie end to end, and the texts."""
        where = side_by_side(slots)
        for name in NUMBERS:
            self.columns[name][where] = records[name]
        # In 16 bits where all of them leave the top bit, which is the mask, free.
        narrow = int(tokens.max()) < _NARROW_TOP
        places, pieces = self.tokens.reserve(np.dtype(np.uint16 if narrow else np.uint32), counts)
        for piece in pieces:
            join_mask(tokens[piece.begin : piece.end], mask[piece.begin : piece.end], piece.room)
        self._place("token", where, places)
        lengths = np.fromiter(map(len, texts), np.int32, len(texts))
        self._place("text", where, self.texts.append(np.frombuffer(b"".join(texts), np.uint8), lengths))
        self.columns["serial"][where] = serials
        self.columns["hashed"][where] = False

    def release(self, slots: Int64[np.ndarray, " count"]) -> None:
        """Give up what the slots hold, before they are written over."""
        self.tokens.release(self._places_at("token", slots))
        self.texts.release(self._places_at("text", slots))

    def find_id(self, sample_id: str, size: int) -> Int64[np.ndarray, " found"]:
        """The slots below `size` whose samples have this id."""
        columns, wanted = self.columns, sample_id.encode("utf-8", "surrogatepass")
        # Hashes are made when first asked for, so that adding samples does not pay for them.
        new = np.flatnonzero(~columns["hashed"][:size])
        columns["id_hash"][new] = [hash(found) for found in self.view(new).id_bytes()]
        columns["hashed"][new] = True
        near = np.flatnonzero(columns["id_hash"][:size] == hash(wanted))
        return near[[row for row, found in enumerate(self.view(near).id_bytes()) if found == wanted]]

    def compact(self, size: int) -> None:
        """Where released rows take too much space, move the live ones out of the emptiest chunks."""
        for kind, store in (("token", self.tokens), ("text", self.texts)):
            while store.needs_compaction() and (chunks := store.sparse_chunks()):
                slots = np.flatnonzero(np.isin(self.columns[f"{kind}_chunk"][:size], chunks))
                for dtype in sorted({store.chunks()[chunk].dtype for chunk in chunks}, key=str):
                    alike = [chunk for chunk in chunks if store.chunks()[chunk].dtype == dtype]
                    here = slots[np.isin(self.columns[f"{kind}_chunk"][slots], alike)]
                    places = self._places_at(kind, here)
                    moved = store.append(store.gather(places).astype(dtype, copy=False), places.lengths)
                    store.release(places)
                    self._place(kind, here, moved)

    def view(self, slots: Slots) -> RowView:
        """Some samples as they are now; costs their numbers, not their tokens."""
        columns = {name: column[slots] for name, column in self.columns.items()}
        if isinstance(slots, slice):
            columns = {name: column.copy() for name, column in columns.items()}
        for column in columns.values():
            column.setflags(write=False)
        return RowView(columns, self.tokens.chunks(), self.texts.chunks())

    def clear(self) -> None:
        """Give up everything but the room."""
        self.tokens.clear()
        self.texts.clear()

    def _place(self, kind: str, slots: Slots, places: RowPlaces) -> None:
        for part, values in zip(("chunk", "start", "count"), places, strict=True):
            self.columns[f"{kind}_{part}"][slots] = values

    def _places_at(self, kind: str, slots: np.ndarray) -> RowPlaces:
        columns = self.columns
        return RowPlaces(
            columns[f"{kind}_chunk"][slots], columns[f"{kind}_start"][slots], columns[f"{kind}_count"][slots]
        )


def side_by_side(slots: Int64[np.ndarray, " count"]) -> Slots:
    """The slots as a slice if each follows the one before, else as they are."""
    if len(slots) and bool((np.diff(slots) == 1).all()):
        return slice(int(slots[0]), int(slots[-1]) + 1)
    return slots


def join_mask(tokens: np.ndarray, mask: np.ndarray, out: np.ndarray) -> None:
    """Write tokens with the mask in the top bit, in as many bits as `out` has."""
    dtype = out.dtype.type
    np.left_shift(mask, dtype(8 * out.itemsize - 1), out=out, dtype=dtype)
    np.bitwise_or(out, tokens, out=out, dtype=dtype, casting="unsafe")


def split_mask(stored: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Tokens (uint32) and mask (uint8) of stored tokens."""
    if stored.dtype == np.uint16:
        return (stored & (_NARROW_TOP - np.uint16(1))).astype(np.uint32), (stored >> np.uint16(15)).astype(
            np.uint8
        )
    return stored & (_WIDE_TOP - np.uint32(1)), (stored >> np.uint32(31)).astype(np.uint8)

"""The length cache: sample ids and their lengths under one tokenizer, kept in a file that is appended to.

How entries look in a file is in `records`; tokenizing is in `tokenizers`.
"""

import asyncio
import itertools
import os
import warnings
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, cast

import numpy as np
from jaxtyping import Int, Int32
from pydantic import Field

from phalanx.config import FrozenModel
from phalanx.data.length_records import (
    BINARY_SUFFIXES,
    TornLineError,
    entry_id,
    entry_length,
    format_entries,
    parse_blocks,
    read_arrays,
    write_arrays,
)
from phalanx.data.lengths import MAX_LENGTH, LazyIds, LengthTable

_PENDING = 1 << 14
"""Entries held back before they are written, so that a small one does not cost a system call."""


class LengthEntry(FrozenModel):
    """One line of a length cache."""

    sample_id: str
    """Which sample."""
    tokenizer_hash: str
    """What its tokens were made with."""
    length: int = Field(ge=1, le=MAX_LENGTH)
    """How many tokens it has."""

    def to_json(self) -> str:
        """The line, without its end."""
        return self.model_dump_json()

    @classmethod
    def from_json(cls, line: str) -> "LengthEntry":
        """Read a line again."""
        return cls.model_validate_json(line)


class LengthCache:
    """Lengths by sample id. A suffix of `.npz` or `.arrow` chooses the binary form, any other JSON lines.

    A line file grows as entries are added, and a crash costs at most the entries held back and a cut-off last
    line, which the next `create` removes. A binary file is written whole when the cache is closed.

        async with LengthCache.create("lengths.jsonl", "tokenizer_v1") as cache:
            await cache.add("sample-0", 812)
        lengths = (await LengthCache.load("lengths.jsonl")).get_all()
    """

    def __init__(self, path: str | os.PathLike[str], tokenizer_hash: str) -> None:
        self._path = Path(path)
        self._tokenizer_hash = tokenizer_hash
        self._ids: list[str] | LazyIds = []
        self._lengths: Int32[np.ndarray, " samples"] = np.zeros(0, np.int32)
        # The entries by id, made from the two above when first needed; additions go here.
        self._entries: dict[str, int] | None = None
        self._pending_ids: list[str] = []
        self._pending_lengths: list[int] = []
        self._num_stored = 0
        self._stored: set[str] | None = None
        self._repeated: set[str] = set()
        self._open = False
        self._file: IO[bytes] | None = None

    @classmethod
    def create(cls, path: str | os.PathLike[str], tokenizer_hash: str) -> "LengthCache":
        """A cache to add to, as an async context; a file that is there already is continued, not replaced."""
        if not tokenizer_hash:
            raise ValueError("tokenizer_hash must not be empty; pass the tokenizer's name, version or hash")
        return cls(path, tokenizer_hash)

    @classmethod
    async def load(
        cls,
        path: str | os.PathLike[str],
        expected_tokenizer_hash: str | None = None,
        *,
        drop_torn_line: bool = False,
    ) -> "LengthCache":
        """Read a whole cache; another tokenizer, a repeated id and a damaged line are errors."""
        cache = cls(path, expected_tokenizer_hash or "")
        await asyncio.to_thread(cache._read, drop_torn_line)
        return cache

    @classmethod
    async def load_or_create(cls, path: str | os.PathLike[str], tokenizer_hash: str) -> "LengthCache":
        """The cache at `path`, with its entries if it is there; `async with` makes it ready to add to."""
        cache = cls.create(path, tokenizer_hash)
        if cache._path.exists():
            await asyncio.to_thread(cache._read, True)
        return cache

    @classmethod
    async def stream(cls, path: str | os.PathLike[str]) -> AsyncIterator[LengthEntry]:
        """The entries of a cache in their order, without holding all of them (line files)."""
        for sample_id, length, tokenizer_hash in _stream(Path(path)):
            yield LengthEntry(sample_id=sample_id, tokenizer_hash=tokenizer_hash, length=length)

    async def __aenter__(self) -> "LengthCache":
        if self._open:
            raise ValueError(f"{self._path} is open already")
        if self._path.exists():
            await asyncio.to_thread(self._repair_and_read)
        elif not self._path.parent.is_dir():
            raise FileNotFoundError(f"cannot write {self._path}: there is no folder {self._path.parent}")
        if not self._is_binary:
            self._file = self._path.open("ab", buffering=0)
        self._num_stored = len(self)
        self._open = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Also after an error: what was added is right, and need not be tokenized again.
        self._open = False
        if self._file is not None:
            with self._file:
                self._flush()
                os.fsync(self._file.fileno())
            self._file = None
        elif self._num_stored != len(self) or not self._path.exists():
            write_arrays(self._path, self.ids, self.lengths, self._tokenizer_hash)

    async def add(self, sample_id: str | int, length: int | np.integer) -> None:
        """Add one sample.

        An id may come once. One that the file held when it was opened may come once more with the same
        length, so that an interrupted run can be started again as it was.
        """
        self._require_open()
        key = entry_id(sample_id, str(self._path))
        number = entry_length(int(length) if isinstance(length, np.integer) else length, f"sample {key!r}")
        entries = self._by_id()
        if key in entries:
            self._accept_repeats({key: number})
            return
        entries[key] = number
        self._pending_ids.append(key)
        self._pending_lengths.append(number)
        if len(self._pending_ids) >= _PENDING:
            self._flush()

    async def add_many(
        self, sample_ids: Sequence[str | int], lengths: Sequence[int] | Int[np.ndarray, " samples"]
    ) -> None:
        """Add many samples, much faster than one by one; if one is wrong none is added."""
        self._require_open()
        if len(sample_ids) != len(lengths):
            raise ValueError(f"{len(sample_ids)} ids for {len(lengths)} lengths; each sample needs both")
        if set(map(type, sample_ids)) == {str} and all(sample_ids):
            keys = cast(list[str], list(sample_ids))
        else:
            keys = [entry_id(given, f"sample {row}") for row, given in enumerate(sample_ids)]
        numbers = LengthTable.from_arrays(None, lengths).lengths.tolist()
        added = dict(zip(keys, numbers, strict=True))
        if len(added) != len(keys):
            repeated = next(key for key, count in Counter(keys).items() if count > 1)
            raise ValueError(f"{self._path}: sample id {repeated!r} was added twice; ids must be unique")
        entries = self._by_id()
        if not entries.keys().isdisjoint(added):
            self._accept_repeats({key: added.pop(key) for key in keys if key in entries})
        if entries:
            entries.update(added)
        else:
            self._entries = added.copy()
        self._pending_ids += added
        self._pending_lengths += added.values()
        self._flush()

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    @property
    def tokenizer_hash(self) -> str:
        """What the lengths were made with."""
        return self._tokenizer_hash

    @property
    def ids(self) -> Sequence[str]:
        """Sample ids in the order of the file."""
        return self._ids if self._entries is None else list(self._entries)

    @property
    def lengths(self) -> Int32[np.ndarray, " samples"]:
        """Lengths in the order of the file."""
        if self._entries is None:
            return self._lengths
        return np.fromiter(self._entries.values(), np.int32, len(self._entries))

    def table(self) -> LengthTable:
        """The length table that samplers and plans take."""
        return LengthTable(self.ids, self.lengths).trust()

    def get(self, sample_id: str | int) -> int | None:
        """A sample's length, or None."""
        return self._by_id().get(str(sample_id))

    def get_all(self) -> dict[str, int]:
        """{sample id: length}, in the order of the file."""
        return dict(self._by_id())

    def items(self) -> Iterator[tuple[str, int]]:
        """(sample id, length), in the order of the file."""
        return iter(self._by_id().items())

    async def validate(self, sample_ids: Iterable[str | int]) -> tuple[set[str], set[str]]:
        """(missing, extra): wanted ids that are not here, and ids here that are not wanted."""
        wanted = {str(sample_id) for sample_id in sample_ids}
        return wanted - self._by_id().keys(), self._by_id().keys() - wanted

    def is_complete(self, sample_ids: Iterable[str | int]) -> bool:
        """Whether every wanted id is here."""
        entries = self._by_id()
        return all(str(sample_id) in entries for sample_id in sample_ids)

    def __len__(self) -> int:
        return len(self._lengths if self._entries is None else self._entries)

    def __contains__(self, sample_id: str | int) -> bool:
        return str(sample_id) in self._by_id()

    @property
    def _is_binary(self) -> bool:
        return self._path.suffix in BINARY_SUFFIXES

    def _by_id(self) -> dict[str, int]:
        if self._entries is None:
            ids = self._ids.as_list() if isinstance(self._ids, LazyIds) else self._ids
            self._entries = dict(zip(ids, self._lengths.tolist(), strict=True))
            if len(self._entries) != len(ids):
                raise _repeat_error(self._path, ids)
        return self._entries

    def _require_open(self) -> None:
        if not self._open:
            raise ValueError(f"{self._path} is not open for adding: use `async with LengthCache.create(...)`")

    def _accept_repeats(self, repeats: dict[str, int]) -> None:
        """Entries that are here already: right once if the file held them when it was opened, else errors."""
        entries = self._by_id()
        if self._stored is None:
            self._stored = set(itertools.islice(entries, self._num_stored))
        for key, length in repeats.items():
            if key not in self._stored or key in self._repeated:
                raise ValueError(f"{self._path}: sample id {key!r} was added twice; ids must be unique")
            if entries[key] != length:
                raise ValueError(
                    f"{self._path}: sample id {key!r} has length {entries[key]} in the file and now "
                    f"{length}; the dataset or the tokenizer has changed: remove the file and build it again"
                )
        self._repeated |= repeats.keys()

    def _flush(self) -> None:
        if self._file is None:
            return
        ids, lengths = self._pending_ids, self._pending_lengths
        self._pending_ids, self._pending_lengths = [], []
        for start in range(0, len(ids), _PENDING):
            end = start + _PENDING
            self._write(format_entries(ids[start:end], lengths[start:end], self._tokenizer_hash))

    def _write(self, data: bytes) -> None:
        assert self._file is not None
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) :]

    def _repair_and_read(self) -> None:
        """Read what is there, and make the file end with a whole line."""
        if self._is_binary:
            self._read(False)
            return
        try:
            self._read(False)
        except TornLineError as torn:
            self._read(True)
            with self._path.open("r+b") as file:
                file.truncate(torn.offset)
            warnings.warn(
                f"{self._path}:{torn.line}: the last line was cut off (its writer was interrupted) and has "
                f"been removed; {len(self)} entries are whole",
                stacklevel=2,
            )
            return
        with self._path.open("r+b") as file:
            size = file.seek(0, os.SEEK_END)
            if size:
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    file.write(b"\n")

    def _read(self, drop_torn_line: bool) -> None:
        if not self._path.is_file():
            raise FileNotFoundError(f"there is no length cache {self._path}")
        if self._is_binary:
            self._ids, self._lengths, found = read_arrays(self._path)
            self._check_tokenizer(found, str(self._path))
        else:
            self._read_lines(drop_torn_line)
        self._entries = None

    def _read_lines(self, drop_torn_line: bool) -> None:
        ids: list[str] = []
        lengths: list[np.ndarray] = [np.zeros(0, np.int32)]
        try:
            for block in parse_blocks(self._path):
                self._check_tokenizer(block.tokenizer_hash, f"{self._path}:{block.lines[0]}")
                ids += block.ids
                lengths.append(block.lengths)
        except TornLineError:
            if not drop_torn_line:
                raise
        # A sort of hashes finds repeats in a fraction of a dictionary's time; equal hashes are looked at.
        hashes = np.fromiter(map(hash, ids), np.int64, len(ids))
        hashes.sort()
        if (hashes[1:] == hashes[:-1]).any() and len(set(ids)) != len(ids):
            raise _repeat_error(self._path, ids)
        self._ids, self._lengths = ids, np.concatenate(lengths)

    def _check_tokenizer(self, found: str, where: str) -> None:
        if not self._tokenizer_hash:
            self._tokenizer_hash = found
        elif found != self._tokenizer_hash:
            raise ValueError(
                f"{where}: made with tokenizer {found!r}, not {self._tokenizer_hash!r}; use that tokenizer, "
                f"or build a new cache"
            )


def _stream(path: Path) -> Iterator[tuple[str, int, str]]:
    if not path.is_file():
        raise FileNotFoundError(f"there is no length cache {path}")
    if path.suffix in BINARY_SUFFIXES:
        ids, lengths, tokenizer_hash = read_arrays(path)
        yield from zip(ids.as_list(), lengths.tolist(), itertools.repeat(tokenizer_hash), strict=False)
        return
    for block in parse_blocks(path):
        yield from zip(
            block.ids, block.lengths.tolist(), itertools.repeat(block.tokenizer_hash), strict=False
        )


def _repeat_error(path: Path, ids: Sequence[str]) -> ValueError:
    """Which id is there twice; for a line file, on which lines."""
    lines: Iterable[int] = range(1, len(ids) + 1)
    if path.suffix not in BINARY_SUFFIXES:
        lines = itertools.chain.from_iterable(block.lines for block in parse_blocks(path))
    first: dict[str, int] = {}
    for sample_id, line in zip(ids, lines, strict=False):
        if sample_id in first:
            return ValueError(f"{path}:{line}: sample id {sample_id!r} is on line {first[sample_id]} already")
        first[sample_id] = line
    raise AssertionError("no id is repeated")

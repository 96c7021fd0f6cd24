"""Length caches, which store sample ids and the sample lengths for one tokenizer in a file.

A `.jsonl` file grows as entries are added, and an interrupted run can be continued. A `.npz` file is written
as a whole when the cache is closed, and loads in milliseconds.
"""

import itertools
import json
import os
import warnings
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, NamedTuple, cast

import numpy as np
from jaxtyping import Int, Int32

from phalanx.data.lengths import MAX_LENGTH, LazyIds, LengthTable
from phalanx.data.readers import check_id
from phalanx.io.atomic import atomic_write
from phalanx.io.checksum import CorruptFileError, open_verified
from phalanx.io.untrusted import parse_json

# Entries that are collected before they are written, to save system calls.
_MAX_PENDING = 1 << 14
_BLOCK_BYTES = 1 << 18
_FIELDS = ("sample_id", "tokenizer_hash", "length")
_FORMAT, _VERSION = "phalanx.lengths", 1
_REMEDY = "build it again"


class LengthCache:
    """Mapping from sample ids to lengths, stored in a file.

    >>> with LengthCache.create("lengths.jsonl", "tokenizer_v1") as cache:  # doctest: +SKIP
    ...     cache.add("sample-0", 812)
    >>> lengths = LengthCache.load("lengths.jsonl").get_all()  # doctest: +SKIP
    """

    def __init__(self, path: str | os.PathLike[str], tokenizer_hash: str) -> None:
        self._path = Path(path)
        self._tokenizer_hash = tokenizer_hash
        self._ids: list[str] | LazyIds = []
        self._lengths: Int32[np.ndarray, " samples"] = np.zeros(0, np.int32)
        # Created from the two above on first use; entries are added here.
        self._entries: dict[str, int] | None = None
        self._pending_ids: list[str] = []
        self._pending_lengths: list[int] = []
        self._num_stored = 0
        self._stored: set[str] | None = None
        self._repeated: set[str] = set()
        self._is_open = False
        self._file: IO[bytes] | None = None

    @classmethod
    def create(cls, path: str | os.PathLike[str], tokenizer_hash: str) -> "LengthCache":
        """Return a cache for adding entries. Use it as a context manager.

        If the file already exists, entries are appended to it.

        Args:
            path: Path of a `.jsonl` or `.npz` file.
            tokenizer_hash: Hash, name or version of the tokenizer that the lengths are computed with.
        """
        if not tokenizer_hash:
            raise ValueError("tokenizer_hash must not be empty; pass the tokenizer's name, version or hash")
        return cls(path, tokenizer_hash)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        expected_tokenizer_hash: str | None = None,
        *,
        drop_torn_line: bool = False,
    ) -> "LengthCache":
        """Load a cache.

        Args:
            path: Path of the file.
            expected_tokenizer_hash: Raise `ValueError` if the cache is for another tokenizer. None skips the
                check.
            drop_torn_line: Ignore an incomplete last line, which an interrupted writer may leave behind,
                instead of raising `TornLineError`.
        """
        cache = cls(path, expected_tokenizer_hash or "")
        cache._read(drop_torn_line)
        return cache

    @classmethod
    def load_or_create(cls, path: str | os.PathLike[str], tokenizer_hash: str) -> "LengthCache":
        """Load a cache if its file exists, and otherwise return an empty one.

        To add entries, use it as a context manager.
        """
        cache = cls.create(path, tokenizer_hash)
        if cache._path.exists():
            cache._read(True)
        return cache

    def __enter__(self) -> "LengthCache":
        if self._is_open:
            raise ValueError(f"{self._path} is already open")
        if self._path.exists():
            self._repair_and_read()
        elif not self._path.parent.is_dir():
            raise FileNotFoundError(
                f"cannot write {self._path}: the folder {self._path.parent} does not exist"
            )
        else:
            check_suffix(self._path)
        if not _is_binary(self._path):
            self._file = self._path.open("ab", buffering=0)
        self._num_stored = len(self)
        self._is_open = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Also after an error: the entries so far are valid and need not be computed again.
        self._is_open = False
        if self._file is not None:
            with self._file:
                self._flush()
                os.fsync(self._file.fileno())
            self._file = None
        elif self._num_stored != len(self) or not self._path.exists():
            _write_npz(self._path, self.ids, self.lengths, self._tokenizer_hash)

    def add(self, sample_id: str | int, length: int | np.integer) -> None:
        """Add the length of one sample.

        Ids must be unique. However, an id that was in the file when it was opened may be added once more with
        the same length, so that an interrupted run can be repeated.
        """
        self._require_open()
        key = check_id(sample_id, str(self._path))
        number = _check_length(int(length) if isinstance(length, np.integer) else length, f"sample {key!r}")
        entries = self._by_id()
        if key in entries:
            self._accept_repeats({key: number})
            return
        entries[key] = number
        self._pending_ids.append(key)
        self._pending_lengths.append(number)
        if len(self._pending_ids) >= _MAX_PENDING:
            self._flush()

    def add_many(
        self, sample_ids: Sequence[str | int], lengths: Sequence[int] | Int[np.ndarray, " samples"]
    ) -> None:
        """Add many samples, which is much faster than adding them one by one.

        If one is invalid, none is added.
        """
        self._require_open()
        if len(sample_ids) != len(lengths):
            raise ValueError(f"got {len(sample_ids)} ids but {len(lengths)} lengths")
        if set(map(type, sample_ids)) == {str} and all(sample_ids):
            keys = cast(list[str], list(sample_ids))
        else:
            keys = [check_id(name, f"sample {row}") for row, name in enumerate(sample_ids)]
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
        """Path of the file."""
        return self._path

    @property
    def tokenizer_hash(self) -> str:
        """Hash of the tokenizer that the lengths were computed with."""
        return self._tokenizer_hash

    @property
    def ids(self) -> Sequence[str]:
        """Sample ids in the order of the file."""
        return self._ids if self._entries is None else list(self._entries)

    @property
    def lengths(self) -> Int32[np.ndarray, " samples"]:
        """Lengths in tokens, in the order of the file."""
        if self._entries is None:
            return self._lengths
        return np.fromiter(self._entries.values(), np.int32, len(self._entries))

    def table(self) -> LengthTable:
        """Return the entries as a `LengthTable`, from which plans are built."""
        return LengthTable(self.ids, self.lengths).trust()

    def get(self, sample_id: str | int) -> int | None:
        """Return the length of a sample. Return None if it is not in the cache."""
        return self._by_id().get(str(sample_id))

    def get_all(self) -> dict[str, int]:
        """Return a mapping from sample ids to lengths, in the order of the file."""
        return dict(self._by_id())

    def items(self) -> Iterator[tuple[str, int]]:
        """Iterate over pairs of a sample id and its length, in the order of the file."""
        return iter(self._by_id().items())

    def validate(self, sample_ids: Iterable[str | int]) -> tuple[set[str], set[str]]:
        """Compare the cache with a dataset.

        Returns:
            The given ids that are not in the cache, and the ids in the cache that were not given.
        """
        wanted = {str(sample_id) for sample_id in sample_ids}
        return wanted - self._by_id().keys(), self._by_id().keys() - wanted

    def is_complete(self, sample_ids: Iterable[str | int]) -> bool:
        """Return whether all given ids are in the cache."""
        entries = self._by_id()
        return all(str(sample_id) in entries for sample_id in sample_ids)

    def __len__(self) -> int:
        return len(self._lengths if self._entries is None else self._entries)

    def __contains__(self, sample_id: str | int) -> bool:
        return str(sample_id) in self._by_id()

    def _by_id(self) -> dict[str, int]:
        if self._entries is None:
            ids = self._ids.as_list() if isinstance(self._ids, LazyIds) else self._ids
            self._entries = dict(zip(ids, self._lengths.tolist(), strict=True))
            if len(self._entries) != len(ids):
                raise _repeated_id_error(self._path, ids)
        return self._entries

    def _require_open(self) -> None:
        if not self._is_open:
            raise ValueError(f"{self._path} is not open for adding; use `with LengthCache.create(...)`")

    def _accept_repeats(self, repeats: dict[str, int]) -> None:
        """Accept entries that were in the file when it was opened, but only once.

        Raises `ValueError` for others.
        """
        entries = self._by_id()
        if self._stored is None:
            self._stored = set(itertools.islice(entries, self._num_stored))
        for key, length in repeats.items():
            if key not in self._stored or key in self._repeated:
                raise ValueError(f"{self._path}: sample id {key!r} was added twice; ids must be unique")
            if entries[key] != length:
                raise ValueError(
                    f"{self._path}: sample id {key!r} has length {entries[key]} in the file, but now "
                    f"{length}; "
                    f"the dataset or the tokenizer has changed: delete the file and build it again"
                )
        self._repeated |= repeats.keys()

    def _flush(self) -> None:
        if self._file is None:
            return
        ids, lengths = self._pending_ids, self._pending_lengths
        self._pending_ids, self._pending_lengths = [], []
        for start in range(0, len(ids), _MAX_PENDING):
            end = start + _MAX_PENDING
            view = memoryview(format_lines(ids[start:end], lengths[start:end], self._tokenizer_hash))
            while view:
                view = view[self._file.write(view) :]

    def _repair_and_read(self) -> None:
        """Read the file. An incomplete last line is removed, and a missing line break at the end is added."""
        try:
            self._read(False)
        except TornLineError as torn:
            self._read(True)
            with self._path.open("r+b") as file:
                file.truncate(torn.offset)
            warnings.warn(
                f"{self._path}:{torn.line}: the last line was incomplete, because a writer was interrupted, "
                f"and "
                f"has been removed; {len(self)} entries are intact",
                stacklevel=2,
            )
            return
        if _is_binary(self._path):
            return
        with self._path.open("r+b") as file:
            if file.seek(0, os.SEEK_END):
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    file.write(b"\n")

    def _read(self, drop_torn_line: bool) -> None:
        if not self._path.is_file():
            raise FileNotFoundError(f"there is no length cache {self._path}")
        check_suffix(self._path)
        if _is_binary(self._path):
            self._ids, self._lengths, tokenizer_hash = _read_npz(self._path)
            self._check_tokenizer(tokenizer_hash, str(self._path))
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
        # Sorting hashes finds repeated ids in a fraction of the time that a dictionary takes.
        hashes = np.fromiter(map(hash, ids), np.int64, len(ids))
        hashes.sort()
        if (hashes[1:] == hashes[:-1]).any() and len(set(ids)) != len(ids):
            raise _repeated_id_error(self._path, ids)
        self._ids, self._lengths = ids, np.concatenate(lengths)

    def _check_tokenizer(self, found: str, where: str) -> None:
        if not self._tokenizer_hash:
            self._tokenizer_hash = found
        elif found != self._tokenizer_hash:
            raise ValueError(
                f"{where}: counted with tokenizer {found!r}, not {self._tokenizer_hash!r}; use that "
                f"tokenizer, "
                f"or build a new cache"
            )


class TornLineError(ValueError):
    """Raised if the last line of a file is incomplete because its writer was interrupted."""

    def __init__(self, path: Path, line: int, offset: int) -> None:
        super().__init__(
            f"{path}:{line}: the last line is incomplete, because its writer was interrupted; open the file "
            f"with "
            f"LengthCache.create to repair and continue it, or load it with drop_torn_line=True"
        )
        self.line = line
        self.offset = offset
        """Byte offset at which the incomplete line starts."""


class _Block(NamedTuple):
    """Consecutive entries of a file that have the same tokenizer hash."""

    ids: list[str]
    lengths: Int32[np.ndarray, " entries"]
    lines: Sequence[int]
    """Line number of each entry, from 1."""
    tokenizer_hash: str


def check_suffix(path: Path) -> None:
    """Raise `ValueError` if the suffix is that of the former Arrow format."""
    if path.suffix == ".arrow":
        raise ValueError(f"{path}: the Arrow format was removed; use .npz, which loads as fast, or .jsonl")


def _is_binary(path: Path) -> bool:
    return path.suffix == ".npz"


def _check_length(value: object, where: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_LENGTH:
        return int(value)
    bound = f" up to {MAX_LENGTH}" if isinstance(value, int) and value > MAX_LENGTH else ""
    raise ValueError(f"{where}: length must be a positive integer{bound}, got {value!r}")


def format_lines(ids: Sequence[str], lengths: Sequence[int], tokenizer_hash: str) -> bytes:
    """Format entries as JSON lines.

    >>> format_lines(["a"], [3], "bytes")
    b'{"sample_id":"a","tokenizer_hash":"bytes","length":3}\\n'
    """
    joined = "".join(ids)
    plain = joined.isprintable() and '"' not in joined and "\\" not in joined
    quote = '"' if plain else ""
    texts = ids if plain else [json.dumps(text) for text in ids]
    head = f'{{"sample_id":{quote}'
    middle = f'{quote},"tokenizer_hash":{json.dumps(tokenizer_hash)},"length":'
    return "".join(
        [f"{head}{text}{middle}{length}}}\n" for text, length in zip(texts, lengths, strict=True)]
    ).encode()


def parse_blocks(path: Path) -> Iterator[_Block]:
    """Iterate over the entries of a JSONL file in blocks.

    Raises `TornLineError` if the last line is incomplete.
    """
    with path.open("rb") as file:
        rest, line, offset = b"", 1, 0
        while data := file.read(_BLOCK_BYTES):
            complete, newline, rest = (rest + data).rpartition(b"\n")
            if newline:
                yield from _parse_lines(path, line, complete)
                line += complete.count(b"\n") + 1
                offset += len(complete) + 1
        if rest:
            try:
                blocks = _parse_lines(path, line, rest)
            except ValueError as error:
                # An incomplete line is not valid JSON, but a complete one can lack its line end.
                if _is_json(rest):
                    raise
                raise TornLineError(path, line, offset) from error
            yield from blocks


def _is_json(data: bytes) -> bool:
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return False
    return True


def _parse_lines(path: Path, first_line: int, data: bytes) -> list[_Block]:
    try:
        lines = data.decode().split("\n")
    except UnicodeDecodeError as error:
        line = first_line + data.count(b"\n", 0, error.start)
        raise ValueError(f"{path}:{line}: not valid UTF-8: {error.reason}") from error
    # One call for the whole block is several times as fast as one per line. A line with several values, or a
    # value over several lines, changes the count, and then lines are parsed one by one.
    try:
        entries = json.loads(f"[{','.join(lines)}]")
        if len(entries) == len(lines) and not any("}" in line[:-1] for line in lines):
            return _create_blocks(path, range(first_line, first_line + len(lines)), entries)
    except (ValueError, RecursionError):
        pass
    numbered = [(number, line) for number, line in enumerate(lines, first_line) if line.strip()]
    entries = []
    for number, text in numbered:
        try:
            entries.append(json.loads(text))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}:{number}: not a JSON object: {error}") from error
    return _create_blocks(path, [number for number, _ in numbered], entries)


def _create_blocks(path: Path, lines: Sequence[int], entries: list[object]) -> list[_Block]:
    ids, hashes, lengths = [], [], []
    for line, entry in zip(lines, entries, strict=True):
        where = f"{path}:{line}"
        if not isinstance(entry, dict) or not all(field in entry for field in _FIELDS):
            raise ValueError(f"{where}: expected an object with {', '.join(_FIELDS)}, got {entry!r:.80}")
        name, length = entry["sample_id"], entry["length"]
        ids.append(name if type(name) is str and name else check_id(name, where))
        lengths.append(
            length if type(length) is int and 0 < length <= MAX_LENGTH else _check_length(length, where)
        )
        if type(entry["tokenizer_hash"]) is not str:
            raise ValueError(f"{where}: tokenizer_hash must be a string, got {entry['tokenizer_hash']!r}")
        hashes.append(entry["tokenizer_hash"])
    blocks, begin = [], 0
    for key, group in itertools.groupby(hashes):
        end = begin + sum(1 for _ in group)
        blocks.append(_Block(ids[begin:end], np.array(lengths[begin:end], np.int32), lines[begin:end], key))
        begin = end
    return blocks


def _write_npz(
    path: Path, ids: Sequence[str], lengths: Int32[np.ndarray, " samples"], tokenizer_hash: str
) -> None:
    header = {"format": _FORMAT, "version": _VERSION, "tokenizer_hash": tokenizer_hash}
    encoded = [text.encode() for text in ids]
    with atomic_write(path, checksum=True) as file:
        np.savez(
            file,
            header=np.frombuffer(json.dumps(header).encode(), np.uint8),
            lengths=lengths,
            id_sizes=np.fromiter(map(len, encoded), np.int32, len(encoded)),
            id_bytes=np.frombuffer(b"".join(encoded), np.uint8),
        )


def _read_npz(path: Path) -> tuple[LazyIds, Int32[np.ndarray, " samples"], str]:
    """Return the ids, lengths and tokenizer hash of a `.npz` file. The ids are read on first use."""
    identity = _file_identity(path)
    members = _npz_members(path, "header", "lengths")
    header = parse_json(members["header"].tobytes(), path)
    if not isinstance(header, dict) or header.get("format") != _FORMAT:
        raise _damaged(path, f"its header does not have the format {_FORMAT}")
    if header.get("version") != _VERSION:
        raise ValueError(f"{path} has version {header.get('version')}, but this release reads {_VERSION}")
    lengths = members["lengths"]
    if lengths.dtype != np.int32 or lengths.ndim != 1 or (len(lengths) and lengths.min() < 1):
        raise _damaged(path, f"its lengths are {lengths.dtype} of shape {lengths.shape}, or not positive")

    def read_ids() -> list[str]:
        if _file_identity(path) != identity:
            raise ValueError(f"{path} was changed after its lengths were loaded; load it again")
        members = _npz_members(path, "id_sizes", "id_bytes")
        ends = np.cumsum(members["id_sizes"], dtype=np.int64)
        data = members["id_bytes"].tobytes()
        if len(ends) != len(lengths) or (ends[-1] if len(ends) else 0) != len(data):
            raise _damaged(path, f"{len(ends)} ids of {len(data)} bytes for {len(lengths)} lengths")
        bounds = [0, *ends.tolist()]
        if data.isascii():
            text = data.decode()
            return [text[a:b] for a, b in itertools.pairwise(bounds)]
        return [data[a:b].decode() for a, b in itertools.pairwise(bounds)]

    lengths.flags.writeable = False
    return LazyIds(len(lengths), read_ids), lengths, str(header["tokenizer_hash"])


def _npz_members(path: Path, *names: str) -> dict[str, np.ndarray]:
    try:
        # Opened here, because np.load does not close a file that it cannot read.
        with open_verified(path, _REMEDY) as file, np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in names}
    except CorruptFileError:
        raise
    # np.load takes a file that is not an archive for a pickle, and rejects it with a ValueError.
    except (zipfile.BadZipFile, KeyError, ValueError, EOFError) as error:
        raise _damaged(path, str(error)) from error


def _file_identity(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


def _damaged(path: Path, reason: str) -> CorruptFileError:
    return CorruptFileError(f"{path}: not an intact length cache ({reason}); {_REMEDY}")


def _repeated_id_error(path: Path, ids: Sequence[str]) -> ValueError:
    lines: Iterable[int] = range(1, len(ids) + 1)
    if not _is_binary(path):
        lines = itertools.chain.from_iterable(block.lines for block in parse_blocks(path))
    first: dict[str, int] = {}
    for sample_id, line in zip(ids, lines, strict=False):
        if sample_id in first:
            return ValueError(f"{path}:{line}: sample id {sample_id!r} is already on line {first[sample_id]}")
        first[sample_id] = line
    raise AssertionError("no id is repeated")

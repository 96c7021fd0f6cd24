"""Length caches: files with the ids and lengths of samples, for one tokenizer.

A `.jsonl` file grows as entries are added, and an interrupted run can be continued. A `.npz` file is written
when the cache is closed, and loads in milliseconds.
"""

import itertools
import json
import os
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from jaxtyping import Int, Int32

from phalanx.data.lengths import MAX_LENGTH, LazyIds, LengthTable, check_lengths
from phalanx.data.npz_files import open_npz, read_header, write_npz
from phalanx.data.readers import check_id
from phalanx.io.checksum import CorruptFileError

# Entries that are collected before they are written, to save system calls.
_MAX_PENDING = 1 << 14
_FIELDS = ("sample_id", "tokenizer_hash", "length")
_FORMAT, _VERSION = "phalanx.lengths", 1
_REMEDY = "build it again"


class TornLineError(ValueError):
    """Raised if the last line of a file is incomplete because its writer was interrupted."""

    def __init__(self, path: Path, line: int, offset: int) -> None:
        super().__init__(
            f"{path}:{line}: the last line is incomplete, because its writer was interrupted; open the file "
            f"with LengthCache.create to repair and continue it"
        )
        self.line = line
        """Line number of the incomplete line, counted from 1."""
        self.offset = offset
        """Byte offset at which the incomplete line starts."""


class LengthCache:
    """Mapping from sample ids to lengths, stored in a file.

    >>> with LengthCache.create("lengths.jsonl", "tokenizer_v1") as cache:  # doctest: +SKIP
    ...     cache.add("sample-0", 812)
    >>> lengths = LengthCache.load("lengths.jsonl").get_all()  # doctest: +SKIP
    """

    def __init__(self, path: str | os.PathLike[str], tokenizer_hash: str) -> None:
        self.path = Path(path)
        """Path of the file."""
        self.tokenizer_hash = tokenizer_hash
        """Hash of the tokenizer that the lengths were computed with."""
        self._is_npz = self.path.suffix == ".npz"
        self._ids: list[str] | LazyIds = []
        self._lengths: Int32[np.ndarray, " samples"] = np.zeros(0, np.int32)
        # Created from the two above on first use; entries are added here.
        self._entries: dict[str, int] | None = None
        # Entries that are not yet in the `.jsonl` file.
        self._pending: dict[str, int] = {}
        # Number of entries in the file when it was opened. Each of them may be added once more.
        self._num_stored = 0
        self._repeatable: set[str] | None = None
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
    def load(cls, path: str | os.PathLike[str], expected_tokenizer_hash: str | None = None) -> "LengthCache":
        """Load a cache.

        Args:
            path: Path of the file.
            expected_tokenizer_hash: Raise `ValueError` if the cache is for a different tokenizer. None skips
                the check.

        Raises:
            TornLineError: If the last line is incomplete because its writer was interrupted.
        """
        cache = cls(path, expected_tokenizer_hash or "")
        torn = cache._read()
        if torn is not None:
            raise torn
        return cache

    def __enter__(self) -> "LengthCache":
        if self._is_open:
            raise ValueError(f"{self.path} is already open")
        if not self.path.parent.is_dir():
            raise FileNotFoundError(f"cannot write {self.path}: the folder {self.path.parent} does not exist")
        torn = self._read() if self.path.exists() else None
        if not self._is_npz:
            self._file = self.path.open("a+b", buffering=0)
            self._repair(self._file, torn)
        self._num_stored = len(self)
        self._is_open = True
        return self

    def __exit__(self, *error: Any) -> None:
        # Even after an error: the entries so far are valid and need not be computed again.
        self._is_open = False
        if self._file is not None:
            with self._file:
                self._flush()
                os.fsync(self._file.fileno())
            self._file = None
        elif self._num_stored != len(self) or not self.path.exists():
            self._write_npz()

    def add(self, sample_id: str | int, length: int | np.integer) -> None:
        """Add the length of one sample.

        Ids must be unique. However, an id that was in the file when it was opened may be added once more with
        the same length, so that an interrupted run can be repeated.
        """
        self._add([sample_id], [length])
        if len(self._pending) >= _MAX_PENDING:
            self._flush()

    def add_many(
        self, sample_ids: Sequence[str | int], lengths: Sequence[int] | Int[np.ndarray, " samples"]
    ) -> None:
        """Add many samples, which is much faster than adding them one by one.

        If any of the samples is invalid, none of them is added.
        """
        self._add(sample_ids, lengths)
        self._flush()

    def _add(self, sample_ids: Sequence[Any], lengths: Any) -> None:
        if not self._is_open:
            raise ValueError(f"{self.path} is not open for adding; use `with LengthCache.create(...)`")
        if len(sample_ids) != len(lengths):
            raise ValueError(f"got {len(sample_ids)} ids but {len(lengths)} lengths")
        keys = [check_id(name, f"sample {row}") for row, name in enumerate(sample_ids)]
        added = dict(zip(keys, check_lengths(lengths, keys).tolist(), strict=True))
        if len(added) != len(keys):
            raise self._repeat_error(Counter(keys).most_common(1)[0][0])
        entries = self._by_id()
        if not entries.keys().isdisjoint(added):
            self._accept_repeats({key: added.pop(key) for key in keys if key in entries})
        entries.update(added)
        self._pending.update(added)

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

    def __len__(self) -> int:
        return len(self._lengths if self._entries is None else self._entries)

    def __contains__(self, sample_id: str | int) -> bool:
        return str(sample_id) in self._by_id()

    def _by_id(self) -> dict[str, int]:
        if self._entries is None:
            self._entries = dict(zip(self._ids, self._lengths.tolist(), strict=True))
        return self._entries

    def _accept_repeats(self, repeated: dict[str, int]) -> None:
        """Accept entries that are already in the cache, if they were in the file when it was opened.

        Each of them is accepted only once. Raises `ValueError` for any other repeated entry.
        """
        entries = self._by_id()
        if self._repeatable is None:
            self._repeatable = set(itertools.islice(entries, self._num_stored))
        for key, length in repeated.items():
            if key not in self._repeatable:
                raise self._repeat_error(key)
            if entries[key] != length:
                raise ValueError(
                    f"{self.path}: sample id {key!r} has length {entries[key]} in the file, but now "
                    f"{length}; the dataset or the tokenizer has changed: delete the file and build it again"
                )
        self._repeatable -= repeated.keys()

    def _repeat_error(self, key: str) -> ValueError:
        return ValueError(f"{self.path}: sample id {key!r} was added twice; ids must be unique")

    def _flush(self) -> None:
        if self._file is None:
            return
        lines = format_lines(self._pending.items(), self.tokenizer_hash)
        self._pending = {}
        view = memoryview(lines)
        while view:
            view = view[self._file.write(view) :]

    def _repair(self, file: IO[bytes], torn: TornLineError | None) -> None:
        """Remove an incomplete last line of a `.jsonl` file, or add a missing line break at the end."""
        if torn is not None:
            file.truncate(torn.offset)
            warnings.warn(
                f"{self.path}:{torn.line}: the last line was incomplete, because a writer was interrupted, "
                f"and has been removed; {len(self)} entries are intact",
                stacklevel=3,
            )
        elif size := file.seek(0, os.SEEK_END):
            file.seek(size - 1)
            if file.read(1) != b"\n":
                file.write(b"\n")

    def _read(self) -> TornLineError | None:
        """Read the file. If its last line is incomplete, skip that line and return a `TornLineError`."""
        if not self.path.is_file():
            raise FileNotFoundError(f"there is no length cache {self.path}")
        self._entries = None
        if self._is_npz:
            self._read_npz()
            return None
        ids: list[str] = []
        lengths: list[int] = []
        torn = None
        try:
            for line, entry in _parse_file(self.path):
                self._check_tokenizer(entry["tokenizer_hash"], f"{self.path}:{line}")
                ids.append(entry["sample_id"])
                lengths.append(entry["length"])
        except TornLineError as error:
            torn = error
        if len(set(ids)) != len(ids):
            self._raise_for_repeat()
        self._ids, self._lengths = ids, np.array(lengths, np.int32)
        return torn

    def _raise_for_repeat(self) -> None:
        first: dict[str, int] = {}
        for line, entry in _parse_file(self.path):
            name = entry["sample_id"]
            if first.setdefault(name, line) != line:
                raise ValueError(f"{self.path}:{line}: sample id {name!r} is already on line {first[name]}")

    def _check_tokenizer(self, found: str, where: str) -> None:
        if not self.tokenizer_hash:
            self.tokenizer_hash = found
        elif found != self.tokenizer_hash:
            raise ValueError(
                f"{where}: counted with tokenizer {found!r}, not {self.tokenizer_hash!r}; use that "
                f"tokenizer, or build a new cache"
            )

    def _write_npz(self) -> None:
        encoded = [sample_id.encode() for sample_id in self.ids]
        arrays = {
            "lengths": self.lengths,
            "id_sizes": np.fromiter(map(len, encoded), np.int32, len(encoded)),
            "id_bytes": np.frombuffer(b"".join(encoded), np.uint8),
        }
        header = {"format": _FORMAT, "version": _VERSION, "tokenizer_hash": self.tokenizer_hash}
        write_npz(self.path, arrays, header)

    def _read_npz(self) -> None:
        """Read the lengths and the tokenizer hash. The ids are decoded on first use."""
        path = self.path
        with open_npz(path, _REMEDY) as archive:
            header = read_header(archive, path, "a length cache", _FORMAT, _VERSION)
            lengths, data = archive["lengths"], archive["id_bytes"].tobytes()
            ends = np.cumsum(archive["id_sizes"], dtype=np.int64)
        if lengths.dtype != np.int32 or lengths.ndim != 1 or lengths.min(initial=1) < 1:
            raise CorruptFileError(f"{path} is corrupt: lengths must be positive integers; {_REMEDY}")
        if len(ends) != len(lengths) or ends.max(initial=0) != len(data):
            raise CorruptFileError(f"{path} is corrupt: ids and lengths do not match; {_REMEDY}")
        self._check_tokenizer(str(header["tokenizer_hash"]), str(path))
        lengths.flags.writeable = False

        def decode_ids() -> list[str]:
            return [data[a:b].decode() for a, b in itertools.pairwise([0, *ends.tolist()])]

        self._ids, self._lengths = LazyIds(len(lengths), decode_ids), lengths


def format_lines(entries: Iterable[tuple[str, int]], tokenizer_hash: str) -> bytes:
    """Format pairs of a sample id and its length as JSON lines.

    >>> format_lines([("a", 3)], "bytes")
    b'{"sample_id":"a","tokenizer_hash":"bytes","length":3}\\n'
    """
    middle = f'"tokenizer_hash":{json.dumps(tokenizer_hash)},"length":'
    lines = [f'{{"sample_id":{json.dumps(name)},{middle}{length}}}\n' for name, length in entries]
    return "".join(lines).encode()


def _parse_file(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Iterate over the line numbers (counted from 1) and the validated entries of a `.jsonl` file.

    Raises `TornLineError` if the last line is incomplete.
    """
    offset = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            where = f"{path}:{number}"
            try:
                entry = json.loads(line) if line.strip() else None
            except (ValueError, RecursionError) as error:
                # An incomplete line is not valid JSON, but a complete one can lack its line end.
                if not line.endswith(b"\n"):
                    raise TornLineError(path, number, offset) from error
                raise ValueError(f"{where}: not a JSON object: {error}") from error
            if entry is not None:
                yield number, _check_entry(entry, where)
            offset += len(line)


def _check_entry(entry: Any, where: str) -> dict[str, Any]:
    """Validate an entry and return it with its id as a string."""
    if not isinstance(entry, dict) or not all(field in entry for field in _FIELDS):
        raise ValueError(f"{where}: expected an object with {', '.join(_FIELDS)}, got {entry!r:.80}")
    length = entry["length"]
    if type(length) is not int or not 0 < length <= MAX_LENGTH:
        raise ValueError(f"{where}: length must be an integer from 1 to {MAX_LENGTH}, got {length!r}")
    if type(entry["tokenizer_hash"]) is not str:
        raise ValueError(f"{where}: tokenizer_hash must be a string, got {entry['tokenizer_hash']!r}")
    return entry | {"sample_id": check_id(entry["sample_id"], where)}

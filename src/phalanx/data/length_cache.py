"""Length caches: files that store the ids and lengths of samples, for one tokenizer.

Entries of a `.jsonl` cache are written as they are added, so an interrupted run can be continued. A `.npz`
cache is written only when it is closed, but loads in milliseconds. Only one process at a time can add
entries.
"""

import contextlib
import itertools
import json
import operator
import os
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from jaxtyping import Int, Int32

from phalanx.data.lengths import MAX_LENGTH, LazyFileIds, LengthTable
from phalanx.data.npz_files import open_npz, parse_header, write_npz
from phalanx.data.readers import check_id
from phalanx.io.checksum import CorruptFileError
from phalanx.io.lock import lock_folder

# Entries that are collected before they are written, to save system calls.
_MAX_PENDING = 1 << 14
_BLOCK_BYTES = 1 << 18
_FIELDS = ("sample_id", "tokenizer_hash", "length")
_FORMAT, _VERSION = "phalanx.lengths", 1
_REMEDY = "build it again"


class TornLineError(ValueError):
    """Raised if the last line of a file is incomplete because its writer was interrupted."""

    def __init__(self, path: Path, line: int, offset: int) -> None:
        super().__init__(
            f"{path}:{line}: the last line is incomplete, because its writer was interrupted; open the file "
            f"with LengthCache.create to repair and continue it, or load it with drop_torn_line=True"
        )
        self.line = line
        """Line number of the incomplete line, counted from 1."""
        self.offset = offset
        """Byte offset at which the incomplete line starts."""


class NotJsonError(ValueError):
    """Raised for a line that is not valid JSON."""


class LengthCache:
    """Mapping from sample ids to lengths, stored in a file.

    >>> with LengthCache.create("corpus.jsonl", tokenizer.tokenizer_hash) as cache:  # doctest: +SKIP
    ...     cache.add("sample-0", 812)
    >>> lengths = LengthCache.load("corpus.jsonl").get_all()  # doctest: +SKIP
    """

    def __init__(self, path: str | os.PathLike[str], tokenizer_hash: str) -> None:
        self.path = Path(path)
        """Path of the cache file."""
        if self.path.suffix == ".arrow":
            raise ValueError(
                f"{path}: the Arrow format was removed; use .npz, which loads as fast, or .jsonl"
            )
        self.tokenizer_hash = tokenizer_hash
        """Hash of the tokenizer with which the lengths were computed."""
        self._is_npz = self.path.suffix == ".npz"
        # Contents of an `.npz` file until `_entries` is created from them on first use.
        self._ids: Sequence[str] = []
        self._lengths: Int32[np.ndarray, " samples"] = np.zeros(0, np.int32)
        self._entries: dict[str, int] | None = None
        # Entries that are not yet in the file.
        self._pending: dict[str, int] = {}
        # Ids that were in the file when it was opened, and have not been added again since.
        self._repeatable: set[str] = set()
        self._is_open = False
        self._file: IO[bytes] | None = None
        # Releases the lock of the file when the cache is closed.
        self._exit_stack = contextlib.ExitStack()

    @classmethod
    def create(cls, path: str | os.PathLike[str], tokenizer_hash: str) -> "LengthCache":
        """Return a cache for adding entries. Use it as a context manager.

        If the file already exists, entries are appended to it. If another process is adding entries to it,
        entering the context raises `ValueError`.

        Args:
            path: Path of a `.jsonl` or `.npz` file.
            tokenizer_hash: Hash, name or version of the tokenizer with which the lengths are computed.
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
            expected_tokenizer_hash: Raise `ValueError` if the tokenizer hash of the cache is different. If
                None, it is not checked.
            drop_torn_line: Ignore an incomplete last line, which an interrupted writer may leave behind,
                instead of raising `TornLineError`.
        """
        cache = cls(path, expected_tokenizer_hash or "")
        torn = cache._load()
        if torn is not None and not drop_torn_line:
            raise torn
        return cache

    @classmethod
    def load_or_create(cls, path: str | os.PathLike[str], tokenizer_hash: str) -> "LengthCache":
        """Load a cache if its file exists, and otherwise return an empty cache.

        To add entries, use the cache as a context manager.
        """
        cache = cls.create(path, tokenizer_hash)
        if cache.path.exists():
            cache._load()
        return cache

    def __enter__(self) -> "LengthCache":
        if self._is_open:
            raise ValueError(f"{self.path} is already open")
        if not self.path.parent.is_dir():
            raise FileNotFoundError(f"cannot write {self.path}: the folder {self.path.parent} does not exist")
        with contextlib.ExitStack() as stack:
            real = self.path.resolve()  # the same for all links to the file
            stack.enter_context(lock_folder(real.parent, f"{real.name}.lock", subject=self.path))
            stack.callback(self._set_closed)
            torn = None
            self._entries = {}
            if self.path.exists():
                torn = self._load()
            if not self._is_npz:
                self._file = stack.enter_context(self.path.open("a+b", buffering=0))
                self._repair(self._file, torn)
            self._is_open, self._repeatable = True, set(self.ids)
            # Entries that could not be written when the cache was closed before.
            unwritten, self._pending = self._pending, {}
            if unwritten:
                LengthCache.add_many(self, list(unwritten), list(unwritten.values()))
                self._repeatable = set(self.ids)
            self._exit_stack = stack.pop_all()
        return self

    def _set_closed(self) -> None:
        self._is_open, self._file = False, None

    def __exit__(self, *error: Any) -> None:
        # Even after an error: the entries so far are valid and need not be computed again.
        with self._exit_stack:
            if self._file is not None:
                self._flush()
                os.fsync(self._file.fileno())
            elif self._pending or not self.path.exists():
                self._write_npz()
                self._pending = {}

    def add(self, sample_id: str | int, length: int | np.integer) -> None:
        """Add the length of one sample.

        An id that was already in the file when the cache was opened may be added once more with the same
        length, so that an interrupted run can be repeated. Any other repeated id raises `ValueError`.

        If the entry cannot be written, for example because the disk is full, `OSError` is raised. The entry
        is kept in memory and written later, at the latest when the cache is closed, so do not add it again.
        """
        self._require_open()
        key = check_id(sample_id, str(self.path))
        number = _check_length(int(length) if isinstance(length, np.integer) else length, f"sample {key!r}")
        entries = self._by_id()
        if key in entries:
            self._accept_repeats({key: number})
            return
        entries[key] = self._pending[key] = number
        if len(self._pending) >= _MAX_PENDING:
            self._flush()

    def add_many(
        self, sample_ids: Sequence[str | int], lengths: Sequence[int] | Int[np.ndarray, " samples"]
    ) -> None:
        """Add many samples, which is much faster than adding them one by one.

        If any of the samples is invalid, none of them is added. If they cannot be written, they are kept, as
        in `add`.
        """
        self._require_open()
        if len(sample_ids) != len(lengths):
            raise ValueError(f"got {len(sample_ids)} ids but {len(lengths)} lengths")
        keys = [
            name if type(name) is str and name else check_id(name, f"sample {row}")
            for row, name in enumerate(sample_ids)
        ]
        added = dict(zip(keys, LengthTable.from_arrays(None, lengths).lengths.tolist(), strict=True))
        if len(added) != len(keys):
            raise self._repeat_error(Counter(keys).most_common(1)[0][0])
        entries = self._by_id()
        if not entries.keys().isdisjoint(added):
            self._accept_repeats({key: added.pop(key) for key in keys if key in entries})
        entries.update(added)
        self._pending.update(added)
        self._flush()

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
            self._entries = dict(zip(self._ids, self._lengths.tolist(), strict=True))
        return self._entries

    def _require_open(self) -> None:
        if not self._is_open:
            raise ValueError(f"{self.path} is not open for adding; use `with LengthCache.create(...)`")

    def _accept_repeats(self, repeated: dict[str, int]) -> None:
        """Accept repeated entries that were already in the file when it was opened.

        Each entry may be repeated once, with the same length. Any other repetition raises `ValueError`.
        """
        entries = self._by_id()
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
        """Write the pending entries to a `.jsonl` file.

        If this fails, the entries stay pending, and the file keeps its contents.
        """
        if self._file is None:
            return
        ids, lengths = list(self._pending), list(self._pending.values())
        size = self._file.seek(0, os.SEEK_END)
        try:
            for start in range(0, len(ids), _MAX_PENDING):
                end = start + _MAX_PENDING
                view = memoryview(format_lines(ids[start:end], lengths[start:end], self.tokenizer_hash))
                while view:
                    view = view[self._file.write(view) :]
        except BaseException:
            self._file.truncate(size)
            raise
        self._pending = {}

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

    def _load(self) -> TornLineError | None:
        """Read the file. If its last line is incomplete, skip that line and return a `TornLineError`."""
        if not self.path.is_file():
            raise FileNotFoundError(f"there is no length cache {self.path}")
        self._entries = None
        if self._is_npz:
            self._load_npz()
            return None
        entries: dict[str, int] = {}
        torn = None
        try:
            for line, sample_id, tokenizer_hash, length in _parse_file(self.path):
                if tokenizer_hash != self.tokenizer_hash:
                    self._check_tokenizer(tokenizer_hash, f"{self.path}:{line}")
                if sample_id in entries:
                    first = next(n for n, name, _, _ in _parse_file(self.path) if name == sample_id)
                    raise ValueError(
                        f"{self.path}:{line}: sample id {sample_id!r} is already on line {first}"
                    )
                entries[sample_id] = length
        except TornLineError as error:
            torn = error
        self._entries = entries
        return torn

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

    def _load_npz(self) -> None:
        """Read the lengths and the tokenizer hash. The ids are read on first use."""
        path, identity = self.path, _file_identity(self.path)
        with open_npz(path, _REMEDY) as archive:
            header = parse_header(archive, path, "a length cache", _FORMAT, _VERSION)
            lengths = archive["lengths"]
        if lengths.dtype != np.int32 or lengths.ndim != 1 or lengths.min(initial=1) < 1:
            raise CorruptFileError(f"{path} is corrupt: lengths must be positive integers; {_REMEDY}")

        def load_ids() -> list[str]:
            if _file_identity(path) != identity:
                raise ValueError(f"{path} was changed after its lengths were loaded; load it again")
            with open_npz(path, _REMEDY) as archive:
                ends = np.cumsum(archive["id_sizes"], dtype=np.int64).tolist()
                data = archive["id_bytes"].tobytes()
            if len(ends) != len(lengths) or max(ends, default=0) != len(data):
                raise CorruptFileError(f"{path} is corrupt: ids and lengths do not match; {_REMEDY}")
            bounds = itertools.pairwise([0, *ends])
            if data.isascii():
                text = data.decode()
                return [text[a:b] for a, b in bounds]
            return [data[a:b].decode() for a, b in bounds]

        self._check_tokenizer(str(header["tokenizer_hash"]), str(path))
        lengths.flags.writeable = False
        self._ids, self._lengths = LazyFileIds(len(lengths), load_ids), lengths


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


def _parse_file(path: Path) -> Iterator[tuple[int, str, str, int]]:
    """Iterate over the entries of a `.jsonl` file.

    Yields the line number (counted from 1), sample id, tokenizer hash and length of each entry. Raises
    `TornLineError` if the last line is incomplete.
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
                yield from _parse_lines(path, line, rest)
            except NotJsonError as error:
                # An incomplete line is not valid JSON, but a complete one can lack its line end.
                raise TornLineError(path, line, offset) from error


def _parse_lines(path: Path, first_line: int, data: bytes) -> Iterator[tuple[int, str, str, int]]:
    try:
        texts = data.decode().split("\n")
    except UnicodeDecodeError as error:
        line = first_line + data.count(b"\n", 0, error.start)
        raise NotJsonError(f"{path}:{line}: not valid UTF-8: {error.reason}") from error
    lines: Sequence[int] = range(first_line, first_line + len(texts))
    # One call for all lines is several times as fast as one per line. A line with several values, or a value
    # over several lines, changes the count, and then lines are parsed one by one.
    try:
        entries = json.loads(f"[{','.join(texts)}]")
        parsed = len(entries) == len(texts) and not any("}" in text[:-1] for text in texts)
    except (ValueError, RecursionError):
        parsed = False
    if not parsed:
        lines = [line for line, text in zip(lines, texts, strict=True) if text.strip()]
        entries = []
        for line in lines:
            try:
                entries.append(json.loads(texts[line - first_line]))
            except (ValueError, RecursionError) as error:
                raise NotJsonError(f"{path}:{line}: not a JSON object: {error}") from error
    get_fields = operator.itemgetter(*_FIELDS)
    for line, entry in zip(lines, entries, strict=True):
        try:
            sample_id, tokenizer_hash, length = get_fields(entry)
        except (TypeError, KeyError):
            raise ValueError(
                f"{path}:{line}: expected an object with {', '.join(_FIELDS)}, got {entry!r:.80}"
            ) from None
        if type(sample_id) is not str or not sample_id:
            sample_id = check_id(sample_id, f"{path}:{line}")
        if type(length) is not int or not 0 < length <= MAX_LENGTH:
            _check_length(length, f"{path}:{line}")
        if type(tokenizer_hash) is not str:
            raise ValueError(f"{path}:{line}: tokenizer_hash must be a string, got {tokenizer_hash!r}")
        yield line, sample_id, tokenizer_hash, length


def _file_identity(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns

"""Length entries in files: JSON lines, formatted and parsed in bulk, and their binary twins, NPZ and Arrow.

The cache that owns such a file is in `cache`. Errors name the file and, where it has lines, the line.
"""

import itertools
import json
import mmap
import re
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int32

from phalanx.data.lengths import MAX_LENGTH, LazyIds
from phalanx.io.atomic import atomic_write
from phalanx.io.checksum import CHECKSUM_FIELD, CHECKSUM_PLACEHOLDER, CorruptFileError, open_verified
from phalanx.io.untrusted import parse_json

# Small enough to stay in a processor's cache while it is taken apart.
_BLOCK_BYTES = 1 << 18
_FIELDS = ("sample_id", "tokenizer_hash", "length")

# One line as `format_entries` writes it, or with a space after `,` and `:`, or with an integer id.
_LAYOUT = re.compile(
    r'(\{"sample_id": ?)("?)([^"\\\n]*?)\2(, ?"tokenizer_hash": ?"([^"\\\n]*)", ?"length": ?)(\d+)\}\n'
)
_END = "}\n"
_SAFE_DIGITS = 9


class Block(NamedTuple):
    """Some consecutive entries of a file."""

    ids: list[str]
    lengths: Int32[np.ndarray, " entries"]
    lines: Sequence[int]
    """The line of each entry, counted from 1."""
    tokenizer_hash: str


class TornLineError(ValueError):
    """The last line was cut off in the middle: its writer was interrupted."""

    def __init__(self, path: Path, line: int, offset: int) -> None:
        super().__init__(
            f"{path}:{line}: the last line is cut off (its writer was interrupted); open the file with "
            f"LengthCache.create to repair it and go on, or load it with drop_torn_line=True"
        )
        self.line = line
        self.offset = offset
        """How many bytes of whole lines come before it."""


def entry_id(value: object, where: str) -> str:
    """A sample id as text: integers are ids too, 0 among them.

    >>> entry_id(0, "here")
    '0'
    """
    if isinstance(value, str) and value:
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(int(value))
    raise ValueError(f"{where}: sample id must be a text that is not empty or an integer, got {value!r}")


def entry_length(value: object, where: str) -> int:
    """A length as an integer from 1 to `MAX_LENGTH`."""
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_LENGTH:
        return int(value)
    bound = f" up to {MAX_LENGTH}" if isinstance(value, int) and value > MAX_LENGTH else ""
    raise ValueError(f"{where}: length must be a positive integer{bound}, got {value!r}")


def format_entries(ids: Sequence[str], lengths: Sequence[int], tokenizer_hash: str) -> bytes:
    """The entries as lines.

    >>> format_entries(["a"], [3], "bytes")
    b'{"sample_id":"a","tokenizer_hash":"bytes","length":3}\\n'
    """
    joined = "".join(ids)
    plain = joined.isprintable() and '"' not in joined and "\\" not in joined
    quote = '"' if plain else ""
    texts = ids if plain else [json.dumps(text) for text in ids]
    head = f'{{"sample_id":{quote}'
    middle = f'{quote},"tokenizer_hash":{json.dumps(tokenizer_hash)},"length":'
    return "".join(
        [f"{head}{text}{middle}{n}{_END}" for text, n in zip(texts, lengths, strict=True)]
    ).encode()


def parse_blocks(path: Path) -> Iterator[Block]:
    """The entries of a file, some megabytes at a time; a cut-off last line raises `TornLineError`."""
    with path.open("rb") as file:
        rest, line, offset = b"", 1, 0
        while data := file.read(_BLOCK_BYTES):
            whole, newline, rest = (rest + data).rpartition(b"\n")
            if newline:
                blocks, lines = _parse(path, line, whole + newline)
                line += lines
                offset += len(whole) + 1
                yield from blocks
        if rest:
            try:
                blocks, _ = _parse(path, line, rest + b"\n")
            except ValueError as error:
                # A line that was cut off cannot be valid JSON, but one without its line end can be whole.
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


def _parse(path: Path, first_line: int, data: bytes) -> tuple[list[Block], int]:
    """The entries of whole lines, and how many lines those are."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = first_line + data.count(b"\n", 0, error.start)
        raise ValueError(f"{path}:{line}: not UTF-8 text: {error.reason}") from error
    block = _parse_uniform(data, text, first_line)
    return ([block] if block else _parse_each(path, text, first_line)), text.count("\n")


def _parse_uniform(data: bytes, text: str, first_line: int) -> Block | None:
    """All lines at once where they are alike but for id and length; None where that is not certain."""
    layout = _LAYOUT.match(text)
    if layout is None or not text.endswith(_END) or not text.isascii():
        return None
    opening, quote, _, middle, tokenizer_hash, _ = layout.groups()
    head, middle = opening + quote, quote + middle
    signs = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(signs < ord(" "))
    # Line ends are the only control characters; a length is not zero and has no leading zeros.
    if (signs[ends] != ord("\n")).any() or middle + "0" in text:
        return None
    parts = text[len(head) : -len(_END)].replace(_END + head, middle).split(middle)
    if len(parts) != 2 * len(ends):
        return None
    # Each line's size must add up, or one line has what another lacks.
    sizes = np.fromiter(map(len, parts), np.int64, len(parts)).reshape(-1, 2)
    fixed = len(head) + len(middle) + len(_END)
    if not sizes.all() or (sizes.sum(1) + fixed != np.diff(ends, prepend=-1)).any():
        return None
    ids, digits = parts[0::2], parts[1::2]
    joined = "".join(ids)
    if '"' in joined or "\\" in joined or (not quote and not _are_integers(ids)):
        return None
    if not "".join(digits).isdigit() or sizes[:, 1].max() > _SAFE_DIGITS:
        return None
    lengths = np.fromstring(" ".join(digits), np.int32, sep=" ")
    return Block(ids, lengths, range(first_line, first_line + len(ends)), tokenizer_hash)


def _are_integers(ids: list[str]) -> bool:
    try:
        return list(map(str, map(int, ids))) == ids
    except ValueError:
        return False


def _parse_each(path: Path, text: str, first_line: int) -> list[Block]:
    """Line by line, for whatever layout JSON allows; a new block where the tokenizer changes."""
    entries = [
        (number, *_parse_line(line, f"{path}:{number}"))
        for number, line in enumerate(text.split("\n")[:-1], first_line)
        if line.strip()
    ]
    blocks = []
    for key, run in itertools.groupby(entries, lambda entry: entry[2]):
        lines, ids, _, lengths = zip(*run, strict=True)
        blocks.append(Block(list(ids), np.array(lengths, np.int32), lines, key))
    return blocks


def _parse_line(line: str, where: str) -> tuple[str, str, int]:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: not a JSON object: {error}") from error
    if not isinstance(entry, dict) or not all(field in entry for field in _FIELDS):
        raise ValueError(f"{where}: expected an object with {', '.join(_FIELDS)}, got {line[:80]}")
    if not isinstance(entry["tokenizer_hash"], str):
        raise ValueError(f"{where}: tokenizer_hash must be a text, got {entry['tokenizer_hash']!r}")
    return (
        entry_id(entry["sample_id"], where),
        entry["tokenizer_hash"],
        entry_length(entry["length"], where),
    )


_FORMAT = "phalanx.lengths"
_VERSION = 1
BINARY_SUFFIXES = (".npz", ".arrow")
_REMEDY = "build it again"


def write_arrays(
    path: Path, ids: Sequence[str], lengths: Int32[np.ndarray, " samples"], tokenizer_hash: str
) -> None:
    """Write a whole binary cache, in place of an older one; `.arrow` or `.npz` by suffix."""
    header = {"format": _FORMAT, "version": _VERSION, "tokenizer_hash": tokenizer_hash}
    with atomic_write(path, checksum=True) as file:
        if path.suffix == ".arrow":
            pa = require_pyarrow(f"write {path}")
            schema = pa.schema(
                [("sample_id", pa.large_string()), ("length", pa.int32())],
                metadata={_FORMAT: json.dumps({**header, CHECKSUM_FIELD: CHECKSUM_PLACEHOLDER})},
            )
            table = pa.table([pa.array(ids, pa.large_string()), pa.array(lengths)], schema=schema)
            with pa.ipc.new_file(file, schema) as writer:
                writer.write_table(table)
        else:
            encoded = [text.encode() for text in ids]
            np.savez(
                file,
                header=np.frombuffer(json.dumps(header).encode(), np.uint8),
                lengths=lengths,
                id_sizes=np.fromiter(map(len, encoded), np.int32, len(encoded)),
                id_bytes=np.frombuffer(b"".join(encoded), np.uint8),
            )


def read_arrays(path: Path) -> tuple[LazyIds, Int32[np.ndarray, " samples"], str]:
    """(ids, lengths, tokenizer hash) of a binary cache; the ids are read when they are asked for."""
    return _read_arrow(path) if path.suffix == ".arrow" else _read_npz(path)


def require_pyarrow(purpose: str) -> Any:
    """The pyarrow module, or an error that says how to get it."""
    try:
        import pyarrow.ipc
    except ImportError as error:
        raise ImportError(f"to {purpose}, install pyarrow: pip install 'phalanx[data]'") from error
    return pyarrow


def _read_npz(path: Path) -> tuple[LazyIds, Int32[np.ndarray, " samples"], str]:
    seen = _identity(path)
    parts = _npz_members(path, "header", "lengths")
    tokenizer_hash = _tokenizer_hash(path, parts["header"].tobytes())
    lengths = parts["lengths"]
    if lengths.dtype != np.int32 or lengths.ndim != 1 or (len(lengths) and lengths.min() < 1):
        raise _damaged(path, f"its lengths are {lengths.dtype} of shape {lengths.shape}, or not positive")

    def read_ids() -> list[str]:
        if _identity(path) != seen:
            raise ValueError(f"{path} was changed after its lengths were loaded; load it again")
        parts = _npz_members(path, "id_sizes", "id_bytes")
        ends = np.cumsum(parts["id_sizes"], dtype=np.int64)
        data = parts["id_bytes"].tobytes()
        if len(ends) != len(lengths) or (ends[-1] if len(ends) else 0) != len(data):
            raise _damaged(path, f"{len(ends)} ids of {len(data)} bytes for {len(lengths)} lengths")
        bounds = [0, *ends.tolist()]
        if data.isascii():
            text = data.decode()
            return [text[a:b] for a, b in itertools.pairwise(bounds)]
        return [data[a:b].decode() for a, b in itertools.pairwise(bounds)]

    lengths.flags.writeable = False
    return LazyIds(len(lengths), read_ids), lengths, tokenizer_hash


def _npz_members(path: Path, *names: str) -> dict[str, np.ndarray]:
    try:
        # Opened here, because np.load leaves a file open that it cannot read.
        with open_verified(path, _REMEDY) as file, np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in names}
    except CorruptFileError:
        raise
    # np.load takes what is no archive for a pickle, and refuses it with a ValueError.
    except (zipfile.BadZipFile, KeyError, ValueError, EOFError) as error:
        raise _damaged(path, str(error)) from error


def _read_arrow(path: Path) -> tuple[LazyIds, Int32[np.ndarray, " samples"], str]:
    pa = require_pyarrow(f"read {path}")
    with open_verified(path, _REMEDY) as file:
        # The mapping stays valid while the table lives, also when the file is replaced.
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    try:
        table = pa.ipc.open_file(pa.py_buffer(mapped)).read_all()
        header = (table.schema.metadata or {})[_FORMAT.encode()]
        lengths, ids = table.column("length"), table.column("sample_id")
    except (pa.ArrowInvalid, KeyError) as error:
        raise _damaged(path, str(error)) from error
    array = lengths.chunk(0).to_numpy() if lengths.num_chunks == 1 else lengths.to_numpy()
    if array.dtype != np.int32:
        raise _damaged(path, f"its lengths are {array.dtype}")
    return LazyIds(len(array), ids.to_pylist), array, _tokenizer_hash(path, header)


def _tokenizer_hash(path: Path, header: bytes) -> str:
    values = parse_json(header, path)
    if not isinstance(values, dict) or values.get("format") != _FORMAT:
        raise _damaged(path, f"its header does not say {_FORMAT}")
    if values.get("version") != _VERSION:
        raise ValueError(f"{path}: version {values.get('version')} of the format; this reads {_VERSION}")
    return str(values["tokenizer_hash"])


def _identity(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


def _damaged(path: Path, reason: str) -> CorruptFileError:
    return CorruptFileError(f"{path}: not a whole length cache ({reason}); {_REMEDY}")

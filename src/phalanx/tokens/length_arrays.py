"""Length entries as arrays in binary files, NPZ or Arrow: a million are read in milliseconds.

The line format, which people can read and which is appended to, is in `length_lines`.
"""

import itertools
import json
import os
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int32

from phalanx.tokens.lengths import LazyIds

_FORMAT = "phalanx.lengths"
_VERSION = 1
BINARY_SUFFIXES = (".npz", ".arrow")


def write_arrays(
    path: Path, ids: Sequence[str], lengths: Int32[np.ndarray, " samples"], tokenizer_hash: str
) -> None:
    """Write a whole binary cache, in place of an older one; `.arrow` or `.npz` by suffix."""
    # Importing phalanx.core imports JAX, which takes longer than most of what is done here.
    from phalanx.core.files import atomic_write

    header = {"format": _FORMAT, "version": _VERSION, "tokenizer_hash": tokenizer_hash}
    with atomic_write(path) as file:
        if path.suffix == ".arrow":
            pa = require_pyarrow(f"write {path}")
            schema = pa.schema(
                [("sample_id", pa.large_string()), ("length", pa.int32())],
                metadata={_FORMAT: json.dumps(header)},
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
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in names}
    # np.load takes what is no archive for a pickle, and refuses it with a ValueError.
    except (zipfile.BadZipFile, KeyError, ValueError, EOFError) as error:
        raise _damaged(path, str(error)) from error


def _read_arrow(path: Path) -> tuple[LazyIds, Int32[np.ndarray, " samples"], str]:
    pa = require_pyarrow(f"read {path}")
    try:
        # The mapping stays valid while the table lives, also when the file is replaced.
        table = pa.ipc.open_file(pa.memory_map(os.fspath(path))).read_all()
        header = (table.schema.metadata or {})[_FORMAT.encode()]
        lengths, ids = table.column("length"), table.column("sample_id")
    except (pa.ArrowInvalid, KeyError) as error:
        raise _damaged(path, str(error)) from error
    array = lengths.chunk(0).to_numpy() if lengths.num_chunks == 1 else lengths.to_numpy()
    if array.dtype != np.int32:
        raise _damaged(path, f"its lengths are {array.dtype}")
    return LazyIds(len(array), ids.to_pylist), array, _tokenizer_hash(path, header)


def _tokenizer_hash(path: Path, header: bytes) -> str:
    try:
        values = json.loads(header)
    except ValueError as error:
        raise _damaged(path, "its header is not JSON") from error
    if not isinstance(values, dict) or values.get("format") != _FORMAT:
        raise _damaged(path, f"its header does not say {_FORMAT}")
    if values.get("version") != _VERSION:
        raise ValueError(f"{path}: version {values.get('version')} of the format; this reads {_VERSION}")
    return str(values["tokenizer_hash"])


def _identity(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


def _damaged(path: Path, reason: str) -> ValueError:
    return ValueError(f"{path}: not a whole length cache ({reason}); build it again")

"""NPZ files with a checksum and an optional JSON header."""

import contextlib
import json
import os
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from phalanx.io.atomic import atomic_write
from phalanx.io.checksum import CorruptFileError, open_verified
from phalanx.io.untrusted import parse_json


def write_npz(
    path: str | os.PathLike[str], arrays: Mapping[str, np.ndarray], header: Mapping[str, Any] | None = None
) -> None:
    """Write arrays to a file atomically. The header, which must be JSON-compatible, is stored as an array."""
    members = dict(arrays)
    if header is not None:
        members["header"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
    with atomic_write(path, checksum=True) as file:
        np.savez(file, allow_pickle=False, **members)


@contextlib.contextmanager
def open_npz(
    path: str | os.PathLike[str], hint: str = "write it again"
) -> Iterator[Mapping[str, np.ndarray]]:
    """Open a file in a context manager, as a mapping from names to arrays, after verifying its checksum.

    Arrays are read on access.

    Args:
        path: Path of the file.
        hint: Advice that is included in the error message if the file is corrupt.

    Raises:
        CorruptFileError: If the checksum does not match or the file is not a valid archive. A `KeyError`,
            `ValueError` or `EOFError` in the `with` block, for example because an array is missing, is also
            raised as `CorruptFileError`.
    """
    try:
        # Opened here, because np.load does not close a file that it cannot read.
        with open_verified(path, hint) as file, np.load(file, allow_pickle=False) as archive:
            yield archive
    except CorruptFileError:
        raise
    # np.load mistakes a file that is not an archive for a pickle, and rejects it with a ValueError.
    except (zipfile.BadZipFile, KeyError, ValueError, EOFError) as error:
        raise CorruptFileError(f"{path} is corrupt ({error}); {hint}") from error


def parse_header(
    archive: Mapping[str, np.ndarray], path: str | os.PathLike[str], kind: str, name: str, version: int
) -> dict[str, Any]:
    """Read the header of an open file, and check its `format` and `version` fields.

    Args:
        archive: Open file.
        path: Path of the file, for error messages.
        kind: Expected kind of file, such as `a sample file`. Used in error messages.
        name: Expected value of `format`.
        version: Expected value of `version`.
    """
    header = parse_json(archive["header"].tobytes(), path)
    if not isinstance(header, dict) or header.get("format") != name:
        raise CorruptFileError(f"{path} is not {kind}, or is from an earlier version")
    if header.get("version") != version:
        raise CorruptFileError(
            f"{path} has version {header.get('version')}, but this release reads version {version}"
        )
    return header

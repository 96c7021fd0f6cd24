"""Files with an embedded SHA-256 checksum.

The checksum is stored near the end of the file itself, as `phalanx-sha256:` and 64 hexadecimal digits. The
digits are treated as zeros when the digest is computed.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from phalanx.io.untrusted import parse_json

_MARKER = b"phalanx-sha256:"
_DIGITS = 64
_TAIL_BYTES = 1 << 16
_CHUNK_BYTES = 1 << 20
CHECKSUM_PLACEHOLDER = _MARKER.decode() + "0" * _DIGITS
"""Text that a writer may put near the end of a file to reserve space for the checksum. `add_checksum`
replaces the zeros in this text with the digits of the checksum."""
CHECKSUM_FIELD = "sha256"
"""Name of the field that holds the checksum in a JSON file. It is the last field of the object."""


class CorruptFileError(ValueError):
    """Raised if a file's checksum is missing or does not match its content."""


def add_checksum(file: IO[bytes]) -> None:
    """Add a checksum to a file that is open for reading and writing.

    If the file contains `CHECKSUM_PLACEHOLDER`, the digits of the checksum replace the placeholder's zeros.
    Otherwise, the checksum is appended to the file. In a ZIP archive, the checksum becomes the archive's
    comment, so that other programs can still read the archive.
    """
    size = file.seek(0, os.SEEK_END)
    start = max(size - _TAIL_BYTES, 0)
    file.seek(0)
    is_zip = file.read(4) == b"PK\3\4"
    file.seek(start)
    offset = -1 if is_zip else file.read().rfind(CHECKSUM_PLACEHOLDER.encode())
    if offset < 0:
        if is_zip:  # the last two bytes of an archive are the length of its comment
            file.seek(size - 2)
            file.write(len(CHECKSUM_PLACEHOLDER).to_bytes(2, "little"))
        file.seek(size)
        file.write(CHECKSUM_PLACEHOLDER.encode())
        offset, start = size, 0
    digits_start = start + offset + len(_MARKER)
    digest = _digest_without_digits(file, digits_start)
    file.seek(digits_start)
    file.write(digest.encode())


@contextlib.contextmanager
def open_verified(path: str | os.PathLike[str], hint: str = "write it again") -> Iterator[IO[bytes]]:
    """Verify the checksum of a file and open the file for reading.

    This is a context manager that yields the open binary file.

    Args:
        path: Path of the file.
        hint: Advice on what to do if the file is corrupt, for the error message.

    Raises:
        CorruptFileError: If the checksum is missing or does not match.
    """
    with Path(path).open("rb") as file:
        try:
            _verify(file, path, hint)
        except OSError as error:
            # The operating system does not name the file in read errors.
            raise OSError(error.errno, error.strerror, os.fspath(path)) from error
        file.seek(0)
        yield file


def read_verified(path: str | os.PathLike[str], hint: str = "write it again") -> bytes:
    """Verify the checksum of a file and return the file's bytes, including the checksum."""
    with open_verified(path, hint) as file:
        return file.read()


def write_json(file: IO[str], record: Mapping[str, Any], **style: Any) -> None:
    """Write a JSON object with a placeholder for the checksum, which `atomic_write(checksum=True)` fills in.

    Args:
        file: Open text file.
        record: Object to write.
        style: Keyword arguments of `json.dump`.
    """
    json.dump({**record, CHECKSUM_FIELD: CHECKSUM_PLACEHOLDER}, file, **style)
    file.write("\n")


def read_verified_json(path: str | os.PathLike[str], hint: str = "write it again") -> dict[str, Any]:
    """Read a JSON file, verify its checksum, and return its contents without the checksum field.

    `hint` is advice on what to do if the file is corrupt, for the error message.
    """
    record = parse_json(read_verified(path, hint), path)
    if not isinstance(record, dict) or CHECKSUM_FIELD not in record:
        raise CorruptFileError(f"{path} is not a JSON object with a field {CHECKSUM_FIELD!r}; {hint}")
    del record[CHECKSUM_FIELD]
    return record


def sha256_of_files(folder: Path, exclude: Collection[str] = ()) -> dict[str, str]:
    """Return a mapping from the relative path of each file in a folder to the file's SHA-256 in hexadecimal.

    Files in subfolders are included. `exclude` contains file names without folders; files with these names
    are left out, also in subfolders.
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in exclude)
    return {path.relative_to(folder).as_posix(): _sha256(path) for path in files}


def verify_sha256(path: Path, digest: str, hint: str = "write it again") -> None:
    """Raise `FileNotFoundError` if a file is missing, or `CorruptFileError` if its SHA-256 is not `digest`.

    `hint` is advice on what to do, for the error message.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing; {hint}")
    if _sha256(path) != digest:
        raise CorruptFileError(f"{path} is corrupt: its SHA-256 does not match; {hint}")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        try:
            return hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise OSError(error.errno, error.strerror, os.fspath(path)) from error


def _verify(file: IO[bytes], path: str | os.PathLike[str], hint: str) -> None:
    size = file.seek(0, os.SEEK_END)
    start = max(size - _TAIL_BYTES, 0)
    file.seek(start)
    tail = file.read()
    offset = tail.rfind(_MARKER)
    stored = tail[offset + len(_MARKER) :][:_DIGITS]
    if offset < 0 or len(stored) < _DIGITS:
        raise CorruptFileError(
            f"{path} is corrupt or was written by an older version of Phalanx: it has no checksum; {hint}"
        )
    if _digest_without_digits(file, start + offset + len(_MARKER)).encode() != stored:
        raise CorruptFileError(f"{path} is corrupt: its content does not match its checksum; {hint}")


def _digest_without_digits(file: IO[bytes], digits_start: int) -> str:
    """Compute the SHA-256 of a file with zeros in place of the checksum's digits."""
    sha = hashlib.sha256()
    file.seek(0)
    remaining = digits_start
    while remaining and (chunk := file.read(min(remaining, _CHUNK_BYTES))):
        sha.update(chunk)
        remaining -= len(chunk)
    sha.update(b"0" * _DIGITS)
    file.seek(digits_start + _DIGITS)
    while chunk := file.read(_CHUNK_BYTES):
        sha.update(chunk)
    return sha.hexdigest()

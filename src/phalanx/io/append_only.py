"""Append-only text files, such as JSON Lines, with rotation and compression."""

import gzip
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from phalanx.io.atomic import atomic_write
from phalanx.io.untrusted import reject_symlink

_CHUNK_BYTES = 1 << 16
_MAX_LINE_BYTES = 1 << 26


class AppendOnlyFile:
    """A file to which lines are appended, each with a single system call.

    Opening the file removes an incomplete last line that a killed process left behind. If the disk is full,
    an incomplete line is removed immediately. Symbolic links are not followed. Only one process may write to
    a file at a time.

    Args:
        path: Path of the file.
        rotate_bytes: Maximum size of the file in bytes. If the next line would make the file larger, the file
            is renamed to `name.0001.jsonl`, `name.0002.jsonl`, ..., and the line starts a new file. If None,
            files are not rotated.
        compress: Compress rotated files with gzip (`name.0001.jsonl.gz`).
    """

    def __init__(
        self, path: str | os.PathLike[str], *, rotate_bytes: int | None = None, compress: bool = False
    ) -> None:
        if rotate_bytes is not None and rotate_bytes <= 0:
            raise ValueError(f"rotate_bytes must be positive, got {rotate_bytes}")
        self.path = Path(path)
        self._rotate_bytes = rotate_bytes
        self._compress = compress
        if compress:
            # A killed process may have left rotated files uncompressed.
            for file in _rotated_files(self.path).values():
                if file.suffix != ".gz":
                    _compress(file)
        self._closed = False
        self._descriptor: int | None = self._open()

    def write_line(self, line: str) -> None:
        """Append a line. If it cannot be written, `OSError` is raised and no part of it stays in the file.

        If the file is rotated, the old file is compressed after the line has been written to the new file, so
        an error during compression loses no data.
        """
        if self._closed:
            raise ValueError(f"{self.path} is closed")
        data, rotated = line.encode() + b"\n", None
        if self._rotate_bytes is not None and self.path.exists():
            size = self.path.stat().st_size
            if size and size + len(data) > self._rotate_bytes:
                rotated = self._rotate()
        self._append(data)
        if rotated is not None and self._compress:
            _compress(rotated)

    def close(self) -> None:
        """Close the file. Closing it again has no effect."""
        self._closed = True
        self._close_descriptor()

    def _close_descriptor(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _append(self, data: bytes) -> None:
        if self._descriptor is None:
            self._descriptor = self._open()
        size = os.fstat(self._descriptor).st_size
        try:
            written = os.write(self._descriptor, data)
        except OSError as error:
            raise OSError(error.errno, f"cannot write to {self.path}: {error.strerror}") from error
        if written != len(data):
            os.ftruncate(self._descriptor, size)
            raise OSError(f"cannot write to {self.path}: only {written} of {len(data)} bytes fit on the disk")

    def _open(self) -> int:
        reject_symlink(self.path)
        descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        end = _end_of_last_line(descriptor)
        if end < os.fstat(descriptor).st_size:
            os.ftruncate(descriptor, end)
        return descriptor

    def _rotate(self) -> Path:
        self._close_descriptor()
        number = max(_rotated_files(self.path), default=0) + 1
        return self.path.rename(self.path.with_name(f"{self.path.stem}.{number:04d}{self.path.suffix}"))


def iter_lines(path: str | os.PathLike[str]) -> Iterator[str]:
    """Yield the complete lines of a file, including those of its rotated files, in order.

    The file may be untrusted: symbolic links, devices and lines of more than 64 MiB raise `ValueError`.
    """
    current = Path(path)
    rotated = _rotated_files(current)
    files = [file for _, file in sorted(rotated.items())]
    # Between a rotation and the next line, there is no current file.
    for file_path in [*files, current] if current.exists() or not rotated else files:
        if file_path.is_symlink():
            raise ValueError(f"{file_path.name} is a symbolic link, which is not followed")
        if file_path.exists() and not file_path.is_file():  # reading from a pipe would block
            raise ValueError(f"{file_path.name} is not a regular file")
        with gzip.open(file_path) if file_path.suffix == ".gz" else file_path.open("rb") as file:
            while line := file.readline(_MAX_LINE_BYTES):
                if not line.endswith(b"\n") and len(line) == _MAX_LINE_BYTES:
                    raise ValueError(f"{file_path.name} has a line of more than {_MAX_LINE_BYTES:,} bytes")
                if file_path != current or line.endswith(b"\n"):
                    yield line.removesuffix(b"\n").decode()


def read_records(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """Yield the objects in a JSON Lines file, including those in its rotated files, in order."""
    for number, line in enumerate(iter_lines(path), 1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}: record {number} is not valid JSON: {error}") from error
        if not isinstance(record, dict):
            raise ValueError(f"{path}: record {number} must be an object, got {line[:60]}")
        yield record


def _end_of_last_line(descriptor: int) -> int:
    """Return the byte offset of the end of the last complete line."""
    end = os.fstat(descriptor).st_size
    while end > 0:
        start = max(0, end - _CHUNK_BYTES)
        found = os.pread(descriptor, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def _rotated_files(path: Path) -> dict[int, Path]:
    """Return a dictionary from the number of each rotated file to its path.

    If a file exists both with and without compression, the path is that of the uncompressed file.
    """
    name = re.compile(rf"{re.escape(path.stem)}\.(\d+){re.escape(path.suffix)}(\.gz)?")
    found: dict[int, Path] = {}
    for other in path.parent.iterdir():
        match = name.fullmatch(other.name)
        if match and (not match[2] or int(match[1]) not in found):
            found[int(match[1])] = other
    return found


def _compress(path: Path) -> None:
    reject_symlink(path)
    with atomic_write(path.with_name(f"{path.name}.gz")) as file:
        # No timestamp, so that equal lines give equal files.
        file.write(gzip.compress(path.read_bytes(), mtime=0))
    path.unlink()

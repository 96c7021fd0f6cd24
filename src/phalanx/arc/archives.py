"""Zip and tar archives from strangers: unpacked only if every member stays inside and is a plain file.

What the files mean is not looked at here; that is `download`'s part.
"""

import contextlib
import gzip
import lzma
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, Protocol, runtime_checkable

MAX_BYTES = 1 << 30
"""More than this, unpacked or fetched, is not a collection of ARC tasks but a mistake or a trap."""

MAX_MEMBERS = 200_000

_DAMAGE = (
    zipfile.BadZipFile,
    tarfile.TarError,
    gzip.BadGzipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    NotImplementedError,  # a compression that zipfile does not know
)


@runtime_checkable
class _Readable(Protocol):
    """A member that is being read; zip and tar have their own kinds of file."""

    def read(self, size: int, /) -> bytes: ...


def is_archive(path: Path) -> bool:
    """Whether the file is a zip or a (compressed) tar archive, by its contents."""
    return zipfile.is_zipfile(path) or tarfile.is_tarfile(path)


def unpack(archive: Path, folder: Path, shown: str) -> None:
    """Unpacks a zip or tar archive into an existing, empty folder; errors begin with `shown`.

    Refused with a ValueError: names that are absolute or climb out (`..`), links and devices, encrypted
    or repeated members, damaged archives, and more than a gigabyte.
    """
    with _damage_named(shown):
        members = (
            _zip_members(archive, shown) if zipfile.is_zipfile(archive) else _tar_members(archive, shown)
        )
        left = MAX_BYTES
        for count, (name, file) in enumerate(members, start=1):
            if count > MAX_MEMBERS:
                raise ValueError(f"{shown}: more than {MAX_MEMBERS} files")
            target = folder / _safe_path(shown, name)
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.exists():
                raise ValueError(f"{shown}: {name!r} is in it twice")
            with target.open("xb") as out:
                left -= _copy(file, out, left)
            if left < 0:
                raise ValueError(f"{shown}: more than {MAX_BYTES >> 20} MiB when unpacked")


def _zip_members(archive: Path, shown: str) -> Iterator[tuple[str, _Readable]]:
    with zipfile.ZipFile(archive) as opened:
        for info in opened.infolist():
            _safe_path(shown, info.filename)
            kind = stat.S_IFMT(info.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise ValueError(f"{shown}: {info.filename!r} is a link or a device, not a file")
            if info.flag_bits & 1:
                raise ValueError(f"{shown}: {info.filename!r} is encrypted")
            if not info.is_dir():
                with opened.open(info) as file:
                    yield info.filename, file


def _tar_members(archive: Path, shown: str) -> Iterator[tuple[str, _Readable]]:
    with tarfile.open(archive) as opened:
        for info in opened:
            _safe_path(shown, info.name)
            if info.isdir():
                continue
            file = opened.extractfile(info) if info.isfile() else None
            if file is None:
                raise ValueError(f"{shown}: {info.name!r} is a link or a device, not a file")
            with file:
                yield info.name, file


def _safe_path(shown: str, name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    windows = PureWindowsPath(name)
    if path.is_absolute() or windows.drive or "\\" in name or "\0" in name or ".." in path.parts:
        raise ValueError(f"{shown}: {name!r} would be written outside of its folder")
    return path


def _copy(file: _Readable, out: IO[bytes], limit: int) -> int:
    """Copies at most a little more than `limit` bytes; how many."""
    done = 0
    while done <= limit and (chunk := file.read(1 << 20)):
        out.write(chunk)
        done += len(chunk)
    return done


@contextlib.contextmanager
def _damage_named(shown: str) -> Iterator[None]:
    try:
        yield
    except _DAMAGE as error:
        raise ValueError(f"{shown}: the archive is damaged: {error}") from error

"""Extraction of untrusted ZIP and tar archives, with checks on the names, number and total size of files."""

import contextlib
import errno
import gzip
import lzma
import os
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO

MAX_BYTES = 1 << 30
"""Maximum total size of the extracted files in bytes."""
MAX_MEMBERS = 200_000
"""Maximum number of files in an archive."""
ARCHIVE_SUFFIXES = (".tar.gz", ".tar.bz2", ".tar.xz", ".tgz", ".zip", ".tar")

_CORRUPTION_ERRORS = (
    zipfile.BadZipFile,
    tarfile.TarError,
    gzip.BadGzipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    NotImplementedError,  # a compression method that zipfile does not know
    IndexError,  # raised by zipfile for truncated fields and impossible sizes
    struct.error,
    OverflowError,
)
_ZIP_END = struct.Struct("<4s4H2LH")
_ZIP64_MEMBER_COUNT = 0xFFFF
"""Sentinel value of the 16-bit member count in a ZIP archive's end record. It means that the actual count is
stored in a separate ZIP64 record."""
_MAX_TAR_NAME_BYTES = 1 << 16
"""Maximum size in bytes of a long name, long link target or set of extended attributes in a tar archive.
`tarfile` reads each of these into memory as a whole."""


class _LimitedTarInfo(tarfile.TarInfo):
    """A `TarInfo` that rejects very long names and attributes before they are read into memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "_LimitedTarInfo":
        found = super().frombuf(buf, encoding, errors)
        if found.size > _MAX_TAR_NAME_BYTES and found.type in (
            tarfile.GNUTYPE_LONGNAME,
            tarfile.GNUTYPE_LONGLINK,
            tarfile.XHDTYPE,
            tarfile.XGLTYPE,
            tarfile.SOLARIS_XHDTYPE,
        ):
            raise ValueError(f"the name or attributes of a member have {found.size:,} bytes")
        return found


def is_archive(path: Path) -> bool:
    """Return whether a file is a ZIP or tar archive. Only the content is checked, and the name is ignored."""
    if zipfile.is_zipfile(path):
        return True
    try:
        with tarfile.open(path, tarinfo=_LimitedTarInfo):
            return True
    except _CORRUPTION_ERRORS:
        return False
    except ValueError:  # a name that is too long; `unpack` reports it
        return True


def unpack(archive: Path, folder: Path, shown: str) -> None:
    """Extract a ZIP or tar archive into an existing, empty folder.

    Args:
        archive: Path of the archive.
        folder: Folder to which the files are extracted.
        shown: Name of the archive in error messages, such as its URL.

    Raises:
        ValueError: If the archive is corrupt or exceeds `MAX_BYTES` or `MAX_MEMBERS`, if a member is
            encrypted or is a link or device, or if the name of a member is absolute, contains `..` or occurs
            twice.
    """
    with _prefix_errors(shown):
        members = (
            _zip_members(archive, shown) if zipfile.is_zipfile(archive) else _tar_members(archive, shown)
        )
        remaining = MAX_BYTES
        for count, (name, file) in enumerate(members, start=1):
            if count > MAX_MEMBERS:
                raise ValueError(f"{shown}: more than {MAX_MEMBERS} files")
            target = folder / _safe_path(shown, name)
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.exists():
                raise ValueError(f"{shown}: {name!r} occurs twice")
            with target.open("xb") as out:
                while remaining >= 0 and (chunk := file.read(1 << 20)):
                    out.write(chunk)
                    remaining -= len(chunk)
            if remaining < 0:
                raise ValueError(f"{shown}: more than {MAX_BYTES >> 20} MiB when extracted")


def _zip_members(archive: Path, shown: str) -> Iterator[tuple[str, IO[bytes]]]:
    with zipfile.ZipFile(archive) as opened:
        with archive.open("rb") as file:
            file.seek(-_ZIP_END.size - len(opened.comment), os.SEEK_END)
            _, _, _, _, expected, *_ = _ZIP_END.unpack(file.read(_ZIP_END.size))
        # If the length of the directory is corrupt, zipfile silently misses entries, because it does not
        # compare their number with the count in the end record.
        if expected not in (len(opened.infolist()), _ZIP64_MEMBER_COUNT):
            raise zipfile.BadZipFile(f"expected {expected} members, found {len(opened.infolist())}")
        for info in opened.infolist():
            _safe_path(shown, info.filename)
            kind = stat.S_IFMT(info.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise ValueError(f"{shown}: {info.filename!r} is a link or a device, not a file")
            if info.flag_bits & 1:
                raise ValueError(f"{shown}: {info.filename!r} is encrypted")
            # Folders are opened, too: this checks that their names in the directory and the header agree.
            with opened.open(info) as member:
                if not info.is_dir():
                    yield info.filename, member


def _tar_members(archive: Path, shown: str) -> Iterator[tuple[str, IO[bytes]]]:
    with tarfile.open(archive, tarinfo=_LimitedTarInfo) as opened:
        for info in opened:
            _safe_path(shown, info.name)
            if info.isdir():
                continue
            file = opened.extractfile(info) if info.isfile() else None
            if file is None:
                raise ValueError(f"{shown}: {info.name!r} is a link or a device, not a file")
            with file:
                yield info.name, file
        _check_tar_end(opened, shown)


def _check_tar_end(opened: tarfile.TarFile, shown: str) -> None:
    """Raise `ValueError` unless only zeros follow the last member.

    `tarfile` mistakes a corrupt header for the end of the archive. Reading to the end also verifies the
    checksum of a compressed archive.
    """
    assert opened.fileobj is not None
    opened.fileobj.seek(opened.offset)
    remaining = MAX_BYTES
    while chunk := opened.fileobj.read(1 << 20):
        remaining -= len(chunk)
        if chunk.strip(b"\0") or remaining < 0:
            raise ValueError(f"{shown}: the archive is corrupt: data follows its last file")


def _safe_path(shown: str, name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    windows = PureWindowsPath(name)
    if path.is_absolute() or windows.drive or "\\" in name or "\0" in name or ".." in path.parts:
        raise ValueError(f"{shown}: {name!r} is outside the archive's folder")
    return path


@contextlib.contextmanager
def _prefix_errors(shown: str) -> Iterator[None]:
    """Convert errors about a corrupt archive to a `ValueError` whose message starts with `shown`."""
    try:
        yield
    except (*_CORRUPTION_ERRORS, ValueError, OSError) as error:
        # The system reports an impossible size as EINVAL. bz2 errors are OSErrors without a number.
        is_system_error = isinstance(error, OSError) and error.errno not in (None, errno.EINVAL)
        if is_system_error or str(error).startswith(shown):
            raise
        raise ValueError(f"{shown}: the archive is corrupt: {error}") from error

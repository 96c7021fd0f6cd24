"""Zip and tar archives from strangers: unpacked only if every member stays inside and is a plain file.

What the files mean is not looked at here; that is `download`'s part.
"""

import contextlib
import errno
import gzip
import hashlib
import lzma
import os
import re
import shutil
import stat
import struct
import tarfile
import tempfile
import urllib.parse
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, Protocol, runtime_checkable

from phalanx.arc.datasets import DATASETS, data_directory
from phalanx.arc.task_files import read_splits
from phalanx.io.files import atomic_directory
from phalanx.io.untrusted import Progress, fetch

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
    IndexError,  # and what it says of fields that are cut off, or of sizes that no file has
    struct.error,
    OverflowError,
)
_ZIP_END = struct.Struct("<4s4H2LH")
_MANY_MEMBERS = 0xFFFF
"""What the end of a ZIP archive tells where there are more than fit."""
_LONGEST_NAME = 1 << 16
"""Bytes of a tar member's name and attributes, which are held in memory."""


@runtime_checkable
class _Readable(Protocol):
    """A member that is being read; zip and tar have their own kinds of file."""

    def read(self, size: int, /) -> bytes: ...


class _BoundedInfo(tarfile.TarInfo):
    """A tar member whose name is short enough to be read."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "_BoundedInfo":
        found = super().frombuf(buf, encoding, errors)
        if found.size > _LONGEST_NAME and found.type in (
            tarfile.GNUTYPE_LONGNAME,
            tarfile.GNUTYPE_LONGLINK,
            tarfile.XHDTYPE,
            tarfile.XGLTYPE,
            tarfile.SOLARIS_XHDTYPE,
        ):
            raise ValueError(f"a name or attributes of {found.size:,} bytes")
        return found


def is_archive(path: Path) -> bool:
    """Whether the file is a zip or a (compressed) tar archive, by its contents."""
    if zipfile.is_zipfile(path):
        return True
    try:
        with tarfile.open(path, tarinfo=_BoundedInfo):
            return True
    except _DAMAGE:
        return False
    except ValueError:  # a name that is too long: refused in words when it is unpacked
        return True


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
        with archive.open("rb") as file:
            file.seek(-_ZIP_END.size - len(opened.comment), os.SEEK_END)
            _, _, _, _, told, *_ = _ZIP_END.unpack(file.read(_ZIP_END.size))
        # A damaged length in the directory swallows entries, which zipfile does not count.
        if told not in (len(opened.infolist()), _MANY_MEMBERS):
            raise zipfile.BadZipFile(f"{told} members are told, {len(opened.infolist())} are there")
        for info in opened.infolist():
            _safe_path(shown, info.filename)
            kind = stat.S_IFMT(info.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise ValueError(f"{shown}: {info.filename!r} is a link or a device, not a file")
            if info.flag_bits & 1:
                raise ValueError(f"{shown}: {info.filename!r} is encrypted")
            # Folders are opened too: one whose name in the directory is damaged is another in its own header.
            with opened.open(info) as member:
                if not info.is_dir():
                    yield info.filename, member


def _tar_members(archive: Path, shown: str) -> Iterator[tuple[str, _Readable]]:
    with tarfile.open(archive, tarinfo=_BoundedInfo) as opened:
        for info in opened:
            _safe_path(shown, info.name)
            if info.isdir():
                continue
            file = opened.extractfile(info) if info.isfile() else None
            if file is None:
                raise ValueError(f"{shown}: {info.name!r} is a link or a device, not a file")
            with file:
                yield info.name, file
        _require_end(opened, shown)


def _require_end(opened: tarfile.TarFile, shown: str) -> None:
    """Behind the last member there are zeros to the end, where a compressed archive has its checksum.

    A header that is damaged would pass for the end otherwise.
    """
    assert opened.fileobj is not None
    opened.fileobj.seek(opened.offset)
    left = MAX_BYTES
    while chunk := opened.fileobj.read(1 << 20):
        left -= len(chunk)
        if chunk.strip(b"\0") or left < 0:
            raise ValueError(f"{shown}: the archive is damaged: something follows its last file")


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
    except ValueError as error:
        if str(error).startswith(shown):
            raise
        raise ValueError(f"{shown}: the archive is damaged: {error}") from error
    except OSError as error:
        # Sizes that no file has reach the system as an invalid argument; bz2 has no errors of its own.
        if error.errno not in (None, errno.EINVAL):
            raise
        raise ValueError(f"{shown}: the archive is damaged: {error.strerror or error}") from error


ARCHIVES = (".tar.gz", ".tar.bz2", ".tar.xz", ".tgz", ".zip", ".tar")
"""How the names of archives end."""
# What archives of a repository's branch are called: the branch, not the data.
_BRANCHES = ("main", "master", "HEAD")


def download_tasks(
    source: str,
    name: str = "",
    *,
    sha256: str = "",
    data_dir: str | Path | None = None,
    progress: Progress | None = None,
) -> tuple[Path, dict[str, int]]:
    """Brings a data set into the data directory; the folder and the number of tasks in each split.

    Args:
        source: a data set's name (its published archive is taken), a URL (http, https, file) or a path;
            a zip or tar archive, a folder, or one JSON file.
        name: the data set's name here; by default the source's own.
        sha256: the digest that the file must have.
        data_dir: the data directory, instead of $PHALANX_DATA or ~/.cache/phalanx/arc.
        progress: told about the bytes as they come.

    Raises:
        ValueError: the source, its digest, the archive or a task in it is not right.
        OSError: a file cannot be read or written, or the name is taken.

    Nothing is left behind unless every task is right.
    """
    if source in DATASETS and not Path(source).exists():
        name = name or source
        source = DATASETS[source].url
        if not source:
            raise ValueError(f"{name} tasks are made here; there is nothing to download")
    name = _checked_name(name or _own_name(source), asked=bool(name))
    if sha256 and not re.fullmatch("[0-9a-fA-F]{64}", sha256):
        raise ValueError(f"sha256 must be 64 hexadecimal digits, got {sha256!r}")
    target = data_directory(data_dir) / name
    if target.exists():
        raise FileExistsError(f"{target} is already there; remove it or choose another name")
    with tempfile.TemporaryDirectory(prefix="phalanx-") as scratch:
        fetched = _fetched(source, Path(scratch), progress)
        _check_digest(fetched, sha256, source)
        if fetched.is_dir() and target.resolve().is_relative_to(fetched.resolve()):
            raise ValueError(f"{source} cannot be copied into itself, to {target}")
        with _folder_made(target.parent), atomic_directory(target) as staging:
            _place(fetched, staging, source)
            counts = _verified(staging, source)
    return target, counts


def _file_name(source: str) -> str:
    """The last part of a URL or path."""
    if _is_url(source):
        return Path(urllib.parse.unquote(urllib.parse.urlsplit(source).path)).name
    return Path(source).expanduser().resolve().name


def _own_name(source: str) -> str:
    """The file's name without the ending of an archive or a JSON file."""
    name = _file_name(source)
    for ending in (*ARCHIVES, ".json"):
        if name.lower().endswith(ending):
            return name[: -len(ending)]
    return name


def _checked_name(name: str, asked: bool) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise ValueError(
            f"{name!r} cannot be a data set's name: letters, digits, dots, dashes and underscores only"
        )
    if name in _BRANCHES and not asked:
        raise ValueError(f"{name!r} is a branch's name; give the data set a name of its own (--name)")
    return name


def _is_url(source: str) -> bool:
    return "://" in source


def _fetched(source: str, scratch: Path, progress: Progress | None) -> Path:
    """The local file or folder: the one that a path names, or a URL's contents in `scratch`."""
    if not _is_url(source):
        path = Path(source).expanduser()
        if not path.exists():
            raise FileNotFoundError(f"{source}: no such file or folder")
        return path
    file = scratch / "download"
    fetch(source, file, MAX_BYTES, progress)
    return file


def _check_digest(fetched: Path, sha256: str, source: str) -> None:
    if not sha256:
        return
    if fetched.is_dir():
        raise ValueError(f"{source} is a folder; a SHA-256 digest needs a file")
    with fetched.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != sha256.lower():
        raise ValueError(f"{source}: its SHA-256 digest is {digest}, expected {sha256.lower()}")


def _place(fetched: Path, staging: Path, source: str) -> None:
    if fetched.is_dir():
        shutil.copytree(fetched, staging, dirs_exist_ok=True)
    elif is_archive(fetched):
        unpack(fetched, staging, source)
    elif _file_name(source).lower().endswith(ARCHIVES):
        raise ValueError(f"{source}: not a zip or tar archive, or a damaged one")
    else:
        shutil.copyfile(fetched, staging / f"{_own_name(source) or 'tasks'}.json")


def _verified(staging: Path, source: str) -> dict[str, int]:
    """How many tasks each split has; a wrong one is named by its place in the source."""
    try:
        splits = read_splits(staging)
    except ValueError as error:
        place = str(error).replace(f"{staging}{os.sep}", f"{source}: ").replace(str(staging), source)
        raise ValueError(place) from error
    return {name or "training": len(tasks) for name, tasks in splits.items()}


@contextlib.contextmanager
def _folder_made(folder: Path) -> Iterator[None]:
    """Makes the folder and those above it for the block, and takes back the new ones if the block fails."""
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        for path in new:
            with contextlib.suppress(OSError):  # someone else has put something into it meanwhile
                path.rmdir()
        raise

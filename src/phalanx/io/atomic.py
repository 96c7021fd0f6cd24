"""Atomic writes of files and folders, and cleanup of temporary files that killed processes left behind."""

import contextlib
import functools
import hashlib
import os
import re
import secrets
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Literal, overload

from phalanx.io.checksum import add_checksum


@overload
def atomic_write(
    path: str | os.PathLike[str], mode: Literal["wb"] = "wb", *, checksum: bool = False
) -> contextlib.AbstractContextManager[IO[bytes]]: ...
@overload
def atomic_write(
    path: str | os.PathLike[str], mode: Literal["w"], *, checksum: bool = False
) -> contextlib.AbstractContextManager[IO[str]]: ...
@contextlib.contextmanager
def atomic_write(
    path: str | os.PathLike[str], mode: str = "wb", *, checksum: bool = False
) -> Iterator[IO[Any]]:
    """Write a file atomically: it appears under its name only when it is complete and on disk.

    This is a context manager that yields the open file. If the block raises, the temporary file is removed
    and an existing file stays unchanged. If the path is a symbolic link, the link is replaced and its target
    is unchanged, so a link in an untrusted folder cannot redirect the write.

    Args:
        path: Path of the file. Its folder must exist.
        mode: `"wb"`, or `"w"` for UTF-8 text.
        checksum: Embed a checksum with `add_checksum` when the file is complete.
    """
    if mode not in ("w", "wb"):
        raise ValueError(f"atomic_write replaces files: mode must be 'w' or 'wb', got {mode!r}")
    target = Path(path)
    _check_parent_exists(target)
    if target.is_dir() and not target.is_symlink():
        raise IsADirectoryError(f"{target} is a folder; give the name of a file")
    temporary = _temporary_path(target)
    # tempfile would create a file that only its owner can read.
    descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666)
    try:
        encoding = None if mode == "wb" else "utf-8"
        with os.fdopen(descriptor, mode.replace("w", "w+"), encoding=encoding) as file:
            yield file
            file.flush()
            if checksum:
                binary: Any = getattr(file, "buffer", file)
                add_checksum(binary)
                binary.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync(target.parent)


@contextlib.contextmanager
def atomic_directory(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Build a folder under a temporary name, and rename it when it is complete and on disk.

    This is a context manager. Write the contents to the folder that it yields. If the block raises, the
    temporary folder is removed. If the path is a symbolic link, the link is replaced and its target is
    unchanged.

    Args:
        path: Final path of the folder. If it is a file, or a folder that is not empty, `FileExistsError` is
            raised. This is checked both before and after the block.

    Yields:
        The temporary folder.
    """
    target = Path(path)
    _check_parent_exists(target)
    _check_unoccupied(target)
    temporary = _temporary_path(target)
    temporary.mkdir()
    try:
        yield temporary
        for written in (temporary, *temporary.rglob("*")):
            _sync(written)
        _check_unoccupied(target)
        if target.is_symlink():
            target.unlink()
        elif target.exists():
            target.rmdir()
        temporary.rename(target)
    except BaseException:
        _remove(temporary)
        raise
    _sync(target.parent)


def remove_stale_temporaries(folder: str | os.PathLike[str], name: str | None = None) -> list[Path]:
    """Remove temporary files and folders that killed processes left behind, and return their paths.

    Temporary files of running processes and of other machines are kept.

    Args:
        folder: Folder to clean up.
        name: Name of a target file or folder. Only temporary files and folders that were created to write it
            are removed. If None, all stale temporary files and folders are removed.
    """
    found = [path for path in Path(folder).iterdir() if is_stale_temporary(path.name, name)]
    for path in found:
        _remove(path)
    return found


def is_stale_temporary(name: str, target: str | None = None) -> bool:
    """Return whether `name` is the name of a temporary file or folder that a killed process left behind.

    The name contains the ids of the machine and the process that created the file or folder. The result is
    True if the machine is this one and the process has ended. If `target` is given, the name must also belong
    to a temporary file or folder for `target`.
    """
    match = _TEMPORARY_NAME.fullmatch(name)
    if match is None or match["machine"] != _machine_id() or target not in (None, match["target"]):
        return False
    try:
        os.kill(int(match["process"]), 0)
    except OSError as error:  # a PermissionError if the process of another user is running
        return isinstance(error, ProcessLookupError)
    return False


_TEMPORARY_NAME = re.compile(
    r"\.(?P<target>.+)\.(?P<process>\d{1,9})-(?P<machine>[0-9a-f]{4})[0-9a-f]{4}\.tmp"
)


def _temporary_path(target: Path) -> Path:
    return target.with_name(f".{target.name}.{os.getpid()}-{_machine_id()}{secrets.token_hex(2)}.tmp")


@functools.cache
def _machine_id() -> str:
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:4]


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _check_parent_exists(target: Path) -> None:
    if not target.parent.is_dir():
        raise FileNotFoundError(f"cannot write {target}: the folder {target.parent} does not exist")


def _check_unoccupied(target: Path) -> None:
    if not target.exists():
        return
    if not target.is_dir():
        raise FileExistsError(f"{target} is a file; choose another name for the folder, or remove it first")
    if any(target.iterdir()):
        raise FileExistsError(f"{target} already exists and is not empty; remove it or choose another name")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""Writing files and folders whole: under a temporary name in the same folder, then renamed.

What the files hold is not known here; readers of half-written files do not exist because none appear.
"""

import abc
import contextlib
import functools
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Literal, overload


@overload
def atomic_write(
    path: str | os.PathLike[str], mode: Literal["wb"] = "wb"
) -> contextlib.AbstractContextManager[IO[bytes]]: ...
@overload
def atomic_write(
    path: str | os.PathLike[str], mode: Literal["w"]
) -> contextlib.AbstractContextManager[IO[str]]: ...
def atomic_write(
    path: str | os.PathLike[str], mode: Literal["w", "wb"] = "wb"
) -> contextlib.AbstractContextManager[IO[Any]]:
    """Open a file that appears under its name only once it is written and flushed to the disk.

    On any error the temporary file is removed and an older file of that name stays whole. Text is UTF-8
    with `\\n` line ends on every system. Through a symbolic link, the file it points at is replaced.
    """
    if mode not in ("w", "wb"):
        raise ValueError(f"atomic_write writes whole files: mode must be 'w' or 'wb', got {mode!r}")
    return _atomic_write(Path(path), mode)


@contextlib.contextmanager
def _atomic_write(path: Path, mode: Literal["w", "wb"]) -> Iterator[IO[Any]]:
    target = Path(os.path.realpath(path))
    _require_folder(target)
    if target.is_dir():
        raise IsADirectoryError(f"{path} is a folder; give the name of a file")
    temporary = _temporary_name(target)
    # Not tempfile: its files are private to the owner, and this one becomes an ordinary file.
    descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    try:
        text: dict[str, Any] = {} if mode == "wb" else {"encoding": "utf-8", "newline": "\n"}
        with os.fdopen(descriptor, mode, **text) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _flush_folder(target.parent)


@contextlib.contextmanager
def atomic_directory(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Build a folder under a temporary name (which is yielded) that gets its real name once it is whole.

    On any error the temporary folder is removed and nothing appears. A target that already holds
    something is refused, at the start and again at the end.
    """
    target = Path(os.path.realpath(path))
    _require_folder(target)
    _refuse_occupied(target)
    temporary = _temporary_name(target)
    temporary.mkdir()
    try:
        yield temporary
        for folder, _, names in os.walk(temporary):
            for name in names:
                _flush(Path(folder, name))
            _flush_folder(Path(folder))
        _refuse_occupied(target)
        if target.exists():
            target.rmdir()
        temporary.rename(target)
    except BaseException:
        shutil.rmtree(temporary)
        raise
    _flush_folder(target.parent)


def _temporary_name(target: Path) -> Path:
    return target.with_name(f".{target.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")


def _require_folder(target: Path) -> None:
    if not target.parent.is_dir():
        raise FileNotFoundError(f"cannot write {target}: the folder {target.parent} does not exist")


def _refuse_occupied(target: Path) -> None:
    if not target.exists():
        return
    if not target.is_dir():
        raise FileExistsError(f"{target} is a file; choose another name for the folder, or remove it first")
    if any(target.iterdir()):
        raise FileExistsError(f"{target} already exists and is not empty; remove it or choose another name")


def _flush(file: Path) -> None:
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _flush_folder(folder: Path) -> None:
    # Windows cannot open a folder; there the rename itself is as durable as it gets.
    if os.name == "posix":
        _flush(folder)


class ByFingerprint(abc.ABC):
    """Equal, and of the same hash, where type and fingerprint are: so it may be static under `jit`."""

    @property
    @abc.abstractmethod
    def fingerprint(self) -> str:
        """A digest of the content."""

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return (
            isinstance(other, ByFingerprint)
            and type(self) is type(other)
            and self.fingerprint == other.fingerprint
        )

    @functools.cached_property
    def _hash(self) -> int:
        return hash(self.fingerprint)

    def __hash__(self) -> int:
        return self._hash

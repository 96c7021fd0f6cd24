"""Files and folders that are whole: written under a temporary name and renamed, sealed, checked on reading.

A seal is the SHA-256 of a file's bytes, kept in the file itself. What the bytes mean is not known here.
"""

import abc
import contextlib
import ctypes
import functools
import hashlib
import json
import os
import re
import secrets
import shutil
import socket
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Literal, overload

from phalanx.io.untrusted import parse_json


@overload
def atomic_write(
    path: str | os.PathLike[str], mode: Literal["wb"] = "wb", *, sealed: bool = False
) -> contextlib.AbstractContextManager[IO[bytes]]: ...
@overload
def atomic_write(
    path: str | os.PathLike[str], mode: Literal["w"], *, sealed: bool = False
) -> contextlib.AbstractContextManager[IO[str]]: ...
def atomic_write(
    path: str | os.PathLike[str], mode: Literal["w", "wb"] = "wb", *, sealed: bool = False
) -> contextlib.AbstractContextManager[IO[Any]]:
    """Open a file that appears under its name only once it is written and flushed to the disk.

    On any error the temporary file is removed and an older file of that name stays whole. Text is UTF-8
    with `\\n` line ends on every system. Through a symbolic link, the file it points at is replaced. With
    `sealed` the file gets a seal, see `add_seal`.
    """
    if mode not in ("w", "wb"):
        raise ValueError(f"atomic_write writes whole files: mode must be 'w' or 'wb', got {mode!r}")
    return _atomic_write(Path(path), mode, sealed)


@contextlib.contextmanager
def _atomic_write(path: Path, mode: Literal["w", "wb"], sealed: bool) -> Iterator[IO[Any]]:
    target = Path(os.path.realpath(path))
    _require_folder(target)
    if target.is_dir():
        raise IsADirectoryError(f"{path} is a folder; give the name of a file")
    temporary = _temporary_name(target)
    # Not tempfile: its files are private to the owner, and this one becomes an ordinary file.
    descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666)
    try:
        text: dict[str, Any] = {} if mode == "wb" else {"encoding": "utf-8", "newline": "\n"}
        with os.fdopen(descriptor, mode.replace("w", "w+"), **text) as file:
            yield file
            file.flush()
            if sealed:
                binary: Any = getattr(file, "buffer", file)
                add_seal(binary)
                binary.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _flush_folder(target.parent)


@contextlib.contextmanager
def atomic_directory(path: str | os.PathLike[str], *, replace: bool = False) -> Iterator[Path]:
    """Build a folder under a temporary name (which is yielded) that gets its real name once it is whole.

    On any error the temporary folder is removed and nothing appears. A target that already holds
    something is refused, at the start and again at the end; with `replace` it changes places with the new
    folder and is removed.
    """
    target = Path(os.path.realpath(path))
    _require_folder(target)
    if not replace:
        _refuse_occupied(target)
    temporary = _temporary_name(target)
    temporary.mkdir()
    try:
        yield temporary
        for folder, _, names in os.walk(temporary):
            for name in names:
                _flush(Path(folder, name))
            _flush_folder(Path(folder))
        if replace and target.exists():
            _change_places(temporary, target)
            _flush_folder(target.parent)
            shutil.rmtree(temporary)
        else:
            _refuse_occupied(target)
            if target.exists():
                target.rmdir()
            temporary.rename(target)
    except BaseException:
        shutil.rmtree(temporary)
        raise
    _flush_folder(target.parent)


def remove_stale_temporaries(folder: str | os.PathLike[str], name: str | None = None) -> list[Path]:
    """Remove what writers left in a folder that were killed: of one target, or of all. Returns what.

    A temporary name tells the machine and the process; what a living process writes, or one on another
    machine, is left alone.
    """
    found = [path for path in Path(folder).iterdir() if is_leftover(path.name, name)]
    for path in found:
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    return found


def is_leftover(name: str, target: str | None = None) -> bool:
    """Whether this is a temporary name that a process of this machine had, which lives no more."""
    match = _TEMPORARY.fullmatch(name)
    if match is None or match["machine"] != _machine() or target not in (None, match["target"]):
        return False
    try:
        os.kill(int(match["process"]), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


_TEMPORARY = re.compile(r"\.(?P<target>.+)\.(?P<process>\d{1,9})-(?P<machine>[0-9a-f]{4})[0-9a-f]{4}\.tmp")


def _temporary_name(target: Path) -> Path:
    return target.with_name(f".{target.name}.{os.getpid()}-{_machine()}{secrets.token_hex(2)}.tmp")


@functools.cache
def _machine() -> str:
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:4]


def _change_places(fresh: Path, target: Path) -> None:
    """Exchange two folders in one step where the system can; elsewhere the name is free for a moment."""
    try:
        exchange = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):
        exchange = None
    here, at_once = -100, 2  # AT_FDCWD and RENAME_EXCHANGE
    if exchange is not None and not exchange(here, os.fsencode(fresh), here, os.fsencode(target), at_once):
        return
    aside = _temporary_name(target)
    target.rename(aside)
    fresh.rename(target)
    aside.rename(fresh)


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


_MARK = b"phalanx-sha256:"
_DIGITS = 64
_TAIL = 1 << 16
_CHUNK = 1 << 20
BLANK_SEAL = _MARK.decode() + "0" * _DIGITS
"""What a writer puts near the end of a format that has room for text; sealing fills in the digits."""
FIELD = "seal"
"""The last field of a sealed JSON file."""


class CorruptFileError(ValueError):
    """A file that is not what was written: bits have changed, a part is missing, or its seal is."""


def add_seal(file: IO[bytes]) -> None:
    """Seal what was written to a file that can be read too.

    The digits go where a `BLANK_SEAL` was left; without one they are appended, to a ZIP archive as its
    comment, so that other programs read it as before. They count as zeros in the digest.
    """
    size = file.seek(0, os.SEEK_END)
    start = max(size - _TAIL, 0)
    file.seek(0)
    is_zip = file.read(4) == b"PK\3\4"
    file.seek(start)
    place = -1 if is_zip else file.read().rfind(BLANK_SEAL.encode())
    if place < 0:
        if is_zip:  # its last two bytes are the length of its comment
            file.seek(size - 2)
            file.write(len(BLANK_SEAL).to_bytes(2, "little"))
        file.seek(size)
        file.write(BLANK_SEAL.encode())
        place, start = size, 0
    digits = start + place + len(_MARK)
    digest = _digest(file, digits)
    file.seek(digits)
    file.write(digest.encode())


@contextlib.contextmanager
def open_verified(path: str | os.PathLike[str], remedy: str = "write it again") -> Iterator[IO[bytes]]:
    """A file whose seal was checked just now, open at its beginning."""
    with Path(path).open("rb") as file:
        try:
            _check(file, path, remedy)
        except OSError as error:
            # Without the name of the file, which the system does not tell when reading.
            raise OSError(error.errno, error.strerror, os.fspath(path)) from error
        file.seek(0)
        yield file


def read_verified(path: str | os.PathLike[str], remedy: str = "write it again") -> bytes:
    """The bytes of a sealed file, seal included."""
    with open_verified(path, remedy) as file:
        return file.read()


def write_json(file: IO[str], record: Mapping[str, Any], **style: Any) -> None:
    """Write a JSON object with room for the seal of the file, which `atomic_write` with `sealed` adds."""
    json.dump({**record, FIELD: BLANK_SEAL}, file, **style)
    file.write("\n")


def read_verified_json(path: str | os.PathLike[str], remedy: str = "write it again") -> dict[str, Any]:
    """The object of a sealed JSON file, without its seal."""
    record = parse_json(read_verified(path, remedy), path)
    if not isinstance(record, dict) or FIELD not in record:
        raise CorruptFileError(f"{path} is no sealed JSON object; {remedy}")
    del record[FIELD]
    return record


def sha256_of_files(folder: Path, leave_out: Collection[str] = ()) -> dict[str, str]:
    """The SHA-256 of every file below a folder, by its relative path; for a sealed list of them."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in leave_out)
    return {path.relative_to(folder).as_posix(): _digest_of(path) for path in files}


def verify_sha256(path: Path, digest: str, remedy: str = "write it again") -> None:
    """Refuse a file that is gone or is not the one whose digest was taken."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing; {remedy}")
    if _digest_of(path) != digest:
        raise CorruptFileError(f"{path} is damaged: its content is not what was written; {remedy}")


def read_checked(path: Path, digest: str, remedy: str = "write it again") -> bytes:
    """The bytes of a file, if it is the one whose digest was taken."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing; {remedy}")
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != digest:
        raise CorruptFileError(f"{path} is damaged: its content is not what was written; {remedy}")
    return data


def _digest_of(path: Path) -> str:
    with path.open("rb") as file:
        try:
            return hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise OSError(error.errno, error.strerror, os.fspath(path)) from error


def _check(file: IO[bytes], path: str | os.PathLike[str], remedy: str) -> None:
    size = file.seek(0, os.SEEK_END)
    start = max(size - _TAIL, 0)
    file.seek(start)
    tail = file.read()
    place = tail.rfind(_MARK)
    told = tail[place + len(_MARK) :][:_DIGITS]
    if place < 0 or len(told) < _DIGITS:
        raise CorruptFileError(
            f"{path} is damaged, or of an older version of Phalanx: it carries no seal; {remedy}"
        )
    if _digest(file, start + place + len(_MARK)).encode() != told:
        raise CorruptFileError(f"{path} is damaged: its content does not match its seal; {remedy}")


def _digest(file: IO[bytes], digits: int) -> str:
    """Of everything, with zeros where the seal's digits are."""
    sha = hashlib.sha256()
    file.seek(0)
    left = digits
    while left and (chunk := file.read(min(left, _CHUNK))):
        sha.update(chunk)
        left -= len(chunk)
    sha.update(b"0" * _DIGITS)
    file.seek(digits + _DIGITS)
    while chunk := file.read(_CHUNK):
        sha.update(chunk)
    return sha.hexdigest()


class Fingerprinted(abc.ABC):
    """Equal, and of the same hash, where type and fingerprint are: so it may be static under `jit`."""

    @property
    @abc.abstractmethod
    def fingerprint(self) -> str:
        """A digest of the content."""

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return (
            isinstance(other, Fingerprinted)
            and type(self) is type(other)
            and self.fingerprint == other.fingerprint
        )

    @functools.cached_property
    def _hash(self) -> int:
        return hash(self.fingerprint)

    def __hash__(self) -> int:
        return self._hash

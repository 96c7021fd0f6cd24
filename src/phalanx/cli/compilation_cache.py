"""What XLA has compiled is kept from one command to the next, in a cache folder of bounded size.

JAX reads and writes the entries. It writes them in place, where a kill leaves half of one and another run may
read it meanwhile; so each command gives it a folder of its own, with links to the entries there are, and puts
what is new among them when it ends. Where `JAX_COMPILATION_CACHE_DIR` is set, JAX is left to it.
"""

import atexit
import contextlib
import fcntl
import hashlib
import os
import platform
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

OFF = "PHALANX_COMPILATION_CACHE"
"""`off` keeps nothing."""
JAX_FOLDER = "JAX_COMPILATION_CACHE_DIR"
MOST_BYTES = 1_000_000_000
"""What the entries take at most; the oldest go first."""
_SETTINGS = {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.05",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    # Their place would be part of an entry's name, and no command would find those of another.
    "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none",
}
_STAGE, _LOCK = "stage-", "lock"


def folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Where the entries are: one folder for each kind of processor, as a home may be shared by several."""
    root = environment.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "phalanx" / "xla" / _processor()


def reason_against(environment: Mapping[str, str] = os.environ) -> str:
    """Why nothing is kept here; empty where it is."""
    if environment.get(OFF, "").lower() in ("off", "0", "no", "false"):
        return f"{OFF} is {environment[OFF]}"
    given = environment.get(JAX_FOLDER)
    return f"{JAX_FOLDER} is {given}" if given and not Path(given).name.startswith(_STAGE) else ""


def facts() -> dict[str, Any]:
    """For `phalanx info`."""
    place, reason = folder(), reason_against()
    sizes = [size for _, size, _ in _entries(place)]
    return {
        "in_use": not reason,
        "reason": reason or None,
        "folder": str(place),
        "entries": len(sizes),
        "bytes": sum(sizes),
        "most_bytes": MOST_BYTES,
    }


def keep_compiled() -> None:
    """Let JAX, which must not have been imported yet, find what earlier commands have compiled.

    A folder that cannot be written costs the cache and not the command.
    """
    if reason_against() or JAX_FOLDER in os.environ:
        return
    place = folder()
    try:
        place.mkdir(parents=True, exist_ok=True)
        _sweep(place)
        stage = Path(tempfile.mkdtemp(prefix=_STAGE, dir=place))
        # Held until the process ends, however it ends.
        descriptor = os.open(stage / _LOCK, os.O_CREAT | os.O_RDWR)
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for entry, _, _ in _entries(place):
            with contextlib.suppress(FileNotFoundError):  # another command has just made room
                _link(entry, stage / entry.name)
    except OSError:
        return
    os.environ[JAX_FOLDER] = str(stage)
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    atexit.register(_publish, stage, place)


def _publish(stage: Path, place: Path) -> None:
    """Put what is new among the entries, whole, make room, and leave nothing behind."""
    with contextlib.suppress(OSError):
        for entry, _, _ in _entries(stage):
            with contextlib.suppress(FileExistsError):
                _link(entry, place / entry.name)
        bound(place)
    shutil.rmtree(stage, ignore_errors=True)


def bound(place: Path, most_bytes: int = MOST_BYTES) -> None:
    """Remove the oldest entries until the others fit."""
    entries = sorted(_entries(place), key=lambda entry: entry[2])
    total = sum(size for _, size, _ in entries)
    for entry, size, _ in entries:
        if total <= most_bytes:
            return
        entry.unlink(missing_ok=True)
        total -= size


def _entries(place: Path) -> list[tuple[Path, int, int]]:
    """The files of a folder, their sizes, and when they were written."""
    found = []
    for path in place.glob("*-cache"):
        with contextlib.suppress(FileNotFoundError):
            status = path.stat()
            found.append((path, status.st_size, status.st_mtime_ns))
    return found


def _sweep(place: Path) -> None:
    """Remove what commands that were killed have left; a command that runs holds its lock."""
    for stage in place.glob(f"{_STAGE}*"):
        with contextlib.suppress(OSError):
            descriptor = os.open(stage / _LOCK, os.O_RDWR)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(stage)
            finally:
                os.close(descriptor)


def _link(source: Path, target: Path) -> None:
    """Both names for one file, which appears at once and whole; a copy where there are no links."""
    try:
        os.link(source, target)
    except (FileExistsError, FileNotFoundError):
        raise
    except OSError:
        copy = target.with_name(f".{target.name}.{os.getpid()}")
        shutil.copy2(source, copy)
        copy.replace(target)


def _processor() -> str:
    """A digest of what code may be compiled for here."""
    told = [platform.machine(), platform.processor()]
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        told += sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))})
    return hashlib.sha256("\n".join(told).encode()).hexdigest()[:12]

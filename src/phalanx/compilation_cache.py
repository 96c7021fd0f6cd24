"""Persistent cache of XLA compilations, shared by all commands and limited in size.

JAX does not write cache entries atomically, so a killed process leaves incomplete entries that other
processes may read. Therefore, each command has a staging folder for JAX with links to the existing entries.
When the command exits, new entries are added to the shared folder. If `JAX_COMPILATION_CACHE_DIR` is set, JAX
uses that folder directly.
"""

import atexit
import contextlib
import fcntl
import hashlib
import importlib
import os
import platform
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

DISABLE_VARIABLE = "PHALANX_COMPILATION_CACHE"
"""Environment variable that disables the cache if its value is `off`, `0`, `no` or `false`."""
JAX_CACHE_VARIABLE = "JAX_COMPILATION_CACHE_DIR"
MAX_BYTES = 1_000_000_000
"""Maximum total size of the entries in bytes. If it is exceeded, the oldest entries are removed."""
_JAX_SETTINGS = {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": 0.05,
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": -1,
    # The paths of these caches are part of each entry's key, and the staging folder's path is different for
    # every command.
    "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none",
}
_STAGING_PREFIX, _LOCK = "stage-", "lock"


def cache_dir() -> Path:
    """Return the folder that contains the cache entries.

    The folder depends on the kind of processor, because machines with different processors may share a home
    folder.
    """
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "phalanx" / "xla" / _processor_id()


def disabled_reason() -> str:
    """Return why the cache is disabled, or an empty string if it is enabled."""
    value = os.environ.get(DISABLE_VARIABLE, "")
    if value.lower() in ("off", "0", "no", "false"):
        return f"{DISABLE_VARIABLE} is {value}"
    jax_dir = os.environ.get(JAX_CACHE_VARIABLE)
    if jax_dir and not Path(jax_dir).name.startswith(_STAGING_PREFIX):
        return f"{JAX_CACHE_VARIABLE} is {jax_dir}"
    return ""


def cache_info() -> dict[str, Any]:
    """Return the location, size and state of the cache, as shown by `phalanx info`."""
    folder, reason = cache_dir(), disabled_reason()
    sizes = [size for _, size, _ in _list_entries(folder)]
    return {
        "enabled": not reason,
        "reason": reason or None,
        "folder": str(folder),
        "entries": len(sizes),
        "bytes": sum(sizes),
        "max_bytes": MAX_BYTES,
    }


def enable_compilation_cache() -> None:
    """Configure JAX to use the cache for programs that are compiled later.

    If the folder is not writable, the command runs without the cache.
    """
    if disabled_reason() or JAX_CACHE_VARIABLE in os.environ:
        return
    folder = cache_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _remove_stale_staging(folder)
        staging = Path(tempfile.mkdtemp(prefix=_STAGING_PREFIX, dir=folder))
        # The lock is held until the process ends, even if it is killed.
        descriptor = os.open(staging / _LOCK, os.O_CREAT | os.O_RDWR)
        with contextlib.suppress(OSError):  # the file system does not support locks
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for entry, _, _ in _list_entries(folder):
            with contextlib.suppress(FileNotFoundError):  # another command has just removed the entry
                _link(entry, staging / entry.name)
    except OSError:
        return
    settings: dict[str, Any] = {JAX_CACHE_VARIABLE: str(staging), **_JAX_SETTINGS}
    settings = {name: value for name, value in settings.items() if name not in os.environ}
    os.environ.update({name: str(value) for name, value in settings.items()})
    if (jax := sys.modules.get("jax")) is not None:  # It has read the variables when it was imported.
        for name, value in settings.items():
            jax.config.update(name.lower(), value)
        # JAX decides at its first compilation whether there is a cache.
        importlib.import_module("jax.experimental.compilation_cache.compilation_cache").reset_cache()
    atexit.register(_publish, staging, folder)


def _publish(staging: Path, folder: Path) -> None:
    """Add new entries to the shared folder, limit its size, and delete the staging folder."""
    with contextlib.suppress(OSError):
        for entry, _, _ in _list_entries(staging):
            with contextlib.suppress(FileExistsError):
                _link(entry, folder / entry.name)
        remove_oldest(folder)
    shutil.rmtree(staging, ignore_errors=True)


def remove_oldest(folder: Path, max_bytes: int = MAX_BYTES) -> None:
    """Remove the oldest entries until the total size is at most `max_bytes`."""
    entries = sorted(_list_entries(folder), key=lambda entry: entry[2])
    total = sum(size for _, size, _ in entries)
    for entry, size, _ in entries:
        if total <= max_bytes:
            return
        entry.unlink(missing_ok=True)
        total -= size


def _list_entries(folder: Path) -> list[tuple[Path, int, int]]:
    """Return the path, size in bytes and modification time in nanoseconds of each entry in a folder."""
    entries = []
    for path in folder.glob("*-cache"):
        with contextlib.suppress(FileNotFoundError):
            status = path.stat()
            entries.append((path, status.st_size, status.st_mtime_ns))
    return entries


def _remove_stale_staging(folder: Path) -> None:
    """Remove the staging folders that killed commands left behind.

    A locked folder belongs to a running command and is kept.
    """
    for staging in folder.glob(f"{_STAGING_PREFIX}*"):
        with contextlib.suppress(OSError):
            descriptor = os.open(staging / _LOCK, os.O_RDWR)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(staging)
            finally:
                os.close(descriptor)


def _link(source: Path, target: Path) -> None:
    """Create a hard link, or an atomic copy if the file system does not support links."""
    try:
        os.link(source, target)
    except (FileExistsError, FileNotFoundError):
        raise
    except OSError:
        copy = target.with_name(f".{target.name}.{os.getpid()}")
        shutil.copy2(source, copy)
        copy.replace(target)


def _processor_id() -> str:
    """Return a digest of the processor's model and instruction sets. Compiled code depends on both."""
    features = [platform.machine(), platform.processor()]
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        features += sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))})
    return hashlib.sha256("\n".join(features).encode()).hexdigest()[:12]

"""Locks that allow only one process at a time to use a folder or a file."""

import contextlib
import fcntl
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path

_LOG = logging.getLogger("phalanx.io")


@contextlib.contextmanager
def lock_folder(folder: Path, name: str = "run.lock", *, subject: Path | None = None) -> Iterator[None]:
    """Lock a folder, or one of its files, for this process while the context is active.

    The lock file contains the process id and the host name, and is removed at the end. A lock file that a
    killed process left behind does not block other processes, because the operating system releases the lock
    when the process ends. If the file system does not support locks, a warning is logged, and the lock file
    is not removed, because another process may be using it.

    Args:
        folder: Folder to lock.
        name: Name of the lock file in the folder.
        subject: What is locked, for the error message. Defaults to the folder.

    Raises:
        ValueError: If another process holds the lock, or the lock file is a symbolic link.
    """
    path = folder / name
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        except OSError as error:
            if path.is_symlink():
                raise ValueError(f"{path} is a symbolic link, which is not followed; remove it") from error
            raise
        is_locked = True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 4096).decode(errors="replace")
            os.close(descriptor)
            user = holder or "another process"
            raise ValueError(
                f"{subject or folder} is in use by {user}; wait until it ends, or stop it"
            ) from None
        except OSError as error:  # the file system does not support locks
            is_locked = False
            _LOG.warning("cannot lock %s: %s; do not start a second process on it", path, error.strerror)
        # Another process may have removed the file after it was opened here.
        if path.exists() and os.fstat(descriptor).st_ino == path.stat().st_ino:
            break
        os.close(descriptor)
    try:
        os.truncate(descriptor, 0)
        os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode())
        yield
    finally:
        try:
            if is_locked:
                path.unlink(missing_ok=True)
        finally:
            os.close(descriptor)  # releases the lock

"""What keeps a run safe: signals that save before they stop, and a lock against a second process.

Whole checkpoints are in `checkpoints`; what a full disk costs is decided in `run`.
"""

import contextlib
import fcntl
import logging
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_LOG = logging.getLogger("phalanx.training")
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
LOCK = "run.lock"


class Stop:
    """Which signal asked for a stop; None as long as none did."""

    signal: int | None = None


@contextlib.contextmanager
def stop_on_signals() -> Iterator[Stop]:
    """Ctrl-C and SIGTERM ask for a stop after the running update; a second one stops at once."""
    stop = Stop()

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def ask(number: int, frame: Any) -> None:
        stop.signal = number
        restore()

    before = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        for number in _SIGNALS:
            signal.signal(number, ask)
    except ValueError:  # not in the main thread, where signals do not arrive either
        yield stop
        return
    try:
        yield stop
    finally:
        restore()


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keeps other processes off a run; a lock that a killed process left behind holds nobody off.

    The system lets go of a lock with the process that held it. The file says who that is.
    """
    path = folder / LOCK
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 4096).decode(errors="replace")
            os.close(descriptor)
            raise ValueError(
                f"{folder} is being trained by {holder or 'another process'}: wait for its end, or stop it"
            ) from None
        except OSError as error:  # a file system without locks
            _LOG.warning("%s cannot be locked: %s; start no second training on it", path, error.strerror)
        # Another process may have removed the file between opening and locking it.
        if path.exists() and os.fstat(descriptor).st_ino == path.stat().st_ino:
            break
        os.close(descriptor)
    try:
        os.truncate(descriptor, 0)
        os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode())
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)

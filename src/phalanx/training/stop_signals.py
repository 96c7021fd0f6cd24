"""Graceful stopping on SIGINT and SIGTERM."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """Record of a signal that asked the process to stop."""

    signal: int | None = None
    """Number of the signal. None if no signal was received."""


@contextlib.contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Record SIGINT and SIGTERM instead of ending the process, so that the current update can finish.

    The first signal restores the previous signal handlers, so a second signal ends the process at once. Only
    the main thread receives signals, so nothing is recorded in other threads.

    Yields:
        An object whose `signal` is set when a signal is received.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    def handle(number: int, frame: Any) -> None:
        request.signal = number
        restore()

    previous = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        for number in _SIGNALS:
            signal.signal(number, handle)
        yield request
    finally:
        restore()

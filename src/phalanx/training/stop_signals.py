"""Graceful stop on SIGINT and SIGTERM."""

import contextlib
import signal
from collections.abc import Iterator
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


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

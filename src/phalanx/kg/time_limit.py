"""Time limits and progress messages for long computations."""

import sys
import time
from collections.abc import Callable

REPORT_INTERVAL = 4.0
"""Minimum number of seconds between two progress messages."""


class TimeLimitExceeded(Exception):
    """Raised by `TimeLimit.check` when the time limit is exceeded."""


def print_to_stderr(text: str) -> None:
    """Print a line to stderr, and flush the stream."""
    print(text, file=sys.stderr, flush=True)


class TimeLimit:
    """A time limit for a computation, and a logger for its progress messages.

    The clock starts when the object is created.

    Args:
        seconds: Maximum number of seconds. None means no limit.
        log: Function that is called with each message. If None, messages are discarded.
    """

    def __init__(self, seconds: float | None = None, log: Callable[[str], None] | None = None) -> None:
        if seconds is not None and seconds < 0:
            raise ValueError(f"seconds must be 0 or more, got {seconds}")
        self.seconds = seconds
        self._log = log
        self._started = self._last_message = time.monotonic()

    @property
    def elapsed(self) -> float:
        """Number of seconds since this object was created."""
        return time.monotonic() - self._started

    def check(self, activity: str) -> None:
        """Raise `TimeLimitExceeded` if the limit is exceeded. Otherwise, call `report` with the activity."""
        if self.seconds is not None and self.elapsed > self.seconds:
            raise TimeLimitExceeded(activity)
        self.report(activity)

    def report(self, activity: str) -> None:
        """Log the current activity if the last message was at least `REPORT_INTERVAL` seconds ago."""
        if time.monotonic() - self._last_message >= REPORT_INTERVAL:
            self.log(f"{activity} ({self.elapsed:.0f} s)")

    def log(self, text: str) -> None:
        """Log a message immediately, even if the last message was less than `REPORT_INTERVAL` seconds ago."""
        self._last_message = time.monotonic()
        if self._log is not None:
            self._log(text)

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


Report = Callable[[str], None]
"""Function that a computation calls, possibly often, with messages about its progress."""


def ignore(text: str) -> None:
    """Ignore a message."""


class ProgressReport:
    """Prints at most one progress message per `REPORT_INTERVAL`, with the time since this object was created.

    Args:
        print: Function that is called with the messages to print.
    """

    def __init__(self, print: Report = print_to_stderr) -> None:
        self._print = print
        self._started = self._last_message = time.monotonic()

    def __call__(self, activity: str) -> None:
        now = time.monotonic()
        if now - self._last_message >= REPORT_INTERVAL:
            self._last_message = now
            self._print(f"{activity} ({now - self._started:.0f} s)")


class TimeLimit:
    """A time limit for a computation, which also reports its progress.

    The clock starts when the object is created.

    Args:
        seconds: Maximum number of seconds. None means no limit.
        log: Function that is called with each message.
    """

    def __init__(self, seconds: float | None = None, log: Report = ignore) -> None:
        if seconds is not None and seconds < 0:
            raise ValueError(f"seconds must be 0 or more, got {seconds}")
        self.seconds, self.log = seconds, log
        self._report, self._started = ProgressReport(log), time.monotonic()

    @property
    def elapsed(self) -> float:
        """Number of seconds since this object was created."""
        return time.monotonic() - self._started

    def check(self, activity: str) -> None:
        """Raise `TimeLimitExceeded` if the limit is exceeded. Otherwise, report the activity."""
        if self.seconds is not None and self.elapsed > self.seconds:
            raise TimeLimitExceeded(activity)
        self._report(activity)

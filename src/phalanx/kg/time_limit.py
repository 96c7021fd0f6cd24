"""Time limits and progress messages for exhaustive computations."""

import sys
import time
from collections.abc import Callable

REPORT_INTERVAL = 4.0
"""Seconds between two progress messages."""


class TimeLimitExceeded(Exception):
    """Raised by `TimeLimit.check` when the time is up."""


def print_to_stderr(text: str) -> None:
    """Print a line to stderr immediately."""
    print(text, file=sys.stderr, flush=True)


class TimeLimit:
    """A time limit that starts when it is created and also throttles progress messages.

    Args:
        seconds: The limit; None for no limit.
        log: Called with each message; None discards messages.
    """

    def __init__(self, seconds: float | None = None, log: Callable[[str], None] | None = None) -> None:
        if seconds is not None and seconds < 0:
            raise ValueError(f"seconds must be 0 or more, got {seconds}")
        self.seconds = seconds
        self._log = log
        self._started = self._last_message = time.monotonic()

    @property
    def elapsed(self) -> float:
        """Seconds since the limit was created."""
        return time.monotonic() - self._started

    def check(self, activity: str) -> None:
        """Report progress from time to time; raise `TimeLimitExceeded` when the limit is reached."""
        now = time.monotonic()
        if self.seconds is not None and now - self._started > self.seconds:
            raise TimeLimitExceeded(activity)
        self._report(activity, now)

    def report(self, activity: str) -> None:
        """Log the current activity if there was no message for a few seconds; never raise."""
        self._report(activity, time.monotonic())

    def _report(self, activity: str, now: float) -> None:
        if now - self._last_message >= REPORT_INTERVAL:
            self.log(f"{activity} ({now - self._started:.0f} s)")

    def log(self, text: str) -> None:
        """Log a message immediately."""
        self._last_message = time.monotonic()
        if self._log is not None:
            self._log(text)

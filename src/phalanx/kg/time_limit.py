"""Time for exhaustive work: a limit in seconds, and a word every few seconds on how far it has come.

What takes the time is in `chaining` and `phalanx.proofs`.
"""

import sys
import time
from collections.abc import Callable

SPEAK_EVERY = 4.0
"""Seconds between two words; nothing is silent for longer than 5."""


class TimeLimitExceeded(Exception):
    """The seconds of a budget are used up."""


def to_stderr(text: str) -> None:
    """Says it at once, beside what a program prints."""
    print(text, file=sys.stderr, flush=True)


class TimeLimit:
    """So many seconds from now on, or as many as it takes; `say` is told what is being done."""

    def __init__(self, seconds: float | None = None, say: Callable[[str], None] | None = None) -> None:
        if seconds is not None and seconds < 0:
            raise ValueError(f"seconds must be 0 or more, got {seconds}")
        self.seconds = seconds
        self._say = say
        self._begin = self._spoke = time.monotonic()

    @property
    def spent(self) -> float:
        """Seconds since it was made."""
        return time.monotonic() - self._begin

    def check(self, doing: str) -> None:
        """Report progress from time to time; raise `TimeLimitExceeded` when the limit is reached."""
        now = time.monotonic()
        if self.seconds is not None and now - self._begin > self.seconds:
            raise TimeLimitExceeded(doing)
        self._speak(doing, now)

    def word(self, doing: str) -> None:
        """Says what is being done if nothing was said for a while; never raises."""
        self._speak(doing, time.monotonic())

    def _speak(self, doing: str, now: float) -> None:
        if now - self._spoke >= SPEAK_EVERY:
            self.say(f"{doing} ({now - self._begin:.0f} s)")

    def say(self, text: str) -> None:
        """Says it now."""
        self._spoke = time.monotonic()
        if self._say is not None:
            self._say(text)

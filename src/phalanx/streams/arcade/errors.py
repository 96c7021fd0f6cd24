"""What can go wrong between a client and a puzzle server; each kind says whether trying again can help.

Lost connections, time-outs and full servers are `OSError`s, wrong names and commands are `ValueError`s.
"""

import random
from collections.abc import Iterator


class ArcadeConnectionError(ConnectionError):
    """The connection is of no more use; a new one may be. What was being played is gone."""


class ServerFullError(ArcadeConnectionError):
    """The server has as many connections as it takes."""


class ReplyTimeoutError(ArcadeConnectionError):
    """The server did not answer in time."""


class GarbledReplyError(ArcadeConnectionError):
    """The server sent what no reply looks like."""


class ArcadeUnavailableError(ConnectionError):
    """Every attempt to connect failed; the last one is the cause."""


class UnknownGameError(ValueError):
    """The server has no game of this name."""


class StartError(RuntimeError):
    """The server knows the game and yet did not start it."""


class CommandError(ValueError):
    """A text that is no single command for a game in progress; nothing was sent."""


class NoPuzzleError(RuntimeError):
    """A command for a game in progress, when none is."""


def backoff_delays(
    attempts: int, first: float, longest: float, jitter: float, draws: random.Random
) -> Iterator[float]:
    """The seconds before each further attempt: `first`, doubled each time up to `longest`.

    Each is shortened by a random share of at most `jitter`, so that many clients do not come back at once.

    >>> [round(delay, 2) for delay in backoff_delays(5, 0.1, 0.5, 0.0, random.Random(0))]
    [0.1, 0.2, 0.4, 0.5, 0.5]
    """
    for attempt in range(attempts):
        # The exponent is held down: 2.0**2000 is an error, and the limit is long reached.
        delay = min(longest, first * 2.0 ** min(attempt, 60))
        yield delay * (1.0 - jitter * draws.random())

"""What can go wrong between a client and a puzzle server, and trying again where that can help.

Lost connections, time-outs and full servers are `OSError`s, wrong names and commands are `ValueError`s.
"""

import asyncio
import logging
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from phalanx.puzzles.server.client import PuzzleClientConfig

_LOG = logging.getLogger("phalanx.puzzles.server")


class PuzzleServerConnectionError(ConnectionError):
    """The connection is of no more use; a new one may be."""


class ServerFullError(PuzzleServerConnectionError):
    """The server has as many connections as it takes."""


class ReplyTimeoutError(PuzzleServerConnectionError):
    """The server did not answer in time."""


class InvalidReplyError(PuzzleServerConnectionError):
    """The server sent what no reply looks like."""


class PuzzleServerUnavailableError(ConnectionError):
    """Every attempt failed; the last one is the cause."""


class ProtocolError(ConnectionError):
    """The server speaks, but not as is understood here; trying again would bring the same."""


class UnknownGameError(ValueError):
    """The server has no game of this name."""


class StartError(RuntimeError):
    """The server knows the game and yet did not start it."""


class CommandError(ValueError):
    """A text that is no single command for a game in progress; nothing was sent."""


class NoPuzzleError(RuntimeError):
    """A command for a game in progress, when none is."""


class Retries:
    """The further attempts at one request: pauses that grow, and one deadline for all of them together.

    Each is reported as it happens, by a warning of the Python logger `phalanx.data`.
    """

    def __init__(self, config: "PuzzleClientConfig", draws: random.Random) -> None:
        self._where = f"{config.host}:{config.port}"
        self._clock = asyncio.get_running_loop().time
        self._began = self._clock()
        self._deadline = config.deadline
        self._attempts = 0
        self._delays = backoff_delays(
            config.max_retries, config.retry_delay, config.max_retry_delay, config.retry_jitter, draws
        )

    @property
    def seconds_left(self) -> float:
        """Until all attempts must be over."""
        return max(self._began + self._deadline - self._clock(), 0.001)

    async def pause(self, error: PuzzleServerConnectionError) -> None:
        """Wait before the next attempt; raise `PuzzleServerUnavailableError` if none is left."""
        self._attempts += 1
        delay = next(self._delays, None)
        if delay is None or delay >= self.seconds_left:
            lasted = self._clock() - self._began
            raise PuzzleServerUnavailableError(
                f"no answer from {self._where} after {self._attempts} attempt(s) in {lasted:.1f} s: {error}; "
                "is the puzzle server running?"
            ) from error
        _LOG.warning(
            "%s; attempt %d follows in %.2g s, and all end in %.0f s",
            error,
            self._attempts + 1,
            delay,
            self.seconds_left,
        )
        await asyncio.sleep(delay)


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

"""How long to wait before trying again: longer each time, up to a limit, and never quite the same.

What is tried is known to the caller.
"""

import random
from collections.abc import Iterator


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

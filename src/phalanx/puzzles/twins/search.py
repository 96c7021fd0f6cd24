"""The numbers that a seed stands for, and the depth-first search that most kinds of puzzles use.

The twin of `src/native/puzzles/puzzles.h`; what is propagated is each kind's own.
"""

import abc
from collections.abc import Sequence

from phalanx.puzzles.splitmix64 import SplitMix64

MOST_ATTEMPTS = 100_000


class Rules(abc.ABC):
    """What narrows the values that variables can have; values are bits."""

    @abc.abstractmethod
    def propagate(self, domains: list[int]) -> bool:
        """Narrow to a fixed point; False if nothing is left."""

    def accepts(self, domains: list[int]) -> bool:
        """Whether single values are a solution, as far as `propagate` does not see it."""
        return True


def is_single(mask: int) -> bool:
    """Whether at most one value is left."""
    return mask & (mask - 1) == 0


def lowest(mask: int) -> int:
    """The smallest value of a mask that is not empty."""
    return (mask & -mask).bit_length() - 1


def highest(mask: int) -> int:
    """The largest value of a mask that is not empty."""
    return mask.bit_length() - 1


def search(rules: Rules, domains: list[int], limit: int, draws: SplitMix64 | None = None) -> list[list[int]]:
    """The first solutions, as domains of single values; the variable with the fewest values goes first."""
    found: list[list[int]] = []

    def run(domains: list[int]) -> None:
        if not rules.propagate(domains):
            return
        best, least = -1, 17
        for variable, mask in enumerate(domains):
            if least <= 2:
                break
            count = mask.bit_count()
            if 1 < count < least:
                best, least = variable, count
        if best < 0:
            if rules.accepts(domains):
                found.append(domains)
            return
        values = [value for value in range(domains[best].bit_length()) if domains[best] >> value & 1]
        if draws is not None:
            draws.shuffle(values)
        for value in values:
            if len(found) >= limit:
                return
            narrowed = domains.copy()
            narrowed[best] = 1 << value
            run(narrowed)

    run(domains)
    return found


def solutions_of(rules: Rules, domains: list[int], limit: int, first_value: int) -> list[bytes]:
    """The first solutions, as values."""
    return [bytes(lowest(mask) + first_value for mask in one) for one in search(rules, domains, limit)]


def with_blanks(
    rules: Rules, solution: Sequence[int], every: int, blanks: int, draws: SplitMix64
) -> list[int]:
    """The solution without as many values, in a drawn order, as leave it the only one; at most `blanks`."""
    given, removed = list(solution), 0
    domains = [1 << (value - 1) for value in solution]
    for cell in draws.order(len(given)):
        if removed == blanks:
            break
        own = domains[cell]
        # With this cell given there is one solution; another one would have another value here.
        domains[cell] = every & ~own
        if search(rules, domains.copy(), 1):
            domains[cell] = own
        else:
            domains[cell] = every
            given[cell] = 0
            removed += 1
    return given

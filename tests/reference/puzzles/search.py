"""Depth-first search with constraint propagation, shared by most reference solvers."""

import abc
from collections.abc import Sequence

from phalanx.puzzles.splitmix64 import SplitMix64

MAX_ATTEMPTS = 100_000


class Rules(abc.ABC):
    """Constraints that narrow the domains of variables; domains are bit masks."""

    @abc.abstractmethod
    def propagate(self, domains: list[int]) -> bool:
        """Narrow the domains to a fixed point; return False if a domain becomes empty."""

    def accepts(self, domains: list[int]) -> bool:
        """Check single values for constraints that `propagate` does not enforce."""
        return True


def is_single(mask: int) -> bool:
    """Return True if at most one value is left."""
    return mask & (mask - 1) == 0


def lowest(mask: int) -> int:
    """Return the smallest value of a nonempty mask."""
    return (mask & -mask).bit_length() - 1


def highest(mask: int) -> int:
    """Return the largest value of a nonempty mask."""
    return mask.bit_length() - 1


def search(rules: Rules, domains: list[int], limit: int, rng: SplitMix64 | None = None) -> list[list[int]]:
    """Return the first solutions, as domains of single values; branch on the smallest domain."""
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
        if rng is not None:
            rng.shuffle(values)
        for value in values:
            if len(found) >= limit:
                return
            narrowed = domains.copy()
            narrowed[best] = 1 << value
            run(narrowed)

    run(domains)
    return found


def find_solutions(rules: Rules, domains: list[int], limit: int, first_value: int) -> list[bytes]:
    """Return the first solutions, as values."""
    return [bytes(lowest(mask) + first_value for mask in one) for one in search(rules, domains, limit)]


def remove_givens(
    rules: Rules, solution: Sequence[int], every: int, blanks: int, rng: SplitMix64
) -> list[int]:
    """Remove values in random order while the solution stays unique; at most `blanks` of them."""
    given, removed = list(solution), 0
    domains = [1 << (value - 1) for value in solution]
    for cell in rng.permutation(len(given)):
        if removed == blanks:
            break
        own = domains[cell]
        # With this cell given the solution is unique, so another solution would have another value here.
        domains[cell] = every & ~own
        if search(rules, domains.copy(), 1):
            domains[cell] = own
        else:
            domains[cell] = every
            given[cell] = 0
            removed += 1
    return given

"""Binary and nonogram: two values, and rules about whole rows and columns.

The twin of `src/native/puzzles/lines.cc`.
"""

import functools
import itertools
from collections.abc import Sequence

from phalanx.puzzles.splitmix64 import SplitMix64
from phalanx.puzzles.twins.search import MOST_ATTEMPTS, Rules, search, solutions_of, with_blanks

_BOTH = 3


def lines_of(size: int) -> list[range]:
    """The cells of each row, then of each column."""
    rows = [range(row * size, (row + 1) * size) for row in range(size)]
    return rows + [range(column, size * size, size) for column in range(size)]


def runs_of(line: Sequence[int]) -> list[int]:
    """How many filled cells follow one another.

    >>> runs_of([1, 1, 0, 1, 0])
    [2, 1]
    """
    return [sum(1 for _ in cells) for filled, cells in itertools.groupby(line) if filled]


class Binary(Rules):
    """Each line has as many zeros (1) as ones (2), never three in a row; no two rows or columns are equal."""

    def __init__(self, size: int) -> None:
        self.size, self.lines = size, lines_of(size)

    def propagate(self, domains: list[int]) -> bool:
        half, changed = self.size // 2, True
        while changed:
            changed = False
            for line in self.lines:
                for value in (1, 2):
                    fixed = [domains[cell] == value for cell in line]
                    if sum(fixed) > half:
                        return False
                    full = sum(fixed) == half
                    for place, cell in enumerate(line):
                        if not domains[cell] & value:
                            continue
                        before, after = fixed[max(0, place - 2) : place], fixed[place + 1 : place + 3]
                        pairs = (before, after, before[-1:] + after[:1])
                        if (full and not fixed[place]) or [True, True] in pairs:
                            if fixed[place]:
                                return False
                            domains[cell] &= ~value
                            changed = True
        return True

    def accepts(self, domains: list[int]) -> bool:
        values = [tuple(domains[cell] for cell in line) for line in self.lines]
        return len(set(values[: self.size])) == len(set(values[self.size :])) == self.size


class Nonogram(Rules):
    """Filled cells (2) and empty ones (1), whose runs in each line are its clue."""

    def __init__(self, clues: Sequence[int], size: int) -> None:
        self.size, slots, table = size, (size + 1) // 2, _lines_by_runs(size)
        self.lines = lines_of(size)
        padded = [tuple(clues[at * slots : (at + 1) * slots]) for at in range(2 * size)]
        self.candidates = [table.get(tuple(filter(None, clue)), ()) for clue in padded]

    def propagate(self, domains: list[int]) -> bool:
        dirty = set(range(2 * self.size))
        while dirty:
            number = dirty.pop()
            line = self.lines[number]
            filled = sum(1 << place for place, cell in enumerate(line) if domains[cell] == 2)
            empty = sum(1 << place for place, cell in enumerate(line) if domains[cell] == 1)
            always, ever = (1 << self.size) - 1, 0
            for mask in self.candidates[number]:
                if mask & filled == filled and not mask & empty:
                    always &= mask
                    ever |= mask
            if always & ~ever:
                return False
            for place, cell in enumerate(line):
                left = domains[cell] & (2 if always >> place & 1 else 3 if ever >> place & 1 else 1)
                if left != domains[cell]:
                    domains[cell] = left
                    dirty.add(self.size + place if number < self.size else place)
        return True


@functools.cache
def _lines_by_runs(size: int) -> dict[tuple[int, ...], list[int]]:
    table: dict[tuple[int, ...], list[int]] = {}
    for mask in range(1 << size):
        table.setdefault(tuple(runs_of([mask >> place & 1 for place in range(size)])), []).append(mask)
    return table


def make_binary(seed: int, parameters: Sequence[int]) -> bytes:
    """Givens and solution; parameters are the size and blanks."""
    size, blanks = parameters
    draws, rules = SplitMix64(seed), Binary(size)
    [solution] = search(rules, [_BOTH] * size**2, 1, draws)
    return bytes(with_blanks(rules, solution, _BOTH, blanks, draws) + solution)


def solve_binary(puzzle: bytes, parameters: Sequence[int], limit: int) -> list[bytes]:
    """The solutions of givens."""
    return solutions_of(Binary(parameters[0]), [value or _BOTH for value in puzzle], limit, 1)


def make_nonogram(seed: int, parameters: Sequence[int]) -> bytes:
    """Clues with zeros behind, and solution; parameters are the size and the filled share in per cent."""
    size, share = parameters
    draws, slots, lines = SplitMix64(seed), (size + 1) // 2, lines_of(size)
    for _ in range(MOST_ATTEMPTS):
        solution = [int(draws.below(100) < share) for _ in range(size * size)]
        runs = [runs_of([solution[cell] for cell in line]) for line in lines]
        clues = [length for clue in runs for length in clue + [0] * (slots - len(clue))]
        if len(search(Nonogram(clues, size), [_BOTH] * size**2, 2)) == 1:
            return bytes(clues + solution)
    raise RuntimeError("no nonogram with one solution was found")


def solve_nonogram(puzzle: bytes, parameters: Sequence[int], limit: int) -> list[bytes]:
    """The solutions of clues."""
    size = parameters[0]
    return solutions_of(Nonogram(puzzle, size), [_BOTH] * size**2, limit, 0)

"""Reference generators and solvers of binary puzzles and nonograms."""

import functools
from collections.abc import Sequence

from phalanx.puzzles.kinds.grid import rows_and_columns
from phalanx.puzzles.kinds.nonogram import run_lengths
from phalanx.puzzles.splitmix64 import SplitMix64
from tests.reference.puzzles.search import MAX_ATTEMPTS, Rules, find_solutions, remove_givens, search

_BOTH = 3


class Binary(Rules):
    """Each line has as many zeros (1) as ones (2), never three in a row; no two rows or columns are equal."""

    def __init__(self, size: int) -> None:
        self.size, self.lines = size, rows_and_columns(size)

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
    """Filled cells (2) and empty cells (1) whose runs in each line match its clue."""

    def __init__(self, clues: Sequence[int], size: int) -> None:
        self.size, slots, table = size, (size + 1) // 2, _lines_by_runs(size)
        self.lines = rows_and_columns(size)
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
        table.setdefault(tuple(run_lengths([mask >> place & 1 for place in range(size)])), []).append(mask)
    return table


def generate_binary(seed: int, parameters: Sequence[int]) -> bytes:
    """Return givens and solution; parameters are the size and blanks."""
    size, blanks = parameters
    rng, rules = SplitMix64(seed), Binary(size)
    [solution] = search(rules, [_BOTH] * size**2, 1, rng)
    return bytes(remove_givens(rules, solution, _BOTH, blanks, rng) + solution)


def solve_binary(puzzle: bytes, parameters: Sequence[int], limit: int) -> list[bytes]:
    """Return the solutions of the givens."""
    return find_solutions(Binary(parameters[0]), [value or _BOTH for value in puzzle], limit, 1)


def generate_nonogram(seed: int, parameters: Sequence[int]) -> bytes:
    """Return padded clues and solution; parameters are the size and the percentage of filled cells."""
    size, share = parameters
    rng, slots, lines = SplitMix64(seed), (size + 1) // 2, rows_and_columns(size)
    for _ in range(MAX_ATTEMPTS):
        solution = [int(rng.integers(100) < share) for _ in range(size * size)]
        runs = [run_lengths([solution[cell] for cell in line]) for line in lines]
        clues = [length for clue in runs for length in clue + [0] * (slots - len(clue))]
        if len(search(Nonogram(clues, size), [_BOTH] * size**2, 2)) == 1:
            return bytes(clues + solution)
    raise RuntimeError("no nonogram with one solution was found")


def solve_nonogram(puzzle: bytes, parameters: Sequence[int], limit: int) -> list[bytes]:
    """Return the solutions of the clues."""
    size = parameters[0]
    return find_solutions(Nonogram(puzzle, size), [_BOTH] * size**2, limit, 0)

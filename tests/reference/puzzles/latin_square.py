"""Reference generators and solvers of sudoku and futoshiki."""

from collections.abc import Sequence

from phalanx.puzzles.splitmix64 import SplitMix64
from tests.reference.puzzles.search import (
    Rules,
    find_solutions,
    highest,
    is_single,
    lowest,
    remove_givens,
    search,
)


class Latin(Rules):
    """Each value once in each row, column and box; the first cell of each pair in `less` is smaller."""

    def __init__(self, size: int, box_rows: int, box_columns: int) -> None:
        self.size, self.all, self.less = size, (1 << size) - 1, list[tuple[int, int]]()
        rows = [[row * size + column for column in range(size)] for row in range(size)]
        self.groups = rows + [list(column) for column in zip(*rows, strict=True)]
        if box_rows > 1:
            self.groups += [
                [(top + k // box_columns) * size + left + k % box_columns for k in range(size)]
                for top in range(0, size, box_rows)
                for left in range(0, size, box_columns)
            ]
        self.groups_of = [{number for number, group in enumerate(self.groups) if cell in group}
                          for cell in range(size * size)]  # fmt: skip

    def propagate(self, domains: list[int]) -> bool:
        dirty = set(range(len(self.groups)))
        while True:
            while dirty:
                if not self._narrow(self.groups[dirty.pop()], domains, dirty):
                    return False
            for small, large in self.less:
                below = domains[small] & ((1 << highest(domains[large])) - 1)
                if below == 0:
                    return False
                above = domains[large] & ~((2 << lowest(below)) - 1)
                if above == 0:
                    return False
                if below != domains[small]:
                    domains[small] = below
                    dirty |= self.groups_of[small]
                if above != domains[large]:
                    domains[large] = above
                    dirty |= self.groups_of[large]
            if not dirty:
                return True

    def _narrow(self, group: list[int], domains: list[int], dirty: set[int]) -> bool:
        once = twice = fixed = 0
        for cell in group:
            mask = domains[cell]
            if is_single(mask):
                if mask == 0 or fixed & mask:
                    return False
                fixed |= mask
            twice |= once & mask
            once |= mask
        if once != self.all:
            return False
        hidden = once & ~twice & ~fixed
        for cell in group:
            mask = domains[cell]
            if is_single(mask):
                continue
            left = mask & ~fixed
            if left & hidden:
                left &= hidden
                if not is_single(left):
                    return False
            if left == 0:
                return False
            if left != mask:
                domains[cell] = left
                dirty |= self.groups_of[cell]
        return True

    def filled(self, rng: SplitMix64) -> list[int]:
        """Draw a complete square."""
        [found] = search(self, [self.all] * self.size**2, 1, rng)
        return [lowest(mask) + 1 for mask in found]

    def solutions(self, given: Sequence[int], limit: int) -> list[bytes]:
        """Return the first squares with these values; 0 is a blank."""
        return find_solutions(self, [1 << (value - 1) if value else self.all for value in given], limit, 1)


def generate_sudoku(seed: int, parameters: Sequence[int]) -> bytes:
    """Return givens and solution; parameters are the size, rows and columns of a box, and blanks."""
    size, box_rows, box_columns, blanks = parameters
    rng, rules = SplitMix64(seed), Latin(size, box_rows, box_columns)
    solution = rules.filled(rng)
    return bytes(remove_givens(rules, solution, rules.all, blanks, rng) + solution)


def generate_futoshiki(seed: int, parameters: Sequence[int]) -> bytes:
    """Return givens, solution and pairs of cells; parameters are the size, signs and blanks."""
    size, signs, blanks = parameters
    rng, rules = SplitMix64(seed), Latin(size, 1, size)
    solution = rules.filled(rng)
    pairs = []
    for cell in range(size * size):
        pairs += [(cell, cell + 1)] if cell % size + 1 < size else []
        pairs += [(cell, cell + size)] if cell + size < size * size else []
    rng.shuffle(pairs)
    rules.less = [(a, b) if solution[a] < solution[b] else (b, a) for a, b in pairs[:signs]]
    given = remove_givens(rules, solution, rules.all, blanks, rng)
    return bytes(given + solution + [cell for pair in rules.less for cell in pair])


def solve_sudoku(puzzle: bytes, parameters: Sequence[int], limit: int) -> list[bytes]:
    """Return the solutions of the givens."""
    return Latin(*parameters[:3]).solutions(puzzle, limit)


def solve_futoshiki(puzzle: bytes, parameters: Sequence[int], limit: int) -> list[bytes]:
    """Return the solutions of givens that are followed by pairs of cells."""
    size = parameters[0]
    rules, signs = Latin(size, 1, size), puzzle[size * size :]
    rules.less = list(zip(signs[::2], signs[1::2], strict=True))
    return rules.solutions(puzzle[: size * size], limit)

"""Reference generators and solvers of hitori and bridges."""

from collections.abc import Sequence

from phalanx.puzzles.kinds.bridges import crossing_edges, is_joined, list_edges
from phalanx.puzzles.kinds.grid import is_connected, neighbors
from phalanx.puzzles.splitmix64 import SplitMix64
from tests.reference.puzzles.latin_square import Latin
from tests.reference.puzzles.search import MAX_ATTEMPTS, Rules, find_solutions, highest, lowest, search


class Hitori(Rules):
    """White cells (1) and shaded cells (2)."""

    def __init__(self, numbers: Sequence[int], size: int) -> None:
        self.size, self.near = size, neighbors(size)
        cells = range(size * size)
        self.alike = [
            [
                b
                for b in cells
                if a != b and numbers[a] == numbers[b] and (a // size == b // size or (a - b) % size == 0)
            ]
            for a in cells
        ]

    def propagate(self, domains: list[int]) -> bool:
        changed = True
        while changed:
            changed = False
            for cell, mask in enumerate(domains):
                if mask == 3:
                    continue
                # All neighbors of a shaded cell are white; cells that equal a white cell in its line are
                # shaded.
                value = 1 if mask == 2 else 2
                for other in self.near[cell] if mask == 2 else self.alike[cell]:
                    if domains[other] == value:
                        continue
                    if not domains[other] & value:
                        return False
                    domains[other] = value
                    changed = True
        whites = {cell for cell, mask in enumerate(domains) if mask == 1}
        return is_connected({cell for cell, mask in enumerate(domains) if mask & 1}, whites, self.size)


class Bridges(Rules):
    """Zero, one or two bridges (1, 2, 4) on each edge."""

    def __init__(self, numbers: Sequence[int], size: int) -> None:
        self.edges = list_edges(numbers, size)
        self.crossings = crossing_edges(self.edges, size)
        self.islands = [
            (number, [e for e, edge in enumerate(self.edges) if cell in (edge.start, edge.end)])
            for cell, number in enumerate(numbers)
            if number
        ]

    def propagate(self, domains: list[int]) -> bool:
        changed = True
        while changed:
            changed = False
            for wanted, edges in self.islands:
                for edge in edges:
                    others = [domains[e] for e in edges if e != edge]
                    least, most = sum(map(lowest, others)), sum(map(highest, others))
                    left = sum(1 << k for k in range(3) if least + k <= wanted <= most + k) & domains[edge]
                    if not left:
                        return False
                    changed |= left != domains[edge]
                    domains[edge] = left
            for pair in self.crossings:
                for one, other in (pair, pair[::-1]):
                    if domains[one] & 1 or domains[other] == 1:
                        continue
                    if not domains[other] & 1:
                        return False
                    domains[other] = 1
                    changed = True
        return self.accepts(domains)

    def accepts(self, domains: list[int]) -> bool:
        return is_joined(self.edges, [mask != 1 for mask in domains], len(self.islands))


def generate_hitori(seed: int, parameters: Sequence[int]) -> bytes:
    """Return numbers and solution; parameters are the size and the maximum number of shaded cells."""
    size, most = parameters
    rng, latin, near = SplitMix64(seed), Latin(size, 1, size), neighbors(size)
    cells = range(size * size)
    for _ in range(MAX_ATTEMPTS):
        square, white, shaded = latin.filled(rng), set(cells), 0
        for cell in rng.permutation(size * size):
            if shaded == most:
                break
            if all(other in white for other in near[cell]):
                white.remove(cell)
                if is_connected(white, white, size):
                    shaded += 1
                else:
                    white.add(cell)
        numbers = square.copy()
        for cell in cells:
            if cell not in white:
                numbers[cell] = _duplicate(cell, square, white, size, rng)
        if len(search(Hitori(numbers, size), [3] * size**2, 2)) == 1:
            return bytes(numbers + [int(cell not in white) for cell in cells])
    raise RuntimeError("no hitori with one solution was found")


def _duplicate(cell: int, square: list[int], white: set[int], size: int, rng: SplitMix64) -> int:
    """Draw a number that is white in both the cell's row and column, or else in one of them."""
    row = {square[c] for c in range(cell // size * size, (cell // size + 1) * size) if c in white}
    column = {square[c] for c in range(cell % size, size * size, size) if c in white}
    choice = sorted(row & column or row | column)
    return choice[rng.integers(len(choice))]


def solve_hitori(puzzle: bytes, parameters: Sequence[int], limit: int) -> list[bytes]:
    """Return the solutions of the numbers."""
    size = parameters[0]
    return find_solutions(Hitori(puzzle, size), [3] * size**2, limit, 0)


def generate_bridges(seed: int, parameters: Sequence[int]) -> bytes:
    """Return numbers (0 is water) and bridges on each edge; parameters are the size and number of islands."""
    size, islands = parameters
    rng = SplitMix64(seed)
    for _ in range(MAX_ATTEMPTS):
        drawn = _islands(size, islands, rng)
        if drawn is None:
            continue
        numbers, built = drawn
        rules = Bridges(numbers, size)
        if len(search(rules, [7] * len(rules.edges), 2)) == 1:
            return bytes(numbers + [built.get((edge.start, edge.end), 0) for edge in rules.edges])
    raise RuntimeError("no bridges with one solution were found")


def _islands(size: int, islands: int, rng: SplitMix64) -> tuple[list[int], dict[tuple[int, int], int]] | None:
    """Grow islands from one another with bridges between them; None if there is no space."""
    numbers, taken, built = [0] * size**2, set[int](), dict[tuple[int, int], int]()
    places, near = [rng.integers(size * size)], neighbors(size)

    def build(start: int, end: int, count: int) -> None:
        start, end = min(start, end), max(start, end)
        taken.update(range(start, end, 1 if start // size == end // size else size))
        numbers[start] += count
        numbers[end] += count
        built[start, end] = count

    for _ in range(40 * islands):
        if len(places) == islands:
            break
        start = places[rng.integers(len(places))]
        direction, length, count = rng.integers(4), 2 + rng.integers(size - 2), 1 + rng.integers(2)
        down, right = ((-1, 0), (1, 0), (0, -1), (0, 1))[direction]
        row, column = start // size + down * length, start % size + right * length
        if not (0 <= row < size and 0 <= column < size):
            continue
        end = row * size + column
        path = [start + k * (down * size + right) for k in range(1, length + 1)]
        if any(c in taken or c in places for c in path) or any(c in places for c in near[end]):
            continue
        places.append(end)
        build(start, end, count)
    if len(places) < islands:
        return None
    # Add some bridges, so that not every puzzle is a tree.
    for edge in list_edges(numbers, size):
        chance, count = rng.integers(4), 1 + rng.integers(2)
        between = range(edge.start, edge.end, size if edge.down else 1)[1:]
        if chance == 0 and not any(cell in taken for cell in between):
            build(edge.start, edge.end, count)
    return numbers, built


def solve_bridges(puzzle: bytes, parameters: Sequence[int], limit: int) -> list[bytes]:
    """Return the solutions of the numbers."""
    rules = Bridges(puzzle, parameters[0])
    return find_solutions(rules, [7] * len(rules.edges), limit, 0)

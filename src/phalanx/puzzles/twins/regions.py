"""Hitori and bridges: puzzles whose answer must hang together.

The twin of `src/native/puzzles/regions.cc`.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

from phalanx.puzzles.splitmix64 import SplitMix64
from phalanx.puzzles.twins.latin import Latin
from phalanx.puzzles.twins.search import MOST_ATTEMPTS, Rules, highest, lowest, search, solutions_of


@functools.cache
def neighbors(size: int) -> tuple[tuple[int, ...], ...]:
    """The cells beside each cell: above, below, left, right."""
    return tuple(
        tuple(
            (row + down) * size + column + right
            for down, right in ((-1, 0), (1, 0), (0, -1), (0, 1))
            if 0 <= row + down < size and 0 <= column + right < size
        )
        for row in range(size)
        for column in range(size)
    )


def connected(open_cells: set[int], wanted: set[int], size: int) -> bool:
    """Whether the wanted cells can all be reached from one another through open ones."""
    if not wanted:
        return True
    near, stack = neighbors(size), [min(wanted)]
    seen = set(stack)
    while stack:
        for other in near[stack.pop()]:
            if other in open_cells and other not in seen:
                seen.add(other)
                stack.append(other)
    return wanted <= seen


class Hitori(Rules):
    """White cells (1) and shaded ones (2)."""

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
                # Beside a shaded cell all are white; what equals a white cell in its line is shaded.
                value = 1 if mask == 2 else 2
                for other in self.near[cell] if mask == 2 else self.alike[cell]:
                    if domains[other] == value:
                        continue
                    if not domains[other] & value:
                        return False
                    domains[other] = value
                    changed = True
        whites = {cell for cell, mask in enumerate(domains) if mask == 1}
        return connected({cell for cell, mask in enumerate(domains) if mask & 1}, whites, self.size)


class Edge(NamedTuple):
    """Two islands that see each other."""

    start: int
    end: int
    down: bool


def edges_of(numbers: Sequence[int], size: int) -> list[Edge]:
    """To the right and down from each island, in the order of the cells."""
    edges = []
    for cell in range(size * size):
        if not numbers[cell]:
            continue
        right = next((c for c in range(cell + 1, (cell // size + 1) * size) if numbers[c]), None)
        below = next((c for c in range(cell + size, size * size, size) if numbers[c]), None)
        edges += [Edge(cell, right, False)] if right is not None else []
        edges += [Edge(cell, below, True)] if below is not None else []
    return edges


def crossings_of(edges: Sequence[Edge], size: int) -> list[tuple[int, int]]:
    """Pairs of edges, by number, that cannot both have bridges."""
    return [
        (one, other)
        for one, across in enumerate(edges)
        for other, down in enumerate(edges)
        if not across.down
        and down.down
        and down.start // size < across.start // size < down.end // size
        and across.start % size < down.start % size < across.end % size
    ]


def joined(edges: Sequence[Edge], built: Sequence[bool], islands: int) -> bool:
    """Whether the edges that are built join all islands."""
    part: dict[int, set[int]] = {}
    for edge, there in zip(edges, built, strict=True):
        for cell in (edge.start, edge.end):
            part.setdefault(cell, {cell})
        if there and part[edge.start] is not part[edge.end]:
            union = part[edge.start] | part[edge.end]
            for cell in union:
                part[cell] = union
    return len({id(cells) for cells in part.values()}) == 1 and len(part) == islands


class Bridges(Rules):
    """No, one or two bridges (1, 2, 4) on each edge."""

    def __init__(self, numbers: Sequence[int], size: int) -> None:
        self.edges = edges_of(numbers, size)
        self.crossings = crossings_of(self.edges, size)
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
        return joined(self.edges, [mask != 1 for mask in domains], len(self.islands))


def make_hitori(seed: int, parameters: Sequence[int]) -> bytes:
    """Numbers and solution; parameters are the size and how many cells are shaded at most."""
    size, most = parameters
    draws, latin, near = SplitMix64(seed), Latin(size, 1, size), neighbors(size)
    cells = range(size * size)
    for _ in range(MOST_ATTEMPTS):
        square, white, shaded = latin.filled(draws), set(cells), 0
        for cell in draws.order(size * size):
            if shaded == most:
                break
            if all(other in white for other in near[cell]):
                white.remove(cell)
                if connected(white, white, size):
                    shaded += 1
                else:
                    white.add(cell)
        numbers = square.copy()
        for cell in cells:
            if cell not in white:
                numbers[cell] = _duplicate(cell, square, white, size, draws)
        if len(search(Hitori(numbers, size), [3] * size**2, 2)) == 1:
            return bytes(numbers + [int(cell not in white) for cell in cells])
    raise RuntimeError("no hitori with one solution was found")


def _duplicate(cell: int, square: list[int], white: set[int], size: int, draws: SplitMix64) -> int:
    """A number that is white in the cell's row and in its column, else in one: two reasons to shade it."""
    row = {square[c] for c in range(cell // size * size, (cell // size + 1) * size) if c in white}
    column = {square[c] for c in range(cell % size, size * size, size) if c in white}
    choice = sorted(row & column or row | column)
    return choice[draws.below(len(choice))]


def solve_hitori(puzzle: bytes, parameters: Sequence[int], limit: int) -> list[bytes]:
    """The solutions of numbers."""
    size = parameters[0]
    return solutions_of(Hitori(puzzle, size), [3] * size**2, limit, 0)


def make_bridges(seed: int, parameters: Sequence[int]) -> bytes:
    """Numbers (0 is water) and bridges on each edge; parameters are the size and how many islands."""
    size, islands = parameters
    draws = SplitMix64(seed)
    for _ in range(MOST_ATTEMPTS):
        drawn = _islands(size, islands, draws)
        if drawn is None:
            continue
        numbers, built = drawn
        rules = Bridges(numbers, size)
        if len(search(rules, [7] * len(rules.edges), 2)) == 1:
            return bytes(numbers + [built.get((edge.start, edge.end), 0) for edge in rules.edges])
    raise RuntimeError("no bridges with one solution were found")


def _islands(
    size: int, islands: int, draws: SplitMix64
) -> tuple[list[int], dict[tuple[int, int], int]] | None:
    """Islands that grow out of one another, and the bridges between them; None where there is no room."""
    numbers, taken, built = [0] * size**2, set[int](), dict[tuple[int, int], int]()
    places, near = [draws.below(size * size)], neighbors(size)

    def build(start: int, end: int, count: int) -> None:
        start, end = min(start, end), max(start, end)
        taken.update(range(start, end, 1 if start // size == end // size else size))
        numbers[start] += count
        numbers[end] += count
        built[start, end] = count

    for _ in range(40 * islands):
        if len(places) == islands:
            break
        start = places[draws.below(len(places))]
        direction, length, count = draws.below(4), 2 + draws.below(size - 2), 1 + draws.below(2)
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
    # Some more bridges, so that not every puzzle is a tree.
    for edge in edges_of(numbers, size):
        chance, count = draws.below(4), 1 + draws.below(2)
        between = range(edge.start, edge.end, size if edge.down else 1)[1:]
        if chance == 0 and not any(cell in taken for cell in between):
            build(edge.start, edge.end, count)
    return numbers, built


def solve_bridges(puzzle: bytes, parameters: Sequence[int], limit: int) -> list[bytes]:
    """The solutions of numbers."""
    rules = Bridges(puzzle, parameters[0])
    return solutions_of(rules, [7] * len(rules.edges), limit, 0)

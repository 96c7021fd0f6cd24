"""Reference generator and solver of sokoban: boards as 64 bits, searched backwards by pulling boxes."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from phalanx.puzzles.kinds.sokoban import BOX, BOX_ON_GOAL, FLOOR, GOAL, STEPS, WALL, WIDTH
from phalanx.puzzles.splitmix64 import SplitMix64
from tests.reference.puzzles.search import MAX_ATTEMPTS


class _Node(NamedTuple):
    boxes: int
    region: int
    parent: int
    cell: int
    direction: int
    pushes: int

    @property
    def key(self) -> tuple[int, int]:
        return self.boxes, self.region & -self.region


def cells_of(board: int) -> Iterator[int]:
    """Iterate over the cells whose bits are set."""
    while board:
        yield (board & -board).bit_length() - 1
        board &= board - 1


def reached(start: int, free: int) -> int:
    """Return the cells that can be walked to; the border is wall, so rows do not run into each other."""
    found, wider = 0, start & free
    while wider != found:
        found = wider
        wider = (found | found << WIDTH | found >> WIDTH | found << 1 | found >> 1) & free
    return found


def _backwards(
    floor: int, goals: int, most: int, pushes: int = 1 << 30, wanted: tuple[int, int] | None = None
) -> tuple[list[_Node], int]:
    """Return boards in the order of the pushes that solve them, and the index of the wanted one or -1."""
    nodes: list[_Node] = []
    known: set[tuple[int, int]] = set()

    def add(node: _Node) -> None:
        if node.key not in known:
            known.add(node.key)
            nodes.append(node)

    rest = floor & ~goals
    while rest:
        region = reached(rest & -rest, floor & ~goals)
        add(_Node(goals, region, -1, 0, 0, 0))
        rest &= ~region
    for index, node in enumerate(nodes):
        if wanted is not None and node.key == wanted:
            return nodes, index
        if len(nodes) >= most or node.pushes >= pushes:
            continue
        for box in cells_of(node.boxes):
            for direction, step in enumerate(STEPS):
                # The player stood where the box came from, and one step further before the push.
                start, behind = box - step, box - 2 * step
                if node.region >> start & 1 and behind >= 0 and floor & ~node.boxes & 1 << behind:
                    boxes = node.boxes & ~(1 << box) | 1 << start
                    region = reached(1 << behind, floor & ~boxes)
                    add(_Node(boxes, region, index, start, direction, node.pushes + 1))
    return nodes, -1


def _moves_from(nodes: list[_Node], index: int, player: int, floor: int) -> list[int]:
    """Return the moves of a player who walks to each push by a shortest path."""
    moves: list[int] = []
    while nodes[index].parent >= 0:
        node = nodes[index]
        moves += _walk(player, node.cell - STEPS[node.direction], floor & ~node.boxes)
        moves.append(node.direction)
        player, index = node.cell, node.parent
    return moves


def _walk(start: int, end: int, free: int) -> list[int]:
    came, queue = {start: -1}, [start]
    for cell in queue:
        if cell == end:
            break
        for direction, step in enumerate(STEPS):
            if free >> (cell + step) & 1 and cell + step not in came:
                came[cell + step] = direction
                queue.append(cell + step)
    moves = []
    while end != start:
        moves.append(came[end])
        end -= STEPS[came[end]]
    return moves[::-1]


def generate_sokoban(seed: int, parameters: Sequence[int]) -> bytes:
    """Return 64 cells, the player, then the moves of a solution.

    Parameters are rows, columns, boxes, percentage of walls, minimum and maximum pushes, boards to search.
    """
    rows, columns, boxes, walls, least, most, boards = parameters
    rng = SplitMix64(seed)
    for _ in range(MAX_ATTEMPTS):
        floor = 0
        for row in range(1, rows - 1):
            for column in range(1, columns - 1):
                floor |= int(rng.integers(100) >= walls) << (row * WIDTH + column)
        floor = reached(floor & -floor, floor)
        cells = list(cells_of(floor))
        if len(cells) < 2 * boxes + 6:
            continue
        rng.shuffle(cells)
        goals = sum(1 << cell for cell in cells[:boxes])
        nodes, _ = _backwards(floor, goals, boards, most)
        pushes = nodes[-1].pushes
        if pushes < least:
            continue
        chosen = [index for index, node in enumerate(nodes) if node.pushes == pushes]
        index = chosen[rng.integers(len(chosen))]
        node = nodes[index]
        player = list(cells_of(node.region))[rng.integers(node.region.bit_count())]
        record = [WALL] * 64
        for cell in cells:
            kinds = ((FLOOR, GOAL), (BOX, BOX_ON_GOAL))
            record[cell] = kinds[node.boxes >> cell & 1][goals >> cell & 1]
        return bytes([*record, player, *_moves_from(nodes, index, player, floor)])
    raise RuntimeError("no sokoban board of this kind was found")


def solve_sokoban(puzzle: bytes, parameters: Sequence[int], limit: int) -> list[bytes]:
    """Return the moves that solve 64 cells and a player; none if that takes more than `limit` boards."""
    floor = sum(1 << cell for cell in range(64) if puzzle[cell] != WALL)
    goals = sum(1 << cell for cell in range(64) if puzzle[cell] in (GOAL, BOX_ON_GOAL))
    boxes = sum(1 << cell for cell in range(64) if puzzle[cell] in (BOX, BOX_ON_GOAL))
    region = reached(1 << puzzle[64], floor & ~boxes)
    nodes, index = _backwards(floor, goals, limit, wanted=(boxes, region & -region))
    return [] if index < 0 else [bytes(_moves_from(nodes, index, puzzle[64], floor))]

"""Reference simulator of operations 0 to 33 on boxes, and an exhaustive search."""

import itertools
from collections.abc import Iterator

import numpy as np

from phalanx.arc.tasks import Solution

COPY, PASTE, CUT, CLEAR, COPY_INPUT, RESIZE = range(28, 34)


def replay(start: np.ndarray, solution: Solution) -> np.ndarray:
    """Return the grid after a solution."""
    grid, clipboard = start.copy(), None
    for step in solution:
        r1, c1, r2, c2 = step.r1, step.c1, step.r2, step.c2
        box = slice(r1, r2 + 1), slice(c1, c2 + 1)
        if step.operation == PASTE:
            grid = grid if clipboard is None else write(grid[None], clipboard[None], r1, c1)[0]
        elif step.operation == COPY_INPUT:
            grid = start.copy()
        elif step.operation == RESIZE:
            grid = resized(grid[None], r2 + 1, c2 + 1)[0]
        elif step.operation in (COPY, CUT):
            clipboard = grid[box].copy()
            if step.operation == CUT:
                grid[box] = 0
        else:
            grid = painted_or_carried(grid[None], step.operation, r1, c1, r2, c2)[0]
    return grid


def write(grids: np.ndarray, blocks: np.ndarray, r: int, c: int) -> np.ndarray:
    """Paste blocks at a cell; parts outside the grid are dropped."""
    rows, cols = grids.shape[1:]
    top, left = max(r, 0), max(c, 0)
    bottom, right = min(r + blocks.shape[1], rows), min(c + blocks.shape[2], cols)
    result = grids.copy()
    result[:, top:bottom, left:right] = blocks[:, top - r : bottom - r, left - c : right - c]
    return result


def resized(grids: np.ndarray, height: int, width: int) -> np.ndarray:
    return write(np.zeros((len(grids), height, width), np.int8), grids, 0, 0)


def region(grids: np.ndarray, r: int, c: int) -> np.ndarray:
    """Return the 4-connected region of equal color around a cell in each grid."""
    same = grids == grids[:, r : r + 1, c : c + 1]
    found = np.zeros_like(same)
    found[:, r, c] = True
    while True:
        grown = found.copy()
        grown[:, 1:] |= found[:, :-1]
        grown[:, :-1] |= found[:, 1:]
        grown[:, :, 1:] |= found[:, :, :-1]
        grown[:, :, :-1] |= found[:, :, 1:]
        grown &= same
        if (grown == found).all():
            return found
        found = grown


def painted_or_carried(grids: np.ndarray, operation: int, r1: int, c1: int, r2: int, c2: int) -> np.ndarray:
    """Apply operations 0 to 27 and Clear to a stack of grids."""
    box = slice(None), slice(r1, r2 + 1), slice(c1, c2 + 1)
    result = grids.copy()
    if operation == CLEAR or operation <= 9:
        result[box] = 0 if operation == CLEAR else operation
        return result
    if operation <= 19:
        if (r1, c1) == (r2, c2):
            result[region(grids, r1, c1)] = operation - 10
        return result
    result[box] = 0
    held = grids[box]
    if operation <= 23:
        dr, dc = ((-1, 0), (1, 0), (0, -1), (0, 1))[operation - 20]
        return write(result, held, r1 + dr, c1 + dc)
    if operation <= 25:
        return write(result, np.rot90(held, 1 if operation == 25 else -1, axes=(1, 2)), r1, c1)
    return write(result, held[:, :, ::-1] if operation == 26 else held[:, ::-1], r1, c1)


def boxes(rows: int, cols: int) -> list[tuple[int, int, int, int]]:
    spans = itertools.product(
        itertools.combinations_with_replacement(range(rows), 2),
        itertools.combinations_with_replacement(range(cols), 2),
    )
    return [(r1, c1, r2, c2) for (r1, r2), (c1, c2) in spans]


def next_grids(grids: np.ndarray) -> Iterator[np.ndarray]:
    """Return all grids that one operation without the clipboard gives, with up to one more row and column."""
    rows, cols = grids.shape[1:]
    for r1, c1, r2, c2 in boxes(rows, cols):
        for operation in (*range(10), *range(20, 28)):
            yield painted_or_carried(grids, operation, r1, c1, r2, c2)
    for r, c in itertools.product(range(rows), range(cols)):
        inside = region(grids, r, c)
        for color in range(10):
            yield np.where(inside, np.int8(color), grids)
    for height, width in itertools.product(range(1, rows + 2), range(1, cols + 2)):
        yield resized(grids, height, width)


def pasted_grids(grid: np.ndarray) -> Iterator[np.ndarray]:
    """Return all grids that copying or cutting a box and pasting it gives."""
    rows, cols = grid.shape
    for r1, c1, r2, c2 in boxes(rows, cols):
        block = grid[r1 : r2 + 1, c1 : c2 + 1]
        rest = grid.copy()
        rest[r1 : r2 + 1, c1 : c2 + 1] = 0
        for r, c in itertools.product(range(rows), range(cols)):
            yield write(np.stack([grid, rest]), np.stack([block, block]), r, c)


def in_one(start: np.ndarray, goal: np.ndarray) -> bool:
    """Return whether one operation leads from start to goal."""
    return any(among(goal, grids) for grids in next_grids(start[None]))


def in_two(start: np.ndarray, goal: np.ndarray) -> bool:
    """Return whether two operations lead from start to goal."""
    if any(among(goal, grids) for grids in pasted_grids(start)):
        return True
    first: dict[tuple[int, ...], set[bytes]] = {}
    for grids in next_grids(start[None]):
        first.setdefault(grids.shape[1:], set()).add(grids[0].tobytes())
    for shape, found in first.items():
        stack = np.frombuffer(b"".join(sorted(found)), np.int8).reshape(-1, *shape)
        if any(among(goal, grids) for grids in next_grids(stack)):
            return True
    return False


def among(goal: np.ndarray, grids: np.ndarray) -> bool:
    return grids.shape[1:] == goal.shape and bool((grids == goal).all(axis=(1, 2)).any())

"""Makers and solvers of puzzles as bytes: compiled where they are, in Python where they are not.

Both give the same bytes for the same seed. What the bytes mean is known to each kind of puzzle.
"""

from collections.abc import Callable, Sequence

from phalanx.core import backends as engine
from phalanx.puzzles.twins import knights, latin, lines, regions, sokoban

TWINS: dict[
    str,
    tuple[Callable[[int, Sequence[int]], bytes], Callable[[bytes, Sequence[int], int], list[bytes]]],
] = {
    "sudoku": (latin.make_sudoku, latin.solve_sudoku),
    "futoshiki": (latin.make_futoshiki, latin.solve_futoshiki),
    "binary": (lines.make_binary, lines.solve_binary),
    "nonogram": (lines.make_nonogram, lines.solve_nonogram),
    "hitori": (regions.make_hitori, regions.solve_hitori),
    "bridges": (regions.make_bridges, regions.solve_bridges),
    "knights": (knights.make_knights, knights.solve_knights),
    "sokoban": (sokoban.make_sokoban, sokoban.solve_sokoban),
}


def records(kind: str, seeds: Sequence[int], parameters: Sequence[int]) -> list[bytes]:
    """One puzzle for each seed."""
    native = engine.native_module()
    if native is not None:
        made: list[bytes] = native.puzzle_records(kind, list(seeds), list(parameters))
        return made
    return [TWINS[kind][0](seed, parameters) for seed in seeds]


def solutions(kind: str, puzzle: bytes, parameters: Sequence[int], limit: int) -> list[bytes]:
    """The first solutions of a puzzle, at most `limit`."""
    native = engine.native_module()
    if native is not None:
        found: list[bytes] = native.puzzle_solutions(kind, puzzle, list(parameters), limit)
        return found
    return TWINS[kind][1](puzzle, parameters, limit)

"""ARC tasks: demonstration pairs, test pairs, an id and a family."""

import dataclasses
import functools
import hashlib
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Int8, Integer

from phalanx.arc.config import MAX_GRID_SIDE
from phalanx.arc.operations import NUM_COLORS
from phalanx.formatting import format_count

Grid = Int8[np.ndarray, "_ _"]
"""Read-only int8 array of 1 to 30 rows and columns with colors 0 to 9."""

_COLORS = bytes(range(NUM_COLORS))


def as_grid(cells: object, where: str = "grid") -> Grid:
    """Convert rows of colors or an array to a validated int8 grid.

    Args:
        cells: Rows of colors, or a 2D array of integers.
        where: Prefix of error messages, which also name the invalid cell.

    >>> as_grid([[1, 2], [3, 4]]).dtype
    dtype('int8')
    """
    grid = _array_grid(cells) if isinstance(cells, np.ndarray) else _list_grid(cells)
    return _parse_grid(cells, where) if grid is None else grid


def _list_grid(cells: object) -> Grid | None:
    """Convert lists of integers, as JSON has them; return None if anything is unusual.

    ARC-AGI-1 has 1.2 million cells, so rows are converted and types are checked in C.
    """
    if type(cells) is not list or not 1 <= len(cells) <= MAX_GRID_SIDE or set(map(type, cells)) != {list}:
        return None
    height, width = len(cells), len(cells[0])
    if not 1 <= width <= MAX_GRID_SIDE or set(map(len, cells)) != {width}:
        return None
    # `bytes` would also accept True.
    if set(map(type, itertools.chain.from_iterable(cells))) != {int}:
        return None
    try:
        packed = b"".join(map(bytes, cells))
    except ValueError:  # a number outside 0..255
        return None
    if packed.translate(None, _COLORS):
        return None
    return np.frombuffer(packed, np.int8).reshape(height, width)


def _array_grid(cells: np.ndarray) -> Grid | None:
    """Convert an array of integers; return None if anything is unusual."""
    if cells.ndim != 2 or cells.dtype.kind not in "iu":
        return None
    if not (1 <= cells.shape[0] <= MAX_GRID_SIDE and 1 <= cells.shape[1] <= MAX_GRID_SIDE):
        return None
    if cells.min() < 0 or cells.max() >= NUM_COLORS:
        return None
    grid = cells.astype(np.int8, order="C")
    grid.setflags(write=False)
    return grid


def _parse_grid(cells: object, where: str) -> Grid:
    """Convert cell by cell. Accepts unusual forms, such as arrays of rows, and raises an error for invalid
    cells."""
    if isinstance(cells, np.ndarray):
        if cells.ndim != 2:
            raise ValueError(f"{where}: a grid has rows and columns, got {cells.ndim} dimensions")
        cells = cells.tolist()
    if isinstance(cells, str) or not isinstance(cells, Sequence):
        raise ValueError(f"{where}: a grid is a list of rows, got {type(cells).__name__}")
    rows: list[list[object]] = []
    for r, row in enumerate(cells):
        if isinstance(row, str) or not isinstance(row, Sequence | np.ndarray):
            raise ValueError(f"{where}: row {r} must be a list of colors, got {_short(row)}")
        rows.append(list(row))
    if not rows or not rows[0]:
        raise ValueError(f"{where}: the grid is empty")
    height, width = len(rows), len(rows[0])
    if height > MAX_GRID_SIDE or width > MAX_GRID_SIDE:
        raise ValueError(f"{where}: at most {MAX_GRID_SIDE}x{MAX_GRID_SIDE} cells, got {height}x{width}")
    grid = np.zeros((height, width), np.int8)
    for r, row in enumerate(rows):
        if len(row) != width:
            raise ValueError(f"{where}: row {r} has {len(row)} cells, row 0 has {width}")
        for c, cell in enumerate(row):
            grid[r, c] = _color(cell, f"{where}: cell ({r}, {c})")
    grid.setflags(write=False)
    return grid


def _color(cell: object, where: str) -> int:
    """Convert a number or a digit in a string, as one published version of MiniARC has them."""
    if isinstance(cell, str) and len(cell) == 1 and cell.isdecimal():
        return int(cell)
    if isinstance(cell, int | np.integer) and not isinstance(cell, bool) and 0 <= cell < NUM_COLORS:
        return int(cell)
    raise ValueError(f"{where} must be a color from 0 to {NUM_COLORS - 1}, got {_short(cell)}")


def _short(value: object) -> str:
    """Format an invalid value for an error message on one line."""
    if isinstance(value, int) and abs(value) >= 10**30:
        return "a number of more than 30 digits"
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


@dataclasses.dataclass(frozen=True, eq=False)
class GridPair:
    """Input and output of one example. The output is None if it is secret."""

    input: Integer[np.ndarray, "_ _"]
    """Input grid. Other arrays of integers are converted to a `Grid`."""
    output: Integer[np.ndarray, "_ _"] | None
    """Output grid, also a `Grid`."""

    def __post_init__(self) -> None:
        # A task is hashed by its grids, so writable arrays are copied.
        for name in ("input", "output"):
            grid = getattr(self, name)
            if grid is not None and not _is_frozen_grid(grid):
                object.__setattr__(self, name, as_grid(grid, name))

    def __repr__(self) -> str:
        output = "?" if self.output is None else _size(self.output.shape)
        return f"GridPair({_size(self.input.shape)} -> {output})"

    def _repr_html_(self) -> str:
        from phalanx.arc.rendering.svg_task import pair_html

        return pair_html(self)


def _is_frozen_grid(grid: object) -> bool:
    if not isinstance(grid, np.ndarray) or grid.dtype != np.int8 or grid.flags.writeable or grid.ndim != 2:
        return False
    return max(grid.shape) <= MAX_GRID_SIDE and grid.size > 0 and not grid.tobytes().translate(None, _COLORS)


def _size(shape: tuple[int, ...]) -> str:
    return f"{shape[0]}x{shape[1]}"


@dataclasses.dataclass(frozen=True, eq=False)
class SolutionStep:
    """One step of a known solution: the operation and the box of selected cells, including its corners."""

    operation: int
    r1: int
    c1: int
    r2: int
    c2: int


Solution = tuple[SolutionStep, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class ArcTask:
    """An ARC task. Tasks are equal if their ids, families and grids are equal, and static under `jit`."""

    id: str
    """File name without its extension, or name and seed of the generator."""
    demos: tuple[GridPair, ...]
    """Demonstration pairs."""
    tests: tuple[GridPair, ...]
    """Test pairs."""
    family: str = ""
    """Family of a generated task or concept of a ConceptARC task; otherwise empty."""
    solutions: tuple[Solution, ...] = ()
    """Known shortest solutions, one per pair (demonstrations first); empty if they are unknown."""

    def __post_init__(self) -> None:
        if not self.demos and not self.tests:
            raise ValueError(f"task {self.id!r} has no pairs")
        if self.solutions and len(self.solutions) != len(self.pairs):
            raise ValueError(f"task {self.id!r}: {len(self.solutions)} solutions for {len(self.pairs)} pairs")

    @classmethod
    def from_dict(cls, data: object, id: str, family: str = "", where: str = "") -> "ArcTask":
        """Create a task from the ARC JSON format, `{"train": [{"input": ..., "output": ...}], "test":
        [...]}`.

        Args:
            data: The JSON object. Test pairs may lack their output.
            id: Id of the task.
            family: Family of the task.
            where: Prefix of error messages, by default the id. Messages name the pair and the cell:
                `007bbfb7: train[1].output: cell (0, 3) must be a color from 0 to 9, got 11`.

        >>> ArcTask.from_dict({"train": [{"input": [[1]], "output": [[2]]}], "test": [{"input": [[3]]}]}, "t")
        ArcTask('t', 1 demo, 1 test, up to 1x1)
        """
        where = where or id
        if not isinstance(data, Mapping):
            raise ValueError(f'{where}: a task is an object with "train" and "test", got {_short(data)}')
        demos = _read_pairs(data, "train", where)
        tests = _read_pairs(data, "test", where)
        if not demos and not tests:
            raise ValueError(f'{where}: both "train" and "test" are empty')
        return cls(id, demos, tests, family)

    def to_dict(self) -> dict[str, list[dict[str, list[list[int]]]]]:
        """Convert to the ARC JSON format, which has no id, family or solutions.

        >>> ArcTask.from_dict({"train": [], "test": [{"input": [[3]]}]}, "t").to_dict()
        {'train': [], 'test': [{'input': [[3]]}]}
        """
        return {
            "train": [_pair_dict(pair) for pair in self.demos],
            "test": [_pair_dict(p) for p in self.tests],
        }

    @property
    def pairs(self) -> tuple[GridPair, ...]:
        """Demonstration pairs, then test pairs."""
        return self.demos + self.tests

    def without_answers(self) -> "ArcTask":
        """Return the task as agents see it in evaluation mode, without test outputs and solutions."""
        tests = tuple(GridPair(pair.input, None) for pair in self.tests)
        return ArcTask(self.id, self.demos, tests, self.family)

    @property
    def max_shape(self) -> tuple[int, int]:
        """Largest height and largest width of all grids."""
        grids = [g for pair in self.pairs for g in (pair.input, pair.output) if g is not None]
        return max(g.shape[0] for g in grids), max(g.shape[1] for g in grids)

    @functools.cached_property
    def fingerprint(self) -> str:
        """Digest of the id, the family and the grids."""
        digest = hashlib.sha256(f"{self.id}\0{self.family}\0{len(self.demos)}".encode())
        for pair in self.pairs:
            for grid in (pair.input, pair.output):
                digest.update(b"-" if grid is None else f"{grid.shape}".encode() + grid.tobytes())
        return digest.hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ArcTask) and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __repr__(self) -> str:
        family = f", family {self.family!r}" if self.family else ""
        demos, tests = format_count(len(self.demos), "demo"), format_count(len(self.tests), "test")
        return f"ArcTask({self.id!r}{family}, {demos}, {tests}, up to {_size(self.max_shape)})"

    def _repr_html_(self) -> str:
        from phalanx.arc.rendering.svg_task import task_html

        return task_html(self)


def _read_pairs(data: Mapping[str, Any], kind: str, where: str) -> tuple[GridPair, ...]:
    """Read the pairs under "train" or "test". Only test pairs may lack their output."""
    if kind not in data:
        raise ValueError(f'{where}: "{kind}" is missing; a task has "train" and "test"')
    if not isinstance(data[kind], list | tuple):
        raise ValueError(f"{where}: {kind} must be a list of pairs, got {_short(data[kind])}")
    pairs = []
    for i, pair in enumerate(data[kind]):
        pair_where = f"{where}: {kind}[{i}]"
        if not isinstance(pair, Mapping):
            raise ValueError(f'{pair_where} must be an object with "input" and "output", got {_short(pair)}')
        if "input" not in pair:
            raise ValueError(f'{pair_where}: "input" is missing')
        if kind == "train" and pair.get("output") is None:
            raise ValueError(f'{pair_where}: "output" is missing; only test pairs may lack it')
        output = pair.get("output")
        pairs.append(
            GridPair(
                as_grid(pair["input"], f"{pair_where}.input"),
                None if output is None else as_grid(output, f"{pair_where}.output"),
            )
        )
    return tuple(pairs)


def _pair_dict(pair: GridPair) -> dict[str, list[list[int]]]:
    grids = {"input": pair.input.tolist()}
    return grids if pair.output is None else grids | {"output": pair.output.tolist()}


jax.tree_util.register_static(ArcTask)

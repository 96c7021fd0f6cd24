"""ARC tasks, which consist of demonstration pairs and test pairs of grids."""

import collections
import dataclasses
import functools
import hashlib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Int8, Integer

from phalanx.arc.config import MAX_GRID_SIDE
from phalanx.arc.operations import NUM_COLORS
from phalanx.core.fingerprint import Fingerprinted
from phalanx.formatting import format_count

Grid = Int8[np.ndarray, "_ _"]
"""Read-only int8 array with 1 to 30 rows and columns and colors 0 to 9."""

_COLORS = bytes(range(NUM_COLORS))


def as_grid(cells: object, where: str = "grid") -> Grid:
    """Convert rows of colors or an array to a validated int8 grid.

    Args:
        cells: Rows of colors, or a 2D array of integers.
        where: Prefix for error messages.

    Raises:
        ValueError: If the grid is invalid. The message names the invalid cell.

    >>> as_grid([[1, 2], [3, 4]]).dtype
    dtype('int8')
    """
    array = cells if isinstance(cells, np.ndarray) else _array_from_json(cells)
    grid = None if array is None else _grid_from_array(array)
    return _parse_grid(cells, where) if grid is None else grid


def _array_from_json(cells: object) -> np.ndarray | None:
    """Convert lists of integers to an array. Returns None for anything else.

    This is fast because it runs no Python code per cell. ARC-AGI-1 has 1.2 million cells.
    """
    if type(cells) is not list or set(map(type, cells)) != {list} or len(set(map(len, cells))) > 1:
        return None
    # `bytes` would also accept True.
    if set(map(type, itertools.chain.from_iterable(cells))) != {int}:
        return None
    try:
        packed = b"".join(map(bytes, cells))
    except ValueError:  # a number outside 0..255
        return None
    return np.frombuffer(packed, np.int8).reshape(len(cells), -1)


def _grid_from_array(cells: np.ndarray) -> Grid | None:
    """Convert an array to a grid. Returns None if it is not a valid grid. A read-only int8 array is returned
    unchanged."""
    if cells.ndim != 2 or cells.dtype.kind not in "iu" or not cells.size or max(cells.shape) > MAX_GRID_SIDE:
        return None
    grid = cells.astype(np.int8, order="C", copy=cells.flags.writeable)
    if (grid.dtype != cells.dtype and (grid != cells).any()) or grid.tobytes().translate(None, _COLORS):
        return None
    grid.setflags(write=False)
    return grid


def _parse_grid(cells: object, where: str) -> Grid:
    """Convert any supported input to a grid, cell by cell, and raise an error for invalid cells."""
    if isinstance(cells, np.ndarray):
        if cells.ndim != 2:
            raise ValueError(f"{where}: a grid has rows and columns, got {cells.ndim} dimensions")
        cells = cells.tolist()
    if isinstance(cells, str) or not isinstance(cells, Sequence):
        raise ValueError(f"{where}: a grid is a list of rows, got {type(cells).__name__}")
    for r, row in enumerate(cells):
        if isinstance(row, str) or not isinstance(row, Sequence | np.ndarray):
            raise ValueError(f"{where}: row {r} must be a list of colors, got {shorten(row)}")
    if not len(cells) or not len(cells[0]):
        raise ValueError(f"{where}: the grid is empty")
    height, width = len(cells), len(cells[0])
    if height > MAX_GRID_SIDE or width > MAX_GRID_SIDE:
        raise ValueError(f"{where}: at most {MAX_GRID_SIDE}x{MAX_GRID_SIDE} cells, got {height}x{width}")
    grid = np.zeros((height, width), np.int8)
    for r, row in enumerate(cells):
        if len(row) != width:
            raise ValueError(f"{where}: row {r} has {len(row)} cells, row 0 has {width}")
        grid[r] = [_color(cell, f"{where}: cell ({r}, {c})") for c, cell in enumerate(row)]
    grid.setflags(write=False)
    return grid


def _color(cell: object, where: str) -> int:
    """Convert a cell to a color. A one-digit string is also accepted, because a published version of MiniARC
    contains such strings."""
    if isinstance(cell, str) and len(cell) == 1 and cell.isdecimal():
        return int(cell)
    if isinstance(cell, int | np.integer) and not isinstance(cell, bool) and 0 <= cell < NUM_COLORS:
        return int(cell)
    raise ValueError(f"{where} must be a color from 0 to {NUM_COLORS - 1}, got {shorten(cell)}")


def shorten(value: object) -> str:
    """Shorten an invalid value for an error message."""
    if isinstance(value, int) and abs(value) >= 10**30:
        return "a number of more than 30 digits"
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


@dataclasses.dataclass(frozen=True, eq=False)
class GridPair:
    """An input grid and its output grid."""

    input: Integer[np.ndarray, "_ _"]
    """Input grid. Any array of integers is accepted and converted to a `Grid`."""
    output: Integer[np.ndarray, "_ _"] | None
    """Output grid, which is converted like the input. None if the output is secret."""

    def __post_init__(self) -> None:
        # A task is hashed by its grids, so writable arrays are copied.
        for name in ("input", "output"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, as_grid(getattr(self, name), name))

    def to_dict(self) -> dict[str, list[list[int]]]:
        """Convert the pair to the ARC JSON format. A secret output is left out."""
        grids = {"input": self.input, "output": self.output}
        return {name: grid.tolist() for name, grid in grids.items() if grid is not None}

    def __repr__(self) -> str:
        output = "?" if self.output is None else format_shape(self.output.shape)
        return f"GridPair({format_shape(self.input.shape)} -> {output})"

    def _repr_html_(self) -> str:
        from phalanx.arc.rendering.svg_task import pair_html

        return pair_html(self)


def format_shape(shape: tuple[int, ...]) -> str:
    """Format the height and width of a grid, as in `3x4`."""
    return f"{shape[0]}x{shape[1]}"


@dataclasses.dataclass(frozen=True, eq=False)
class SolutionStep:
    """One step of a known solution: an operation and the box of cells to which it is applied. The bounds
    of the box are inclusive."""

    operation: int
    """Id of the operation."""
    r1: int
    """First row of the box."""
    c1: int
    """First column of the box."""
    r2: int
    """Last row of the box."""
    c2: int
    """Last column of the box."""


Solution = tuple[SolutionStep, ...]
"""Steps that turn the input of a pair into its output."""


@dataclasses.dataclass(frozen=True, eq=False)
class ArcTask(Fingerprinted):
    """An ARC task. Tasks are equal if their ids, families and grids are equal. Under `jax.jit`, a task is a
    static value, not a traced one."""

    id: str
    """Id of the task: the name of its file without the extension, or the family and seed of a generated
    task."""
    demos: tuple[GridPair, ...]
    """Demonstration pairs."""
    tests: tuple[GridPair, ...]
    """Test pairs."""
    family: str = ""
    """Family of a generated task, or concept of a ConceptARC task. Empty for other tasks."""
    solutions: tuple[Solution, ...] = ()
    """Known shortest solution of each pair, in the order of `pairs`. Empty if the solutions are unknown."""

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
            family: Family of the task, or an empty string if it has none.
            where: Prefix for error messages. If empty, the id is used. A message names the pair and the cell,
                for example `007bbfb7: train[1].output: cell (0, 3) must be a color from 0 to 9, got 11`.

        >>> ArcTask.from_dict({"train": [{"input": [[1]], "output": [[2]]}], "test": [{"input": [[3]]}]}, "t")
        ArcTask('t', 1 demo, 1 test, up to 1x1)
        """
        where = where or id
        if not isinstance(data, Mapping):
            raise ValueError(f'{where}: a task is an object with "train" and "test", got {shorten(data)}')
        demos, tests = _parse_pairs(data, "train", where), _parse_pairs(data, "test", where)
        if not demos and not tests:
            raise ValueError(f'{where}: both "train" and "test" are empty')
        return cls(id, demos, tests, family)

    def to_dict(self) -> dict[str, list[dict[str, list[list[int]]]]]:
        """Convert the task to the ARC JSON format, which does not include the id, the family or the
        solutions.

        >>> ArcTask.from_dict({"train": [], "test": [{"input": [[3]]}]}, "t").to_dict()
        {'train': [], 'test': [{'input': [[3]]}]}
        """
        splits = {"train": self.demos, "test": self.tests}
        return {name: [pair.to_dict() for pair in pairs] for name, pairs in splits.items()}

    @property
    def pairs(self) -> tuple[GridPair, ...]:
        """All pairs, starting with the demonstrations."""
        return self.demos + self.tests

    def without_answers(self) -> "ArcTask":
        """Return the task without test outputs or solutions. In evaluation mode, agents only see this version
        of a task."""
        tests = tuple(GridPair(pair.input, None) for pair in self.tests)
        return ArcTask(self.id, self.demos, tests, self.family)

    @property
    def max_shape(self) -> tuple[int, int]:
        """Maximum height and maximum width over all grids."""
        grids = [g for pair in self.pairs for g in (pair.input, pair.output) if g is not None]
        heights, widths = zip(*(grid.shape for grid in grids), strict=True)
        return max(heights), max(widths)

    def fits(self, grid_shape: tuple[int, int]) -> bool:
        """Return whether all grids fit on a canvas of the given height and width."""
        return all(side <= limit for side, limit in zip(self.max_shape, grid_shape, strict=True))

    @functools.cached_property
    def fingerprint(self) -> str:
        """Hash of the id, the family and the grids."""
        digest = hashlib.sha256(f"{self.id}\0{self.family}\0{len(self.demos)}".encode())
        for pair in self.pairs:
            for grid in (pair.input, pair.output):
                digest.update(b"-" if grid is None else f"{grid.shape}".encode() + grid.tobytes())
        return digest.hexdigest()

    def __repr__(self) -> str:
        family = f", family {self.family!r}" if self.family else ""
        demos, tests = format_count(len(self.demos), "demo"), format_count(len(self.tests), "test")
        return f"ArcTask({self.id!r}{family}, {demos}, {tests}, up to {format_shape(self.max_shape)})"

    def _repr_html_(self) -> str:
        from phalanx.arc.rendering.svg_task import task_html

        return task_html(self)


def _parse_pairs(data: Mapping[str, Any], kind: str, where: str) -> tuple[GridPair, ...]:
    """Read the pairs in `data[kind]`, where `kind` is "train" or "test". Only test pairs may lack their
    output."""
    if kind not in data:
        raise ValueError(f'{where}: "{kind}" is missing; a task has "train" and "test"')
    if not isinstance(data[kind], list | tuple):
        raise ValueError(f"{where}: {kind} must be a list of pairs, got {shorten(data[kind])}")
    pairs = []
    for i, pair in enumerate(data[kind]):
        pair_where = f"{where}: {kind}[{i}]"
        if not isinstance(pair, Mapping):
            raise ValueError(f'{pair_where} must be an object with "input" and "output", got {shorten(pair)}')
        if "input" not in pair:
            raise ValueError(f'{pair_where}: "input" is missing')
        output = pair.get("output")
        if kind == "train" and output is None:
            raise ValueError(f'{pair_where}: "output" is missing; only test pairs may lack it')
        grid = as_grid(pair["input"], f"{pair_where}.input")
        pairs.append(GridPair(grid, None if output is None else as_grid(output, f"{pair_where}.output")))
    return tuple(pairs)


jax.tree_util.register_static(ArcTask)


def repeated_id(tasks: Iterable[ArcTask]) -> str | None:
    """Return the first id shared by more than one task, or None if all ids are unique."""
    counts = collections.Counter(task.id for task in tasks)
    return next((id for id, count in counts.items() if count > 1), None)

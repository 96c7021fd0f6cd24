"""A search for short programs on ARC-AGI-1: a baseline that reads only the demonstrations of each task.

A program is a sequence of at most two grid transformations, followed by an optional table that maps the color
and at most two features of each cell to a new color. The table is read from the demonstrations. The first
program that reproduces all demonstrations is applied to the test inputs, which gives one attempt per test
input. A task is solved if all its test outputs are correct.

The transformations were chosen for the training tasks. The evaluation tasks were not looked at, so their
number shows how well the baseline generalizes.
"""

import functools
import itertools
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from scipy import ndimage

from benchmarks.datasets import arc_data_dir
from benchmarks.suite import Suite
from benchmarks.timing import Measurement
from phalanx.arc import ArcTask, load_tasks
from phalanx.arc.evaluation import copy_solves
from phalanx.arc.generators.generate import generate_tasks

suite = Suite("arc_program_search", unit="tasks", packages=("numpy", "scipy"))

Grid = np.ndarray
Transformation = Callable[[Grid], Grid | None]
State = tuple[Grid, ...]
"""The grids that a program has computed from the inputs of all demonstrations and tests."""
MAX_STATES = 600
"""Maximum number of different states per task."""
MAX_FEATURE_VALUES = 400
"""Maximum number of combinations of feature values in a table. Larger tables memorize the demonstrations."""
MAX_OBJECTS = 12
"""Maximum number of objects in a grid from which one is selected."""
NUM_SIMPLE_FEATURES = 12
"""Number of features that are tried after a transformation."""
SQUARE, PLUS = np.ones((3, 3), int), ndimage.generate_binary_structure(2, 1)
MIRRORS = (np.fliplr, np.flipud, np.transpose, lambda g: np.rot90(g, 2).T)
PERIODS = sorted(itertools.product(range(1, 9), repeat=2), key=lambda period: period[0] * period[1])
COMBINATIONS = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}
SCORES: dict[str, Callable[[Grid, list[Grid]], float]] = {
    "largest": lambda g, _: (g > 0).sum(),
    "smallest": lambda g, _: -(g > 0).sum(),
    "most colors": lambda g, _: len(np.unique(g)),
    "symmetric": lambda g, _: np.array_equal(g, g[:, ::-1]),
    "most common": lambda g, grids: sum(np.array_equal(g, other) for other in grids),
    "rarest": lambda g, grids: -sum(np.array_equal(g > 0, other > 0) for other in grids),
}
"""How to select one of several objects or fields: the one with the highest score."""


def objects(grid: Grid, by_color: bool, diagonal: bool) -> tuple[Grid, int]:
    """Number the connected regions that are not black, from 1, and return how many there are."""
    structure = SQUARE if diagonal else PLUS
    if not by_color:
        return ndimage.label(grid > 0, structure)
    labels, count = np.zeros(grid.shape, int), 0
    for color in np.unique(grid[grid > 0]):
        found, number = ndimage.label(grid == color, structure)
        labels, count = np.where(found > 0, found + count, labels), count + number
    return labels, count


def crop(grid: Grid, mask: Grid) -> Grid | None:
    """Return the bounding box of a mask."""
    if not mask.any():
        return None
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    return grid[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


def choose(grids: list[Grid], score: str) -> Grid | None:
    """Return the grid with the highest score, if there is only one."""
    if len(grids) < 2:
        return None
    scores = np.array([SCORES[score](grid, grids) for grid in grids])
    return grids[scores.argmax()] if (scores == scores.max()).sum() == 1 else None


@functools.lru_cache(maxsize=256)
def _crops(cells: bytes, shape: tuple[int, int], by_color: bool, isolate: bool) -> list[Grid]:
    grid = np.frombuffer(cells, np.int8).reshape(shape)
    labels, count = objects(grid, by_color, True)
    masks = [labels == number for number in range(1, count + 1)] if count <= MAX_OBJECTS else []
    crops = [crop(np.where(mask, grid, 0) if isolate else grid, mask) for mask in masks]
    return [one for one in crops if one is not None]


def select_object(grid: Grid, score: str, by_color: bool, isolate: bool) -> Grid | None:
    """Return one of the objects, with or without the other cells of its bounding box."""
    return choose(_crops(grid.tobytes(), grid.shape, by_color, isolate), score)


def fields(grid: Grid) -> list[Grid]:
    """Split a grid at lines of one color, or into halves if there are none."""
    for color in np.unique(grid[grid > 0]):
        lines = [np.flatnonzero((grid == color).all(axis)) for axis in (1, 0)]
        rows, columns = (np.sort(np.concatenate([line, line + 1])) for line in lines)
        parts = [part for band in np.split(grid, rows) for part in np.split(band, columns, 1)]
        parts = [part for part in parts if part.size and not (part == color).all()]
        if len(parts) > 1 and len({part.shape for part in parts}) == 1:
            return parts
    axis = int(grid.shape[1] > grid.shape[0])
    return list(np.split(grid, 2, axis)) if grid.shape[axis] % 2 == 0 else []


def combine_fields(grid: Grid, how: str) -> Grid | None:
    """Combine all fields of a grid, or return one of them."""
    parts = fields(grid)
    if len(parts) < 2 or how in SCORES:
        return choose(parts, how) if parts else None
    filled = [part > 0 for part in parts]
    if how in COMBINATIONS:
        return COMBINATIONS[how].reduce(filled)
    if how == "difference":
        return filled[0] & ~filled[1] if len(parts) == 2 else None
    return functools.reduce(lambda below, part: np.where(part > 0, part, below), parts)


def shift(grid: Grid, rows: int, columns: int) -> Grid:
    """Move a grid."""
    margin = max(abs(rows), abs(columns))
    padded = np.pad(grid, margin)
    return padded[margin - rows :, margin - columns :][: grid.shape[0], : grid.shape[1]]


def ray(grid: Grid, step: tuple[int, int]) -> Grid:
    """Extend each cell in one direction, up to the next cell that is not black."""
    for distance in (1, 2, 4, 8, 16):
        grid = np.where(grid == 0, shift(grid, distance * step[0], distance * step[1]), grid)
    return grid


def connect(grid: Grid, steps: Sequence[tuple[int, int]]) -> Grid:
    """Fill the black cells between two cells of the same color."""
    result = grid
    for rows, columns in steps:
        first, second = ray(grid, (rows, columns)), ray(grid, (-rows, -columns))
        result = np.where((result == 0) & (first == second), first, result)
    return result


def complete(grid: Grid, color: int) -> Grid | None:
    """Replace cells of a color by the corresponding cells of the grid's mirror images."""
    for mirror in MIRRORS:
        if grid.shape[0] == grid.shape[1] or mirror in (np.fliplr, np.flipud):
            grid = np.where(grid == color, mirror(grid), grid)
    return grid


def periodic(grid: Grid) -> Grid | None:
    """Continue the smallest pattern that repeats in the cells that are not black."""
    height, width = grid.shape
    for rows, columns in PERIODS if not grid.all() else ():
        padded = np.pad(grid, ((0, -height % rows), (0, -width % columns)))
        tiles = padded.reshape(-1, rows, padded.shape[1] // columns, columns).swapaxes(1, 2)
        tile = tiles.max((0, 1))
        if tile.all() and ((tiles == 0) | (tiles == tile)).all():
            return np.tile(tile, tiles.shape[:2])[:height, :width]
    return None


def transformations(colors: Sequence[int]) -> Iterator[Transformation]:
    """Return all transformations. `colors` are the colors that all outputs have."""
    yield from MIRRORS
    yield from (functools.partial(np.rot90, k=turns) for turns in (1, 2, 3))
    yield lambda g: crop(g, g > 0)
    yield lambda g: crop(g, g != np.bincount(g.ravel()).argmax())
    yield lambda g: g[1:-1, 1:-1]
    for score in SCORES:
        for by_color, isolate in itertools.product((False, True), repeat=2):
            yield functools.partial(select_object, score=score, by_color=by_color, isolate=isolate)
    for how in (*SCORES, *COMBINATIONS, "difference", "overlay"):
        yield functools.partial(combine_fields, how=how)
    for turns in range(4):
        # Let all cells fall; keep one half.
        yield lambda g, t=turns: np.rot90(_fall(np.rot90(g, t)), -t)
        yield lambda g, t=turns: np.rot90(np.rot90(g, t)[: (np.rot90(g, t).shape[0] + 1) // 2], -t)
    for step in set(itertools.product((-1, 0, 1), repeat=2)) - {(0, 0)}:
        yield functools.partial(ray, step=step)
    for steps in (((0, 1),), ((1, 0),), ((0, 1), (1, 0)), ((1, 1), (1, -1))):
        yield functools.partial(connect, steps=steps)
    for factor in (2, 3):
        yield lambda g, f=factor: g.repeat(f, 0).repeat(f, 1)
        yield lambda g, f=factor: np.tile(g, (f, f))
        yield lambda g, f=factor: g[::f, ::f]
    for axis in (0, 1):
        yield lambda g, a=axis: np.concatenate([g, np.flip(g, a)], a)
        yield lambda g, a=axis: np.concatenate([np.flip(g, a), g], a)
        yield lambda g, a=axis: np.concatenate([g, g], a)
    yield lambda g: _pinwheel(g) if g.shape[0] == g.shape[1] else None
    yield lambda g: np.kron(g > 0, g)
    yield lambda g: np.kron(g == np.bincount(g.ravel()).argmax(), g)
    yield lambda g: g[:, [True, *(g[:, 1:] != g[:, :-1]).any(0)]][[True, *(g[1:] != g[:-1]).any(1)]]
    yield lambda g: g[(g > 0).any(1)][:, (g > 0).any(0)]
    yield periodic
    for color in range(10):
        yield lambda g, c=color: crop(g, g == c)
        yield functools.partial(complete, color=color)
        yield lambda g, c=color: np.where(g == c, 0, g)
    for color in colors:
        yield lambda g, c=color: np.pad(g, 1, constant_values=c)


def _fall(grid: Grid) -> Grid:
    return np.take_along_axis(grid, np.argsort(grid > 0, axis=0, kind="stable"), 0)


def _pinwheel(grid: Grid) -> Grid:
    return np.block([[grid, np.rot90(grid, 3)], [np.rot90(grid), np.rot90(grid, 2)]])


def cell_features(grid: Grid) -> Iterator[Grid]:
    """Return features of each cell, from simple to complex."""
    yield np.zeros_like(grid)
    black = ndimage.label(np.pad(grid, 1) == 0, PLUS)[0]
    yield ((black > 0) & (black != black[0, 0]))[1:-1, 1:-1]
    counts = np.bincount(grid.ravel(), minlength=10)
    yield counts[grid] == counts[1:].max()
    yield counts[grid] == counts[counts > 0].min()
    for by_color, diagonal in ((True, False), (True, True), (False, True)):
        labels, _ = objects(grid, by_color, diagonal)
        boxes = ndimage.find_objects(labels)
        shapes = [np.zeros((0, 0))] + [labels[box] == n for n, box in enumerate(boxes, 1)]
        sizes = np.array([shape.sum() for shape in shapes])
        forms = [(shape.shape, shape.tobytes()) for shape in shapes]
        yield (sizes == sizes.max())[labels]
        yield (sizes == sizes[1:].min(initial=900))[labels]
        yield sizes[labels]
        yield np.unique(-sizes, return_inverse=True)[1][labels]
        yield np.array([shape.shape[0] > shape.shape[1] for shape in shapes])[labels]
        yield np.array([shape.all() for shape in shapes])[labels]
        yield np.array([forms.count(form) for form in forms])[labels]
        outside = [np.pad(shape == 0, 1, constant_values=True) for shape in shapes]
        yield np.array([ndimage.label(mask)[1] for mask in outside])[labels]
    yield np.bincount(black.ravel())[black][1:-1, 1:-1] * (grid == 0)
    rows, columns = np.indices(grid.shape)
    for modulus in (2, 3):
        yield from ((rows + columns) % modulus, rows % modulus, columns % modulus)
    yield np.minimum(np.minimum(rows, columns), np.minimum(rows[::-1], columns[:, ::-1]))
    for structure in (PLUS, SQUARE):
        yield ndimage.convolve((grid > 0).astype(int), structure, mode="constant")
        yield ndimage.maximum_filter(grid, footprint=structure, mode="constant")
    for axis in (0, 1):
        lines = (grid.max(axis), (grid > 0).sum(axis), np.take(grid, 0, axis), np.take(grid, -1, axis))
        yield from (np.broadcast_to(np.expand_dims(line, axis), grid.shape) for line in lines)
    for step in ((0, 1), (0, -1), (1, 0), (-1, 0)):
        yield from (shift(grid, *step), ray(grid, step))


def fit_table(
    states: State, outputs: Sequence[Grid], num_features: int, limit: int | None
) -> list[Grid] | None:
    """Learn a table of the first features that reproduces all outputs, and apply it to the tests."""
    if any(grid.shape != output.shape for grid, output in zip(states, outputs, strict=False)):
        return None
    target = np.concatenate([grid.ravel() for grid in outputs]).astype(int)
    base = np.concatenate([grid.ravel() for grid in states]).astype(int)
    values = {b"": np.zeros_like(base)}
    found = zip(*map(cell_features, states), strict=True) if num_features else ()
    for parts in itertools.islice(found, limit):
        codes = np.unique(np.concatenate([part.ravel() for part in parts]), return_inverse=True)[1]
        values.setdefault(codes.tobytes(), codes)
    features = [(codes, int(codes.max()) + 1) for codes in values.values()]
    pairs = [(features[0], feature) for feature in features]
    pairs += itertools.combinations(features[1:], 2) if num_features == 2 else ()
    for (first, first_count), (second, second_count) in pairs:
        if first_count * second_count > MAX_FEATURE_VALUES:
            continue
        keys = (base * first_count + first) * second_count + second
        table = np.full(10 * first_count * second_count, -1)
        table[keys[: len(target)]] = target
        answer = table[keys]
        # All keys of the tests must occur in the demonstrations.
        if np.array_equal(answer[: len(target)], target) and (answer >= 0).all():
            parts = np.split(answer, np.cumsum([grid.size for grid in states])[:-1])
            answers = [part.reshape(grid.shape) for part, grid in zip(parts, states, strict=True)]
            return answers[len(outputs) :]
    return None


def solve(task: ArcTask) -> list[Grid] | None:
    """Return a grid for each test input, or None if no program reproduces the demonstrations."""
    outputs = [pair.output for pair in task.demos]
    start = tuple(pair.input.astype(np.int8) for pair in task.pairs)
    steps = list(transformations(sorted(set.intersection(*(set(output.flat) for output in outputs)))))
    level, seen = [start], {_key(start)}
    for max_features in (2, 1, 0):
        for state in level:
            if all(map(np.array_equal, state, outputs)):
                return list(state[len(outputs) :])
        for num_features in range(max_features + 1):
            for state in level:
                limit = None if max_features == 2 else NUM_SIMPLE_FEATURES
                if (found := fit_table(state, outputs, num_features, limit)) is not None:
                    return found
        before, level = level, []
        for state, step in itertools.product(before, steps) if max_features else ():
            new = _apply(step, state) if len(seen) < MAX_STATES else None
            if new is not None and _key(new) not in seen:
                seen.add(_key(new))
                level.append(new)
    return None


def _apply(step: Transformation, state: State) -> State | None:
    grids = []
    for grid in state:
        new = step(grid)
        if new is None or not new.size or max(new.shape) > 30:
            return None
        grids.append(np.ascontiguousarray(new, np.int8))
    return tuple(grids)


def _key(state: State) -> tuple[bytes, ...]:
    return tuple(bytes(grid.shape) + grid.tobytes() for grid in state)


def is_solved(task: ArcTask) -> bool:
    """Return whether the submitted grids of all test inputs are correct."""
    answers = solve(task)
    return answers is not None and all(map(np.array_equal, answers, (pair.output for pair in task.tests)))


@suite.experiment("search")
def search(smoke: bool) -> Iterator[Measurement]:
    """Search for programs for the tasks of both splits, and compare with copying the input."""
    for split in ("training", "evaluation"):
        if smoke:
            tasks = generate_tasks(num_tasks=4, seed=0, max_height=5, max_width=5)
        else:
            tasks = load_tasks("arc-agi-1", split, data_dir=arc_data_dir())
        cpu_start = time.process_time()
        solved = [task.id for task in tasks if is_solved(task)]
        facts = {"num_tasks": len(tasks), "cpu_seconds": round(time.process_time() - cpu_start, 1)}
        values = [float(len(solved))]
        yield Measurement(f"{split}-solved", "phalanx", "tasks", values, (), {**facts, "solved": solved})
        copied = float(sum(copy_solves(task) for task in tasks))
        yield Measurement(f"{split}-copy-input", "phalanx", "tasks", [copied], (), facts)

"""Properties of operations that hold for every grid: symmetries, inverses, idempotence and flood fill.

Each example is a batch of 32 random environments.
"""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy import ndimage

from phalanx.arc import batch_step
from phalanx.arc.config import ActionConfig, ArcConfig, EpisodeConfig
from phalanx.arc.task_buffer import TaskBuffer
from phalanx.arc.tasks import ArcTask, GridPair, as_grid
from tests.helpers.arc_rollouts import BACKENDS, Starts, batch_action, read, skip_without
from tests.helpers.arc_scenarios import random_grid

pytestmark = pytest.mark.slow

BATCH = 32
CANVAS = (30, 30)
CLEAR, COPY_INPUT, RESIZE, CUT, PASTE = 31, 32, 33, 30, 29
UP, DOWN, LEFT, RIGHT = 20, 21, 22, 23
EMPTY = np.zeros((BATCH, *CANVAS), bool)

seeds = st.integers(0, 2**32 - 1)
property_test = settings(max_examples=12, deadline=None, database=None)


def random_tasks() -> list[ArcTask]:
    """Create tasks with grids of every size whose output equals their input."""
    rng = np.random.default_rng(7)
    tasks = []
    for i in range(BATCH):
        cells = as_grid(random_grid(rng, int(rng.integers(1, 31)), int(rng.integers(1, 31))))
        tasks.append(ArcTask(f"law-{i}", (GridPair(cells, cells),), ()))
    return tasks


class BatchRunner:
    """A batch of environments on one backend."""

    def __init__(self, backend: str) -> None:
        self.config = ArcConfig(
            episode=EpisodeConfig(require_submit=True, max_episode_steps=10**6),
            action=ActionConfig(selection_format="mask"),
            backend=backend,
        )
        self.first = Starts(self.config, TaskBuffer.from_tasks(random_tasks())).at(
            [(i, 0) for i in range(BATCH)]
        )

    def step(self, states: Any, operation: int | np.ndarray, masks: np.ndarray) -> Any:
        operations = np.broadcast_to(np.asarray(operation), BATCH)
        return batch_step(states, batch_action("mask", operations, masks), self.config)[0]

    def resize_randomly(self, rng: np.random.Generator, square: bool = False) -> tuple[Any, np.ndarray]:
        """Resize all grids randomly and return the states and the sizes."""
        sizes = rng.integers(1, 31, (BATCH, 2))
        if square:
            sizes[:, 1] = sizes[:, 0]
        corners = EMPTY.copy()
        corners[np.arange(BATCH), sizes[:, 0] - 1, sizes[:, 1] - 1] = True
        return self.step(self.first, RESIZE, corners), sizes

    def paint(self, states: Any, rng: np.random.Generator, where: np.ndarray | None = None) -> Any:
        """Fill random cells with random colors three times, only inside `where` if given."""
        for _ in range(3):
            cells = rng.random((BATCH, *CANVAS)) < 0.5
            if where is not None:
                cells &= where
            states = self.step(states, rng.integers(10, size=BATCH), cells)
        return states


@pytest.fixture(scope="module", params=BACKENDS)
def runner(request: pytest.FixtureRequest) -> BatchRunner:
    skip_without(request.param)
    return BatchRunner(request.param)


def grids(states: Any) -> np.ndarray:
    return read(states, "working_grid")


def selected(states: Any) -> np.ndarray:
    return read(states, "selected")


def random_boxes(rng: np.random.Generator, bounds: np.ndarray, ragged: bool) -> np.ndarray:
    """Select a random box inside each [0, rows) x [0, cols), or some of its cells if ragged."""
    masks = EMPTY.copy()
    for mask, (rows, cols) in zip(masks, bounds, strict=True):
        r1, r2 = sorted(rng.integers(rows, size=2))
        c1, c2 = sorted(rng.integers(cols, size=2))
        part = mask[r1 : r2 + 1, c1 : c2 + 1]
        part[:] = rng.random(part.shape) < 0.6 if ragged else True
        part[rng.integers(part.shape[0]), rng.integers(part.shape[1])] = True
    return masks


@property_test
@given(seed=seeds)
def test_four_rotations_of_a_square_grid_are_the_identity(runner: BatchRunner, seed: int) -> None:
    rng = np.random.default_rng(seed)
    states, sizes = runner.resize_randomly(rng, square=True)
    states = runner.paint(states, rng)
    before = grids(states)
    for operation, turn in ((24, -1), (25, 1)):
        rotated = states
        for count in range(1, 5):
            rotated = runner.step(rotated, operation, EMPTY)
            for cells, start, (side, _) in zip(grids(rotated), before, sizes, strict=True):
                np.testing.assert_array_equal(
                    cells[:side, :side], np.rot90(start[:side, :side], turn * count)
                )
        np.testing.assert_array_equal(grids(rotated), before)


@property_test
@given(seed=seeds, ragged=st.booleans())
def test_four_rotations_of_an_object_that_fits_are_the_identity(
    runner: BatchRunner, seed: int, ragged: bool
) -> None:
    rng = np.random.default_rng(seed)
    states, sizes = runner.resize_randomly(rng)
    states = runner.step(states, CLEAR, EMPTY)
    # Objects whose bounding box can be rotated inside the grid.
    max_side = np.minimum(sizes[:, 0], sizes[:, 1])
    objects = random_boxes(rng, np.stack([(max_side + 1) // 2] * 2, axis=1), ragged)
    for mask, (rows, cols), side in zip(objects, sizes, max_side, strict=True):
        down, right = rng.integers(rows - side + 1), rng.integers(cols - side + 1)
        mask[:] = np.roll(mask, (down, right), (0, 1))
    states = runner.paint(states, rng, objects)
    before = grids(states)
    for operation in (24, 25):
        rotated, selection = states, objects
        for _ in range(4):
            rotated = runner.step(rotated, operation, selection)
            selection = selected(rotated)
            np.testing.assert_array_equal(selection.sum((1, 2)), objects.sum((1, 2)))
        np.testing.assert_array_equal(grids(rotated), before)
        np.testing.assert_array_equal(selection, objects)


@property_test
@given(seed=seeds)
def test_clockwise_then_counterclockwise_is_the_identity(runner: BatchRunner, seed: int) -> None:
    rng = np.random.default_rng(seed)
    states, _ = runner.resize_randomly(rng, square=True)
    states = runner.paint(states, rng)
    there = runner.step(states, 24, EMPTY)
    back = runner.step(there, 25, EMPTY)
    np.testing.assert_array_equal(grids(back), grids(states))


@property_test
@given(seed=seeds)
def test_flipping_a_box_twice_is_the_identity(runner: BatchRunner, seed: int) -> None:
    rng = np.random.default_rng(seed)
    states, sizes = runner.resize_randomly(rng)
    states = runner.paint(states, rng)
    objects = random_boxes(rng, sizes, ragged=False)
    for operation, axis in ((26, 1), (27, 0)):
        once = runner.step(states, operation, objects)
        for cells, start, mask in zip(grids(once), grids(states), objects, strict=True):
            rows, cols = np.ix_(mask.any(1), mask.any(0))
            np.testing.assert_array_equal(cells[rows, cols], np.flip(start[rows, cols], axis))
        np.testing.assert_array_equal(selected(once), objects)
        twice = runner.step(once, operation, objects)
        np.testing.assert_array_equal(grids(twice), grids(states))


@property_test
@given(seed=seeds)
def test_flipping_a_ragged_object_twice_is_the_identity(runner: BatchRunner, seed: int) -> None:
    rng = np.random.default_rng(seed)
    states, sizes = runner.resize_randomly(rng)
    states = runner.step(states, CLEAR, EMPTY)
    objects = random_boxes(rng, sizes, ragged=True)
    states = runner.paint(states, rng, objects)
    for operation in (26, 27):
        once = runner.step(states, operation, objects)
        twice = runner.step(once, operation, selected(once))
        np.testing.assert_array_equal(grids(twice), grids(states))
        np.testing.assert_array_equal(selected(twice), objects)


@property_test
@given(seed=seeds, ragged=st.booleans())
def test_paste_after_cut_restores_grid(runner: BatchRunner, seed: int, ragged: bool) -> None:
    rng = np.random.default_rng(seed)
    states, sizes = runner.resize_randomly(rng)
    states = runner.paint(states, rng)
    objects = random_boxes(rng, sizes, ragged)
    cut = runner.step(states, CUT, objects)
    np.testing.assert_array_equal(grids(cut), np.where(objects, 0, grids(states)))
    np.testing.assert_array_equal(grids(runner.step(cut, PASTE, objects)), grids(states))


@property_test
@given(seed=seeds, ragged=st.booleans())
def test_moving_back_and_forth_restores_grid(runner: BatchRunner, seed: int, ragged: bool) -> None:
    rng = np.random.default_rng(seed)
    states, sizes = runner.resize_randomly(rng)
    # Keep a margin of one cell around the objects, in grids of at least 3x3.
    corners = EMPTY.copy()
    sizes = np.maximum(sizes, 3)
    corners[np.arange(BATCH), sizes[:, 0] - 1, sizes[:, 1] - 1] = True
    states = runner.step(runner.step(states, RESIZE, corners), CLEAR, EMPTY)
    objects = np.roll(random_boxes(rng, sizes - 2, ragged), (1, 1), (1, 2))
    states = runner.paint(states, rng, objects)
    for there, back, shift in (
        (UP, DOWN, (-1, 0)),
        (DOWN, UP, (1, 0)),
        (LEFT, RIGHT, (0, -1)),
        (RIGHT, LEFT, (0, 1)),
    ):
        moved = runner.step(states, there, objects)
        np.testing.assert_array_equal(selected(moved), np.roll(objects, shift, (1, 2)))
        returned = runner.step(moved, back, selected(moved))
        np.testing.assert_array_equal(grids(returned), grids(states))
        np.testing.assert_array_equal(selected(returned), objects)


@property_test
@given(seed=seeds)
def test_fill_is_idempotent(runner: BatchRunner, seed: int) -> None:
    rng = np.random.default_rng(seed)
    states, _ = runner.resize_randomly(rng)
    states = runner.paint(states, rng)
    colors = rng.integers(10, size=BATCH)
    cells = rng.random((BATCH, *CANVAS)) < rng.random((BATCH, 1, 1))
    once = runner.step(states, colors, cells)
    area = grids(states) >= 0
    expected = np.where(cells & area, colors[:, None, None], grids(states))
    np.testing.assert_array_equal(grids(once), expected)
    np.testing.assert_array_equal(grids(runner.step(once, colors, cells)), expected)


@property_test
@given(seed=seeds, density=st.floats(0.2, 0.8))
def test_flood_fill_fills_exactly_the_connected_component(
    runner: BatchRunner, seed: int, density: float
) -> None:
    rng = np.random.default_rng(seed)
    states, sizes = runner.resize_randomly(rng)
    # Two colors near the percolation threshold give the longest and most winding regions.
    states = runner.step(states, CLEAR, EMPTY)
    states = runner.step(states, 1, rng.random((BATCH, *CANVAS)) < density)
    before = grids(states)
    starts = EMPTY.copy()
    rows, cols = rng.integers(sizes[:, 0]), rng.integers(sizes[:, 1])
    starts[np.arange(BATCH), rows, cols] = True
    colors = rng.integers(10, size=BATCH)
    after = grids(runner.step(states, 10 + colors, starts))
    for cells, start, row, col, color in zip(after, before, rows, cols, colors, strict=True):
        regions, _ = ndimage.label(start == start[row, col])
        np.testing.assert_array_equal(cells, np.where(regions == regions[row, col], color, start))


@property_test
@given(seed=seeds)
def test_growing_then_shrinking_restores_grid(runner: BatchRunner, seed: int) -> None:
    rng = np.random.default_rng(seed)
    states, sizes = runner.resize_randomly(rng)
    states = runner.paint(states, rng)
    larger = rng.integers(sizes, 31)
    corners, old_corners = EMPTY.copy(), EMPTY.copy()
    corners[np.arange(BATCH), larger[:, 0] - 1, larger[:, 1] - 1] = True
    old_corners[np.arange(BATCH), sizes[:, 0] - 1, sizes[:, 1] - 1] = True
    grown = runner.step(states, RESIZE, corners)
    for cells, start, (rows, cols) in zip(grids(grown), grids(states), larger, strict=True):
        expected = np.full(CANVAS, -1)
        expected[:rows, :cols] = np.maximum(start[:rows, :cols], 0)
        np.testing.assert_array_equal(cells, expected)
    np.testing.assert_array_equal(grids(runner.step(grown, RESIZE, old_corners)), grids(states))


@property_test
@given(seed=seeds)
def test_similarity_is_one_iff_grid_equals_target(runner: BatchRunner, seed: int) -> None:
    rng = np.random.default_rng(seed)
    states = runner.step(runner.first, COPY_INPUT, EMPTY)
    for _ in range(4):
        targets = read(states, "target_grid")
        rows, cols = (targets[:, :, 0] >= 0).sum(1), (targets[:, 0, :] >= 0).sum(1)
        cells = EMPTY.copy()
        # Small changes: fill one cell (perhaps with its own color), or add or remove a row or column.
        operations = np.where(rng.random(BATCH) < 0.5, rng.integers(10, size=BATCH), RESIZE)
        low = np.where(operations == RESIZE, -1, -np.minimum(rows, cols))
        high = np.where(operations == RESIZE, 2, 1)
        r = np.clip(rows - 1 + rng.integers(low, high), 0, 29)
        c = np.clip(cols - 1 + rng.integers(low, high), 0, 29)
        cells[np.arange(BATCH), r, c] = True
        states = runner.step(states, np.where(rng.random(BATCH) < 0.2, COPY_INPUT, operations), cells)
        equal = (grids(states) == targets).all((1, 2))
        np.testing.assert_array_equal(read(states, "similarity_score") == 1.0, equal)
        assert equal.any()
        assert not equal.all()

"""Augmented tasks match a NumPy reference, and a new key does not recompile."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phalanx.arc import ArcConfig, ArcEnvironment, ArcTask, DatasetConfig, GridPair, TaskBuffer
from phalanx.arc.augmentation import NUM_SYMMETRIES, augment, augment_tasks, transform_tasks


def transform_grid(grid: np.ndarray, symmetry: int, permutation: np.ndarray) -> np.ndarray:
    grid = permutation[grid]
    grid = grid.T if symmetry & 1 else grid
    grid = grid[:, ::-1] if symmetry & 2 else grid
    return grid[::-1] if symmetry & 4 else grid


def random_task(rng: np.random.Generator, name: str, secret: bool) -> ArcTask:
    def grid() -> np.ndarray:
        return rng.integers(0, 10, rng.integers(1, 31, 2)).astype(np.int8)

    demos = tuple(GridPair(grid(), grid()) for _ in range(rng.integers(1, 4)))
    return ArcTask(name, demos, (GridPair(grid(), None if secret else grid()),))


def reference_task(task: ArcTask, symmetry: int, permutation: np.ndarray) -> ArcTask:
    def pairs(old: tuple[GridPair, ...]) -> tuple[GridPair, ...]:
        transform = lambda grid: None if grid is None else transform_grid(grid, symmetry, permutation)  # noqa: E731
        return tuple(GridPair(transform(pair.input), transform(pair.output)) for pair in old)

    return dataclasses.replace(task, demos=pairs(task.demos), tests=pairs(task.tests))


def test_symmetries_and_permutations_match_numpy():
    rng = np.random.default_rng(0)
    tasks = [random_task(rng, f"t{n}", secret=n % 3 == 0) for n in range(3 * NUM_SYMMETRIES)]
    padded_shape = {"num_tasks": len(tasks) + 2, "num_pairs": 120, "num_rows": 30}
    symmetries = np.array([*range(NUM_SYMMETRIES)] * 3 + [5, 6], np.int32)
    permutations = np.stack([rng.permutation(10) for _ in symmetries]).astype(np.int32)
    result = jax.jit(transform_tasks)(
        TaskBuffer.from_tasks(tasks, **padded_shape).arrays,
        jnp.asarray(symmetries),
        jnp.asarray(permutations),
    )
    expected = TaskBuffer.from_tasks(
        [reference_task(*row) for row in zip(tasks, symmetries, permutations, strict=False)], **padded_shape
    )
    for name in ("pairs", "sizes", "table", "num_tasks"):
        assert np.array_equal(getattr(result, name), getattr(expected.arrays, name)), name


@pytest.mark.parametrize("keep_black", [True, False])
def test_augment_transforms_grids_and_optionally_keeps_black(keep_black: bool) -> None:
    grid = np.arange(10, dtype=np.int8).reshape(2, 5)
    tasks = [ArcTask(f"t{n}", (GridPair(grid, grid),), ()) for n in range(64)]
    arrays = TaskBuffer.from_tasks(tasks, num_rows=5).arrays
    augmented = augment(arrays, jax.random.key(3), keep_black=keep_black)
    environment = ArcEnvironment.create(ArcConfig(dataset=DatasetConfig(max_grid_height=5, max_grid_width=5)))
    states, _ = environment.with_tasks(augmented).batch_reset_to(jnp.arange(64), jnp.zeros(64, jnp.int32))
    assert set(np.asarray(states.height).tolist()) == {2, 5}
    black_cells = [frozenset(np.argwhere(board == 0).ravel().tolist()) for board in states.working_grid]
    corners = {frozenset({0}), frozenset({0, 1}), frozenset({0, 4}), frozenset({1, 4})}
    assert (set(black_cells) <= corners) is keep_black
    has_all_colors = [
        np.array_equal(np.sort(board[board >= 0]), np.arange(10)) for board in states.working_grid
    ]
    assert all(has_all_colors)
    cells_of_color_1 = {frozenset(np.argwhere(board == 1).ravel().tolist()) for board in states.working_grid}
    assert len(cells_of_color_1) > 4


def test_new_key_does_not_recompile():
    task = ArcTask("t", (GridPair(np.array([[1, 2]]), np.array([[2, 1]])),), ())
    arrays = TaskBuffer.from_tasks(task, num_rows=2).arrays
    traced = []

    @jax.jit
    def draw(arrays, key):
        traced.append(1)
        return augment(arrays, key)

    results = {np.asarray(draw(arrays, jax.random.key(seed)).pairs).tobytes() for seed in range(20)}
    assert len(traced) == 1
    assert len(results) > 5


def test_augment_tasks_matches_augmented_arrays():
    rng = np.random.default_rng(1)
    tasks = [random_task(rng, f"t{n}", secret=n == 0) for n in range(4)]
    result = augment_tasks(tasks, jax.random.key(2))
    arrays = augment(TaskBuffer.from_tasks(tasks, num_rows=30).arrays, jax.random.key(2))
    augmented = TaskBuffer.from_tasks(result, num_rows=30).arrays
    assert np.array_equal(augmented.pairs, arrays.pairs)
    assert np.array_equal(augmented.sizes, arrays.sizes)
    assert result[0].tests[0].output is None

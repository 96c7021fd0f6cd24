"""Transduction: submitted grids, input features, and independence of the canvas."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phalanx.arc import GridPair, TransductionNetwork, TransductionNetworkConfig, predict_output, submit_grids
from phalanx.arc.networks.transduction import transduction_loss
from phalanx.arc.networks.transduction_features import (
    NUM_VIEWS,
    flags_of,
    sizes_of,
    summarize_input,
    views_of,
)

pytestmark = pytest.mark.slow


def on_canvas(grid: np.ndarray, side: int) -> np.ndarray:
    canvas = np.full((side, side), -1, np.int8)
    canvas[: grid.shape[0], : grid.shape[1]] = grid
    return canvas


@functools.cache
def untrained_network() -> TransductionNetwork:
    """Create a small network for three tasks."""
    config = TransductionNetworkConfig(hidden_dim=4, num_layers=1, task_embedding_dim=4)
    return jax.jit(lambda key: TransductionNetwork(config, 3, key=key))(jax.random.key(0))


def test_only_exact_answers_are_correct():
    rng = np.random.default_rng(0)
    pairs, answers, expected = [], [], []
    for number in range(20):
        shapes = rng.integers(1, 31, (2, 2))
        input_grid, expected_grid = (rng.integers(0, 10, shape).astype(np.int8) for shape in shapes)
        answer = expected_grid.copy()
        if number % 4 == 1:
            answer[0, 0] = (answer[0, 0] + 1) % 10
        if number % 4 == 2:
            answer = input_grid
        if number % 4 == 3:
            answer = np.zeros((expected_grid.shape[0] % 30 + 1, expected_grid.shape[1]), np.int8)
            answer[: expected_grid.shape[0]] = expected_grid[: answer.shape[0]]
        pairs.append(GridPair(input_grid, expected_grid))
        answers.append(on_canvas(answer, 30))
        expected.append(answer.shape == expected_grid.shape and bool((answer == expected_grid).all()))
    assert submit_grids(pairs, np.stack(answers)).tolist() == expected
    assert sum(expected) == 5


GRID = np.array([[0, 0, 0, 0], [0, 3, 3, 3], [0, 3, 0, 3], [0, 3, 3, 3], [7, 0, 0, 0]], np.int8)


def test_views_match_numpy():
    canvas = on_canvas(GRID, 8)
    views = np.asarray(jax.jit(lambda g: views_of(g, summarize_input(g), jnp.int32(5), jnp.int32(4)))(canvas))
    assert len(views) == NUM_VIEWS
    transformed = [GRID, GRID[:, ::-1], GRID[::-1], GRID[::-1, ::-1], GRID.T, GRID.T[::-1, ::-1]]
    for view, expected_grid in zip(views, [*transformed, np.rot90(GRID, -1), np.rot90(GRID)], strict=False):
        assert np.array_equal(view, on_canvas(expected_grid, 8))
    assert np.array_equal(views[8], np.tile(GRID, (2, 2))[:8, :8])
    assert np.array_equal(views[11], on_canvas(GRID[1:], 8))
    left = views[NUM_VIEWS - 6]
    assert left[2].tolist()[:4] == [-1, 3, 3, 3]
    assert left[4].tolist()[:4] == [7, 7, 7, 7]


def test_flags_mark_enclosed_and_single_cells():
    flags = np.asarray(jax.jit(lambda g: flags_of(g, summarize_input(g)))(on_canvas(GRID, 8)))
    assert np.argwhere(flags[0]).tolist() == [[2, 2]]
    assert np.argwhere(flags[6]).tolist() == [[4, 0]]
    assert flags[4].sum() == 8


def test_sizes_are_simple_functions_of_input_size():
    sides = np.asarray(jax.jit(lambda g: sizes_of(summarize_input(g)))(on_canvas(GRID, 8)))
    assert sides[0, :4].tolist() == [5, 4, 10, 15]
    assert sides[1, :4].tolist() == [4, 5, 8, 12]


@pytest.mark.parametrize("side", [8, 11])
def test_untrained_network_copies_the_input(side: int):
    answer = np.asarray(jax.jit(predict_output)(untrained_network(), on_canvas(GRID, side), jnp.int32(1)))
    assert np.array_equal(answer, on_canvas(GRID, side))


def test_task_layer_gets_gradient_only_from_its_task():
    canvas = on_canvas(GRID, 8)
    target = np.where(canvas >= 0, np.int8(5), np.int8(-1))
    gradient = jax.jit(jax.grad(transduction_loss, has_aux=True))(
        untrained_network(), canvas, target, np.int32(1)
    )[0]
    by_task = np.abs(np.asarray(gradient.heads)).sum(axis=(1, 2))
    assert by_task[1] > 0 and by_task[[0, 2]].tolist() == [0, 0]
    assert np.abs(np.asarray(gradient.head.weight)).sum() > 0, "the shared layer also gets a gradient"

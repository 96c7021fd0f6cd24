"""Grids are validated cell by cell, and tasks round-trip through the ARC JSON format."""

import json
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as arrays

from phalanx.arc.tasks import ArcTask, GridPair, SolutionStep, as_grid

SMALL: dict[str, Any] = {
    "train": [{"input": [[1, 2], [3, 4]], "output": [[4, 3, 2]]}],
    "test": [{"input": [[5]], "output": [[6]]}, {"input": [[7]]}],
}


def test_grid_is_read_only_int8_array():
    grid = as_grid([[1, 2, 3], [4, 5, 6]])
    assert grid.dtype == np.int8
    assert grid.tolist() == [[1, 2, 3], [4, 5, 6]]
    with pytest.raises(ValueError, match="read-only"):
        grid[0, 0] = 9


@pytest.mark.parametrize(
    "cells",
    [
        [[0, 9], [1, 2]],
        ((0, 9), (1, 2)),
        [["0", "9"], ["1", "2"]],
        [["0", 9], [1, "2"]],
        np.array([[0, 9], [1, 2]]),
        np.array([[0, 9], [1, 2]], np.uint8),
        np.array([["0", "9"], ["1", "2"]]),
        np.array([[0, 1], [9, 2]]).T,
        [np.array([0, 9]), np.array([1, 2])],
        [[np.int64(0), np.int8(9)], [1, 2]],
    ],
    ids=lambda cells: f"{type(cells).__name__}-{str(cells)[:14]}",
)
def test_accepted_input_types_give_same_grid(cells):
    grid = as_grid(cells)
    assert grid.dtype == np.int8
    assert grid.tolist() == [[0, 9], [1, 2]]
    assert not grid.flags.writeable


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ([[1, 2], [3]], "here: row 1 has 1 cells, row 0 has 2"),
        ([[1, 11]], "here: cell (0, 1) must be a color from 0 to 9, got 11"),
        ([[1], [-1]], "here: cell (1, 0) must be a color from 0 to 9, got -1"),
        ([[0, 300]], "here: cell (0, 1) must be a color from 0 to 9, got 300"),
        ([[10**40]], "here: cell (0, 0) must be a color from 0 to 9, got a number of more than 30 digits"),
        ([[1.0]], "here: cell (0, 0) must be a color from 0 to 9, got 1.0"),
        ([[1, True]], "here: cell (0, 1) must be a color from 0 to 9, got True"),
        ([[None]], "here: cell (0, 0) must be a color from 0 to 9, got None"),
        ([["11"]], "here: cell (0, 0) must be a color from 0 to 9, got '11'"),
        ([["x"]], "here: cell (0, 0) must be a color from 0 to 9, got 'x'"),
        ([], "here: the grid is empty"),
        ([[]], "here: the grid is empty"),
        ([[0] * 31], "here: at most 30x30 cells, got 1x31"),
        ([[0]] * 31, "here: at most 30x30 cells, got 31x1"),
        ("12", "here: a grid is a list of rows, got str"),
        (None, "here: a grid is a list of rows, got NoneType"),
        (["12", "34"], "here: row 0 must be a list of colors, got '12'"),
        ([[0], 5], "here: row 1 must be a list of colors, got 5"),
        ([{"a": 1}], "here: row 0 must be a list of colors, got {'a': 1}"),
        (np.zeros((2, 2, 2), int), "here: a grid has rows and columns, got 3 dimensions"),
        (np.zeros((0, 3), int), "here: the grid is empty"),
        (np.zeros((31, 3), int), "here: at most 30x30 cells, got 31x3"),
        (np.array([[0, 10]]), "here: cell (0, 1) must be a color from 0 to 9, got 10"),
        (np.array([[0, -1]], np.int8), "here: cell (0, 1) must be a color from 0 to 9, got -1"),
        (np.array([[0, 266]]), "here: cell (0, 1) must be a color from 0 to 9, got 266"),
        (np.array([[True]]), "here: cell (0, 0) must be a color from 0 to 9, got True"),
        (np.array([[0.5]]), "here: cell (0, 0) must be a color from 0 to 9, got 0.5"),
    ],
    ids=lambda value: value[6:] if isinstance(value, str) and value.startswith("here") else "cells",
)
def test_invalid_grid_is_reported_with_location(cells, message):
    with pytest.raises(ValueError) as caught:
        as_grid(cells, "here")
    assert str(caught.value) == message


GRIDS = arrays.arrays(
    np.int8, arrays.array_shapes(min_dims=2, max_dims=2, max_side=30), elements=st.integers(0, 9)
)


@settings(deadline=None)
@given(GRIDS)
def test_lists_strings_and_arrays_give_same_grid(cells):
    strings = [[str(cell) for cell in row] for row in cells.tolist()]
    for form in (cells, cells.tolist(), strings):
        np.testing.assert_array_equal(as_grid(form), cells)


@settings(deadline=None)
@given(GRIDS, st.data())
def test_invalid_cell_is_reported_with_position(cells, data):
    r = data.draw(st.integers(0, cells.shape[0] - 1))
    c = data.draw(st.integers(0, cells.shape[1] - 1))
    invalid = data.draw(st.sampled_from([-1, 10, 255, 256, 10**9, True, 2.0, None, "a"]))
    rows = cells.tolist()
    rows[r][c] = invalid
    with pytest.raises(ValueError) as caught:
        as_grid(rows)
    assert str(caught.value) == f"grid: cell ({r}, {c}) must be a color from 0 to 9, got {invalid!r}"


def test_task_is_read_from_arc_format():
    task = ArcTask.from_dict(SMALL, "small", "tiny")
    assert (task.id, task.family) == ("small", "tiny")
    assert [pair.input.tolist() for pair in task.pairs] == [[[1, 2], [3, 4]], [[5]], [[7]]]
    assert task.demos[0].output.tolist() == [[4, 3, 2]]
    assert task.tests[1].output is None
    assert task.max_shape == (2, 3)


def test_task_round_trips_through_json():
    task = ArcTask.from_dict(SMALL, "small")
    assert task.to_dict() == SMALL
    assert ArcTask.from_dict(json.loads(json.dumps(task.to_dict())), "small") == task


def test_unknown_keys_are_ignored():
    assert ArcTask.from_dict(SMALL | {"name": "x"}, "small") == ArcTask.from_dict(SMALL, "small")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train": None}, "small: train must be a list of pairs, got None"),
        ({"train": {}}, "small: train must be a list of pairs, got {}"),
        ({"train": [5]}, 'small: train[0] must be an object with "input" and "output", got 5'),
        ({"train": [{"output": [[1]]}]}, 'small: train[0]: "input" is missing'),
        ({"train": [{"input": [[1]]}]}, 'small: train[0]: "output" is missing; only test pairs may lack it'),
        (
            {"test": [{"input": [[1]]}, {"input": [[1], []]}]},
            "small: test[1].input: row 1 has 0 cells, row 0 has 1",
        ),
        (
            {"train": [SMALL["train"][0], {"input": [[1]], "output": [[0, 11]]}]},
            "small: train[1].output: cell (0, 1) must be a color from 0 to 9, got 11",
        ),
        ({"train": [], "test": []}, 'small: both "train" and "test" are empty'),
    ],
)
def test_malformed_task_is_reported_with_pair_and_cell(change, message):
    with pytest.raises(ValueError) as caught:
        ArcTask.from_dict(SMALL | change, "small")
    assert str(caught.value) == message


@pytest.mark.parametrize("key", ["train", "test"])
def test_missing_key_is_reported(key):
    data = {name: pairs for name, pairs in SMALL.items() if name != key}
    with pytest.raises(ValueError, match=f'^small: "{key}" is missing; a task has "train" and "test"$'):
        ArcTask.from_dict(data, "small")


def test_non_object_task_is_rejected():
    with pytest.raises(
        ValueError, match=r'^small: a task is an object with "train" and "test", got \[1, 2\]$'
    ):
        ArcTask.from_dict([1, 2], "small")


def test_error_location_can_be_specified():
    with pytest.raises(ValueError, match=r'^tasks/a\.json: "train" is missing'):
        ArcTask.from_dict({}, "a", where="tasks/a.json")


def test_reprs_are_short():
    task = ArcTask.from_dict(SMALL, "small")
    assert repr(task) == "ArcTask('small', 1 demo, 2 tests, up to 2x3)"
    assert (
        repr(ArcTask.from_dict(SMALL, "s", "tiny"))
        == "ArcTask('s', family 'tiny', 1 demo, 2 tests, up to 2x3)"
    )
    assert repr(task.demos) == "(GridPair(2x2 -> 1x3),)"
    assert repr(task.tests[1]) == "GridPair(1x1 -> ?)"


def test_html_repr_is_svg():
    task = ArcTask.from_dict(SMALL, "small")
    assert "<svg" in task._repr_html_()
    assert "<svg" in task.demos[0]._repr_html_()


def test_equality_of_tasks_depends_on_content():
    task = ArcTask.from_dict(SMALL, "small")
    assert task == ArcTask.from_dict(SMALL, "small")
    assert hash(task) == hash(ArcTask.from_dict(SMALL, "small"))
    assert task != ArcTask.from_dict(SMALL, "other")
    assert task != ArcTask.from_dict(SMALL, "small", "tiny")
    assert task != ArcTask.from_dict(SMALL | {"test": [{"input": [[5]]}, {"input": [[7]]}]}, "small")
    assert task != ArcTask("small", task.demos + task.tests[:1], task.tests[1:])


def test_task_is_static_under_jit():
    task = ArcTask.from_dict(SMALL, "small")
    assert jax.tree.leaves(task) == []
    assert jax.tree.structure(task) == jax.tree.structure(ArcTask.from_dict(SMALL, "small"))


def test_pair_copies_its_grids():
    cells = np.array([[1, 2]], np.int8)
    pair = GridPair(cells, None)
    cells[0, 0] = 7
    assert pair.input.tolist() == [[1, 2]]


def test_pair_converts_dtype_and_rejects_invalid_colors():
    assert GridPair(np.array([[1]]), np.array([[2]])).output.dtype == np.int8
    frozen = np.array([[-1]], np.int8)
    frozen.setflags(write=False)
    with pytest.raises(ValueError, match=r"^output: cell \(0, 0\) must be a color from 0 to 9, got -1$"):
        GridPair(np.array([[1]]), frozen)


def test_task_needs_pairs_and_matching_solutions():
    pair = GridPair(as_grid([[1]]), as_grid([[2]]))
    with pytest.raises(ValueError, match="task 'none' has no pairs"):
        ArcTask("none", (), ())
    with pytest.raises(ValueError, match="task 'two': 1 solutions for 2 pairs"):
        ArcTask("two", (pair,), (pair,), solutions=((SolutionStep(2, 0, 0, 0, 0),),))

"""The import hook of the tests checks calls like jaxtyping's own."""

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from jaxtyping import Float, TypeCheckError

from phalanx.formatting import format_count
from tests.annotations import beartyped, deferred


def test_functions_of_the_package_are_checked() -> None:
    assert format_count(2, "step") == "2 steps"
    with pytest.raises(TypeCheckError):
        format_count("two", "step")


@deferred(typechecker=beartyped)
def first_column(grid: Float[np.ndarray, "rows columns"], times: int = 1) -> Float[np.ndarray, " rows"]:
    return grid[0] if times == 0 else grid[:, 0] * times


def test_shapes_of_arguments_and_results_are_checked() -> None:
    assert first_column(np.ones((2, 3))).tolist() == [1, 1]
    with pytest.raises(TypeCheckError, match="grid"):
        first_column(np.ones(3))
    with pytest.raises(TypeCheckError, match="return"):
        first_column(np.ones((2, 3)), times=0)


@deferred(typechecker=beartyped)
def in_cells(row: Float[np.ndarray, " cells"], cells: int) -> Float[np.ndarray, " {cells}"]:
    return row


def test_computed_axes_and_nested_calls_have_separate_scopes() -> None:
    assert in_cells(np.ones(3), 3).tolist() == [1, 1, 1]
    with pytest.raises(TypeCheckError, match="return value"):
        in_cells(np.ones(3), 2)

    @deferred(typechecker=beartyped)
    def lengths(rows: Float[np.ndarray, " rows"]) -> int:
        return len(rows) + len(first_column(np.ones((len(rows) + 1, 2))))

    assert lengths(np.ones(2)) == 5


@deferred(typechecker=beartyped)
def columns_of(grid: Float[np.ndarray, "rows columns"]) -> Iterator[np.ndarray]:
    yield from grid.T


def test_generator_arguments_are_checked_when_it_is_created() -> None:
    with pytest.raises(TypeCheckError):
        columns_of(np.ones(3))

    @deferred(typechecker=beartyped)
    def widths(rows: Float[np.ndarray, " rows"]) -> int:
        return sum(len(column) for column in columns_of(np.ones((len(rows) + 1, 2))))

    assert widths(np.ones(2)) == 6


def adder(added: int) -> Callable[[int], int]:
    @deferred(typechecker=beartyped)
    def add(value: int, deep: int = 0) -> int:
        return add(value, deep - 1) + added if deep else value + added

    return add


def test_functions_of_one_inner_def_share_checks_but_not_closures() -> None:
    one, ten = adder(1), adder(10)
    assert (one(0), ten(0), one(0, deep=2), ten(0, deep=2)) == (1, 10, 3, 30)
    with pytest.raises(TypeCheckError, match="value"):
        ten("0")
    assert (one(0), ten(0)) == (1, 10)


def test_failing_nested_call_does_not_affect_later_calls() -> None:
    def create(other: Callable[[int], int] | None) -> Callable[[int], int]:
        @deferred(typechecker=beartyped)
        def call(value: int) -> int:
            if value < 0:
                raise ValueError("below zero")
            return value if other is None else 100 + other(value - 1)

        return call

    inner = create(None)
    outer = create(inner)
    assert (outer(1), inner(1)) == (100, 1)
    with pytest.raises(ValueError, match="below zero"):
        outer(0)
    assert (outer(5), inner(5)) == (104, 5)


@deferred(typechecker=beartyped)
@dataclasses.dataclass
class Grid:
    cells: Float[np.ndarray, "rows columns"]


@deferred(typechecker=beartyped)
@dataclasses.dataclass
class NamedGrid(Grid):
    name: str = ""


@deferred(typechecker=beartyped)
class OtherGrid(NamedGrid):
    """Inherits the fields of its parent."""


def test_dataclass_fields_are_checked_on_creation() -> None:
    for kind in (Grid, NamedGrid, OtherGrid):
        assert kind(np.ones((1, 2))).cells.tolist() == [[1, 1]]
        with pytest.raises(TypeCheckError, match="cells"):
            kind(np.ones(2))
    with pytest.raises(TypeCheckError, match="name"):
        NamedGrid(np.ones((1, 2)), name=3)


class Square:
    def __init__(self, side: int) -> None:
        self.side = side

    @deferred(typechecker=beartyped)
    @property
    def area(self) -> int:
        return self.side**2

    @deferred(typechecker=beartyped)
    @classmethod
    def like(cls, other: "Square") -> "Square":
        return cls(other.side)

    @deferred(typechecker=beartyped)
    @staticmethod
    def corners(side: int) -> int:
        return 4 * side


def test_properties_and_class_and_static_methods_are_checked() -> None:
    assert (Square.like(Square(3)).area, Square.corners(1)) == (9, 4)
    with pytest.raises(TypeCheckError):
        Square.like(3)
    with pytest.raises(TypeCheckError):
        Square.corners("1")
    with pytest.raises(TypeCheckError):
        _ = Square(0.5).area

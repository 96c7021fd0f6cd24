"""What the replay buffer is made of: means, the tree of sums, rows in chunks, evictions."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from phalanx.data.replay_buffer import exact_mean
from phalanx.data.sum_tree import SumTree

FLOATS = st.floats(allow_nan=False, allow_infinity=False)


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float64)


@settings(deadline=None)
@given(st.lists(FLOATS, min_size=1))
def test_a_mean_is_right_to_the_last_digits_and_does_not_overflow(numbers: list[float]) -> None:
    exact = float(sum(map(Fraction, numbers), Fraction(0)) / len(numbers))
    assert exact_mean(floats(*numbers, math.nan)) == pytest.approx(exact, rel=1e-15, abs=1e-300)


def test_without_a_known_number_the_mean_is_0() -> None:
    assert exact_mean(floats()) == exact_mean(floats(math.nan)) == 0.0


def test_a_tree_finds_the_slot_whose_stretch_holds_a_point() -> None:
    tree = SumTree(5)
    tree.set(np.array([0, 1, 2, 4]), floats(1.0, 0.0, 2.0, 3.0))
    assert tree.total == 6.0
    points = floats(0.0, 0.999, 1.0, 2.999, 3.0, math.nextafter(6.0, 0.0))
    assert tree.find(points).tolist() == [0, 0, 2, 2, 4, 4]
    tree.grow(100)
    assert tree.find(points).tolist() == [0, 0, 2, 2, 4, 4]


@settings(deadline=None)
@given(
    st.integers(1, 70),
    st.lists(st.lists(st.tuples(st.integers(0, 69), st.sampled_from([0.0, 0.1, 1.0, 3.3])), max_size=9)),
)
def test_a_tree_agrees_with_adding_up(capacity: int, changes: list[list[tuple[int, float]]]) -> None:
    tree, plain = SumTree(capacity), np.zeros(capacity)
    for change in changes:
        slots = np.array([slot % capacity for slot, _ in change], np.int64)
        weights = floats(*(weight for _, weight in change))
        tree.set(slots, weights)
        plain[slots] = weights
    assert tree.total == pytest.approx(plain.sum())
    np.testing.assert_array_equal(tree.get(np.arange(capacity)), plain)
    if tree.total > 0:
        points = np.linspace(0.0, np.nextafter(tree.total, 0.0), 50)
        found = tree.find(points)
        assert (plain[found] > 0).all()
        expected = np.searchsorted(np.cumsum(plain), points, side="right")
        # At the edge of a stretch the two ways of adding up may round apart.
        assert (np.abs(np.cumsum(plain)[found] - points) < 3.3 + 1e-9).all()
        assert (found == np.minimum(expected, capacity - 1)).mean() > 0.9

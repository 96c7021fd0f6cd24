"""Exact means and the sum tree of the replay buffer."""

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
def test_mean_is_exact_and_does_not_overflow(numbers: list[float]) -> None:
    exact = float(sum(map(Fraction, numbers), Fraction(0)) / len(numbers))
    assert exact_mean(floats(*numbers, math.nan)) == pytest.approx(exact, rel=1e-15, abs=1e-300)


def test_mean_without_values_is_zero() -> None:
    assert exact_mean(floats()) == exact_mean(floats(math.nan)) == 0.0


def test_find_returns_the_slot_of_a_cumulative_weight() -> None:
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
def test_tree_agrees_with_cumulative_sums(capacity: int, changes: list[list[tuple[int, float]]]) -> None:
    tree, reference = SumTree(capacity), np.zeros(capacity)
    for change in changes:
        slots = np.array([slot % capacity for slot, _ in change], np.int64)
        weights = floats(*(weight for _, weight in change))
        tree.set(slots, weights)
        reference[slots] = weights
    assert tree.total == pytest.approx(reference.sum())
    np.testing.assert_array_equal(tree.get(np.arange(capacity)), reference)
    if tree.total > 0:
        points = np.linspace(0.0, np.nextafter(tree.total, 0.0), 50)
        found = tree.find(points)
        assert (reference[found] > 0).all()
        expected = np.searchsorted(np.cumsum(reference), points, side="right")
        # At the boundary of an interval, the two sums may be rounded differently.
        assert (np.abs(np.cumsum(reference)[found] - points) < 3.3 + 1e-9).all()
        assert (found == np.minimum(expected, capacity - 1)).mean() > 0.9

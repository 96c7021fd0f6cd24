"""Interquartile means and bootstrap intervals, against the obvious way to compute them."""

import itertools

import numpy as np
import pytest

from phalanx.statistics import bootstrap_interval, interquartile_mean


@pytest.mark.parametrize(
    ("scores", "mean"),
    [([3.0], 3.0), ([1.0, 2.0, 6.0], 3.0), ([0.0, 4.0, 6.0, 100.0], 5.0), ([9.0, 1, 2, 3, 4, 5, 6, 7], 4.5)],
)
def test_a_quarter_is_left_out_on_either_side(scores: list[float], mean: float) -> None:
    assert interquartile_mean(np.array(scores)) == mean


def test_points_are_taken_each_by_itself() -> None:
    scores = np.array([[0.0, 8.0], [4.0, 6.0], [6.0, 4.0], [100.0, -100.0]])
    np.testing.assert_array_equal(interquartile_mean(scores), [5.0, 5.0])


def test_the_interval_of_few_seeds_is_that_of_every_way_to_draw_them() -> None:
    scores = np.array([1.0, 2.0, 4.0, 8.0])
    drawn = sorted(
        float(interquartile_mean(scores[list(ways)])) for ways in itertools.product(range(4), repeat=4)
    )
    low, high = bootstrap_interval(scores, level=0.8)
    assert float(low) == drawn[int(np.ceil(0.1 * 256)) - 1]
    assert float(high) == drawn[int(np.ceil(0.9 * 256)) - 1]


def test_the_interval_of_many_seeds_is_the_same_each_time_and_holds_the_mean() -> None:
    scores = np.random.default_rng(0).normal(size=(12, 3))
    low, high = bootstrap_interval(scores)
    again = bootstrap_interval(scores)
    np.testing.assert_array_equal((low, high), again)
    mean = interquartile_mean(scores)
    assert ((low < mean) & (mean < high)).all()
    # About two standard errors on either side.
    np.testing.assert_allclose(high - low, 4 * scores.std(axis=0) / np.sqrt(12), rtol=0.5)


def test_one_seed_has_no_band() -> None:
    low, high = bootstrap_interval(np.array([[2.0, 3.0]]))
    np.testing.assert_array_equal(low, high)

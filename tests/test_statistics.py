"""Interquartile means and bootstrap intervals, compared with simple implementations."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from phalanx.statistics import bootstrap_interval, interquartile_mean, mean_pass_at_k, pass_at_k


@pytest.mark.parametrize(
    ("scores", "mean"),
    [([3.0], 3.0), ([1.0, 2.0, 6.0], 3.0), ([0.0, 4.0, 6.0, 100.0], 5.0), ([9.0, 1, 2, 3, 4, 5, 6, 7], 4.5)],
)
def test_interquartile_mean_omits_a_quarter_on_each_side(scores: list[float], mean: float) -> None:
    assert interquartile_mean(np.array(scores)) == mean


def test_each_point_is_aggregated_separately() -> None:
    scores = np.array([[0.0, 8.0], [4.0, 6.0], [6.0, 4.0], [100.0, -100.0]])
    np.testing.assert_array_equal(interquartile_mean(scores), [5.0, 5.0])


def test_interval_of_few_seeds_enumerates_all_resamples() -> None:
    scores = np.array([1.0, 2.0, 4.0, 8.0])
    drawn = sorted(
        float(interquartile_mean(scores[list(ways)])) for ways in itertools.product(range(4), repeat=4)
    )
    low, high = bootstrap_interval(scores, level=0.8)
    assert float(low) == drawn[int(np.ceil(0.1 * 256)) - 1]
    assert float(high) == drawn[int(np.ceil(0.9 * 256)) - 1]


def test_interval_of_many_seeds_is_deterministic_and_contains_the_mean() -> None:
    scores = np.random.default_rng(0).normal(size=(12, 3))
    low, high = bootstrap_interval(scores)
    again = bootstrap_interval(scores)
    np.testing.assert_array_equal((low, high), again)
    mean = interquartile_mean(scores)
    assert ((low < mean) & (mean < high)).all()
    # About two standard errors on either side.
    np.testing.assert_allclose(high - low, 4 * scores.std(axis=0) / np.sqrt(12), rtol=0.5)


def test_interval_of_one_seed_has_no_width() -> None:
    low, high = bootstrap_interval(np.array([[2.0, 3.0]]))
    np.testing.assert_array_equal(low, high)


@given(st.integers(1, 7), st.data())
def test_pass_at_k_is_the_fraction_of_subsets_with_a_success(n: int, data: Any) -> None:
    successes = data.draw(st.integers(0, n))
    k = data.draw(st.integers(1, n))
    attempts = [True] * successes + [False] * (n - successes)
    choices = list(itertools.combinations(attempts, k))
    assert pass_at_k(n, successes, k) == sum(any(chosen) for chosen in choices) / len(choices)


def test_pass_at_k_of_many_attempts_does_not_overflow() -> None:
    assert pass_at_k(10_000, 1, 5_000) == 0.5
    assert pass_at_k(10_000, 0, 5_000) == 0.0


def test_pass_at_k_rejects_invalid_arguments() -> None:
    with pytest.raises(ValueError, match="k between 1 and num_samples, which is 2, got 3"):
        pass_at_k(2, 1, 3)
    with pytest.raises(ValueError, match="num_correct must be between 0 and num_samples, 2, got 3"):
        pass_at_k(2, 3, 1)
    with pytest.raises(ValueError, match="at least one problem"):
        mean_pass_at_k(2, [], 1)

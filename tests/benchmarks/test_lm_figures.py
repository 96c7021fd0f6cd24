"""The language model's figures: which point of a training is reported."""

import pytest
from lm_figures import Point, first_below


def points(*losses: float) -> list[Point]:
    return [Point(5 * row, loss, 100 * row, 90 * row, 2.0 * row) for row, loss in enumerate(losses)]


def test_the_first_measurement_at_or_below_a_loss_counts() -> None:
    assert first_below(points(5.0, 2.0, 1.0, 1.5, 0.5), 1.0) == Point(10, 1.0, 200, 180, 4.0)


def test_a_loss_that_is_never_reached_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"never fell to 0\.100; the last was 2\.000"):
        first_below(points(5.0, 2.0), 0.1)

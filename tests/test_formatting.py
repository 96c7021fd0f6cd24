"""Formatting of numbers."""

import pytest

from phalanx.formatting import format_percent


@pytest.mark.parametrize(
    ("share", "digits", "text"),
    [
        (0.0, 1, "0.0%"),
        (0.034, 1, "3.4%"),
        (0.99999, 1, "99.9%"),
        (0.99999, 2, "99.99%"),
        (1.0, 1, "100%"),
        (1.0, 2, "100%"),
        (1.25, 1, "125%"),
    ],
)
def test_only_one_is_formatted_as_100_percent(share: float, digits: int, text: str) -> None:
    assert format_percent(share, digits) == text

"""The screenshot of `phalanx play`."""

import asyncio

import pytest
from play_picture import picture

pytestmark = pytest.mark.slow


def test_screenshot_shows_the_task_and_the_selection() -> None:
    screen = asyncio.run(picture())
    assert screen.startswith("<svg")
    assert "draw_border-000014" in screen
    assert "3×1&#160;selected" in screen
    assert "url(http" not in screen
    assert "@font-face" not in screen

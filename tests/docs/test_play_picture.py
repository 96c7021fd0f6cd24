"""The picture of a game that the documents show."""

import asyncio

import pytest
from play_picture import picture

pytestmark = pytest.mark.slow


def test_the_picture_of_the_documents_is_made() -> None:
    drawn = asyncio.run(picture())
    assert drawn.startswith("<svg") and "draw_border-000014" in drawn and "1×3" not in drawn
    assert "3×1&#160;selected" in drawn and "url(http" not in drawn and "@font-face" not in drawn

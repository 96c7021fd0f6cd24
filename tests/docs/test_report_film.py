"""The animation on the front page."""

import io
from pathlib import Path

import pytest
import report_film
from PIL import Image

IMAGES = Path(__file__).parents[2] / "docs" / "images"


class BlinkingPage:
    """Fake browser page whose screenshots are red and blue in turn."""

    taken = 0

    def wait_for_timeout(self, milliseconds: int) -> None:
        assert milliseconds > 0

    def screenshot(self) -> bytes:
        self.taken += 1
        file = io.BytesIO()
        Image.new("RGB", (40, 30), ("red", "blue")[self.taken % 2]).save(file, "png")
        return file.getvalue()


def test_frames_have_their_duration(tmp_path: Path) -> None:
    film = report_film.Film(BlinkingPage())
    for milliseconds in (100, 250, 900):
        film.take(milliseconds)
    film.save(tmp_path / "film.webp")
    with Image.open(tmp_path / "film.webp") as saved:
        assert saved.n_frames == 3 and saved.info["loop"] == 0
        shown = []
        for frame in range(3):
            saved.seek(frame)
            saved.load()
            shown.append((saved.info["duration"], saved.convert("RGB").getpixel((5, 5))[0] > 128))
    assert shown == [(100, False), (250, True), (900, False)]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_front_page_has_a_small_animation(scheme: str) -> None:
    path = IMAGES / f"report-{scheme}.webp"
    assert path.stat().st_size < 250_000
    with Image.open(path) as image:
        assert image.n_frames >= 15
        assert f"images/report-{scheme}.webp#only-{scheme}" in (IMAGES.parent / "index.md").read_text()

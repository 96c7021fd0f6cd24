"""Record the pictures of the report: the animation on the front page, as animated WebP, and `report.png`.

The run must have been created by `phalanx demo`. `make docs` does not run this script, because it needs a
trained agent.
"""

import argparse
import io
import shutil
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from phalanx.logging.report import write_report

ROOT = Path(__file__).parents[2]
SIZE = {"width": 1240, "height": 780}
PICTURE_SIZE = {"width": 1280, "height": 1150}
NEXT = ".policy [data-act=next]"


class Film:
    """Screenshots of a page with their durations."""

    def __init__(self, page: Page) -> None:
        self.page, self.frames, self.milliseconds = page, [], []  # type: ignore[var-annotated]

    def take(self, milliseconds: int) -> None:
        """Take a screenshot that is shown for this number of milliseconds."""
        # Wait until the animation of changed cells has finished.
        self.page.wait_for_timeout(700)
        image = Image.open(io.BytesIO(self.page.screenshot())).convert("RGB")
        self.frames.append(image)
        self.milliseconds.append(milliseconds)

    def save(self, path: Path) -> None:
        """Save the screenshots as an animated WebP that repeats."""
        rest: dict[str, Any] = {"append_images": self.frames[1:], "duration": self.milliseconds}
        self.frames[0].save(path, save_all=True, loop=0, quality=72, method=6, minimize_size=True, **rest)


def film_report(page: Page, report: Path) -> Film:
    """Record the top of the report, and the longest solved episodes of three groups and a failed episode."""
    film = Film(page)
    page.goto(report.as_uri())
    film.take(2200)
    for episode, steps in select_episodes(page):
        page.locator(".policy .reel li button").nth(episode).click()
        page.evaluate(
            "scrollTo({top: document.querySelector('#policy').offsetTop - 70, behavior: 'instant'})"
        )
        film.take(1300)
        for _ in range(steps):
            page.locator(NEXT).click()
            film.take(900)
        film.milliseconds[-1] = 1700
    return film


def select_episodes(page: Page) -> list[tuple[int, int]]:
    """Return the position in the list and the number of steps of each episode to record."""
    longest: dict[str, tuple[int, int]] = {}
    for index, item in enumerate(page.locator(".policy .reel li").all()):
        group = item.locator(".task").inner_text().rpartition("-")[0]
        steps = int(item.locator(".facts").inner_text().split(" step")[0].split()[-1])
        kind = group if item.locator(".mark.solved").count() else "failed"
        if steps > longest.get(kind, (0, 0))[1]:
            longest[kind] = (index, steps)
    failed = longest.pop("failed", None)
    solved = sorted(longest.values(), key=lambda found: -found[1])[:3]
    return solved if failed is None else [*solved, failed]


def main() -> None:
    """Record the report of a run, the animation in light and dark mode."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, nargs="?", default=ROOT / "out" / "demo")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images")
    options = parser.parse_args()
    report = write_report([options.run])
    with sync_playwright() as playwright:
        chromium = shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for scheme in ("light", "dark"):
            page = browser.new_page(viewport=SIZE, color_scheme=scheme)  # type: ignore[arg-type]
            film_report(page, report).save(options.out / f"report-{scheme}.webp")
            print(options.out / f"report-{scheme}.webp")
        page = browser.new_page(viewport=PICTURE_SIZE)  # type: ignore[arg-type]
        page.goto(report.as_uri())
        page.screenshot(path=options.out / "report.png")
        browser.close()


if __name__ == "__main__":
    main()

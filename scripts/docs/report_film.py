"""Record the animation on the front page: the report of a run in Chromium, as animated WebP.

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
NUM_CANDIDATES = 24
"""Number of tasks from which the two with the longest solutions are selected."""
RING = ((0, 0), (0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1), (2, 2))


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
    """Record the top of the report, two tasks, a task that is drawn by hand, and all tasks."""
    film = Film(page)
    page.goto(report.as_uri())
    film.take(2200)
    for puzzle in longest(page):
        choose(page, puzzle)
        film.take(900)
        while page.locator(".likely .chance").count():
            page.get_by_role("button", name="Step", exact=True).click()
            film.take(750)
        film.milliseconds[-1] = 1500
    page.get_by_role("button", name="Draw your own").click()
    page.get_by_role("button", name="Blank").click()
    page.get_by_role("button", name="Color 3").click()
    for row, column in RING:
        cells = page.locator(".board .cells").first.locator("rect").nth(row * width_of(page) + column)
        cells.click()
        film.take(160)
    while page.locator(".likely .chance").count():
        page.get_by_role("button", name="Step", exact=True).click()
        film.take(800)
    film.milliseconds[-1] = 1700
    page.get_by_role("button", name="Solve all").click()
    page.get_by_text("of 200 correct").wait_for(timeout=120_000)
    film.take(2500)
    return film


def width_of(page: Page) -> int:
    """Return the number of columns of the task that is drawn by hand."""
    return int(page.locator(".stepper output").nth(1).inner_text())


def choose(page: Page, puzzle: int) -> None:
    """Select a task and scroll to the panel."""
    page.locator(".agent .reel li button").nth(puzzle).click()
    page.evaluate("scrollTo({top: document.querySelector('#agent').offsetTop - 70, behavior: 'instant'})")


def longest(page: Page) -> list[int]:
    """Return the tasks of two families whose solutions have the most steps."""
    found: dict[str, tuple[int, int]] = {}
    for puzzle in range(NUM_CANDIDATES):
        choose(page, puzzle)
        while page.locator(".likely .chance").count():
            page.get_by_role("button", name="Step", exact=True).click()
        steps = page.locator(".done li").count()
        family = page.locator(".agent .caption strong").inner_text().rpartition("-")[0]
        if "correct" in page.locator(".agent .caption").inner_text():
            found[family] = max(found.get(family, (0, 0)), (steps, puzzle))
    page.reload()
    return [puzzle for _, puzzle in sorted(found.values(), reverse=True)[:2]]


def main() -> None:
    """Record the report of a run in light and dark mode."""
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
            print(f"{options.out / f'report-{scheme}.webp'}")
        browser.close()


if __name__ == "__main__":
    main()

"""The documentation site: navigation, links to files outside docs/, and all pages in a browser."""

import contextlib
import functools
import http.server
import logging
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import site_hooks
import yaml

from tests.helpers.browser import needs_chromium, opened_tab

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
CONFIG = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))


def nav_pages(entry: Any) -> list[str]:
    """Return the pages in an entry of the navigation."""
    if isinstance(entry, str):
        return [entry]
    entries = entry.values() if isinstance(entry, dict) else entry
    return [page for each in entries for page in nav_pages(each)]


def test_navigation_lists_every_page_once() -> None:
    pages = [path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")]
    project_pages = [page for path, page in site_hooks.PROJECT_PAGES.items() if (ROOT / path).is_file()]
    assert sorted(nav_pages(CONFIG["nav"])) == sorted([*pages, *project_pages])


def test_site_loads_nothing_from_a_network() -> None:
    assert CONFIG["theme"]["font"] is False
    assert "://" not in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    # The offline plugin does not load its own script if there is one with this name.
    assert any("iframe-worker" in script for script in CONFIG["extra"]["polyfills"])
    for path in [*DOCS.rglob("*.css"), *DOCS.rglob("*.js")]:
        assert "://" not in path.read_text(encoding="utf-8"), path


@pytest.mark.parametrize(
    ("page", "text", "expected"),
    [
        ("index.md", "[ARC](guides/arc.md#actions)", "[ARC](guides/arc.md#actions)"),
        ("index.md", "[the tour](../examples/tour.py)", "the tour (`examples/tour.py`)"),
        ("index.md", "[`README.md`](../README.md#install)", "`README.md`"),
        ("guides/arc.md", "[license](../../LICENSE)", "license (`LICENSE`)"),
        ("guides/arc.md", "[changes](../../CHANGELOG.md#030)", "[changes](../project/changelog.md#030)"),
        ("project/changelog.md", "[ARC](docs/guides/arc.md)", "[ARC](../guides/arc.md)"),
        ("project/examples.md", "[ARC](../docs/guides/arc.md#x)", "[ARC](../guides/arc.md#x)"),
        ("project/examples.md", "[run](arc/run.py)", "[run](../source/examples/arc/run.py.md)"),
        ("index.md", "![a](images/a.svg)", "![a](images/a.svg)"),
        ("index.md", "[paper](https://example.org/a)", "[paper](https://example.org/a)"),
        ("index.md", "```\n[x](../y)\n```\n", "```\n[x](../y)\n```\n"),
    ],
)
def test_rewrite_links(page: str, text: str, expected: str) -> None:
    pages = ["project/changelog.md", "source/examples/arc/run.py.md"]
    assert site_hooks.rewrite_links(text, page, pages) == expected


def test_linked_source_files_are_shown() -> None:
    text = "[a](../examples/custom/environment.py) [b](../CHANGELOG.md)\n```\n[x](../examples/x.py)\n```\n"
    assert site_hooks.linked_files({"docs/index.md": text}) == ["examples/custom/environment.py"]
    page = site_hooks.source_view("examples/custom/environment.py")
    source = (ROOT / "examples/custom/environment.py").read_text(encoding="utf-8")
    assert page.startswith("---\nsearch:\n  exclude: true\n")
    assert source.rstrip() in page


class _Warnings(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[str]]]:
    """Build the site and return its folder and the warnings."""
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    folder = tmp_path_factory.mktemp("site")
    handler = _Warnings()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_MKDOCS_2_WARNING", "1")
        patch.chdir(ROOT)
        logging.getLogger("mkdocs").addHandler(handler)
        config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), strict=False)
        config.plugins.on_startup(command="build", dirty=False)
        build(config)
        config.plugins.on_shutdown()
        logging.getLogger("mkdocs").removeHandler(handler)
    yield folder, handler.messages
    shutil.rmtree(folder)


@pytest.mark.slow
def test_build_has_no_warnings(built: tuple[Path, list[str]]) -> None:
    assert built[1] == []


@pytest.mark.slow
def test_attribute_lists_are_not_shown(built: tuple[Path, list[str]]) -> None:
    """A list such as `{ .lead }` applies to a paragraph only if it is on a line of its own."""
    shown = re.compile(r"\{:? *[.#][a-z-]+ *\}")
    pages = {
        path.name: re.sub(r"<(pre|code|style|script)\b.*?</\1>", "", path.read_text(), flags=re.DOTALL)
        for path in built[0].rglob("*.html")
        if "source" not in path.parts
    }
    assert [name for name, text in pages.items() if shown.search(text)] == []


@pytest.fixture(scope="module")
def tab() -> Iterator[Any]:
    with opened_tab() as tab:
        yield tab


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder like `python -m http.server` and yield its address."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=folder))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


CHECK_LAYOUT = """() => ({
  overflow: document.documentElement.scrollWidth - innerWidth,
  broken: [...document.images].filter(image => image.offsetParent && image.complete && !image.naturalWidth)
    .map(image => image.src),
})"""


@pytest.mark.slow
@needs_chromium
def test_pages_fit_and_report_no_errors(built: tuple[Path, list[str]], tab: Any) -> None:
    """Check every page in light mode at 1400 pixels and in dark mode at 390 pixels.

    The color scheme does not affect the layout.
    """
    errors: list[str] = []
    requests: list[str] = []
    tab.on("console", lambda message: errors.append(f"{tab.url}: {message.text}"))
    tab.on("pageerror", lambda error: errors.append(f"{tab.url}: {error}"))
    tab.on("requestfailed", lambda request: errors.append(f"{tab.url}: {request.url}"))
    tab.on("request", lambda request: requests.append(request.url))
    # The addresses in 404.html start with a slash, because it is shown for pages in any folder.
    pages = [
        path for path in built[0].rglob("*.html") if path.name != "404.html" and "source" not in path.parts
    ]
    assert len(pages) > 20
    for path in pages:
        name = path.relative_to(built[0]).as_posix()
        for scheme, width in (("light", 1400), ("dark", 390)):
            tab.emulate_media(color_scheme=scheme)
            tab.set_viewport_size({"width": width, "height": 900})
            if tab.url != path.as_uri():
                tab.goto(path.as_uri())
            layout = tab.evaluate(CHECK_LAYOUT)
            if layout["overflow"] > 0 or layout["broken"]:
                errors.append(f"{name} at {width} pixels, {scheme}: {layout}")
    assert errors == []
    assert [url for url in requests if not url.startswith(("file:", "data:", "blob:"))] == []


@pytest.mark.slow
@needs_chromium
@pytest.mark.parametrize(("protocol", "width"), [("http", 1400), ("file", 390)])
def test_search_finds_words_of_several_pages(
    built: tuple[Path, list[str]], tab: Any, protocol: str, width: int
) -> None:
    expected = {
        "sokoban": "reference/environments.html",
        "clip_eps": "reference/config.html",
        "PackingConfig": "reference/api/data.html",
        "flood fill": "reference/arc-operations.html",
    }
    tab.set_viewport_size({"width": width, "height": 900})
    with served(built[0]) as address:
        base = address if protocol == "http" else built[0].as_uri()
        for words, page in expected.items():
            tab.goto(f"{base}/reference/cli.html")
            if width < 1000:
                tab.locator("label.md-header__button[for=__search]").click()
            else:
                tab.locator("input.md-search__input").click()
            tab.keyboard.type(words)
            results = tab.locator(".md-search-result__item")
            results.first.wait_for()
            found = results.locator("a").evaluate_all("links => links.map(link => link.href)")
            assert any(page in link for link in found), (words, found)


@pytest.mark.slow
@needs_chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_front_page_shows_the_report_of_the_color_scheme(
    built: tuple[Path, list[str]], tab: Any, scheme: str
) -> None:
    tab.emulate_media(color_scheme=scheme)
    tab.goto((built[0] / "index.html").as_uri())
    images = tab.locator("article img").evaluate_all(
        "images => images.filter(image => image.offsetParent).map(image => image.src)"
    )
    assert [image.rpartition("/")[2].partition("#")[0] for image in images if "report" in image] == [
        f"report-{scheme}.webp"
    ]

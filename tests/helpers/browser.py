"""Headless Chromium for tests of pages, without a network."""

import contextlib
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium on the PATH; see .ci/install-chromium"
)


@contextlib.contextmanager
def opened_tab() -> Iterator[Any]:
    """Open one tab for all tests of a file, because opening tabs is slow."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        tab = browser.new_page(viewport={"width": 1280, "height": 900})
        tab.set_default_timeout(10_000)
        yield tab
        browser.close()


@contextlib.contextmanager
def no_complaints(tab: Any) -> Iterator[None]:
    """Fail if a page reports an error or requests anything but itself."""
    errors: list[str] = []
    requests: list[str] = []
    listeners = {
        "console": lambda message: errors.append(message.text),
        "pageerror": lambda error: errors.append(str(error)),
        "requestfailed": lambda request: errors.append(request.url[:80]),
        "request": lambda request: requests.append(request.url[:80]),
    }
    for event, listener in listeners.items():
        tab.on(event, listener)
    yield
    for event, listener in listeners.items():
        tab.remove_listener(event, listener)
    assert errors == []
    assert requests, "the page itself was not requested"
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []

"""The site: its navigation, its links out of docs/, and that it asks no network."""

import re
from pathlib import Path

import pytest
import site_hooks
import yaml

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


class _Loader(yaml.SafeLoader):
    """MkDocs' own tags, where there are any, as plain text."""


_Loader.add_multi_constructor("!", lambda loader, tag, node: tag)
SETTINGS = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), _Loader)


def pages(entry) -> list[str]:
    if isinstance(entry, str):
        return [entry]
    inside = entry.values() if isinstance(entry, dict) else entry
    return [page for one in inside for page in pages(one)]


def test_every_page_is_in_the_navigation_once() -> None:
    there = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
    assert sorted(pages(SETTINGS["nav"])) == there


def test_warnings_are_errors_and_every_check_is_on() -> None:
    assert SETTINGS["strict"] is True
    checks = [value for part in SETTINGS["validation"].values() for value in part.values()]
    assert set(checks) == {"warn"} and len(checks) == 7


def test_nothing_is_fetched() -> None:
    assert SETTINGS["theme"]["font"] is False
    assert "://" not in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    # The plugin leaves out its script from a network when there is one of this name.
    assert any("iframe-worker" in script for script in SETTINGS["extra"]["polyfills"])
    for path in [*DOCS.rglob("*.css"), *DOCS.rglob("*.js")]:
        assert "://" not in path.read_text(encoding="utf-8"), path


@pytest.mark.parametrize(
    ("page", "text", "shown"),
    [
        ("index.md", "[ARC](arc.md#actions)", "[ARC](arc.md#actions)"),
        ("index.md", "[the tour](../examples/tour.py)", "the tour (`examples/tour.py`)"),
        ("index.md", "[`README.md`](../README.md#measured)", "`README.md`"),
        ("reference/cli.md", "[ARC](../arc.md)", "[ARC](../arc.md)"),
        ("reference/cli.md", "[licence](../../LICENSE)", "licence (`LICENSE`)"),
        ("index.md", "![a](images/a.svg)", "![a](images/a.svg)"),
        ("index.md", "[elsewhere](https://example.org/a)", "[elsewhere](https://example.org/a)"),
        ("index.md", "```\n[x](../y)\n```\n", "```\n[x](../y)\n```\n"),
    ],
)
def test_a_link_out_of_the_documents_becomes_a_name(page: str, text: str, shown: str) -> None:
    assert site_hooks.replace_outside_links(text, page) == shown


def test_a_link_to_a_file_that_the_site_shows_leads_to_its_page() -> None:
    text = "[Lights Out](../examples/custom/environment.py), ```[x](../examples/custom/algorithm.py)```"
    assert site_hooks.linked_files({"index.md": text, "a.md": "```\n[x](../README.md)\n```\n"}) == [
        "examples/custom/algorithm.py",
        "examples/custom/environment.py",
    ]
    shown = ["examples/custom/environment.py"]
    link = "[Lights Out](../../examples/custom/environment.py#top)"
    assert (
        site_hooks.replace_outside_links(link, "reference/cli.md", shown)
        == "[Lights Out](../source/examples/custom/environment.py.md)"
    )
    page = site_hooks.shown_file("examples/custom/environment.py")
    source = (ROOT / "examples/custom/environment.py").read_text(encoding="utf-8")
    assert page.startswith("---\nsearch:\n  exclude: true\n") and source.rstrip() in page


def test_no_link_of_a_page_leads_out_once_the_hook_has_seen_it() -> None:
    for path in DOCS.rglob("*.md"):
        page = path.relative_to(DOCS).as_posix()
        text = site_hooks.replace_outside_links(path.read_text(encoding="utf-8"), page)
        for target in re.findall(r"(?<!!)\[[^\]]+\]\(([^)\s#]+)", text):
            if "://" not in target:
                assert (path.parent / target).resolve().is_relative_to(DOCS), (page, target)

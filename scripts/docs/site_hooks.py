"""A MkDocs hook: links from a page to files of the repository that lie outside docs/.

In the repository such a link opens the file, and a test sees that it exists. On the site a text file that is
linked has a page that shows it; what has none, such as a folder, is named as text.
"""

import posixpath
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SOURCES = "source"
"""The folder of the site that shows files."""
LANGUAGES = {".py": "python", ".md": "markdown", ".yaml": "yaml", ".sh": "bash"}

_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s#]+)(#[^)]*)?\)")
_FENCE = re.compile(r"^(```|~~~).*?^\1\s*$", re.MULTILINE | re.DOTALL)
_RULE = "~" * 12
"""A fence that no file has in it."""


def on_files(files: Any, config: Any, **_: Any) -> Any:
    """Called by MkDocs with all files of the site: those that pages link to are added."""
    from mkdocs.structure.files import File, InclusionLevel

    pages = {file.src_uri: file.content_string for file in files.documentation_pages()}
    for place in linked_files(pages):
        uri = f"{SOURCES}/{place}.md"
        files.append(
            File.generated(config, uri, content=shown_file(place), inclusion=InclusionLevel.NOT_IN_NAV)
        )
    return files


def on_page_markdown(markdown: str, page: Any, files: Any, **_: Any) -> str:
    """Called by MkDocs with every page before it is rendered."""
    if page.file.src_uri.startswith(f"{SOURCES}/"):
        return markdown
    shown = [uri.removeprefix(f"{SOURCES}/").removesuffix(".md") for uri in files.src_uris]
    return replace_outside_links(markdown, page.file.src_uri, shown)


def linked_files(pages: dict[str, str]) -> list[str]:
    """The text files outside docs/ that some page links to, by their place in the repository."""
    places = {
        place
        for page, markdown in pages.items()
        for part, is_code in _parts(markdown)
        for match in _LINK.finditer(part)
        if not is_code and (place := _place(match.group(2), page)) is not None
    }
    return sorted(place for place in places if Path(place).suffix in LANGUAGES and (ROOT / place).is_file())


def shown_file(place: str) -> str:
    """A page that shows a file; the search passes over it."""
    text = (ROOT / place).read_text(encoding="utf-8").rstrip()
    language = LANGUAGES[Path(place).suffix]
    head = (
        f"---\nsearch:\n  exclude: true\nhide:\n  - toc\n---\n\n# {posixpath.basename(place)}\n\n`{place}`\n"
    )
    return f"{head}\n{_RULE} {language}\n{text}\n{_RULE}\n"


def replace_outside_links(markdown: str, page: str, shown: Collection[str] = ()) -> str:
    """The page's text with links that lead out of docs/ to the pages of those files that are `shown`.

    Other links that lead out become names of files; code blocks stay as they are.

    >>> replace_outside_links("See [the tour](../examples/tour.py).", "index.md", ["examples/tour.py"])
    'See [the tour](source/examples/tour.py.md).'
    >>> replace_outside_links("See [ARC](arc.md) and [README.md](../README.md).", "index.md")
    'See [ARC](arc.md) and `README.md`.'
    """
    parts = _parts(markdown)
    return "".join(part if is_code else _replaced(part, page, shown) for part, is_code in parts)


def _parts(markdown: str) -> Iterator[tuple[str, bool]]:
    """The text in pieces, with whether each is a block of code."""
    end = 0
    for fence in _FENCE.finditer(markdown):
        yield markdown[end : fence.start()], False
        yield fence.group(), True
        end = fence.end()
    yield markdown[end:], False


def _place(target: str, page: str) -> str | None:
    """Where in the repository a link leads; None where it stays in docs/ or leads to another site."""
    if "://" in target or target.startswith(("/", "mailto:")):
        return None
    place = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), target))
    return None if place.startswith("docs/") else place


def _replaced(text: str, page: str, shown: Collection[str]) -> str:
    def name(match: re.Match[str]) -> str:
        label, place = match.group(1), _place(match.group(2), page)
        if place is None:
            return match.group()
        if place in shown:
            there = posixpath.relpath(f"{SOURCES}/{place}.md", posixpath.dirname(page) or ".")
            return f"[{label}]({there})"
        same = label.strip("`") in (place, posixpath.basename(place))
        return f"`{place}`" if same else f"{label} (`{place}`)"

    return _LINK.sub(name, text)

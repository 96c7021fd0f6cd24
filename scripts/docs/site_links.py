"""A MkDocs hook: links from a page to files of the repository that are not part of the site.

In the repository such a link opens the file, and a test sees that it exists. The site holds the pages alone;
there the link becomes the file's name, as text.
"""

import posixpath
import re
from typing import Any

_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s#]+)(#[^)]*)?\)")
_FENCE = re.compile(r"^(```|~~~).*?^\1\s*$", re.MULTILINE | re.DOTALL)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Called by MkDocs with every page before it is rendered."""
    return replace_outside_links(markdown, page.file.src_uri)


def replace_outside_links(markdown: str, page: str) -> str:
    """The page's text with links that lead out of docs/ as names of files; code blocks stay as they are.

    >>> replace_outside_links("See [the tour](../examples/tour.py).", "index.md")
    'See the tour (`examples/tour.py`).'
    >>> replace_outside_links("See [ARC](arc.md) and [README.md](../README.md).", "index.md")
    'See [ARC](arc.md) and `README.md`.'
    """
    parts, end = [], 0
    for fence in _FENCE.finditer(markdown):
        parts += [_replaced(markdown[end : fence.start()], page), fence.group()]
        end = fence.end()
    return "".join([*parts, _replaced(markdown[end:], page)])


def _replaced(text: str, page: str) -> str:
    def name(match: re.Match[str]) -> str:
        label, target = match.group(1), match.group(2)
        if "://" in target or target.startswith(("/", "mailto:")):
            return match.group()
        place = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), target))
        if place.startswith("docs/"):
            return match.group()
        same = label.strip("`") in (place, posixpath.basename(place))
        return f"`{place}`" if same else f"{label} (`{place}`)"

    return _LINK.sub(name, text)

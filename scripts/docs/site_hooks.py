"""MkDocs hooks: pages for files outside `docs/`, and links to such files.

- The files in `PROJECT_PAGES` become pages of the site.
- Other text files that a page links to are shown as source code under `source/`.
- Links to anything else outside `docs/`, such as a folder, are replaced by its path.

In the repository, all these links point to the files themselves.
"""

import posixpath
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PROJECT_PAGES = {
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    "examples/README.md": "project/examples.md",
}
"""Pages of the site by the path of their file in the repository."""
SOURCE_FOLDER = "source"
"""Folder of the site with the pages that show source code."""
LANGUAGES = {".py": "python", ".md": "markdown", ".yaml": "yaml", ".sh": "bash", ".slurm": "bash"}

_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s#]+)(#[^)]*)?\)")
_FENCE = re.compile(r"^(```|~~~).*?^\1\s*$", re.MULTILINE | re.DOTALL)
_SOURCE_FENCE = "~" * 12
"""Longer than any fence in the files that are shown."""


def on_files(files: Any, config: Any, **_: Any) -> Any:
    """Add the project pages and the source files that pages link to."""
    from mkdocs.structure.files import File, InclusionLevel

    for path, uri in PROJECT_PAGES.items():
        if (ROOT / path).is_file():
            files.append(File.generated(config, uri, content=(ROOT / path).read_text(encoding="utf-8")))
    pages = {repository_path(file.src_uri): file.content_string for file in files.documentation_pages()}
    for path in linked_files(pages):
        files.append(
            File.generated(
                config, source_page(path), content=source_view(path), inclusion=InclusionLevel.NOT_IN_NAV
            )
        )
    return files


def on_page_markdown(markdown: str, page: Any, files: Any, **_: Any) -> str:
    """Rewrite the links of a page that lead out of `docs/`."""
    uri = page.file.src_uri
    if uri.startswith(f"{SOURCE_FOLDER}/"):
        return markdown
    return rewrite_links(markdown, uri, set(files.src_uris))


def repository_path(uri: str) -> str:
    """Return the path of a page's file in the repository.

    >>> repository_path("guides/arc.md"), repository_path("project/changelog.md")
    ('docs/guides/arc.md', 'CHANGELOG.md')
    """
    files = {page: path for path, page in PROJECT_PAGES.items()}
    return files.get(uri, f"docs/{uri}")


def source_page(path: str) -> str:
    """Return the URI of the page that shows a source file."""
    return f"{SOURCE_FOLDER}/{path}.md"


def linked_files(pages: dict[str, str]) -> list[str]:
    """Return the text files outside `docs/` that a page links to, except project pages.

    Args:
        pages: Markdown by path in the repository.

    Returns:
        Paths in the repository, sorted.
    """
    targets = {
        target
        for path, markdown in pages.items()
        for part, is_code in _parts(markdown)
        for match in _LINK.finditer(part)
        if not is_code and (target := _target(match.group(2), path)) is not None
    }
    return sorted(
        target
        for target in targets
        if not target.startswith("docs/")
        and target not in PROJECT_PAGES
        and Path(target).suffix in LANGUAGES
        and (ROOT / target).is_file()
    )


def source_view(path: str) -> str:
    """Return the Markdown of a page that shows a source file. Search does not index it."""
    text = (ROOT / path).read_text(encoding="utf-8").rstrip()
    front_matter = "---\nsearch:\n  exclude: true\nhide:\n  - toc\n---\n"
    language = LANGUAGES[Path(path).suffix]
    return (
        f"{front_matter}\n# {posixpath.basename(path)}\n\n`{path}`\n\n"
        f"{_SOURCE_FENCE} {language}\n{text}\n{_SOURCE_FENCE}\n"
    )


def rewrite_links(markdown: str, uri: str, pages: Collection[str] = ()) -> str:
    """Rewrite the links of a page that lead out of `docs/`, except in code blocks.

    Args:
        markdown: Text of the page.
        uri: The page's path on the site.
        pages: Paths of all pages on the site.

    >>> rewrite_links("See [the tour](../examples/tour.py).", "index.md", ["source/examples/tour.py.md"])
    'See [the tour](source/examples/tour.py.md).'
    >>> rewrite_links("See [ARC](arc.md) and [README.md](../README.md).", "index.md")
    'See [ARC](arc.md) and `README.md`.'
    """
    parts = _parts(markdown)
    return "".join(part if is_code else _rewrite_part(part, uri, pages) for part, is_code in parts)


def _rewrite_part(text: str, uri: str, pages: Collection[str]) -> str:
    path = repository_path(uri)

    def rewrite(match: re.Match[str]) -> str:
        label, anchor = match.group(1), match.group(3) or ""
        target = _target(match.group(2), path)
        if target is None:
            return match.group()
        if target.startswith("docs/"):
            page = target.removeprefix("docs/")
            if path == f"docs/{uri}":
                return match.group()
        elif target in PROJECT_PAGES:
            page = PROJECT_PAGES[target]
        else:
            page, anchor = source_page(target), ""
        if page in pages or target.startswith("docs/"):
            return f"[{label}]({posixpath.relpath(page, posixpath.dirname(uri) or '.')}{anchor})"
        is_path = label.strip("`") in (target, posixpath.basename(target))
        return f"`{target}`" if is_path else f"{label} (`{target}`)"

    return _LINK.sub(rewrite, text)


def _parts(markdown: str) -> Iterator[tuple[str, bool]]:
    """Split text into parts, each with whether it is a code block."""
    end = 0
    for fence in _FENCE.finditer(markdown):
        yield markdown[end : fence.start()], False
        yield fence.group(), True
        end = fence.end()
    yield markdown[end:], False


def _target(link: str, path: str) -> str | None:
    """Return the path in the repository that a link in a file points to, or None for another site."""
    if "://" in link or link.startswith(("/", "mailto:")):
        return None
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), link))

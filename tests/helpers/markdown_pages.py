"""Parser for the Markdown pages of the repository, shared by the tests and `scripts/docs/figures.py`.

It uses only the standard library. Masked text has the same length as the original, so positions and line
numbers stay valid.
"""

import dataclasses
import itertools
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROJECT_PAGES = ("README.md", "CONTRIBUTING.md", "benchmarks/README.md", "examples/README.md")
SECTIONS = ("get-started", "guides", "reference", "results")
"""Folders of `docs/` that contain pages."""
GENERATED = (
    "docs/reference/api/",
    "docs/reference/arc-operations.md",
    "docs/reference/cli.md",
    "docs/reference/config.md",
    "docs/reference/environments.md",
)
"""Pages that `scripts/docs/generate.py` writes."""

NOT_RUN = re.compile(r"\s*<!-- not run: (\S.*?) -->\s*")
_FENCE = re.compile(r"([ ]*)(`{3,}|~{3,})[ ]*([\w+-]*)([^`\n]*)")
_TITLE = re.compile(r"\btitle=\"([^\"]+)\"")
_FRONT_MATTER = re.compile(r"\A---\n.*?^---\n", re.MULTILINE | re.DOTALL)
_CODE_SPAN = re.compile(r"(?<!`)(`+)(?!`)((?:[^\n]|\n(?!\s*\n))*?)(?<!`)\1(?!`)")
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(\s*<?([^)\s>]+)>?[^)]*\)")


@dataclasses.dataclass(frozen=True)
class CodeBlock:
    """A fenced code block.

    Attributes:
        language: First word after the fence, or an empty string.
        text: Code without the indentation of the fence.
        line: Line number of the first line of code, starting at 1.
        start, stop: Positions of the block in the page, including its fences.
        not_run: Reason in a comment `<!-- not run: reason -->` above the block, or an empty string.
        title: Name of the file that the block shows, as in `title="my_env.py"`, or an empty string.
    """

    language: str
    text: str
    line: int
    start: int
    stop: int
    not_run: str = ""
    title: str = ""


def pages(root: Path = ROOT) -> list[Path]:
    """Return the project pages and documentation pages that exist, in reading order."""
    found = [root / name for name in PROJECT_PAGES]
    found.append(root / "docs" / "index.md")
    for section in SECTIONS:
        found += sorted((root / "docs" / section).rglob("*.md"))
    return [path for path in found if path.is_file()]


def written_pages(root: Path = ROOT) -> list[Path]:
    """Return the pages that are not generated."""
    return [path for path in pages(root) if not path.relative_to(root).as_posix().startswith(GENERATED)]


def code_blocks(text: str) -> list[CodeBlock]:
    """Return the fenced code blocks of a page.

    Raises:
        ValueError: A fence is not closed. The message contains its line number.
    """
    blocks = []
    position, previous = 0, ""
    lines = text.splitlines(keepends=True)
    index = 0
    while index < len(lines):
        line = lines[index]
        opening = _FENCE.fullmatch(line.rstrip("\n"))
        if opening is None:
            position += len(line)
            previous = line if line.strip() else previous
            index += 1
            continue
        indent, fence, language, options = opening.groups()
        first = index + 1
        for last in range(first, len(lines)):
            closing = lines[last].strip()
            if closing.startswith(fence) and not closing.strip(fence[0]):
                break
        else:
            raise ValueError(f"line {first}: the code block is not closed")
        code = "".join(lines[first:last])
        stop = position + sum(map(len, lines[index : last + 1]))
        reason = NOT_RUN.fullmatch(previous)
        code = textwrap.dedent(code) if indent else code
        title = _TITLE.search(options)
        blocks.append(
            CodeBlock(
                language,
                code,
                first + 1,
                position,
                stop,
                not_run=reason[1] if reason else "",
                title=title[1] if title else "",
            )
        )
        position, previous, index = stop, "", last + 1
    return blocks


def mask(text: str, start: int, stop: int) -> str:
    """Replace a part of a text by spaces and keep its line breaks."""
    return text[:start] + re.sub(r"[^\n]", " ", text[start:stop]) + text[stop:]


def mask_all(text: str, pattern: re.Pattern[str]) -> str:
    """Mask all matches of a pattern."""
    return pattern.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text)


def mask_code(text: str) -> str:
    """Mask front matter, code blocks and inline code."""
    for block in code_blocks(text):
        text = mask(text, block.start, block.stop)
    return mask_all(mask_all(text, _FRONT_MATTER), _CODE_SPAN)


def mask_comments(text: str) -> str:
    """Mask HTML comments."""
    return mask_all(text, _COMMENT)


def mask_link_targets(text: str) -> str:
    """Mask the addresses of links and images, and other URLs."""
    for link in _LINK.finditer(text):
        text = mask(text, link.start(2), link.end(2))
    return mask_all(text, re.compile(r"https?://\S+"))


def line_number(text: str, position: int) -> int:
    """Return the line of a position, starting at 1."""
    return text.count("\n", 0, position) + 1


def code_spans(text: str) -> Iterator[tuple[int, str]]:
    """Iterate over the inline code of a page, with line numbers."""
    for block in code_blocks(text):
        text = mask(text, block.start, block.stop)
    text = mask_comments(mask_all(text, _FRONT_MATTER))
    for match in _CODE_SPAN.finditer(text):
        yield line_number(text, match.start()), " ".join(match[2].split())


def links(text: str) -> Iterator[tuple[int, str]]:
    """Iterate over the targets of links and images, with line numbers."""
    text = mask_comments(mask_code(text))
    for match in _LINK.finditer(text):
        yield line_number(text, match.start()), match[2]
        for inner in _LINK.finditer(match[1]):
            yield line_number(text, match.start()), inner[2]


def paragraphs(text: str) -> Iterator[tuple[int, int]]:
    """Iterate over the start and end of every group of lines without an empty line between them."""
    for match in re.finditer(r"(?:^[^\n]*\S[^\n]*(?:\n|\Z))+", text, re.MULTILINE):
        yield match.start(), match.end()


def table_cells(row: str) -> list[str]:
    """Split a table row into cells. Pipes in inline code or after a backslash do not separate cells."""
    masked = mask_all(row, _CODE_SPAN)
    row, masked = row.rstrip(), masked.rstrip()
    cuts = [match.start() for match in re.finditer(r"(?<!\\)\|", masked)]
    edges = [*([] if masked.lstrip().startswith("|") else [-1]), *cuts]
    edges += [] if masked.endswith("|") else [len(row)]
    return [row[start + 1 : stop].strip() for start, stop in itertools.pairwise(edges)]

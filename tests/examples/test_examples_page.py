"""The page of examples lists every example, once, and nothing else."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_lists_every_example_once() -> None:
    there = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "examples").rglob("*.py"))
    page = (ROOT / "docs" / "examples.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"\]\(\.\./(examples/[^)]+\.py)\)", page)) == there

"""The README of the examples lists every example once."""

import re
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_readme_lists_every_example_once() -> None:
    files = sorted(str(path.relative_to(EXAMPLES)) for path in EXAMPLES.rglob("*.py"))
    page = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"\]\(([^)]+\.py)\)", page)) == files

"""Writes the pages and pictures of docs/ that are made from the code: `python scripts/docs/generate.py`.

With `--check` nothing is written: files that are not what the code says are named, and the exit code is 1.
"""

import argparse
import os
import sys
from pathlib import Path

# What is drawn is the same on every device; the CPU is always there, and starts at once.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path.insert(0, str(Path(__file__).parent))

import api_pages
import architecture_diagram
import cli_page
import config_page
import operations_page

DOCS = Path(__file__).parents[2] / "docs"


def generated() -> dict[str, str]:
    """Every generated file's text by its path under docs/."""
    return {
        "operations.md": operations_page.page(),
        **operations_page.pictures(),
        "images/architecture.svg": architecture_diagram.draw(),
        "reference/config.md": config_page.page(),
        "reference/cli.md": cli_page.page(),
        **api_pages.pages(),
    }


def differing(files: dict[str, str], docs: Path = DOCS) -> list[str]:
    """The files that are missing or not up to date, and those of generated folders that are no more."""
    changed = [
        name
        for name, text in files.items()
        if not (docs / name).is_file() or (docs / name).read_text(encoding="utf-8") != text
    ]
    folders = [docs / operations_page.FOLDER, docs / api_pages.FOLDER]
    there = [path for folder in folders for path in folder.glob("*") if path.is_file()]
    stale = [path.relative_to(docs).as_posix() for path in there]
    return sorted([*changed, *(name for name in stale if name not in files)])


def main(arguments: list[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if a file differs")
    check = parser.parse_args(arguments).check
    files = generated()
    names = differing(files)
    for name in names:
        print(f"docs/{name} is not up to date" if check else f"docs/{name}")
        if check:
            continue
        path = DOCS / name
        if name not in files:
            path.unlink()
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(files[name], encoding="utf-8")
    if check and names:
        print("run `make docs`, or python scripts/docs/generate.py", file=sys.stderr)
    return int(check and bool(names))


if __name__ == "__main__":
    sys.exit(main())

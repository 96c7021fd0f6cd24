"""Generate the reference pages and images of the documentation from the code.

`python scripts/docs/generate.py` writes the files that changed. With `--check`, nothing is written, and the
exit code is 1 if a file is not up to date.
"""

import argparse
import os
import sys
from pathlib import Path

# Images are the same on all devices, and the CPU is always available.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path.insert(0, str(Path(__file__).parent))

import api_pages
import arc_operations
import architecture_diagram
import cli_page
import config_page
import environment_pages

DOCS = Path(__file__).parents[2] / "docs"


def generated() -> dict[str, str]:
    """Return the text of every generated file by its path in `docs/`."""
    return {
        environment_pages.PAGE: environment_pages.page(),
        arc_operations.PAGE: arc_operations.page(),
        **arc_operations.images(),
        "images/architecture.svg": architecture_diagram.draw(),
        "reference/config.md": config_page.page(),
        "reference/cli.md": cli_page.page(),
        **api_pages.pages(),
    }


def differing(files: dict[str, str], docs: Path = DOCS) -> list[str]:
    """Return the files that are missing or outdated, and files in generated folders that should not exist."""
    changed = [
        name
        for name, text in files.items()
        if not (docs / name).is_file() or (docs / name).read_text(encoding="utf-8") != text
    ]
    folders = [docs / arc_operations.IMAGE_FOLDER, docs / api_pages.FOLDER]
    existing = [path.relative_to(docs).as_posix() for folder in folders for path in folder.glob("*.*")]
    return sorted([*changed, *(name for name in existing if name not in files)])


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit code 1 if a file is outdated"
    )
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
        print("run: python scripts/docs/generate.py", file=sys.stderr)
    return int(check and bool(names))


if __name__ == "__main__":
    sys.exit(main())

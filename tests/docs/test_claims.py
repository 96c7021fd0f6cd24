"""What the documents claim by name or number: tests, imports, commands, figures."""

import ast
import functools
import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import api_pages
import cli_page

from phalanx.registry import ALGORITHMS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def read(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


@functools.cache
def definitions_in(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, kinds))


def test_every_test_that_a_promise_names_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", read("determinism.md"))
    assert len(named) > 60
    missing = [
        f"{file}::{name}"
        for file, name in named
        if not (ROOT / file).is_file() or name not in definitions_in(ROOT / file)
    ]
    assert missing == []


def test_every_promise_names_a_test() -> None:
    rows = [line for line in read("determinism.md").splitlines() if line.startswith("| ")]
    promises = [row for row in rows if not row.startswith(("| promise", "| ---"))]
    assert len(promises) > 40
    assert [row for row in promises if "::test_" not in row] == []


def rows_of(page: str) -> list[list[str]]:
    """The cells of every row of every table, headings and rules left out."""
    found = []
    for line in read(page).splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if line.startswith("| ") and not line.startswith("| ---") and "note" not in cells:
            found.append(cells)
    return found


NAMES = sorted(
    {
        name
        for row in rows_of("moving.md")
        for cell in row[1:]
        for name in re.findall(r"`(phalanx\.[\w.]+)`", cell)
    }
)


def test_every_row_says_where_an_old_name_went() -> None:
    rows = rows_of("moving.md")
    assert len(rows) > 100
    assert [row for row in rows if not row[1].startswith("`phalanx")] == []


ADAPTERS = "phalanx.integrations."


def test_every_name_to_move_to_can_be_imported() -> None:
    assert len(NAMES) > 80
    assert [name for name in NAMES if not name.startswith(ADAPTERS) and not found(name)] == []


def test_every_adapter_to_move_to_is_defined_in_its_module() -> None:
    """Not imported: torch takes longer than all the other tests of the documents."""
    adapters = [name.split(".") for name in NAMES if name.startswith(ADAPTERS)]
    assert adapters
    for *module, name in adapters:
        path = ROOT.joinpath("src", *module)
        files = path.glob("*.py") if path.is_dir() else [path.with_suffix(".py")]
        assert any(name in definitions_in(file) for file in files)


def found(name: str) -> bool:
    """Whether a dotted name is a module, or something in one."""
    parts = name.split(".")
    here: Any = importlib.import_module(parts[0])
    for end, part in enumerate(parts[1:], 2):
        module = ".".join(parts[:end])
        if isinstance(here, ModuleType) and hasattr(here, "__path__") and importlib.util.find_spec(module):
            here = importlib.import_module(module)
        elif hasattr(here, part):
            here = getattr(here, part)
        else:
            return False
    return True


def test_a_wrong_name_would_be_noticed() -> None:
    assert found("phalanx.data.BatchPlan.shard")
    assert not found("phalanx.data.BatchPlan.shards")
    assert not found("phalanx.tokenz")


def test_every_command_to_move_to_exists() -> None:
    commands = {context.command_path for context in cli_page.commands()}
    commands |= {f"phalanx train {algorithm}" for algorithm in ALGORITHMS}
    named = {
        name for row in rows_of("moving.md") for name in re.findall(r"`(phalanx [a-z ]+)`", " ".join(row[1:]))
    }
    assert "phalanx data lengths build" in named
    assert named - commands == set()


NUMBER = re.compile(r"\d[\d,.]*\d|\d")


def figures(text: str) -> set[str]:
    """Numbers that are measurements: with three digits or more, or a decimal point."""
    numbers = (number.strip(",.") for number in NUMBER.findall(text))
    return {number for number in numbers if "." in number or len(number) > 2}


def measured_rows(text: str) -> str:
    """The rows of tables that have numbers in right-aligned columns: measurements."""
    return "\n".join(re.findall(r"^\|[^\n]*-+:[^\n]*\n((?:\|[^\n]*\n)+)", text, re.MULTILINE))


def test_every_figure_in_the_readmes_tables_is_on_the_page_of_performance() -> None:
    shown = figures(measured_rows((ROOT / "README.md").read_text(encoding="utf-8")))
    assert len(shown) > 10
    assert shown - figures(read("performance.md")) == set()


def test_the_page_of_performance_has_the_figures_of_the_pages_that_it_links_to() -> None:
    """The tables that it repeats: speed of proofs, and the replay buffer."""
    here = figures(read("performance.md"))
    fast = read("proofs.md").partition("## How fast")[2]
    beside = read("streams.md").partition("## Beside chuk-lazarus")[2]
    for text in (fast, beside):
        assert len(figures(measured_rows(text))) > 10
        assert figures(measured_rows(text)) - here == set()


IMPORT = re.compile(r"^[ \t]*(?:from (phalanx[\w.]*) import|import (phalanx[\w.]*))", re.MULTILINE)


def test_documents_and_examples_import_only_public_names() -> None:
    """Every integration and compatibility module is public itself."""
    files = [ROOT / "README.md", *DOCS.rglob("*.md"), *(ROOT / "examples").rglob("*.py")]
    found = {
        (path.relative_to(ROOT).as_posix(), named)
        for path in files
        for pair in IMPORT.findall(path.read_text(encoding="utf-8"))
        for named in pair
        if named
    }
    assert len(found) > 40
    allowed = {"phalanx", "phalanx.config", "phalanx.registry", "phalanx.svg", "phalanx.formatting"}
    allowed |= set(api_pages.packages())
    assert (
        sorted(
            use
            for use in found
            if use[1] not in allowed and not use[1].startswith(("phalanx.integrations.", "phalanx.compat."))
        )
        == []
    )

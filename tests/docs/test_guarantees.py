"""Every guarantee in docs/reference/guarantees.md has a test that exists."""

import ast
import functools
import re
from pathlib import Path

import pytest

from tests.helpers.markdown_pages import ROOT

PAGE = ROOT / "docs" / "reference" / "guarantees.md"
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)(?:::(\w+))?`")


@functools.cache
def definitions(path: Path) -> frozenset[str]:
    """Return the names of all functions and classes of a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, kinds))


def numbered_items(text: str) -> list[str]:
    """Return the items of numbered lists, without their numbers.

    Raises:
        ValueError: The numbers are not 1, 2, 3 and so on.
    """
    items = re.findall(r"^(\d+)\. (.*(?:\n {3,}\S.*)*)", text, re.MULTILINE)
    if [int(number) for number, _ in items] != list(range(1, len(items) + 1)):
        raise ValueError(f"the numbers of the list are {[number for number, _ in items]}")
    return [item for _, item in items]


def guarantees(text: str) -> list[tuple[str, str]]:
    """Return the guarantees of all sections, each with the tests in the collapsed block of its section.

    Raises:
        ValueError: A section does not have the same number of guarantees and entries in its block.
    """
    found: list[tuple[str, str]] = []
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        page_list, _, block = section.partition("<details")
        found += zip(numbered_items(page_list), numbered_items(block), strict=True)
    return found


def missing_tests(text: str) -> list[str]:
    """Return the tests that a text names and that do not exist."""
    return [
        "::".join(name for name in (file, *names) if name)
        for file, *names in TEST.findall(text)
        if not (ROOT / file).is_file() or not definitions(ROOT / file).issuperset(filter(None, names))
    ]


@pytest.fixture
def page() -> str:
    return PAGE.read_text(encoding="utf-8")


def test_every_guarantee_has_a_test(page: str) -> None:
    found = guarantees(page)
    assert len(found) >= 20
    assert [guarantee for guarantee, tests in found if not TEST.search(tests)] == []


def test_named_tests_exist(page: str) -> None:
    assert missing_tests(page) == []


def test_missing_tests_are_found() -> None:
    here = "tests/docs/test_guarantees.py"
    text = f"`{here}::test_named_tests_exist` `{here}::test_other` `tests/docs/test_other.py::test_x`"
    assert missing_tests(text) == [f"{here}::test_other", "tests/docs/test_other.py::test_x"]


def test_guarantees_and_tests_are_matched_by_number() -> None:
    text = "## A\n\n1. a\n2. b\n   c\n\n<details>\n1. x,\n   y\n2. z\n</details>\n\n"
    text += "## B\n\n1. d\n<details>\n1. w\n</details>\n"
    assert guarantees(text) == [("a", "x,\n   y"), ("b\n   c", "z"), ("d", "w")]


@pytest.mark.parametrize("block", ["1. x", "1. x\n2. y\n3. z", "1. x\n3. y", ""])
def test_guarantees_without_matching_tests_are_errors(block: str) -> None:
    with pytest.raises(ValueError, match=r"zip|numbers"):
        guarantees(f"## A\n\n1. a\n2. b\n<details>\n{block}\n</details>\n")

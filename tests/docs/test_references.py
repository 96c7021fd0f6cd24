"""Names in the documentation exist: modules, classes, functions, files and settings."""

import functools
import importlib
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import api_pages
import pytest

from tests.helpers.markdown_pages import ROOT, code_blocks, code_spans, written_pages

pytestmark = pytest.mark.slow

PAGES = [path for path in written_pages() if path.parts[-2] != "benchmarks"]
DOTTED_NAME = re.compile(r"phalanx(?:\.\w+)+")
FILE = re.compile(r"(?:src|tests|docs|examples|scripts|benchmarks|constraints|\.ci|\.github)/[\w./-]+\.\w+")
SETTING = re.compile(r"([a-z]\w*(?:\.[a-z]\w*)*)=[^=\s]\S*")
IMPORT = re.compile(r"^[ \t]*(?:from (phalanx[\w.]*) import|import (phalanx[\w.]*))", re.MULTILINE)
OTHER_SETTINGS = {"ckpt_path", "log_completions"}
OTHER_SETTINGS |= {"average_tokens_across_devices", "eval_strategy", "save_strategy"}
"""Arguments of other libraries in inline code."""


def name_exists(name: str) -> bool:
    """Return whether a dotted name is a module, or an attribute of one.

    Integrations whose library is not installed are searched as text.
    """
    parts = name.split(".")
    found: Any = importlib.import_module(parts[0])
    for end, part in enumerate(parts[1:], 2):
        path = ".".join(parts[:end])
        if isinstance(found, ModuleType) and hasattr(found, "__path__") and importlib.util.find_spec(path):
            try:
                found = importlib.import_module(path)
            except ModuleNotFoundError as error:
                if error.name is None or error.name.startswith("phalanx"):
                    raise
                file = ROOT.joinpath("src", *parts[:end]).with_suffix(".py")
                rest = parts[end:]
                return not rest or re.search(rf"\b{rest[0]}\b", file.read_text(encoding="utf-8")) is not None
        elif hasattr(found, part):
            found = getattr(found, part)
        else:
            fields = {**getattr(found, "model_fields", {}), **getattr(found, "__annotations__", {})}
            return part in fields
    return True


def is_format_name(name: str) -> bool:
    """Return whether the source contains the name as a string, such as the name of a file format."""
    return any(f'"{name}"' in path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))


@functools.cache
def setting_names() -> frozenset[str]:
    """Return the names of all settings, parameters of functions, and options of commands."""
    names = set(OTHER_SETTINGS)
    for path in (ROOT / "src").rglob("*.py"):
        names.update(re.findall(r"\b([a-z]\w*)\s*(?::[^=\n()]+)?=", path.read_text(encoding="utf-8")))
    return frozenset(names)


def where(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


def spans() -> Iterator[tuple[Path, int, str]]:
    for path in PAGES:
        for line, span in code_spans(path.read_text(encoding="utf-8")):
            yield path, line, span


def test_dotted_names_exist() -> None:
    missing = [
        f"{where(path, line)}: {name}"
        for path, line, span in spans()
        for name in DOTTED_NAME.findall(span.partition("(")[0].partition("://")[0])
        if not name_exists(name) and not is_format_name(name)
    ]
    assert missing == []


def test_files_exist() -> None:
    missing = [
        f"{where(path, line)}: {span}"
        for path, line, span in spans()
        if FILE.fullmatch(span.partition("::")[0])
        and "NAME" not in span
        and not (ROOT / span.partition("::")[0]).exists()
    ]
    assert missing == []


def test_settings_in_inline_code_exist() -> None:
    missing = [
        f"{where(path, line)}: {span}"
        for path, line, span in spans()
        if (found := SETTING.fullmatch(span)) and not set(found[1].split(".")) <= setting_names()
    ]
    assert missing == []


def test_documentation_and_examples_import_public_modules() -> None:
    public = {"phalanx", "phalanx.config", "phalanx.registry", "phalanx.svg", "phalanx.formatting"}
    public |= set(api_pages.packages())
    imports = [
        (where(path, block.line), name)
        for path in PAGES
        for block in code_blocks(path.read_text(encoding="utf-8"))
        if block.language == "python"
        for pair in IMPORT.findall(block.text)
        for name in pair
        if name
    ]
    for path in (ROOT / "examples").rglob("*.py"):
        found = IMPORT.findall(path.read_text(encoding="utf-8"))
        imports += [(where(path, 1), name) for pair in found for name in pair if name]
    prefixes = ("phalanx.integrations.", "phalanx.compat.")
    assert [use for use in imports if use[1] not in public and not use[1].startswith(prefixes)] == []


@pytest.mark.parametrize(
    ("name", "exists"),
    [
        ("phalanx.data.BatchPlan.shard", True),
        ("phalanx.data.BatchPlan.shards", False),
        ("phalanx.arc.ArcConfig.episode", True),
        ("phalanx.tokenz", False),
        ("phalanx.integrations.torch_data", True),
    ],
)
def test_name_exists(name: str, exists: bool) -> None:
    assert name_exists(name) is exists


@pytest.mark.parametrize(("name", "exists"), [("clip_eps", True), ("clip_epsilonn", False)])
def test_setting_names(name: str, exists: bool) -> None:
    assert (name in setting_names()) is exists

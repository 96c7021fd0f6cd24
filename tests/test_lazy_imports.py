"""Packages whose public names are imported on first use."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

STUB = """
from .counter import Counter as Counter, counter as counter
from .nested.deep import depth as depth

__version__: str
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Create a package in which the function `counter` has the same name as its module."""
    name = "lazy_package_for_tests"
    folder = tmp_path / name
    (folder / "nested").mkdir(parents=True)
    (folder / "__init__.py").write_text(
        "from phalanx.lazy_imports import import_lazily\n"
        "__getattr__, __dir__, __all__ = import_lazily(__name__, __file__)\n"
    )
    (folder / "__init__.pyi").write_text(STUB)
    (folder / "counter.py").write_text("class Counter: pass\ndef counter(): return 3\n")
    (folder / "nested" / "__init__.py").touch()
    (folder / "nested" / "deep.py").write_text("depth = 2\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield name
    for module in [module for module in sys.modules if module.partition(".")[0] == name]:
        del sys.modules[module]


def test_names_are_imported_on_first_use(package: str) -> None:
    lazy = importlib.import_module(package)
    assert lazy.__all__ == dir(lazy) == ["Counter", "counter", "depth"]
    assert f"{package}.nested" not in sys.modules
    assert lazy.depth == 2
    assert f"{package}.counter" not in sys.modules
    assert vars(lazy)["depth"] == 2, "the second access does not call __getattr__"


def test_module_does_not_replace_the_function_of_the_same_name(package: str) -> None:
    importlib.import_module(f"{package}.counter")
    assert importlib.import_module(package).counter() == 3


def test_submodules_that_are_not_public_names_are_attributes(package: str) -> None:
    importlib.import_module(f"{package}.nested.deep")
    assert importlib.import_module(package).nested.deep.depth == 2


def test_unknown_name_raises_attribute_error(package: str) -> None:
    lazy = importlib.import_module(package)
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'count'"):
        _ = lazy.count
    with pytest.raises(ImportError, match="cannot import name 'count'"):
        exec(f"from {package} import count")


def test_names_that_are_also_modules_can_be_used_after_their_modules() -> None:
    importlib.import_module("phalanx.arc.rendering.snapshot")
    assert callable(importlib.import_module("phalanx.arc.rendering").snapshot)

"""Packages whose public names are imported on first use."""

import ast
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any


class _PackageModule(ModuleType):
    """A package whose public names are not overwritten by submodules with the same name.

    When Python imports a submodule, it sets an attribute of the package. This would replace, for example, a
    function `snapshot` that is defined in `snapshot.py`.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if not (isinstance(value, ModuleType) and name in self.__all__):
            super().__setattr__(name, value)


def import_lazily(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` for a package whose names are imported on first use.

    The names are those that the package's stub, `__init__.pyi`, imports from its submodules with statements
    such as `from .env import ArcEnvironment as ArcEnvironment`. The similar function of the `lazy-loader`
    library is not used, because the implementation here is simpler and keeps the base install small.

    Args:
        package: `__name__` of the package.
        file: `__file__` of the package.
    """
    stub = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
    modules = {
        alias.name: f"{package}.{statement.module}"
        for statement in stub.body
        if isinstance(statement, ast.ImportFrom) and statement.level == 1
        for alias in statement.names
    }
    names = sorted(modules)
    sys.modules[package].__class__ = _PackageModule

    def get_attribute(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(modules[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return get_attribute, names.copy, names

"""Names in backticks in docstrings exist."""

import ast
import builtins
import re
from collections.abc import Iterator

from tests.repository.source import docstrings, modules

_DOTTED = re.compile(r"`(phalanx(?:\.\w+)+)(?:\(.*?\))?`")
_CALL_OR_CLASS = re.compile(r"`([A-Z][a-z]+[A-Z]\w*|\w+(?=\(\)`))(?:\(\))?`")
_OTHER_LIBRARIES = frozenset([])
"""Classes and functions of other libraries that docstrings mention by their bare name."""


def _defined_names() -> set[str]:
    """Return everything that the package defines, imports, or uses as an attribute or keyword."""
    names = set(dir(builtins))
    for tree in modules().values():
        for node in ast.walk(tree):
            match node:
                case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    names.add(name)
                case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                    names.add(name)
                case ast.alias(name=name, asname=alias):
                    names.update((alias or name).split("."))
    return names


def _exists(dotted: str) -> bool:
    """Check whether a dotted name is a module, or a name that a module defines or re-exports."""
    if dotted in modules() or dotted == "phalanx.presets":
        return True
    parent, _, name = dotted.rpartition(".")
    return (parent in modules() or _exists(parent)) and name in _defined_names()


def _missing() -> Iterator[str]:
    names = _defined_names() | _OTHER_LIBRARIES
    for module, tree in modules().items():
        for line, text in docstrings(tree):
            for match in _DOTTED.finditer(text):
                if not _exists(match[1]):
                    yield f"{module}:{line}: {match[1]}"
            for match in _CALL_OR_CLASS.finditer(text):
                if match[1] not in names:
                    yield f"{module}:{line}: {match[1]}"


def test_names_in_docstrings_exist() -> None:
    assert list(_missing()) == []

"""Public class names are unique."""

import ast
import collections

import pytest

from tests.repository.source import modules


@pytest.mark.slow
def test_public_class_names_are_unique() -> None:
    modules_by_class = collections.defaultdict(list)
    for module, tree in modules().items():
        if module.startswith("phalanx.compat"):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                modules_by_class[node.name].append(module)
    assert {name: found for name, found in modules_by_class.items() if len(found) > 1} == {}

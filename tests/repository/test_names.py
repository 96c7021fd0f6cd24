"""The package uses the field's standard names: no in-house words, unique public class names."""

import ast
import collections
import itertools
import re
from collections.abc import Iterator

import pytest

from tests.repository.source import own_modules

IN_HOUSE_WORDS = frozenset(
    {
        "anew",
        "arcade",
        "asker",
        "asking",
        "beside",
        "enough",
        "examination",
        "examined",
        "fan",
        "foreign",
        "hand_in",
        "handed",
        "handed_in",
        "lengthened",
        "nobody",
        "peak_share",
        "pessimism",
        "seal",
        "sealed",
        "settle",
        "settled",
        "somebody",
        "stranger",
        "strangers",
        "tells",
        "told",
        "twin",
        "twins",
        "unsealed",
        "wander",
        "wandering",
        "whoever",
        "writing",
    }
)
"""Words that no public identifier may contain. Only complete words match."""


def words(identifier: str) -> set[str]:
    parts = [part.lower() for part in re.split(r"_|(?<=[a-z0-9])(?=[A-Z])", identifier) if part]
    pairs = {f"{first}_{second}" for first, second in itertools.pairwise(parts)}
    return {*parts, *pairs}


def public_identifiers(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield public classes, functions, parameters, fields and module-level names."""
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name):
                yield node.lineno, name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield node.lineno, name
                if not name.startswith("_"):
                    arguments = node.args
                    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
                        yield node.lineno, argument.arg
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield node.lineno, name
    for statement in tree.body:
        if isinstance(statement, ast.Assign):
            for target in statement.targets:
                if isinstance(target, ast.Name):
                    yield statement.lineno, target.id


def test_public_identifiers_contain_no_in_house_words() -> None:
    found = [
        f"{module}:{line}: {name}"
        for module, tree in own_modules().items()
        for line, name in public_identifiers(tree)
        if not name.startswith("_") and words(name) & IN_HOUSE_WORDS
    ]
    assert found == []


def test_public_class_names_are_unique() -> None:
    classes = collections.defaultdict(list)
    for module, tree in own_modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes[node.name].append(module)
    assert {name: places for name, places in classes.items() if len(places) > 1} == {}


@pytest.mark.parametrize(
    ("identifier", "contained"),
    [
        ("HandIn", True),
        ("handed_in_grids", True),
        ("told", True),
        ("fan", True),
        ("fanout", False),
        ("Enough", True),
    ],
)
def test_only_complete_words_match(identifier: str, contained: bool) -> None:
    assert bool(words(identifier) & IN_HOUSE_WORDS) == contained

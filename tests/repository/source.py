"""Reads the package's source as syntax trees, without importing it."""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "phalanx"


@functools.cache
def modules() -> dict[str, ast.Module]:
    """Return the syntax tree of every module by its dotted name."""
    trees = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        trees[name] = ast.parse(path.read_text(encoding="utf-8"), str(path))
    return trees


def own_modules() -> dict[str, ast.Module]:
    """Return the modules outside `phalanx.compat`, whose names are those of other projects."""
    return {name: tree for name, tree in modules().items() if not name.startswith("phalanx.compat")}


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and text of every docstring, including those of fields and constants."""
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, text

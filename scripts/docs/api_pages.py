"""Generate `docs/reference/api/`: one page per package, with all of its public names.

Public names of a package are those in its `__init__.pyi`. Without a stub, they are the names in its `__all__`
or, without one, the names that it imports as themselves (`from x import y as y`).
"""

import ast
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).parents[2] / "src"
FOLDER = "reference/api"


class PublicName(NamedTuple):
    """A public name and the module that defines it."""

    name: str
    module: str


def packages() -> list[str]:
    """Return every package with public names, outer packages first."""
    folders = sorted(path.parent for path in SOURCE.glob("phalanx/**/__init__.py"))
    names = [".".join(folder.relative_to(SOURCE).parts) for folder in folders]
    excluded = ("phalanx.compat", "phalanx.integrations", "phalanx.cli")
    return [name for name in names if not name.startswith(excluded) and public_names(name)]


def public_names(package: str) -> list[PublicName]:
    """Return the public names of a package, sorted, each with the module that defines it."""
    tree, listed = _imports(package)
    found = []
    for node in tree.body:
        if not isinstance(node, ast.ImportFrom) or node.module is None:
            continue
        module = f"{package}.{node.module}" if node.level else node.module
        if not module.startswith("phalanx."):
            continue
        inner = {one.name: one for one in public_names(module)} if _is_package(module) else {}
        for alias in node.names:
            name = alias.asname or alias.name
            if name in listed if listed is not None else alias.asname == alias.name:
                found.append(inner.get(alias.name, PublicName(name, module)))
    return sorted(found, key=lambda one: one.name.lower())


def pages() -> dict[str, str]:
    """Return the text of every page by its path in docs/."""
    outer = [package for package in packages() if package.count(".") == 1]
    return {f"{FOLDER}/{package.partition('.')[2]}.md": _page(package) for package in outer}


def _page(package: str) -> str:
    source = SOURCE.joinpath(*package.split("."), "__init__.py").read_text(encoding="utf-8")
    description = ast.get_docstring(ast.parse(source)) or ""
    inner = [other for other in packages() if other.startswith(f"{package}.")]
    shown: set[PublicName] = set()
    lines = [f"# {package}", "", description]
    for each in (package, *inner):
        names = [name for name in public_names(each) if name not in shown]
        shown.update(names)
        if each != package and names:
            lines += ["", f"## {each}"]
        for name in names:
            lines += ["", f"::: {name.module}.{name.name}"]
    return "\n".join(lines) + "\n"


def _imports(package: str) -> tuple[ast.Module, set[str] | None]:
    """Return the syntax tree that imports the public names, and the names in `__all__` if it has one."""
    folder = SOURCE.joinpath(*package.split("."))
    stub = folder / "__init__.pyi"
    if stub.is_file():
        return ast.parse(stub.read_text(encoding="utf-8")), None
    tree = ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id="__all__")], value=ast.List() | ast.Tuple() as value):
                return tree, set(ast.literal_eval(value))
    return tree, None


def _is_package(module: str) -> bool:
    return SOURCE.joinpath(*module.split("."), "__init__.py").is_file()

"""Generate `docs/reference/api/`: one page per package with its public names, grouped by module.

Public names of a package are those in its `__init__.pyi`. Without a stub, they are the names in its `__all__`
or, without one, the names that it imports as themselves (`from x import y as y`). Every module of
`phalanx.integrations` is public.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).parents[2] / "src"
FOLDER = "reference/api"
PUBLIC_MODULES = ("phalanx.config", "phalanx.registry")
"""Top-level modules whose names are on the page of `phalanx`."""
TITLES = {
    "env": "Environment",
    "bc": "Behavior cloning",
    "kge": "Knowledge-graph embeddings",
    "ppo": "PPO",
    "sft": "SFT",
    "grpo": "GRPO",
    "svg": "SVG",
    "hf_datasets": "Hugging Face datasets",
    "hf_trainer": "Hugging Face Trainer",
    "jsonl": "JSON Lines",
}
"""Headings of modules whose name is not a title when underscores are replaced by spaces."""


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
        # A package may import its own modules or those of its parents.
        if not module.startswith("phalanx.") or f"{package}.".startswith(f"{module}."):
            continue
        is_other_package = module != package and _is_package(module)
        inner = {one.name: one for one in public_names(module)} if is_other_package else {}
        for alias in node.names:
            name = alias.asname or alias.name
            if name in listed if listed is not None else alias.asname == alias.name:
                found.append(inner.get(alias.name, PublicName(name, module)))
    return sorted(found, key=lambda one: one.name.lower())


def module_names(module: str) -> list[PublicName]:
    """Return the public classes and functions that a module defines, in the order of the source."""
    definitions = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    return [
        PublicName(node.name, module)
        for node in _tree(module).body
        if isinstance(node, definitions) and not node.name.startswith("_")
    ]


def pages() -> dict[str, str]:
    """Return the text of every page by its path in `docs/`."""
    outer = [package for package in packages() if package.count(".") == 1]
    return {
        f"{FOLDER}/phalanx.md": _top_level_page(),
        f"{FOLDER}/integrations.md": _integrations_page(),
        **{f"{FOLDER}/{package.partition('.')[2]}.md": _page(package) for package in outer},
    }


def _page(package: str) -> str:
    inner = [other for other in packages() if other.startswith(f"{package}.")]
    lines = [f"# {package}", "", _docstring(package)]
    names = public_names(package)
    by_module: dict[str, list[PublicName]] = {}
    for name in names:
        by_module.setdefault(name.module, []).append(name)
    for module in sorted(by_module, key=_title):
        lines += _section(_title(module), module, package, by_module[module])
    shown = set(names)
    for subpackage in inner:
        names = [name for name in public_names(subpackage) if name not in shown]
        shown.update(names)
        if names:
            lines += _section(subpackage, subpackage, subpackage, names)
    return "\n".join(lines) + "\n"


def _top_level_page() -> str:
    names = public_names("phalanx")
    lines = ["# phalanx", "", _docstring("phalanx").partition("\n\n")[0]]
    for name in names:
        lines += ["", f"::: {name.module}.{name.name}"]
    for module in PUBLIC_MODULES:
        rest = [name for name in module_names(module) if name not in names]
        lines += _section(module, module, module, rest)
    return "\n".join(lines) + "\n"


def _integrations_page() -> str:
    folder = SOURCE / "phalanx" / "integrations"
    lines = ["# phalanx.integrations", "", _docstring("phalanx.integrations")]
    for path in sorted(folder.iterdir()):
        module = f"phalanx.integrations.{path.stem}"
        if path.stem in ("__init__", "__pycache__", "extras"):
            continue
        if names := public_names(module) if path.is_dir() else module_names(module):
            lines += _section(module, module, module, names)
    return "\n".join(lines) + "\n"


def _section(title: str, module: str, package: str, names: list[PublicName]) -> Iterator[str]:
    """Iterate over the lines of a section: an introduction, and names that are imported from `package`."""
    yield from ("", f"## {title}", "", _docstring(module).partition("\n\n")[0])
    if title != package:
        yield from ("", f"Import from `{package}`.")
    for name in names:
        yield from ("", f"::: {name.module}.{name.name}")


def _title(module: str) -> str:
    name = module.rpartition(".")[2]
    return TITLES.get(name, name.replace("_", " ").capitalize())


def _docstring(module: str) -> str:
    return ast.get_docstring(_tree(module)) or ""


def _tree(module: str) -> ast.Module:
    path = SOURCE.joinpath(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(path.read_text(encoding="utf-8"))


def _imports(package: str) -> tuple[ast.Module, set[str] | None]:
    """Return the syntax tree that imports the public names, and the names in `__all__` if it has one."""
    stub = SOURCE.joinpath(*package.split("."), "__init__.pyi")
    if stub.is_file():
        return ast.parse(stub.read_text(encoding="utf-8")), None
    tree = _tree(package)
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id="__all__")], value=ast.List() | ast.Tuple() as value):
                return tree, set(ast.literal_eval(value))
    return tree, None


def _is_package(module: str) -> bool:
    return SOURCE.joinpath(*module.split("."), "__init__.py").is_file()

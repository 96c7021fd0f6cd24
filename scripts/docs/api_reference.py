"""`docs/reference/api/`: one page for each room, with every public name of its stub.

What is public is said by a room's `__init__.pyi`, and nowhere else; what a name does, by its docstring.
"""

import ast
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).parents[2] / "src"
FOLDER = "reference/api"


class PublicName(NamedTuple):
    """A name that a room shows, and the module that defines it."""

    name: str
    module: str


def rooms() -> list[str]:
    """Every package that opens through a stub, outer ones first."""
    folders = {path.parent for path in SOURCE.glob("phalanx/**/__init__.py*")}
    names = (".".join(folder.relative_to(SOURCE).parts) for folder in folders)
    return sorted(name for name in names if _is_room(name))


def public_names(room: str) -> list[PublicName]:
    """What a room's stub lists, in its order; of a name from a sub-room, the module that defines it."""
    names = []
    for node in _public_imports(room):
        home = f"{room}.{node.module}" if node.level else str(node.module)
        inner = {one.name: one for one in public_names(home)} if _is_room(home) else {}
        names += [inner.get(alias.name, PublicName(alias.name, home)) for alias in node.names]
    return sorted(names, key=lambda one: one.name.lower())


def pages() -> dict[str, str]:
    """The text of every page by its path under docs/."""
    outer = [room for room in rooms() if room.count(".") == 1]
    return {f"{FOLDER}/{room.partition('.')[2]}.md": _page(room) for room in outer}


def _page(room: str) -> str:
    source = SOURCE.joinpath(*room.split("."), "__init__.py").read_text(encoding="utf-8")
    about = ast.get_docstring(ast.parse(source)) or ""
    inner = [other for other in rooms() if other.startswith(f"{room}.")]
    shown: set[PublicName] = set()
    lines = [f"# {room}", "", about]
    for each in (room, *inner):
        names = [name for name in public_names(each) if name not in shown]
        shown.update(names)
        if each != room and names:
            lines += ["", f"## {each}"]
        for name in names:
            lines += ["", f"::: {name.module}.{name.name}"]
    return "\n".join(lines) + "\n"


def _is_room(module: str) -> bool:
    return bool(_public_imports(module))


def _public_imports(package: str) -> list[ast.ImportFrom]:
    """Return the imports of the form `from m import x as x` in a package's stub or `__init__.py`."""
    folder = SOURCE.joinpath(*package.split("."))
    for name in ("__init__.pyi", "__init__.py"):
        if (folder / name).is_file():
            body = ast.parse((folder / name).read_text(encoding="utf-8")).body
            imports = [node for node in body if isinstance(node, ast.ImportFrom)]
            return [node for node in imports if all(alias.asname == alias.name for alias in node.names)]
    return []

"""Identity of the code that a run is trained with: the structure of its network and its source files."""

import ast
import contextlib
import dataclasses
import functools
import hashlib
import inspect
import logging
import re
import sys
import sysconfig
import types
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from phalanx.config import Config
from phalanx.core.vector import without_key_type
from phalanx.training.run_dir import load_metadata

_LOG = logging.getLogger("phalanx.training")
_PHALANX = Path(__file__).resolve().parents[1]
_STANDARD_LIBRARY = Path(sysconfig.get_path("stdlib")).resolve()
_INSTALLED = {"site-packages", "dist-packages"}
"""Names of the folders that contain installed packages."""


def identify_code(
    objects: Iterable[Any], network: Any = None, *, is_default_network: bool = True
) -> dict[str, Any]:
    """Return the entries of `run.json` that identify the code of a run.

    Args:
        objects: Classes and functions of the run, such as the classes of its algorithm and environment.
        network: Network without its arrays. None if the algorithm has no policy network.
        is_default_network: Whether the network is the environment's own, so that the config determines it.

    Returns:
        `sources`, the result of `source_digests`, and `network`: the name of the network's class, a digest of
        its structure, and whether it is the default network.
    """
    found = list(objects)
    if network is None:
        return {"sources": source_digests(found)}
    text = _describe(network, found)
    name, structure = text.partition("(")[0], hashlib.sha256(text.encode()).hexdigest()[:16]
    described = {"name": name, "structure": structure, "is_default": is_default_network}
    return {"sources": source_digests(found), "network": described}


def source_digests(objects: Iterable[Any]) -> dict[str, str]:
    """Return the SHA-256 digests of the user's source files by path.

    These are the files that define the given classes, their base classes and the given functions, and the
    files in the same folders that these files import. Phalanx, the standard library, installed packages, and
    classes without a file (in notebooks, for example) are left out.
    """
    digests: dict[str, str] = {}
    bases = (base for each in objects for base in (each.__mro__ if isinstance(each, type) else (each,)))
    pending = [file for base in bases if (file := _user_file(base)) is not None]
    while pending:
        file = pending.pop()
        if str(file) not in digests:
            source = file.read_bytes()
            digests[str(file)] = hashlib.sha256(source).hexdigest()
            pending += _imports_from_folder(source, file.parent)
    return dict(sorted(digests.items()))


def check_same_code(run: Path, code: Mapping[str, Any]) -> None:
    """Raise ValueError if a run would be resumed with another network or with changed source files.

    Args:
        run: Run folder.
        code: Result of `identify_code` for the code to resume it with.
    """
    check_same_network(run, code, "resume it with the network that was passed to its algorithm")
    for change in _changed_sources(run, code):
        raise ValueError(
            f"{run} was started with other code: {change}; restore the file, or start a new run with the "
            f"parameters of this one: --init-from {run} and another --out"
        )


def check_same_network(run: Path, code: Mapping[str, Any], remedy: str) -> None:
    """Raise ValueError if a run was trained with another network.

    Two default networks are not compared, because they are determined by the config, which is compared.

    Args:
        run: Run folder.
        code: Result of `identify_code` for the network to use.
        remedy: What the user can do, for the message.
    """
    saved, now = load_metadata(run).get("code", {}).get("network"), code.get("network")
    if saved is None or now is None or (saved["is_default"] and now["is_default"]):
        return
    if saved["structure"] != now["structure"]:
        names = [f"{each['name']} (structure {each['structure']})" for each in (saved, now)]
        raise ValueError(f"{run} was trained with the network {names[0]}, not with {names[1]}; {remedy}")


def warn_of_changed_sources(run: Path, code: Mapping[str, Any]) -> None:
    """Log a warning if source files have changed since a run was started.

    Args:
        run: Run folder.
        code: Result of `identify_code` for the current code.
    """
    if changes := list(_changed_sources(run, code)):
        _LOG.warning("%s was trained with other code, so results can differ: %s", run, "; ".join(changes))


def _changed_sources(run: Path, code: Mapping[str, Any]) -> Iterator[str]:
    """Describe each source file of a run that has changed or is no longer used.

    Files are compared by name and content, because a project can be moved to another folder or machine.
    """
    saved: Mapping[str, str] = load_metadata(run).get("code", {}).get("sources", {})
    files = {Path(file).name: file for file in code["sources"]}
    digests = {(Path(file).name, digest) for file, digest in code["sources"].items()}
    for file, digest in saved.items():
        name = Path(file).name
        if name not in files:
            yield f"{file} is no longer used"
        elif (name, digest) not in digests:
            yield f"{files[name]} has changed"


def _user_file(value: Any) -> Path | None:
    """Return the Python file that defines a class or function, or None if the user did not write it."""
    while isinstance(value, functools.partial):
        value = value.func
    file = getattr(sys.modules.get(getattr(value, "__module__", None) or ""), "__file__", None)
    path = Path(file or "").resolve()
    is_library = path.is_relative_to(_PHALANX) or path.is_relative_to(_STANDARD_LIBRARY)
    is_library |= not _INSTALLED.isdisjoint(path.parts)
    return path if path.suffix == ".py" and path.is_file() and not is_library else None


def _imports_from_folder(source: bytes, folder: Path) -> Iterator[Path]:
    """Yield the Python files in a folder that the source of another file in this folder imports."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level < 2:
            names = [f"{node.module}.{alias.name}" if node.module else alias.name for alias in node.names]
        else:
            continue
        for parts in (name.split(".") for name in names):
            for depth, part in enumerate(parts):
                # `a.b.c` can be `c.py` in a folder `a/b`, or `a.py` in any folder.
                is_here = list(folder.parts[len(folder.parts) - depth :]) == parts[:depth]
                if is_here and (file := folder / f"{part}.py").is_file():
                    yield file


def _describe(value: Any, found: list[Any], parents: tuple[Any, ...] = ()) -> str:
    """Describe a network, one of its fields or a function, equally in every process.

    Args:
        value: Value to describe.
        found: List to which the functions and classes in the value are added.
        parents: Values that contain this value.
    """
    while not isinstance(value, types.FunctionType) and hasattr(value, "__wrapped__"):  # such as by `jax.jit`
        value = value.__wrapped__
    if any(value is parent for parent in parents):  # a function that calls itself
        return "..."
    is_module = dataclasses.is_dataclass(type(value))  # or another dataclass
    has_name = not is_module and isinstance(getattr(value, "__qualname__", None), str)
    found.append(value if has_name else type(value))
    parts: Any
    if isinstance(value, type):
        parts = {}
    elif has_name:
        parts = _parts_of_function(value)
    elif isinstance(value, np.ndarray | jax.Array):
        parts = {"data": hashlib.sha256(np.asarray(without_key_type(value)).tobytes()).hexdigest()}
        parts |= {"dtype": str(value.dtype), "shape": value.shape}
    elif is_module:
        names = (field.name for field in dataclasses.fields(value) if field.compare)
        parts = {name: getattr(value, name, None) for name in names}
    elif isinstance(value, Config | Mapping):
        parts = dict(value)
    elif isinstance(value, list | tuple):
        parts = dict(enumerate(value))
    elif isinstance(value, set | frozenset):
        parts = {_describe(part, found): True for part in value}
    elif isinstance(value, functools.partial):
        parts = {"func": value.func, "args": value.args, "keywords": value.keywords}
    elif type(value).__repr__ is object.__repr__:
        parts = getattr(value, "__dict__", {})
    else:
        return re.sub(r" at 0x[0-9a-f]+", "", repr(value))
    name, parents = _qualified_name(value if has_name else type(value)), (*parents, value)
    inner = [f"{key}={_describe(part, found, parents)}" for key, part in parts.items()]
    return f"{name}({', '.join(sorted(inner))})"


def _parts_of_function(function: Any) -> dict[str, Any]:
    is_users = _user_file(function) is not None or function.__module__ == "__main__"
    if not is_users and "<locals>" not in function.__qualname__:
        return {}  # The name of a library's function determines what it computes.
    parts = {name: getattr(function, name, None) for name in ("__self__", "__defaults__", "__kwdefaults__")}
    if inspect.isfunction(function):
        parts |= inspect.getclosurevars(function).nonlocals
        if is_users and function.__name__ == "<lambda>":
            with contextlib.suppress(OSError):  # Code that was typed into an interpreter has no source.
                parts["source"] = inspect.getsource(function)
    return parts


def _qualified_name(value: Any) -> str:
    """Return the name of a class or function with its file, or with its package if it is installed.

    A file can be imported under several module names, and packages move functions between modules.
    """
    file = _user_file(value)
    module = str(value.__module__).partition(".")[0] if file is None else file.stem
    return f"{module}:{value.__qualname__}"

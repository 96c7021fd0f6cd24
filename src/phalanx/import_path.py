"""Functions that import objects by paths such as `package.module:name` and `path/file.py:name`."""

import importlib
import importlib.util
import os
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any


def import_object(address: str) -> Any:
    """Import and return the object at a path such as `package.module:name` or `path/file.py:name`.

    Raises:
        ValueError: If the module or the name does not exist.
    """
    module_name, _, name = address.rpartition(":")
    if not module_name or not name:
        raise ValueError(f"expected package.module:Name or path/file.py:Name, got {address!r}")
    is_file = module_name.endswith(".py")
    try:
        found: Any = import_file(module_name) if is_file else importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # A missing dependency of the module is not a mistake in the address.
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        file = f"{module_name}.py"
        hint = f"; did you mean {f'{file}:{name}'!r}?" if Path(file).is_file() else ""
        raise ValueError(f"cannot import {address!r}: {error}{hint}") from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise ValueError(f"cannot import {address!r}: {module_name} has no {name}")
        found = getattr(found, part)
    return found


def import_file(path: str | os.PathLike[str]) -> ModuleType:
    """Import a Python file as a module, once per process. It can import the files beside it."""
    file = Path(path).resolve()
    if file.suffix != ".py" or not file.is_file():
        raise ValueError(f"there is no Python file {path}")
    name = file.stem
    loaded = sys.modules.get(name)
    if loaded is not None and getattr(loaded, "__file__", None) == str(file):
        return loaded
    if loaded is not None or _is_installed(name, file):
        # The name belongs to another module.
        name = f"phalanx_file_{re.sub(r'[^0-9A-Za-z]+', '_', str(file))}"
        if name in sys.modules:
            return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Before the code runs, because dataclasses and pickles look up their own module.
    sys.modules[name] = module
    sys.path.insert(0, str(file.parent))
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        sys.path.remove(str(file.parent))
    return module


def _is_installed(name: str, file: Path) -> bool:
    found = importlib.util.find_spec(name)
    return found is not None and found.origin != str(file)


def absolute_address(address: str) -> str:
    """Make the file path in `path/file.py:Name` absolute. Return addresses of any other form unchanged."""
    module_name, _, name = address.rpartition(":")
    return f"{Path(module_name).resolve()}:{name}" if module_name.endswith(".py") else address

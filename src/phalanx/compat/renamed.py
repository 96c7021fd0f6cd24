"""Aliases of attributes, and errors that give the new name of an attribute or argument."""

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, ClassVar


def alias(path: str) -> property:
    """Return a property that is an alias of the attribute at a path such as `client.host`."""
    return property(attrgetter(path))


class RenamedAttributes:
    """Mixin that suggests a replacement in the error message for an unsupported attribute."""

    renamed: ClassVar[Mapping[str, str]] = {}
    """Maps each unsupported name to its replacement, as text for the error message "use ..."."""

    def __getattr__(self, name: str) -> Any:
        cls = type(self).__name__
        if name in self.renamed:
            raise AttributeError(f"{cls} has no {name}: use {self.renamed[name]}")
        raise AttributeError(f"{cls!r} object has no attribute {name!r}")


def reject_renamed(cls: type, values: Any, renamed: Mapping[str, str]) -> Any:
    """Check that no argument of a Pydantic model has been renamed, and return the arguments unchanged.

    Raises `ValueError` with a suggested replacement if an argument has been renamed.
    """
    for name in values if isinstance(values, Mapping) else ():
        if name in renamed:
            raise ValueError(f"{cls.__name__} has no {name}: use {renamed[name]}")
    return values


def renamed_module_getattr(module: str, renamed: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a module-level `__getattr__` whose errors give the new names of attributes."""

    def get(name: str) -> Any:
        if name in renamed:
            raise AttributeError(f"{module} has no {name}: use {renamed[name]}")
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return get

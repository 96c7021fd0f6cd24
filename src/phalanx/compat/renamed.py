"""Aliases of attributes, and errors that give the new name of an attribute or field."""

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, ClassVar

from pydantic import BaseModel, model_validator


def alias(path: str) -> property:
    """Return a property that is an alias of the attribute at a path such as `client.host`."""
    return property(attrgetter(path))


class RenamedAttributes:
    """Mixin that names the replacement in the error message for a renamed or removed attribute."""

    renamed: ClassVar[Mapping[str, str]] = {}
    """Maps each renamed or removed name to the text that follows "use" in the error message."""

    def __getattr__(self, name: str) -> Any:
        cls = type(self).__name__
        if name in self.renamed:
            raise AttributeError(f"{cls} has no {name}: use {self.renamed[name]}")
        raise AttributeError(f"{cls!r} object has no attribute {name!r}")


class RenamedFields(RenamedAttributes, BaseModel):
    """Mixin for Pydantic models with renamed or removed fields.

    If the constructor gets a name in `renamed`, the error message names the replacement.
    """

    @model_validator(mode="before")
    @classmethod
    def _reject_renamed(cls, values: Any) -> Any:
        for name in values if isinstance(values, Mapping) else ():
            if name in cls.renamed:
                raise ValueError(f"{cls.__name__} has no {name}: use {cls.renamed[name]}")
        return values


def renamed_module_getattr(module: str, renamed: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a module-level `__getattr__` whose errors give the new names of attributes."""

    def get(name: str) -> Any:
        if name in renamed:
            raise AttributeError(f"{module} has no {name}: use {renamed[name]}")
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return get

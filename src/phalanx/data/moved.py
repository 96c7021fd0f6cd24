"""Names that users of other projects bring along: asked for, each fails with a sentence that names ours.

Names that could stay are simply there; which moved where is told by the rooms that they would be in.
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar


def with_moved(load: Callable[[str], Any], room: str, moved: Mapping[str, str]) -> Callable[[str], Any]:
    """A room's `__getattr__` that also knows what to use in place of names that it does not have."""

    def get(name: str) -> Any:
        if name in moved:
            raise AttributeError(f"{room} has no {name}: {moved[name]}")
        return load(name)

    return get


def refuse_moved(cls: type, given: Any, moved: Mapping[str, str]) -> Any:
    """What was given to a model, unless there is a field among it that is called otherwise here."""
    for name in given if isinstance(given, Mapping) else ():
        if name in moved:
            raise ValueError(f"{cls.__name__} has no {name}: {moved[name]}")
    return given


class HasMoved:
    """A class that says what to use in place of methods which it does not have."""

    moved: ClassVar[Mapping[str, str]] = {}

    def __getattr__(self, name: str) -> Any:
        what = type(self).__name__
        if name in self.moved:
            raise AttributeError(f"{what} has no {name}: {self.moved[name]}")
        raise AttributeError(f"{what!r} object has no attribute {name!r}")

"""Checks the package's annotations of shapes and types at every call, as jaxtyping's import hook does.

A check takes a millisecond to make: here that is when its function is first called, and once for all
functions that one inner `def` makes. Which of the package's functions are called is up to the tests.
"""

import dataclasses
import functools
import threading
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

import jaxtyping

_jaxtyped = jaxtyping.jaxtyped


def check_annotations(package: str) -> None:
    """Check the calls of a package, of which nothing may have been imported yet."""
    jaxtyping.jaxtyped = deferred  # where the hook's decorators look it up
    jaxtyping.install_import_hook(
        package, "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))"
    )


def deferred(given: Any = None, *, typechecker: Any) -> Any:
    """What `jaxtyped` gives, but for when it does its work."""
    if given is None:
        return functools.partial(deferred, typechecker=typechecker)
    if isinstance(given, classmethod | staticmethod):
        return type(given)(deferred(given.__func__, typechecker=typechecker))
    if isinstance(given, property):
        parts = (given.fget, given.fset, given.fdel)
        return property(*(part and deferred(part, typechecker=typechecker) for part in parts))
    if isinstance(given, type):
        made, left_out = dataclasses.is_dataclass(given), getattr(given, "__no_type_check__", False)
        # One that is its parent's, or written out in the class, is checked already.
        own = isinstance(given.__init__, FunctionType) and given.__init__.__globals__ is not globals()
        if made and own and not left_out:
            given.__init__ = _late(given.__init__, _jaxtyped, typechecker)
        return given
    if not isinstance(given, FunctionType):
        return _jaxtyped(given, typechecker=typechecker)
    return _late(given, _checked_as_its_like if "<locals>" in given.__qualname__ else _jaxtyped, typechecker)


def _late(function: FunctionType, check: Callable[..., Any], typechecker: Any) -> Callable[..., Any]:
    checked: Callable[..., Any] | None = None

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        nonlocal checked
        if checked is None:
            checked = check(function, typechecker=typechecker)
        return checked(*args, **kwargs)

    return wrapped


_like: dict[tuple[CodeType, tuple[tuple[str, Any], ...]], Callable[..., Any]] = {}
_called = threading.local()


def _called_last(*args: Any, **kwargs: Any) -> Any:
    __tracebackhide__ = True
    return _called.functions.pop()(*args, **kwargs)


def _checked_as_its_like(function: FunctionType, *, typechecker: Any) -> Callable[..., Any]:
    """A function within another is checked by what was made for the first of its code and annotations."""
    key = function.__code__, tuple(function.__annotations__.items())
    if key not in _like:
        # Annotations that are strings are looked up where the function stands. It must not be kept alive.
        names = {**function.__globals__, "_called": _called}
        stand_in = functools.wraps(function)(FunctionType(_called_last.__code__, names))
        _like[key] = _jaxtyped(stand_in, typechecker=typechecker)
        del stand_in.__wrapped__
    check = _like[key]

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        functions = _called.__dict__.setdefault("functions", [])
        depth = len(functions)
        functions.append(function)
        try:
            return check(*args, **kwargs)
        finally:
            del functions[depth:]  # where the arguments were refused, it is still there

    return wrapped

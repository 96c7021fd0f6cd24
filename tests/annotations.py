"""Checks the package's annotations of shapes and types at every call, as jaxtyping's import hook does.

A check takes a millisecond to make: here that is when its function is first called, and once for all
functions that one inner `def` makes. Which of the package's functions are called is up to the tests.
jaxtyping's own wrapper checks arguments twice and binds them by `inspect`, ten times the work of beartype's:
here beartype wraps the function itself, in a scope for the names of axes where there are any.
"""

import dataclasses
import functools
import inspect
import threading
import typing
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any

import jaxtyping
from beartype import BeartypeConf, beartype

_jaxtyped = jaxtyping.jaxtyped
beartyped = beartype(conf=BeartypeConf(is_pep484_tower=True, violation_type=jaxtyping.TypeCheckError))
"""Checks a function or class; an integer is a float, too."""


_LATER = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def check_annotations(package: str) -> None:
    """Check the calls of a package, of which nothing may have been imported yet."""
    jaxtyping.jaxtyped = deferred  # where the hook's decorators look it up
    jaxtyping.install_import_hook(package, f"{__name__}.beartyped")


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
            given.__init__ = _late(given.__init__, _checked, typechecker)
        return given
    if not isinstance(given, FunctionType):
        return _jaxtyped(given, typechecker=typechecker)
    return _late(given, _checked_as_its_like if "<locals>" in given.__qualname__ else _checked, typechecker)


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


def _checked(function: FunctionType, *, typechecker: Any) -> Callable[..., Any]:
    """What jaxtyping checks, by beartype alone where that comes to the same."""
    if function.__code__.co_flags & _LATER:  # beartype would check its arguments when it first goes on
        return _jaxtyped(function, typechecker=typechecker)
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except NameError:  # jaxtyping leaves out what it cannot look up
        return _jaxtyped(function, typechecker=typechecker)
    arrays = [array for hint in hints.values() for array in _arrays_in(hint)]
    if any("{" in array.dim_str for array in arrays):  # an axis that is computed from the arguments
        return _jaxtyped(function, typechecker=typechecker)
    check = typechecker(function)
    if not arrays:
        return check

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        with _jaxtyped("context"):
            return check(*args, **kwargs)

    return wrapped


def _arrays_in(hint: Any) -> Iterator[Any]:
    if isinstance(hint, type) and issubclass(hint, jaxtyping.AbstractArray):
        yield hint
    for part in typing.get_args(hint):
        yield from _arrays_in(part)


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
        _like[key] = _checked(stand_in, typechecker=typechecker)
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

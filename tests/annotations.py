"""Faster version of jaxtyping's import hook, which checks shape and type annotations at every call.

With jaxtyping's own hook, the tests need about 50% more CPU time, because its wrapper binds and checks
arguments twice, and because it creates the wrappers of all functions on import. Here, a wrapper is created at
the first call, all functions that one inner `def` creates share a wrapper, and beartype alone wraps functions
without array annotations.
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
"""Type checker for functions and classes; integers are accepted as floats."""

_DEFERRED_BODY = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def check_annotations(package: str) -> None:
    """Check all calls of functions in a package, which must not have been imported yet."""
    jaxtyping.jaxtyped = deferred  # the hook's decorators use this name
    jaxtyping.install_import_hook(package, f"{__name__}.beartyped")


def deferred(given: Any = None, *, typechecker: Any) -> Any:
    """Return what `jaxtyped` returns, except that the wrapper is created at the first call."""
    if given is None:
        return functools.partial(deferred, typechecker=typechecker)
    if isinstance(given, classmethod | staticmethod):
        return type(given)(deferred(given.__func__, typechecker=typechecker))
    if isinstance(given, property):
        parts = (given.fget, given.fset, given.fdel)
        return property(*(part and deferred(part, typechecker=typechecker) for part in parts))
    if isinstance(given, type):
        is_excluded = getattr(given, "__no_type_check__", False)
        # An inherited or explicit `__init__` is checked already.
        is_generated = (
            isinstance(given.__init__, FunctionType) and given.__init__.__globals__ is not globals()
        )
        if dataclasses.is_dataclass(given) and is_generated and not is_excluded:
            given.__init__ = _check_at_first_call(given.__init__, _checked, typechecker)
        return given
    if not isinstance(given, FunctionType):
        return _jaxtyped(given, typechecker=typechecker)
    check = _checked_like_first if "<locals>" in given.__qualname__ else _checked
    return _check_at_first_call(given, check, typechecker)


def _check_at_first_call(
    function: FunctionType, check: Callable[..., Any], typechecker: Any
) -> Callable[..., Any]:
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
    """Wrap a function with beartype, and with jaxtyping's scope of axis names only if it needs one."""
    if function.__code__.co_flags & _DEFERRED_BODY:  # beartype would check its arguments too late
        return _jaxtyped(function, typechecker=typechecker)
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except NameError:  # jaxtyping ignores annotations that it cannot resolve
        return _jaxtyped(function, typechecker=typechecker)
    arrays = [array for hint in hints.values() for array in _arrays_in(hint)]
    if any("{" in array.dim_str for array in arrays):  # the size of an axis is computed from arguments
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


_first_checks: dict[tuple[CodeType, tuple[tuple[str, Any], ...]], Callable[..., Any]] = {}
_calls = threading.local()


def _call_innermost(*args: Any, **kwargs: Any) -> Any:
    __tracebackhide__ = True
    return _calls.functions.pop()(*args, **kwargs)


def _checked_like_first(function: FunctionType, *, typechecker: Any) -> Callable[..., Any]:
    """Wrap an inner function with the wrapper of the first function with the same code and annotations."""
    key = function.__code__, tuple(function.__annotations__.items())
    if key not in _first_checks:
        # String annotations are resolved in the globals of the function, which must not be kept alive.
        names = {**function.__globals__, "_calls": _calls}
        stand_in = functools.wraps(function)(FunctionType(_call_innermost.__code__, names))
        _first_checks[key] = _checked(stand_in, typechecker=typechecker)
        del stand_in.__wrapped__
    check = _first_checks[key]

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        functions = _calls.__dict__.setdefault("functions", [])
        depth = len(functions)
        functions.append(function)
        try:
            return check(*args, **kwargs)
        finally:
            del functions[depth:]  # still there if the arguments were rejected

    return wrapped

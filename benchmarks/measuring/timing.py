"""Seconds of calls that return when their work is done. What the seconds mean is the callers' affair."""

import time
from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")


def timed(call: Callable[[], Result]) -> tuple[Result, float]:
    """What a call returns, and how long it takes."""
    began = time.perf_counter()
    result = call()
    return result, time.perf_counter() - began


def seconds_of(call: Callable[[], Any], calls: int = 1) -> float:
    """How long some calls take, one after the other."""
    began = time.perf_counter()
    for _ in range(calls):
        call()
    return time.perf_counter() - began


def calls_lasting(seconds: float, call: Callable[[], Any]) -> int:
    """How many calls make a repeat of about this length; at least one."""
    return max(1, round(seconds / seconds_of(call)))


def at_least_one(**counts: int | None) -> None:
    """Refuse counts below 1 in words; None stands for a count that is chosen later."""
    for name, count in counts.items():
        if count is not None and count < 1:
            raise ValueError(f"{name} must be at least 1, got {count}")

"""The most memory that this process had at once. Memory of single calls is told by `peak_of_call`."""

import pathlib
import re
import resource
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

_STATUS = pathlib.Path("/proc/self/status")


def peak_bytes() -> int:
    """Since the process began, or since `reset_peak`."""
    # Not getrusage where this is known: on Linux a process inherits that peak from the one that started it.
    if _STATUS.exists() and (found := re.search(r"VmHWM:\s+(\d+) kB", _STATUS.read_text())):
        return int(found[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def reset_peak() -> None:
    """Set the peak back to what is in use now; nothing happens where that cannot be done (not on Linux)."""
    if _STATUS.exists():
        pathlib.Path("/proc/self/clear_refs").write_text("5")


def peak_mebibytes() -> float:
    """In units of 1,048,576 bytes."""
    return peak_bytes() / 2**20


def peak_of_call(call: Callable[[], Any]) -> float:
    """The most mebibytes that a call holds beyond what is held before it, arrays included."""
    tracemalloc.start()
    try:
        result = call()
        peak = tracemalloc.get_traced_memory()[1]
        del result
    finally:
        tracemalloc.stop()
    return round(peak / 2**20, 1)

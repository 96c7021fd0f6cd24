"""Timing of repeats, peak memory, and the state of the machine."""

import os
import pathlib
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from benchmarks.workers.protocol import measure
from phalanx.system_info import machine_info


class Repeat(NamedTuple):
    """Work done in one repeat, and the time it took."""

    work: float
    seconds: float
    cpu_seconds: float

    def value(self, unit: str, cpu: bool = False) -> float:
        """Return the work per second for rates such as `steps/s`, or the time per work for `s` and `ms`."""
        seconds = self.cpu_seconds if cpu else self.seconds
        if unit in _TIME_UNITS:
            return seconds / self.work * _TIME_UNITS[unit]
        # The resolution of the CPU clock is 1 us on Linux; a repeat that short has no meaningful rate.
        return self.work / max(seconds, 1e-9)


_TIME_UNITS = {"s": 1.0, "ms": 1e3, "us": 1e6}


class InProcess:
    """A workload of Phalanx, measured in this process with the interface of `peers.Worker`."""

    def __init__(self, run: Callable[[], Any], work: float, seconds: float) -> None:
        self._run, self._work = run, work
        run()
        self._calls = max(1, round(seconds / measure(run, 1)[0]))

    def measure(self) -> Repeat:
        """Measure one repeat."""
        return Repeat(self._work * self._calls, *measure(self._run, self._calls))


def peak_memory_mb() -> float:
    """Return the largest amount of memory that this process has used, in MB, since `reset_peak_memory`."""
    found = re.search(r"VmHWM:\s+(\d+) kB", pathlib.Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def reset_peak_memory() -> None:
    """Start a new measurement of `peak_memory_mb`."""
    pathlib.Path("/proc/self/clear_refs").write_text("5")


def machine() -> dict[str, Any]:
    """Return the CPU model, the number of available cores, the memory and the version of Python."""
    info = machine_info()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": info["cpu"],
        "cores": info["nproc"],
        "memory_gb": round(memory / 2**30),
        "python": info["python"],
    }

"""CPU time that other processes use during a benchmark."""

import os
import pathlib
import resource
from typing import NamedTuple

MAX_LOAD = 0.5
"""Results are written only if the load average over one minute was not above this value at the start."""
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class _Ticks(NamedTuple):
    busy: int
    total: int


class OtherLoad:
    """Measures the CPU time of other processes from its creation until `measure` is called."""

    def __init__(self) -> None:
        self._start, self._own_start = _machine_ticks(), _own_seconds()

    def measure(self) -> float | None:
        """Return the CPU time of other processes as a fraction of the time of all cores.

        Time that the hypervisor gave to other virtual machines counts as used. Child processes of this one
        count as other processes until they end. Returns None if the system does not have `/proc/stat`.
        """
        end = _machine_ticks()
        if self._start is None or end is None:
            return None
        own = (_own_seconds() - self._own_start) * _TICKS_PER_SECOND
        total = end.total - self._start.total
        other = end.busy - self._start.busy - own
        return round(min(max(other / total, 0.0), 1.0), 4) if total > 0 else 0.0


def _machine_ticks() -> _Ticks | None:
    try:
        line = pathlib.Path("/proc/stat").read_text().partition("\n")[0]
    except OSError:
        return None
    # The columns after the eighth are contained in others.
    user, nice, system, idle, iowait, irq, softirq, steal = (int(ticks) for ticks in line.split()[1:9])
    busy = user + nice + system + irq + softirq + steal
    return _Ticks(busy, busy + idle + iowait)


def _own_seconds() -> float:
    """Return the CPU time of this process and of its child processes that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)

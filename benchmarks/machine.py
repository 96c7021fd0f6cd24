"""The machine: its description and load, and the memory of this process."""

import os
import pathlib
import re
from collections.abc import Sequence
from typing import Any

from phalanx.system_info import machine_info


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


def load_average() -> Sequence[float]:
    """Return the load average over 1, 5 and 15 minutes."""
    return os.getloadavg()

"""Information about this machine: software versions, CPU and load."""

import os
import pathlib
import platform
import sys
from typing import Any

from phalanx import __version__


def machine_info() -> dict[str, Any]:
    """Return the load average, the CPU count and model, and the versions of Python and Phalanx.

    The load average covers the last minute. It is None on Windows. On Linux, only CPUs that this process may
    use are counted.
    """
    return {
        "load_average": None if sys.platform == "win32" else round(os.getloadavg()[0], 2),
        "nproc": len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count(),
        "cpu": _cpu_model(),
        "python": platform.python_version(),
        "phalanx": __version__,
    }


def _cpu_model() -> str:
    path = pathlib.Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, "") or platform.processor() or platform.machine()

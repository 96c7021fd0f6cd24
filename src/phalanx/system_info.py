"""The machine that a measurement was made on: its part of the conditions that every benchmark prints.

What is measured, and with which libraries, is the benchmarks' own affair.
"""

import os
import pathlib
import platform
import sys
from typing import Any

from phalanx import __version__


def machine_info() -> dict[str, Any]:
    """Load, processors and versions, as the last fields of a JSON line."""
    return {
        "load_average": None if sys.platform == "win32" else round(os.getloadavg()[0], 2),
        "nproc": len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count(),
        "cpu": _cpu_model(),
        "python": platform.python_version(),
        "phalanx": __version__,
    }


def _cpu_model() -> str:
    information = pathlib.Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()

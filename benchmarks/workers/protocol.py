"""Communication between the benchmark runner and a worker process.

The worker prepares its workload, writes one JSON line with the event `ready`, and then measures one repeat
for each line `run` that it reads. This lets the runner measure several libraries in turn. Workers run in the
virtual environment of the library that they measure, so this module only uses the standard library.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

_OUTPUT = sys.stdout
if getattr(sys.modules["__main__"].__spec__, "name", "").startswith("benchmarks.workers."):
    # In a worker, libraries may print to standard output when they are imported. Keep the original for the
    # protocol, and send everything else to standard error.
    _OUTPUT = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)


def read_settings(description: str | None) -> dict[str, Any]:
    """Parse the command line of a worker: the settings of the case as one JSON object."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("settings", type=json.loads, help="settings of the case, as a JSON object")
    return parser.parse_args().settings


def serve(run: Callable[[], Any], work: float, seconds: float, **info: Any) -> None:
    """Report that the workload is ready, then measure one repeat for each request.

    Args:
        run: Performs the work once and returns when it is done.
        work: Number of steps, tokens, samples, ... that one call of `run` processes.
        seconds: Approximate duration of a repeat. `run` is called as often as necessary.
        info: Facts about the worker for the result file, such as library versions.
    """
    run()
    calls = max(1, round(seconds / measure(run, 1)[0]))
    _send(event="ready", info=info)
    for line in sys.stdin:
        if line.strip() != "run":
            break
        wall, cpu = measure(run, calls)
        _send(event="repeat", work=work * calls, seconds=wall, cpu_seconds=cpu)


def measure(run: Callable[[], Any], calls: int) -> tuple[float, float]:
    """Return the wall-clock time and the CPU time of some calls, in seconds."""
    start, cpu_start = time.perf_counter(), time.process_time()
    for _ in range(calls):
        run()
    return time.perf_counter() - start, time.process_time() - cpu_start


def _send(**message: Any) -> None:
    _OUTPUT.write(json.dumps(message) + "\n")
    _OUTPUT.flush()

"""How a runner talks to the comparison: JSON lines out, one command a line in.

A runner prepares its workload, says `ready`, then measures once for every `run` it reads, so that the
comparison can interleave the peers. Standard library only: every peer has its own virtual environment. The
comparison starts it such that it finds the files of the folder `benchmarks`, too.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

# Libraries greet on standard output; the channel keeps it for JSON and sends the greetings to standard error.
_CHANNEL = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)


def parse_arguments(description: str, **extra: dict[str, Any]) -> argparse.Namespace:
    """The workload that every runner takes, and a runner's own options (name to `add_argument` settings)."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--task", required=True, help="a task in the ARC JSON format")
    parser.add_argument("--grid", default="30x30", help="rows x columns of the canvas")
    parser.add_argument("--format", default="bbox", choices=["point", "bbox", "mask"])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, required=True, help="steps of each environment in one call")
    parser.add_argument("--seconds", type=float, default=1.0, help="about how long a repeat lasts")
    parser.add_argument("--max-episode-steps", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    for name, settings in extra.items():
        parser.add_argument(f"--{name.replace('_', '-')}", **settings)
    arguments = parser.parse_args()
    height, width = arguments.grid.split("x")
    arguments.grid = (int(height), int(width))
    return arguments


def say(**fields: Any) -> None:
    """One JSON line to the comparison."""
    _CHANNEL.write(json.dumps(fields) + "\n")
    _CHANNEL.flush()


def serve(call: Callable[[], Any], steps: int, seconds: float, **conditions: Any) -> None:
    """Say `ready`, then time one repeat for every `run` read.

    A repeat is as many calls as take about `seconds`; each call makes `steps` steps, all environments
    counted, and returns when they are done.
    """
    call()
    calls = max(1, round(seconds / _time(call, 1)))
    say(event="ready", calls_per_repeat=calls, **conditions)
    for line in sys.stdin:
        if line.strip() != "run":
            break
        worked = time.process_time()
        seconds = _time(call, calls)
        say(event="repeat", seconds=seconds, steps=steps * calls, cpu_seconds=time.process_time() - worked)


def _time(call: Callable[[], Any], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return time.perf_counter() - start

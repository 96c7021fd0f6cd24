"""What comparisons of stepping in one process share: contenders, ratios of their rates, how they are told.

Which environments step is in `compare_torchrl` and `compare_gymnasium`.
"""

import abc
import argparse
import itertools
import json
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

from figures import Verdict, figures_table
from rich.console import Console
from rich.table import Table

from phalanx.core.machine import machine

WARM_UP = 30
"""Steps before measuring; by then every function has been compiled, those for partial resets too."""
TARGET = 10.0
"""How many times faster the largest batch must be than the fastest of the others."""


class Contender(abc.ABC):
    """A kind of environment, started and warm."""

    kind: str
    environments: int

    def __init__(self, started: float) -> None:
        """`started`: when its making began."""
        self.rates: list[float] = []
        self._step(WARM_UP)
        self.start_seconds = time.perf_counter() - started

    @abc.abstractmethod
    def step(self) -> None:
        """One step of all its environments, with random legal actions."""

    def measure(self, seconds: float) -> None:
        """One repeat of about this length."""
        begin = time.perf_counter()
        steps = 0
        while (passed := time.perf_counter() - begin) < seconds:
            self._step(5)
            steps += 5
        self.rates.append(steps * self.environments / passed)

    def _step(self, count: int) -> None:
        for _ in range(count):
            self.step()

    def record(self, benchmark: str, conditions: dict[str, Any]) -> dict[str, Any]:
        """The measurement as one JSON object."""
        return {
            "benchmark": benchmark,
            "contender": self.kind,
            "environments": self.environments,
            "steps_per_second_median": round(statistics.median(self.rates), 1),
            "steps_per_second_worst": round(min(self.rates), 1),
            "start_seconds": round(self.start_seconds, 2),
            "repeats": len(self.rates),
            **conditions,
        }


def numbers(text: str) -> list[int]:
    """Of a command line: with commas between them."""
    return [int(part) for part in text.split(",") if part]


def add_options(parser: argparse.ArgumentParser) -> None:
    """How long to measure, and how to tell it."""
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="about the length of one repeat")
    parser.add_argument("--json", action="store_true", help="JSON lines only, no tables")


def verdicts(measured: Sequence[Contender], batched: str) -> list[Verdict]:
    """How many times faster batches of one kind are than the others; the largest has a target."""
    rates = {(one.kind, one.environments): statistics.median(one.rates) for one in measured}
    batches = {size: rate for (kind, size), rate in rates.items() if kind == batched}
    others = {f"{kind} of {size}": rate for (kind, size), rate in rates.items() if kind != batched}
    shown = [
        Verdict("ratio", f"{size} at once / {name}", batches[size] / others[name], None)
        for size, name in itertools.product(batches, others)
    ]
    best = batches[max(batches)] / max(others.values())
    return [*shown, Verdict("ratio", f"{max(batches)} at once / the fastest of the others", best, TARGET)]


def table(measured: Sequence[Contender]) -> Table:
    """Rates for the terminal."""
    made = Table("contender", title="environment steps a second")
    for name in ("environments", "median", "worst", "start, s"):
        made.add_column(name, justify="right")
    for one in measured:
        figures = statistics.median(one.rates), min(one.rates), one.start_seconds
        made.add_row(one.kind, str(one.environments), *(f"{figure:,.1f}" for figure in figures))
    return made


def tell(
    benchmark: str, contenders: Iterable[Contender], batched: str, conditions: dict[str, Any], as_json: bool
) -> int:
    """Print measurements as they come, then what they show; the code is 1 where a target is missed."""
    measured = []
    for one in contenders:
        measured.append(one)
        print(json.dumps(one.record(benchmark, {**conditions, **machine()})), flush=True)
    found = verdicts(measured, batched)
    for verdict in found:
        print(json.dumps(verdict.record(benchmark)), flush=True)
    if not as_json:
        console = Console(width=None if sys.stdout.isatty() else 120)
        console.print(table(measured), figures_table(found, "compared"))
    return 1 if any(verdict.passed is False for verdict in found) else 0

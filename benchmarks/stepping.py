"""What comparisons of stepping in one process share: contenders, ratios of their rates, how they are told.

Which environments step is in `compare_torchrl` and `compare_gymnasium`.
"""

import abc
import argparse
import itertools
import json
import statistics
import time
from collections.abc import Iterable, Sequence
from typing import Any

from measuring.conditions import conditions
from measuring.options import options
from measuring.records import console
from measuring.verdicts import Verdict, exit_code, figures_table, rich_table

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


def stepping_options(description: str | None) -> argparse.ArgumentParser:
    """How long to measure, and how to tell it."""
    parser = options(description)
    parser.set_defaults(repeats=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="about the length of one repeat [1]")
    return parser


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


def tell(
    benchmark: str,
    contenders: Iterable[Contender],
    batched: str,
    facts: dict[str, Any],
    libraries: Sequence[str],
    as_json: bool,
) -> int:
    """Print measurements as they come, then what they show; the code is 1 where a target is missed."""
    measured = []
    for one in contenders:
        measured.append(one)
        print(json.dumps(one.record(benchmark, {**facts, **conditions(*libraries)})), flush=True)
    found = verdicts(measured, batched)
    for verdict in found:
        print(json.dumps(verdict.record(benchmark)), flush=True)
    if not as_json:
        header = ["contender", "environments", "median", "worst", "start, s"]
        rows = []
        for one in measured:
            told = statistics.median(one.rates), min(one.rates), one.start_seconds
            rows.append([one.kind, str(one.environments), *(f"{figure:,.1f}" for figure in told)])
        rates = rich_table("environment steps a second", header, rows)
        console().print(rates, figures_table(found, "compared"))
    return exit_code(found)

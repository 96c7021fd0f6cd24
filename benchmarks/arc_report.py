"""What a comparison says: ratios, targets met or missed, a table for the terminal and one for the README.

Measuring is in `compare_arc.py`.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from figures import Comparison, Measurement, Verdict, figures_table, markdown_figures, markdown_table
from rich.console import Console
from rich.table import Table

NATIVE, XLA = "phalanx native", "phalanx xla"
JAXARC, JAXARC_ALONE, ARCLE = "jaxarc", "jaxarc without vmap", "arcle"


@dataclasses.dataclass(frozen=True)
class Workload:
    """One line of the comparison: every contender steps this."""

    grid: str
    action_format: str
    batch: int

    def __str__(self) -> str:
        return f"{self.grid}, {self.action_format}, {self.batch:,}"


class ArcMeasurement(Measurement):
    """One contender's repeats on one workload; rates count steps."""

    def record(self) -> dict[str, Any]:
        """The measurement as one JSON object."""
        return {
            "benchmark": "compare_arc",
            "contender": self.contender,
            **dataclasses.asdict(self.work),
            "steps_per_second_median": round(self.median),
            "steps_per_second_worst": round(min(self.rates)),
            "repeats": len(self.rates),
            **{name: value for name, value in self.facts.items() if name not in ("batch", "grid")},
        }


class ArcComparison(Comparison[ArcMeasurement]):
    """Against JaxARC and ARCLE, and between batch sizes."""

    def rate(self, workload: Workload, contender: str) -> float | None:
        """The median, where it was measured."""
        found = self.get(workload, contender)
        return None if found is None else found.median

    def ratio(self, workload: Workload, ours: str, theirs: str) -> float | None:
        """How many times faster, where both were measured."""
        a, b = self.rate(workload, ours), self.rate(workload, theirs)
        return None if a is None or b is None else a / b

    def verdicts(self) -> list[Verdict]:
        verdicts = []
        for workload in self.works:
            for ours, theirs, target in _targets(workload):
                ratio = self.ratio(workload, ours, theirs)
                if ratio is not None:
                    verdicts.append(Verdict(f"{ours} / {theirs}", str(workload), ratio, target))
        verdicts += self._first_call() + self._growth()
        return verdicts

    def _first_call(self) -> list[Verdict]:
        return [
            Verdict(
                f"first batch_step, {NATIVE} (s)",
                str(m.work),
                m.facts["first_batch_step_seconds"],
                3.0,
                at_most=True,
            )
            for m in self.measurements
            if m.contender == NATIVE and m.work.batch == 1024 and m.work.grid == "30x30"
        ]

    def _growth(self) -> list[Verdict]:
        verdicts = []
        for workload in self.works:
            small = dataclasses.replace(workload, batch=1024)
            large, base = self.rate(workload, NATIVE), self.rate(small, NATIVE)
            if workload.batch == 16_384 and large is not None and base is not None:
                name = f"{NATIVE}, 16,384 / 1,024"
                verdicts.append(
                    Verdict(name, f"{workload.grid}, {workload.action_format}", large / base, 0.8)
                )
        return verdicts


def _targets(workload: Workload) -> list[tuple[str, str, float | None]]:
    """Ratios to show for a workload, with the least that each must reach."""
    large = workload.grid == "30x30"
    native = (
        {1: 50.0, 1024: 100.0}.get(workload.batch) if large else {1: 10.0, 1024: 10.0}.get(workload.batch)
    )
    xla = 8.0 if large and workload.batch == 1024 else None
    return [
        (NATIVE, JAXARC, native),
        (NATIVE, JAXARC_ALONE, None),
        (XLA, JAXARC, xla),
        (NATIVE, ARCLE, 1.0),
    ]


def print_tables(comparison: ArcComparison, verdicts: Sequence[Verdict], console: Console) -> None:
    """Rates, then verdicts."""
    rates = Table("grid, format, batch", title="steps per second (median)")
    for contender in comparison.contenders:
        rates.add_column(contender, justify="right")
    for workload in comparison.works:
        rates.add_row(str(workload), *(_rate(comparison, workload, c) for c in comparison.contenders))
    console.print(rates)
    console.print(figures_table(verdicts, "grid, format, batch"))


def _rate(comparison: ArcComparison, workload: Workload, contender: str) -> str:
    rate = comparison.rate(workload, contender)
    return "" if rate is None else f"{rate:,.0f}"


def markdown(comparison: ArcComparison, verdicts: Sequence[Verdict], conditions: str) -> str:
    """Both tables for the README, under a line that says where they come from."""
    header = ["grid, format, batch", *comparison.contenders]
    rates = [
        [str(workload), *(_rate(comparison, workload, contender) for contender in comparison.contenders)]
        for workload in comparison.works
    ]
    lines = [conditions, "", *markdown_table(header, rates), ""]
    return "\n".join([*lines, *markdown_figures(verdicts, "grid, format, batch")]) + "\n"

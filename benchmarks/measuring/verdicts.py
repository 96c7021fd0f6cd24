"""Measurements of several contenders, the figures that they show, and their targets: as JSON and in tables.

Who is compared is in the `compare_*.py` of the folder above; how contenders are measured is in `turns`.
"""

import abc
import dataclasses
import json
import statistics
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from rich.table import Table

from measuring.records import console
from phalanx.system_info import machine_info


@dataclasses.dataclass(frozen=True)
class Verdict:
    """A figure, and whether it reaches its target."""

    figure: str
    work: str
    """What was done, in words."""
    measured: float
    target: float | None
    """None for a figure that is shown without a target."""
    at_most: bool = False

    @property
    def passed(self) -> bool | None:
        """None where there is no target."""
        if self.target is None:
            return None
        return self.measured <= self.target if self.at_most else self.measured >= self.target

    def record(self, benchmark: str) -> dict[str, Any]:
        """The verdict as one JSON object."""
        told = {**dataclasses.asdict(self), "measured": round(self.measured, 6)}
        return {"benchmark": benchmark, **told, "passed": self.passed}

    @property
    def cells(self) -> list[str]:
        """The verdict as a row of a table."""
        sign = "at most" if self.at_most else "at least"
        target = "" if self.target is None else f"{sign} {self.target:,g}"
        word = {True: "pass", False: "FAIL", None: ""}[self.passed]
        return [self.figure, self.work, f"{self.measured:,.4g}", target, word]


@dataclasses.dataclass(frozen=True)
class Measurement:
    """One contender's repeats of one work."""

    work: Any
    """A frozen dataclass; its text says what was done."""
    contender: str
    rates: tuple[float, ...]
    """Steps, samples or tokens a second, one for each repeat."""
    facts: dict[str, Any]

    @property
    def median(self) -> float:
        """The rate that is told."""
        return statistics.median(self.rates)

    def record(self, benchmark: str, unit: str = "steps") -> dict[str, Any]:
        """The measurement as one JSON object: the work, the rates, then what else is known of them."""
        told = {
            "benchmark": benchmark,
            "contender": self.contender,
            **dataclasses.asdict(self.work),
            f"{unit}_per_second_median": round(self.median),
            f"{unit}_per_second_worst": round(min(self.rates)),
            "repeats": len(self.rates),
        }
        return told | {name: value for name, value in self.facts.items() if name not in told}


Measured = TypeVar("Measured", bound=Measurement)
Rows = list[list[str]]


class Comparison(abc.ABC, Generic[Measured]):
    """All measurements, found by work and contender."""

    title = "steps per second (median)"
    """Of the table of measurements."""
    heading = "work"
    """Of the column that says what was done."""

    def __init__(self, measurements: Sequence[Measured]) -> None:
        self.measurements = tuple(measurements)
        self._found = {(m.work, m.contender): m for m in measurements}

    def get(self, work: Any, contender: str) -> Measured | None:
        """The measurement, where it was made."""
        return self._found.get((work, contender))

    def ratio(self, work: Any, ours: str, theirs: str) -> float | None:
        """How many times faster, where both were measured."""
        one, other = self.get(work, ours), self.get(work, theirs)
        return None if one is None or other is None else one.median / other.median

    @property
    def works(self) -> tuple[Any, ...]:
        """In the order they were measured."""
        return tuple(dict.fromkeys(m.work for m in self.measurements))

    @property
    def contenders(self) -> tuple[str, ...]:
        """In the order they first appear."""
        return tuple(dict.fromkeys(m.contender for m in self.measurements))

    @abc.abstractmethod
    def verdicts(self) -> list[Verdict]:
        """Every figure that this run can show; one whose parts were not all measured is left out."""

    def cell(self, measurement: Measured) -> str:
        """A measurement in the table."""
        return f"{measurement.median:,.0f}"

    def table(self) -> tuple[list[str], Rows]:
        """Headings, and a row for each work with a cell for each contender."""
        rows = []
        for work in self.works:
            found = [self.get(work, contender) for contender in self.contenders]
            rows.append([str(work), *("" if one is None else self.cell(one) for one in found)])
        return [self.heading, *self.contenders], rows

    def markdown(self, conditions: str) -> str:
        """Measurements and verdicts for a document, under a line that says where they come from."""
        lines = [conditions, "", *markdown_table(*self.table()), ""]
        figures = ["figure", self.heading, "measured", "target", ""]
        return "\n".join([*lines, *markdown_table(figures, [v.cells for v in self.verdicts()])]) + "\n"

    def show(self) -> None:
        """Print both tables."""
        header, rows = self.table()
        console().print(rich_table(self.title, header, rows), figures_table(self.verdicts(), self.heading))


def rich_table(title: str, header: Sequence[str], rows: Rows) -> Table:
    """A table for the terminal whose columns but the first are numbers."""
    table = Table(header[0], title=title)
    for name in header[1:]:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*row)
    return table


def figures_table(verdicts: Sequence[Verdict], work: str = "work", title: str = "figures") -> Table:
    """The verdicts for the terminal; `work` heads the column that says what was done."""
    table = Table("figure", work, title=title)
    for name in ("measured", "target", ""):
        table.add_column(name, justify="right")
    for verdict in verdicts:
        table.add_row(*verdict.cells, style="bold red" if verdict.passed is False else None)
    return table


def markdown_table(header: Sequence[str], rows: Rows) -> list[str]:
    """The lines of a table whose columns but the first are numbers."""
    rule = "| --- " + "| ---: " * (len(header) - 1) + "|"
    return [f"| {' | '.join(header)} |", rule, *(f"| {' | '.join(row)} |" for row in rows)]


def exit_code(verdicts: Sequence[Verdict]) -> int:
    """1 if a target is missed."""
    return 1 if any(verdict.passed is False for verdict in verdicts) else 0


def show_verdicts(
    found: Sequence[tuple[Verdict, dict[str, Any]]], benchmark: str, title: str, as_json: bool
) -> int:
    """Print verdicts with what else is worth knowing; the exit code says whether every target is reached."""
    verdicts = [verdict for verdict, _ in found]
    if as_json:
        for verdict, facts in found:
            print(json.dumps(verdict.record(benchmark) | facts | machine_info()), flush=True)
    else:
        console().print(figures_table(verdicts, title=title))
    return exit_code(verdicts)

"""Measurements, the figures that they show, and their targets: as JSON, in the terminal and in Markdown.

What is compared is in the `*_report.py` beside.
"""

import abc
import dataclasses
import json
import statistics
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from rich.console import Console
from rich.table import Table

from phalanx.core.machine import machine


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
        if self.target is None:
            return None
        return self.measured <= self.target if self.at_most else self.measured >= self.target

    def record(self, benchmark: str) -> dict[str, Any]:
        """The verdict as one JSON object."""
        return {
            "benchmark": benchmark,
            "figure": self.figure,
            "work": self.work,
            "measured": round(self.measured, 6),
            "target": self.target,
            "at_most": self.at_most,
            "passed": self.passed,
        }

    @property
    def cells(self) -> tuple[str, str, str, str, str]:
        """The verdict as a row of a table."""
        sign = "at most" if self.at_most else "at least"
        target = "" if self.target is None else f"{sign} {self.target:,g}"
        word = {True: "pass", False: "FAIL", None: ""}[self.passed]
        return self.figure, self.work, f"{self.measured:,.4g}", target, word


def show_verdicts(
    found: Sequence[tuple[Verdict, dict[str, Any]]], benchmark: str, title: str, as_json: bool
) -> int:
    """Print verdicts with what else is worth knowing; the exit code says whether every target is reached."""
    if as_json:
        for verdict, facts in found:
            print(json.dumps(verdict.record(benchmark) | facts | machine()))
    else:
        table = Table("figure", "work", "measured", "target", "", title=title)
        for verdict, _ in found:
            table.add_row(*verdict.cells)
        Console().print(table)
    return 0 if all(verdict.passed is not False for verdict, _ in found) else 1


@dataclasses.dataclass(frozen=True)
class Measurement:
    """One contender's repeats of one work."""

    work: Any
    """Hashable; its text says what was done."""
    contender: str
    rates: tuple[float, ...]
    """Steps, samples or tokens a second, one for each repeat."""
    facts: dict[str, Any]

    @property
    def median(self) -> float:
        return statistics.median(self.rates)


Measured = TypeVar("Measured", bound=Measurement)


class Comparison(abc.ABC, Generic[Measured]):
    """All measurements, found by work and contender."""

    def __init__(self, measurements: Sequence[Measured]) -> None:
        self.measurements = tuple(measurements)
        self._found = {(m.work, m.contender): m for m in measurements}

    def get(self, work: Any, contender: str) -> Measured | None:
        """The measurement, where it was made."""
        return self._found.get((work, contender))

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


def figures_table(verdicts: Sequence[Verdict], work: str) -> Table:
    """The verdicts for the terminal; `work` heads the column that says what was done."""
    table = Table("figure", work, title="figures")
    for name in ("measured", "target", ""):
        table.add_column(name, justify="right")
    for verdict in verdicts:
        table.add_row(*verdict.cells, style="bold red" if verdict.passed is False else None)
    return table


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table whose columns but the first are numbers."""
    rule = "| --- " + "| ---: " * (len(header) - 1) + "|"
    return [_row(header), rule, *(_row(row) for row in rows)]


def markdown_figures(verdicts: Sequence[Verdict], work: str) -> list[str]:
    """The lines of the verdicts' table."""
    return markdown_table(["figure", work, "measured", "target", ""], [verdict.cells for verdict in verdicts])


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"

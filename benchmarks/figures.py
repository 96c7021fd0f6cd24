"""Figures that a comparison must show, with their targets: as JSON, in the terminal and in Markdown.

What is compared is in `comparison_report` (environments) and `tokens_report` (token batches).
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from rich.table import Table


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

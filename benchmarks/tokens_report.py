"""What the token comparison says: ratios, targets met or missed, tables for the terminal and in Markdown.

Measuring is in `compare_tokens.py`.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from figures import Comparison, Measurement, Verdict, figures_table, markdown_figures, markdown_table
from rich.console import Console
from rich.table import Table

PHALANX, LAZARUS, TRL, PLAIN = "phalanx", "chuk-lazarus", "trl", "plain reference"


@dataclasses.dataclass(frozen=True)
class Work:
    """One thing to be done, as every contender does it."""

    name: str
    samples: int
    distribution: str = "lognormal"
    unit: str = "samples"
    """What a rate counts."""

    def __str__(self) -> str:
        return f"{self.name}, {self.samples:,} {self.distribution}"


class TokensMeasurement(Measurement):
    """One contender's repeats of one work; rates count samples or tokens."""

    @property
    def seconds(self) -> float:
        """How long the whole work takes, by the median."""
        return (self.facts["tokens"] if self.work.unit == "tokens" else self.work.samples) / self.median

    def record(self) -> dict[str, Any]:
        """The measurement as one JSON object."""
        return {
            "benchmark": "compare_tokens",
            "contender": self.contender,
            "work": self.work.name,
            "samples": self.work.samples,
            "distribution": self.work.distribution,
            "seconds_median": round(self.seconds, 6),
            f"{self.work.unit}_per_second_median": round(self.median),
            f"{self.work.unit}_per_second_worst": round(min(self.rates)),
            "repeats": len(self.rates),
            **self.facts,
        }


class TokensComparison(Comparison[TokensMeasurement]):
    """Against every peer."""

    def verdicts(self) -> list[Verdict]:
        verdicts: list[Verdict] = []
        for work in self.works:
            ours = self.get(work, PHALANX)
            if ours is not None:
                for peer in (LAZARUS, TRL, PLAIN):
                    theirs = self.get(work, peer)
                    if theirs is not None:
                        verdicts += _between(ours, theirs)
        return verdicts


def _between(ours: TokensMeasurement, theirs: TokensMeasurement) -> list[Verdict]:
    work, peer = ours.work, theirs.contender
    found = []

    def add(figure: str, measured: float, target: float, at_most: bool = False) -> None:
        found.append(Verdict(figure, str(work), measured, target, at_most))

    faster = ours.median / theirs.median
    least = {
        ("plan predictable", LAZARUS): 10.0,
        ("assign", TRL): 100.0,
        ("assign", PLAIN): 1 / 3,
        ("plan throughput", PLAIN): 1 / 2,
        ("pack tokens", TRL): 5.0,
        ("pack tokens in parts", TRL): 5.0,
        ("write lengths", LAZARUS): 10.0,
        ("read lengths", LAZARUS): 10.0,
        ("load plan", LAZARUS): 10.0,
    }
    if (work.name, peer) in least:
        add(f"speed over {peer}", faster, least[work.name, peer])
    if work.name == "plan predictable":
        add(
            f"peak memory over {peer}'s",
            ours.facts["memory_peak_mb"] / theirs.facts["memory_peak_mb"],
            1.0,
            True,
        )
        add(f"efficiency over {peer}'s", ours.facts["efficiency"] / theirs.facts["efficiency"], 1.0)
    elif work.name == "assign":
        add(f"bins over {peer}'s", ours.facts["bins"] / theirs.facts["bins"], 1.0, True)
    elif work.name.startswith("suggest"):
        add(f"efficiency over {peer}'s", ours.facts["efficiency"] / theirs.facts["efficiency"], 1.0)
    elif work.name == "save plan":
        add(f"bytes over {peer}'s", ours.facts["bytes"] / theirs.facts["bytes"], 1.0, True)
    return found


def print_tables(comparison: TokensComparison, verdicts: Sequence[Verdict], console: Console) -> None:
    """Seconds, then verdicts."""
    table = Table("work", title="seconds (median)")
    for contender in comparison.contenders:
        table.add_column(contender, justify="right")
    for work in comparison.works:
        table.add_row(str(work), *_cells(comparison, work))
    console.print(table)
    console.print(figures_table(verdicts, "work"))


def markdown(comparison: TokensComparison, verdicts: Sequence[Verdict], conditions: str) -> str:
    """Both tables for a document, under a line that says where they come from."""
    header = ["seconds (median)", *comparison.contenders]
    seconds = [[str(work), *_cells(comparison, work)] for work in comparison.works]
    lines = [conditions, "", *markdown_table(header, seconds), ""]
    return "\n".join([*lines, *markdown_figures(verdicts, "work")]) + "\n"


def _cells(comparison: TokensComparison, work: Work) -> list[str]:
    """Seconds of every contender, with how tight or full the outcome is where that was found."""
    cells = []
    for contender in comparison.contenders:
        measurement = comparison.get(work, contender)
        if measurement is None:
            cells.append("")
            continue
        extra = ""
        if "efficiency" in measurement.facts:
            extra = f" ({measurement.facts['efficiency']:.4f} full)"
        elif "bins" in measurement.facts:
            extra = f" ({measurement.facts['bins']:,} bins)"
        cells.append(f"{measurement.seconds:.4g}{extra}")
    return cells

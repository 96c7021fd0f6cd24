"""What the comparison of trainings says: ratios, how far the network bounds them, targets, tables.

Measuring is in `compare_training.py`.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from figures import Comparison, Measurement, Verdict, figures_table, markdown_figures, markdown_table
from rich.console import Console
from rich.table import Table

PHALANX, JAXARC, JAXARC_SPARED = "phalanx", "jaxarc", "jaxarc, ended only"
"""The last is JaxARC with new episodes computed only where one has ended; its own wrappers compute all."""

STANDARD_BATCH = 1024
"""The number of environments that the targets speak of."""


@dataclasses.dataclass(frozen=True)
class Work:
    """One thing that every contender does on 30x30 grids."""

    name: str
    """`rollout` under random actions, or `ppo`."""
    batch: int
    num_steps: int
    network: str | None

    def __str__(self) -> str:
        kind = "random policy" if self.network is None else f"{self.network} network"
        return f"{self.name}, {kind}, {self.batch:,} environments"


class TrainingMeasurement(Measurement):
    """One contender's repeats of one work; rates count environment steps."""

    @property
    def environment_share(self) -> float | None:
        """Of an update's time, where updates were measured."""
        return self.facts.get("environment_share")

    @property
    def rate_without_environment(self) -> float | None:
        """Steps per second if the environment took no time."""
        share = self.environment_share
        return None if share is None else self.median / (1 - share)

    def record(self) -> dict[str, Any]:
        """The measurement as one JSON object."""
        left_out = ("batch", "grid", "network", "num_steps")
        return {
            "benchmark": "compare_training",
            "contender": self.contender,
            "grid": "30x30",
            **dataclasses.asdict(self.work),
            "steps_per_second_median": round(self.median),
            "steps_per_second_worst": round(min(self.rates)),
            "repeats": len(self.rates),
            **{name: value for name, value in self.facts.items() if name not in left_out},
        }


class TrainingComparison(Comparison[TrainingMeasurement]):
    """Against JaxARC, and how far the network bounds the ratio."""

    def verdicts(self) -> list[Verdict]:
        verdicts = []
        for work in self.works:
            ours = self.get(work, PHALANX)
            for peer in (JAXARC, JAXARC_SPARED):
                theirs = self.get(work, peer)
                if ours is None or theirs is None:
                    continue
                target = _target(work) if peer == JAXARC else None
                verdicts.append(Verdict(f"phalanx / {peer}", str(work), ours.median / theirs.median, target))
                if ours.rate_without_environment is not None:
                    bound = ours.rate_without_environment / theirs.median
                    verdicts.append(
                        Verdict(f"the same with a free environment / {peer}", str(work), bound, None)
                    )
        return verdicts


def _target(work: Work) -> float | None:
    """The least that the ratio to JaxARC must reach."""
    if work.batch != STANDARD_BATCH:
        return None
    return {None: 100.0, "small": 3.0}.get(work.network)


_HEADER = ("work", "contender", "steps/s (median)", "environment", "policy", "update")


def _rows(comparison: TrainingComparison) -> list[list[str]]:
    shares = ("environment_share", "policy_share", "update_share")
    return [
        [
            str(m.work),
            m.contender,
            f"{m.median:,.0f}",
            *(f"{m.facts[name]:.1%}" if name in m.facts else "" for name in shares),
        ]
        for m in comparison.measurements
    ]


def print_tables(comparison: TrainingComparison, verdicts: Sequence[Verdict], console: Console) -> None:
    """Rates and where the time goes, then verdicts."""
    table = Table(title="training on 30x30 grids")
    for name in _HEADER:
        table.add_column(name, justify="left" if name in ("work", "contender") else "right")
    for row in _rows(comparison):
        table.add_row(*row)
    console.print(table)
    console.print(figures_table(verdicts, "work"))


def markdown(comparison: TrainingComparison, verdicts: Sequence[Verdict], conditions: str) -> str:
    """Both tables, under a line that says where they come from."""
    lines = [conditions, "", *markdown_table(list(_HEADER), _rows(comparison)), ""]
    return "\n".join([*lines, *markdown_figures(verdicts, "work")]) + "\n"

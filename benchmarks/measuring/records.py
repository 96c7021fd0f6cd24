"""Measurements of Phalanx alone: held against targets, printed as JSON lines or as a table that grows.

Measurements beside other libraries are in `verdicts` and `turns`.
"""

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from rich.console import Console
from rich.live import Live
from rich.table import Table

Record = dict[str, Any]
Targets = Mapping[str, Mapping[str, float]]
"""By field: `at_least` or `at_most` a number."""


class Column(NamedTuple):
    """A column of the table: its heading, and what it shows of a record."""

    name: str
    show: Callable[[Record], str]
    number: bool = False
    """Whether it stands right."""


VERDICT = Column("target", lambda record: {True: "pass", False: "FAIL", None: ""}[record.get("passed")])


def held_to(record: Record, targets: Targets) -> Record:
    """The record with its targets and whether it reaches all of them; as it is where there are none."""
    if not targets:
        return record
    passed = all(
        record[field] >= limit if kind == "at_least" else record[field] <= limit
        for field, limits in targets.items()
        for kind, limit in limits.items()
    )
    return {**record, "targets": {field: dict(limits) for field, limits in targets.items()}, "passed": passed}


def tell(
    records: Iterable[Record],
    as_json: bool,
    title: str,
    columns: Sequence[Column],
    footer: Callable[[list[Record]], Sequence[str]],
) -> None:
    """Print each record as soon as it is made: a JSON line, or a row of a table with lines below it."""
    if as_json:
        for record in records:
            print(json.dumps(record), flush=True)
        return
    table = Table(title=title)
    for column in columns:
        table.add_column(column.name, justify="right" if column.number else "left")
    page = console()
    told = []
    with Live(table, console=page):
        for record in records:
            told.append(record)
            style = "bold red" if record.get("passed") is False else None
            table.add_row(*(column.show(record) for column in columns), style=style)
    page.print()
    for line in footer(told):
        page.print(line, highlight=False)


def console() -> Console:
    """Standard output, wide enough for a table where it is no terminal."""
    return Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else 140)


def machine_line(record: Record, library: str) -> str:
    """The conditions that all records of a run share, in words."""
    return f"{record['nproc']} x {record['cpu']}, load {record['load_average']}, {library} {record[library]}"

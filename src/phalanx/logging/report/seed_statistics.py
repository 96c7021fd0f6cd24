"""A run of several seeds as one: interquartile means over the seeds, with bootstrap intervals as bands.

How a single run is read is in `run_directory`; the figures are in `phalanx.statistics`.
"""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from phalanx.logging.report.run_data import RunData
from phalanx.logging.report.tables import Table, finite, following
from phalanx.statistics import bootstrap_interval, interquartile_mean

LOW, HIGH = ":low", ":high"
"""What a column's name ends with that is an edge of another's band."""
_SPREAD = ("_std", "_min", "_max")
_MOST_ROWS = 500


def merged_seeds(folder: Path, facts: Mapping[str, Any], seeds: Sequence[RunData]) -> RunData:
    """What the seeds of a run have in common; its episodes are those of all seeds, the newest first."""
    keys = [key for key in seeds[0].evaluations if all(key in run.evaluations for run in seeds)]
    episodes = sorted(
        (episode for run in seeds for episode in run.episodes), key=lambda episode: -episode.number
    )
    own = {name: seeds[0].facts.get(name) for name in ("env_steps", "num_parameters")}
    told = {**facts, **{name: value for name, value in own.items() if value is not None}}
    note = f"{len(seeds)} seeds: curves and figures are interquartile means, bands 95 % bootstrap intervals."
    notes = [f"{run.path.name}: {text}" for run in seeds for text in run.notes]
    return RunData(
        folder,
        {**told, "num_seeds": len(seeds)},
        seeds[0].config,
        _merged_table([run.metrics for run in seeds]),
        {key: _merged_table([run.evaluations[key] for run in seeds]) for key in keys},
        _merged_evaluations([run.evaluation_records for run in seeds]),
        episodes,
        [note, *notes],
    )


def _merged_table(tables: Sequence[Table]) -> Table:
    """Rows that all seeds have, thinned where they are very many."""
    common = functools.reduce(np.intersect1d, [table.axes["update"] for table in tables])
    if len(common) > _MOST_ROWS:
        common = common[np.unique(np.linspace(0, len(common) - 1, _MOST_ROWS).astype(int))]
    places = [np.searchsorted(table.axes["update"], common) for table in tables]
    axes = {name: values[places[0]] for name, values in tables[0].axes.items()}
    names = [name for name in tables[0].columns if all(name in table.columns for table in tables)]
    columns: dict[str, np.ndarray] = {}
    present: dict[str, np.ndarray] = {}
    for name in names:
        if name.endswith(_SPREAD) and f"{name.rpartition('_')[0]}_mean" in names:
            continue  # the spread within a seed: the band is the one over the seeds
        scores = np.stack([table.columns[name][rows] for table, rows in zip(tables, places, strict=True)])
        low, high = bootstrap_interval(scores)
        there = np.all(
            [table.present[name][rows] for table, rows in zip(tables, places, strict=True)], axis=0
        )
        for key, values in ((name, interquartile_mean(scores)), (name + LOW, low), (name + HIGH, high)):
            columns[key] = np.where(np.isfinite(scores).all(axis=0), values, np.nan)
            present[key] = there
    return Table(axes, columns, present)


def _merged_evaluations(seeds: Sequence[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """For each evaluation that all seeds made, one record of their interquartile means."""
    found: list[dict[tuple[Any, ...], dict[str, Any]]] = []
    for records in seeds:
        named: dict[tuple[Any, ...], dict[str, Any]] = {}
        grouped: dict[tuple[Any, Any], list[dict[str, Any]]] = {}
        for record in records:
            grouped.setdefault((record.get("split"), record.get("mode")), []).append(record)
        for group, its in grouped.items():
            named |= {(*group, record["step"]): record for record in following(its)}
        found.append(named)
    return [
        _merged([its[key] for its in found]) | {"step": key[2]}
        for key in found[0]
        if all(key in its for its in found)
    ]


def _merged(values: Sequence[Any]) -> Any:
    if all(isinstance(value, Mapping) for value in values):
        names = [name for name in values[0] if all(name in value for value in values)]
        return {name: _merged([value[name] for value in values]) for name in names}
    numbers = [finite(value) for value in values]
    if any(number is None for number in numbers) or isinstance(values[0], bool):
        return values[0]
    return float(interquartile_mean(np.array(numbers, np.float64)))


def success_interval(run: RunData, table: Table) -> str:
    """The interval of the last success rate, for a run of several seeds."""
    ends = [table.last(f"success_rate{edge}") for edge in (LOW, HIGH)]
    if None in ends or "num_seeds" not in run.facts:
        return ""
    return f"{run.facts['num_seeds']} seeds, {ends[0]:.1%} to {ends[1]:.1%}"

"""Summarizes a run with several seeds by interquartile means with bootstrap confidence intervals."""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from phalanx.logging.report.metric_tables import MetricTable, group_evaluations, parse_finite
from phalanx.logging.report.run_data import RunData
from phalanx.statistics import bootstrap_interval, interquartile_mean

_SPREAD_SUFFIXES = ("_std", "_min", "_max")
_MAX_ROWS = 500


def merge_seeds(folder: Path, metadata: Mapping[str, Any], seeds: Sequence[RunData]) -> RunData:
    """Summarize the seeds of a run as one run.

    An update or evaluation is omitted if it is missing for at least one seed.

    Args:
        folder: Run folder that contains the folders of the seeds.
        metadata: Contents of `run.json` in `folder`.
        seeds: Data of the run folder of each seed.
    """
    keys = [key for key in seeds[0].evaluations if all(key in run.evaluations for run in seeds)]
    episodes = sorted(
        (episode for run in seeds for episode in run.episodes), key=lambda episode: -episode.update
    )
    # Counts in the metadata of the parent folder are sums over the seeds.
    per_seed = {name: seeds[0].metadata.get(name) for name in ("env_steps", "num_parameters")}
    per_seed = {name: value for name, value in per_seed.items() if value is not None}
    note = (
        f"{len(seeds)} seeds: values are interquartile means, bands are 95% bootstrap confidence intervals."
    )
    return RunData(
        path=folder,
        metadata={**metadata, **per_seed, "num_seeds": len(seeds)},
        config=seeds[0].config,
        metrics=_merge_tables([run.metrics for run in seeds]),
        evaluations={key: _merge_tables([run.evaluations[key] for run in seeds]) for key in keys},
        evaluation_records=_merge_evaluations([run.evaluation_records for run in seeds]),
        episodes=episodes,
        policy_episodes=seeds[0].policy_episodes,
        notes=[note, *(f"{run.path.name}: {text}" for run in seeds for text in run.notes)],
    )


def success_interval(run: RunData, table: MetricTable) -> str:
    """Return the number of seeds and the confidence interval of the last success rate as text.

    Return an empty string if the run does not combine several seeds or the table has no success rates.
    """
    if "success_rate" not in table.intervals or table.last("success_rate") is None:
        return ""
    low, high = (bound[np.isfinite(bound)][-1] for bound in table.intervals["success_rate"])
    return f"{run.metadata['num_seeds']} seeds, {low:.1%} to {high:.1%}"


def _merge_tables(tables: Sequence[MetricTable]) -> MetricTable:
    """Combine one table per seed into a table of interquartile means and confidence intervals.

    The result contains only updates that are in all tables, and at most `_MAX_ROWS` of them, evenly spaced.
    """
    updates = functools.reduce(np.intersect1d, [table.axes["update"] for table in tables])
    if len(updates) > _MAX_ROWS:
        updates = updates[np.unique(np.linspace(0, len(updates) - 1, _MAX_ROWS).astype(int))]
    rows = [np.searchsorted(table.axes["update"], updates) for table in tables]
    names = [name for name in tables[0].columns if all(name in table.columns for table in tables)]
    columns: dict[str, np.ndarray] = {}
    present: dict[str, np.ndarray] = {}
    intervals: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for name in names:
        # The band shows the spread across seeds instead of the spread within a seed.
        if name.endswith(_SPREAD_SUFFIXES) and f"{name.rpartition('_')[0]}_mean" in names:
            continue
        values = np.stack([table.columns[name][own] for table, own in zip(tables, rows, strict=True)])
        statistics = interquartile_mean(values), *bootstrap_interval(values)
        is_finite = np.isfinite(values).all(axis=0)
        columns[name], low, high = (np.where(is_finite, statistic, np.nan) for statistic in statistics)
        intervals[name] = low, high
        present[name] = np.all(
            [table.present[name][own] for table, own in zip(tables, rows, strict=True)], axis=0
        )
    axes = {name: values[rows[0]] for name, values in tables[0].axes.items()}
    return MetricTable(axes, columns, present, intervals)


def _merge_evaluations(seeds: Sequence[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Combine the evaluation records of several seeds into one record per evaluation.

    Evaluations that are missing for at least one seed are omitted.
    """
    grouped = [group_evaluations(records).items() for records in seeds]
    by_key = [
        {(*key, record["step"]): record for key, group in groups for record in group} for groups in grouped
    ]
    return [
        _merge_values([own[key] for own in by_key]) | {"step": key[2]}
        for key in by_key[0]
        if all(key in own for own in by_key)
    ]


def _merge_values(values: Sequence[Any]) -> Any:
    """Summarize the values of one field over the seeds.

    Numbers become their interquartile mean, and mappings are summarized recursively. Other values are taken
    from the first seed.
    """
    if all(isinstance(value, Mapping) for value in values):
        names = [name for name in values[0] if all(name in value for value in values)]
        return {name: _merge_values([value[name] for value in values]) for name in names}
    numbers = [parse_finite(value) for value in values]
    if any(number is None for number in numbers) or isinstance(values[0], bool):
        return values[0]
    return float(interquartile_mean(np.array(numbers, np.float64)))

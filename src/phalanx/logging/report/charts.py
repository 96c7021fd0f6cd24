"""Assigns metrics to the charts of the report, and computes the titles, units and curves of the charts."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from phalanx.logging.report.metric_tables import EVALUATION_UNITS, MetricTable, downsample_rows

MAX_POINTS = 2000
"""Maximum number of points in a curve."""
GROUPS = ("Episodes", "Optimization", "Throughput", "Other")
"""Groups of metric charts, in the order in which they appear on the page."""

_STATISTICS = {"std": "std", "min": "low", "max": "high"}
_OPTIMIZATION = ("loss", "entropy", "kl", "clip", "variance", "gradient", "grad_norm", "learning_rate", "lr")
_FIRST = ("success_rate", "reward", "similarity", "episode_length")
_FULL_RANGE = ("success_rate", "similarity", "accuracy", "mrr")
"""Name prefixes of metrics whose vertical axis shows the full range from 0 to 1, if all values are in this
range."""
_MAX_GROUP_CURVES = 8
# Significant digits of each axis: counts are exact, and seconds have millisecond resolution up to a day.
_AXIS_DIGITS = {"update": 15, "steps": 15, "seconds": 8}
# Larger floats are whole numbers, which would be long as integers.
_MAX_INTEGER = 1e15
_TITLES = {
    "reward": "Episode return",
    "reward_mean": "Episode return, mean",
    "num_episodes": "Number of episodes",
}
_ABBREVIATIONS = ("kl", "lr", "mrr", "mfu")


def metric_charts(tables: Sequence[MetricTable]) -> list[dict[str, Any]]:
    """Create one chart per metric, with one curve per run.

    The mean, std, min and max of a metric share one chart, which shows the mean as a curve and the other
    statistics as a band.
    """
    names = list(dict.fromkeys(name for table in tables for name in table.columns))
    charts = []
    for key, columns in _group_statistics(names).items():
        series = [
            {"run": run, "color": run, **downsample_series(table, columns)}
            for run, table in enumerate(tables)
            if columns["value"] in table.columns
        ]
        title = format_title(key) + (", mean" if len(columns) > 1 else "")
        unit = _unit(key, tables, columns["value"])
        chart = _chart(key, title, chart_group(key), unit, series)
        charts.append(chart | {"full_range": unit == "fraction" and key.startswith(_FULL_RANGE)})
    rank = {name: rank for rank, name in enumerate(_FIRST)}
    return sorted(charts, key=lambda chart: (GROUPS.index(chart["group"]), rank.get(chart["key"], 99)))


def evaluation_charts(runs: Sequence[Mapping[tuple[str, str], MetricTable]]) -> list[dict[str, Any]]:
    """Create one chart per evaluation metric, with one curve for each combination of run, split and mode.

    For a single run that was evaluated more than once, there is also a chart with the success rate of each
    group of tasks, if there are 2 to 8 groups.

    Args:
        runs: For each run, the tables of its evaluations by split and mode.
    """
    keys = list(dict.fromkeys(key for tables in runs for key in tables))
    has_one_split = len({split for split, _ in keys}) < 2
    charts = []
    for name, unit in EVALUATION_UNITS.items():
        series = [
            {
                "run": run,
                # With several runs, colors distinguish runs, and dashes distinguish modes. With one run,
                # colors distinguish modes.
                "color": run if len(runs) > 1 else index,
                "dash": index if len(runs) > 1 else 0,
                "label": mode if has_one_split else f"{split}, {mode}",
                **downsample_series(tables[split, mode], {"value": name}),
            }
            for run, tables in enumerate(runs)
            for index, (split, mode) in enumerate(keys)
            if (split, mode) in tables and tables[split, mode].last(name) is not None
        ]
        if series:
            charts.append(_chart(f"evaluation:{name}", format_title(name), "Evaluation", unit, series))
    if len(runs) == 1 and keys:
        charts += _group_charts(runs[0], primary_evaluation(keys))
    return charts


def _group_charts(
    tables: Mapping[tuple[str, str], MetricTable], key: tuple[str, str]
) -> list[dict[str, Any]]:
    table = tables[key]
    names = [name for name in table.columns if name.startswith("group:")]
    if not 2 <= len(names) <= _MAX_GROUP_CURVES or len(table) < 2:
        return []
    series = [
        {
            "run": 0,
            "color": index,
            "label": format_title(name.removeprefix("group:")),
            **downsample_series(table, {"value": name}),
        }
        for index, name in enumerate(names)
    ]
    title = f"Success rate by group, {key[1]}"
    return [_chart("evaluation:groups", title, "Evaluation", "fraction", series)]


def _chart(key: str, title: str, group: str, unit: str, series: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "key": key,
        "title": title,
        "group": group,
        "unit": unit,
        "full_range": unit == "fraction",
        "series": series,
    }


def primary_evaluation(keys: Iterable[tuple[str, str]]) -> tuple[str, str]:
    """Return the split and mode of the evaluation that represents the run in summaries.

    The `greedy` mode is preferred to other modes. Ties are resolved in favor of the `held-out` split, and
    then in favor of the first pair.

    Args:
        keys: Pairs of a split and a mode.
    """
    return min(keys, key=lambda key: (key[1] != "greedy", key[0] != "held-out"))


def downsample_series(table: MetricTable, columns: Mapping[str, str]) -> dict[str, Any]:
    """Return the curve of a metric, downsampled to at most `MAX_POINTS` points.

    Args:
        table: Table that contains the metric.
        columns: Column names for the curve (`value`) and its band (`std`, `low`, `high`). If the table
            contains the confidence interval across seeds, it replaces the band.

    Returns:
        A dictionary with the values of each part (`value`, `std`, `low`, `high`) that the table contains. It
        also has the entries `table` and `rows` (indices of the selected rows), which `share_axes` replaces
        later. An entry `seeds` is present if the band is a confidence interval across seeds.
    """
    name = columns["value"]
    parts = {part: table.columns[column] for part, column in columns.items() if column in table.columns}
    if name in table.intervals:
        low, high = table.intervals[name]
        parts = {"value": table.columns[name], "low": low, "high": high}
    rows = np.flatnonzero(table.present[name])
    shapes = [values[rows] for part, values in parts.items() if part != "std"]
    rows = rows[downsample_rows(shapes, MAX_POINTS)]
    series: dict[str, Any] = {part: round_numbers(values[rows]) for part, values in parts.items()}
    if name in table.intervals:
        series["seeds"] = True
    return series | {"table": table, "rows": rows}


def share_axes(charts: list[dict[str, Any]]) -> list[dict[str, list[float | int | None]]]:
    """Replace the `table` and `rows` of all curves with indices into shared lists of axis values.

    Dozens of curves have the same axes. If every curve had its own copy, the axes would make up most of the
    page. Instead, each curve gets the entry `axes`, an index into the returned list, and the entry `at`, the
    indices of the curve's points in the axis values. `at` is omitted if the curve has a point at every index.

    Returns:
        For each table that the curves come from, a dictionary from the name of each axis (`update`, `steps`
        or `seconds`) to its values.
    """
    all_series = [series for chart in charts for series in chart["series"]]
    tables = list({id(series["table"]): series["table"] for series in all_series}.values())
    shared = []
    for index, table in enumerate(tables):
        own_series = [series for series in all_series if series["table"] is table]
        used = np.unique(np.concatenate([series["rows"] for series in own_series]))
        shared.append(
            {name: round_numbers(values[used], _AXIS_DIGITS[name]) for name, values in table.axes.items()}
        )
        for series in own_series:
            rows = series.pop("rows")
            series["axes"] = index
            if len(rows) < len(used):
                series["at"] = np.searchsorted(used, rows).tolist()
    for series in all_series:
        del series["table"]
    return shared


def round_numbers(values: np.ndarray, digits: int = 6) -> list[float | int | None]:
    """Round numbers to `digits` significant digits to keep their JSON short.

    Whole numbers become integers, and numbers that are not finite become None.

    >>> round_numbers(np.array([1 / 3, 2.0, np.nan]))
    [0.333333, 2, None]
    """
    is_finite = np.isfinite(values).tolist()
    rounded = [
        float(f"{value:.{digits}g}") if finite else None
        for value, finite in zip(values.tolist(), is_finite, strict=True)
    ]
    return [
        int(value) if value is not None and value.is_integer() and abs(value) < _MAX_INTEGER else value
        for value in rounded
    ]


def format_title(name: str) -> str:
    """Format the name of a metric or group as a title.

    >>> format_title("policy_loss"), format_title("approx_kl"), format_title("reward")
    ('Policy loss', 'Approx KL', 'Episode return')
    """
    if name in _TITLES:
        return _TITLES[name]
    words = name.replace("_", " ").replace("/", " / ").split()
    text = " ".join(word.upper() if word in _ABBREVIATIONS else word for word in words)
    return text[:1].upper() + text[1:]


def chart_group(key: str) -> str:
    """Return the group in `GROUPS` that the chart of a metric belongs to."""
    if key.endswith("_per_second"):
        return "Throughput"
    if any(part in key for part in _OPTIMIZATION):
        return "Optimization"
    prefixes = (*_FIRST, "episode", "num_episodes", "return", "success")
    return "Episodes" if key.startswith(prefixes) else "Other"


def _group_statistics(names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Assign metrics to charts. The mean, std, min and max of a metric share one chart.

    Returns:
        For each chart, a dictionary from `value`, `std`, `low` and `high` to the names of the metrics.

    >>> _group_statistics(["reward_mean", "reward_std", "entropy", "loss_mean"])["reward"]
    {'value': 'reward_mean', 'std': 'reward_std'}
    """
    charts: dict[str, dict[str, str]] = {}
    for name in names:
        stem, _, statistic = name.rpartition("_")
        if statistic == "mean" and any(f"{stem}_{suffix}" in names for suffix in _STATISTICS):
            parts = {part: f"{stem}_{suffix}" for suffix, part in _STATISTICS.items()}
            # A metric with the name of the stem has its own chart.
            key = name if stem in names else stem
            charts[key] = {"value": name} | {part: own for part, own in parts.items() if own in names}
        elif statistic not in _STATISTICS or f"{stem}_mean" not in names:
            charts[name] = {"value": name}
    return charts


def _unit(key: str, tables: Sequence[MetricTable], column: str) -> str:
    """Return the unit of a metric: `fraction`, which the page shows as a percentage, or an empty string.

    A metric is treated as a fraction if its name indicates one, for example by the suffix `_rate`, and all
    its finite values are in [0, 1].
    """
    is_fraction = key.startswith((*_FULL_RANGE, "hits")) or key.endswith(("_rate", "_fraction"))
    if not is_fraction or key == "learning_rate":
        return ""
    values = np.concatenate([table.columns[column] for table in tables if column in table.columns])
    values = values[np.isfinite(values)]
    return "fraction" if len(values) and values.min() >= 0 and values.max() <= 1 else ""

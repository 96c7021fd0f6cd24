"""Which curves a page draws: metrics grouped into charts, thinned, and made ready to be embedded.

How a chart looks is in the template; what the numbers are is in `records`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from phalanx.logging.report.tables import Table, extreme_rows

MAX_POINTS = 2000
"""Points a curve has at most in the page."""

_STATISTICS = {"std": "std", "min": "low", "max": "high"}
_OPTIMIZATION = ("loss", "entropy", "kl", "clip", "variance", "gradient", "grad_norm", "learning_rate", "lr")
_FIRST = ("success_rate", "reward", "similarity", "episode_length")
_WHOLE_SHARE = ("success_rate", "similarity", "accuracy", "mrr")
_MAX_FAMILY_CURVES = 8
# Counts are kept whole; of seconds, milliseconds of a day.
_AXIS_DIGITS = {"update": 15, "steps": 15, "seconds": 8}
# Beyond it a float is whole in any case, and as an integer would be long.
_EXACT = 1e15
_EVALUATED = {"success_rate": "share", "similarity": "share", "steps_to_solve": "", "mean_proof_length": ""}

GROUPS = ("Episodes", "Optimization", "Throughput", "Other")


def metric_charts(tables: Sequence[Table]) -> list[dict[str, Any]]:
    """A chart for every metric of any run; mean, std, min and max of one thing share a chart with a band."""
    names = list(dict.fromkeys(name for table in tables for name in table.columns if not _is_edge(name)))
    charts = []
    for key, columns in _stems(names).items():
        series = [
            {"run": place, "color": place, **thinned(table, _banded(table, columns))}
            for place, table in enumerate(tables)
            if columns["value"] in table.columns
        ]
        unit = _unit(key, tables, columns["value"])
        charts.append(
            {
                "key": key,
                "title": title_of(key) + (", mean" if len(columns) > 1 else ""),
                "group": group_of(key),
                "unit": unit,
                "whole": unit == "share" and key.startswith(_WHOLE_SHARE),
                "series": series,
            }
        )
    place_of = {name: place for place, name in enumerate(_FIRST)}
    return sorted(charts, key=lambda chart: (GROUPS.index(chart["group"]), place_of.get(chart["key"], 99)))


def evaluation_charts(runs: Sequence[Mapping[tuple[str, str], Table]]) -> list[dict[str, Any]]:
    """Success, similarity and steps to solve over the evaluations, a curve for each split and mode."""
    keys = list(dict.fromkeys(key for tables in runs for key in tables))
    one_split = len({split for split, _ in keys}) < 2
    charts = []
    for name, unit in _EVALUATED.items():
        series = [
            {
                "run": run,
                # Comparing, a color is a run and a dash is a mode; alone, a color is a mode.
                "color": run if len(runs) > 1 else place,
                "dash": place if len(runs) > 1 else 0,
                "label": mode if one_split else f"{split}, {mode}",
                **thinned(tables[split, mode], _banded(tables[split, mode], {"value": name})),
            }
            for run, tables in enumerate(runs)
            for place, (split, mode) in enumerate(keys)
            if (split, mode) in tables and tables[split, mode].last(name) is not None
        ]
        if series:
            charts.append(_evaluation_chart(name, title_of(name), series, unit))
    if len(runs) == 1 and keys:
        charts += _family_charts(runs[0], primary(keys))
    return charts


def _family_charts(tables: Mapping[tuple[str, str], Table], key: tuple[str, str]) -> list[dict[str, Any]]:
    table = tables[key]
    names = [name for name in table.columns if name.startswith("family:") and not _is_edge(name)]
    if not 2 <= len(names) <= _MAX_FAMILY_CURVES or len(table) < 2:
        return []
    series = [
        {
            "run": 0,
            "color": place,
            "label": title_of(name.removeprefix("family:")),
            **thinned(table, _banded(table, {"value": name})),
        }
        for place, name in enumerate(names)
    ]
    return [_evaluation_chart("families", f"Success by family, {key[1]}", series, "share")]


def _evaluation_chart(key: str, title: str, series: list[dict[str, Any]], unit: str) -> dict[str, Any]:
    return {
        "key": f"evaluation:{key}",
        "title": title,
        "group": "Evaluation",
        "unit": unit,
        "whole": unit == "share",
        "series": series,
    }


def _is_edge(column: str) -> bool:
    """Whether it is an edge of another column's band over the seeds."""
    return column.endswith((":low", ":high"))


def _banded(table: Table, columns: Mapping[str, str]) -> Mapping[str, str]:
    """A curve's parts, with the band over the seeds where there is one instead of any other."""
    band = {part: f"{columns['value']}:{part}" for part in ("low", "high")}
    if not table.columns.keys() >= set(band.values()):
        return columns
    return {"value": columns["value"], **band}


def primary(keys: Iterable[tuple[str, str]]) -> tuple[str, str]:
    """The evaluation that a run is judged by: greedy, on held-out tasks, where there is one."""
    return min(keys, key=lambda key: (key[1] != "greedy", key[0] != "held-out"))


def thinned(table: Table, columns: Mapping[str, str]) -> dict[str, Any]:
    """A curve's points, at most `MAX_POINTS`; `share_axes` replaces its table and rows."""
    rows = np.flatnonzero(table.present[columns["value"]])
    drawn = {part: table.columns[name][rows] for part, name in columns.items() if name in table.columns}
    shown = [values for part, values in drawn.items() if part != "std"]
    kept = extreme_rows(shown, MAX_POINTS)
    series: dict[str, Any] = {part: rounded(values[kept]) for part, values in drawn.items()}
    if columns.get("low", "").endswith(":low"):
        series["seeds"] = True
    return series | {"table": table, "rows": rows[kept]}


def share_axes(charts: list[dict[str, Any]]) -> list[dict[str, list[float | int | None]]]:
    """Takes the tables out of the charts: their axes once each, and in every curve where its points lie.

    Dozens of curves have the same axes; written out for each they would be most of the page.
    """
    every = [series for chart in charts for series in chart["series"]]
    tables = list({id(series["table"]): series["table"] for series in every}.values())
    shared = []
    for place, table in enumerate(tables):
        its = [series for series in every if series["table"] is table]
        used = np.unique(np.concatenate([series["rows"] for series in its]))
        shared.append(
            {name: rounded(values[used], _AXIS_DIGITS[name]) for name, values in table.axes.items()}
        )
        for series in its:
            rows = series.pop("rows")
            series["axes"] = place
            if len(rows) < len(used):
                series["at"] = np.searchsorted(used, rows).tolist()
    for series in every:
        del series["table"]
    return shared


def rounded(values: np.ndarray, digits: int = 6) -> list[float | int | None]:
    """Numbers that are short in JSON: six digits are more than a screen shows.

    >>> rounded(np.array([1 / 3, 2.0, np.nan]))
    [0.333333, 2, None]
    """
    finite = np.isfinite(values).tolist()
    short = [
        float(f"{value:.{digits}g}") if known else None
        for value, known in zip(values.tolist(), finite, strict=True)
    ]
    return [
        int(value) if value is not None and value.is_integer() and abs(value) < _EXACT else value
        for value in short
    ]


def title_of(name: str) -> str:
    """A metric's or a family's name for people.

    >>> title_of("policy_loss"), title_of("approx_kl"), title_of("steps_per_second")
    ('Policy loss', 'Approx KL', 'Steps per second')
    """
    words = name.replace("_", " ").replace("/", " / ").split()
    words = [word.upper() if word in ("kl", "lr", "mrr") else word for word in words]
    text = " ".join(words)
    return text[:1].upper() + text[1:]


def group_of(key: str) -> str:
    """The group of charts that a metric belongs to."""
    if key.endswith("_per_second"):
        return "Throughput"
    if any(part in key for part in _OPTIMIZATION):
        return "Optimization"
    return "Episodes" if key.startswith((*_FIRST, "episode", "return", "success")) else "Other"


def _stems(names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Charts by name: their parts (value, std, low, high) with the metric that each is.

    >>> _stems(["reward_mean", "reward_std", "entropy", "loss_mean"])["reward"]
    {'value': 'reward_mean', 'std': 'reward_std'}
    """
    stems: dict[str, dict[str, str]] = {}
    for name in names:
        stem, _, last = name.rpartition("_")
        if last == "mean" and any(f"{stem}_{part}" in names for part in _STATISTICS):
            found = {part: f"{stem}_{word}" for word, part in _STATISTICS.items()}
            # A metric that is called like the stem keeps its own chart.
            key = name if stem in names else stem
            stems[key] = {"value": name} | {part: its for part, its in found.items() if its in names}
        elif last not in _STATISTICS or f"{stem}_mean" not in names:
            stems[name] = {"value": name}
    return stems


def _unit(key: str, tables: Sequence[Table], column: str) -> str:
    """`share` for what is shown in per cent: named like a share, and never outside 0 to 1."""
    named_so = key.startswith((*_WHOLE_SHARE, "hits")) or key.endswith(("_rate", "_fraction"))
    if not named_so or key == "learning_rate":
        return ""
    values = np.concatenate([table.columns[column] for table in tables if column in table.columns])
    values = values[np.isfinite(values)]
    return "share" if len(values) and values.min() >= 0 and values.max() <= 1 else ""

"""Builds the HTML page of the report from the data of one or several runs."""

import base64
import datetime
import hashlib
import html
import importlib.resources
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from phalanx.formatting import escape_untrusted, format_compact, format_count, format_percent
from phalanx.io.atomic import atomic_write
from phalanx.logging.report.charts import (
    GROUPS,
    evaluation_charts,
    format_title,
    metric_charts,
    primary_evaluation,
    share_axes,
)
from phalanx.logging.report.metric_tables import group_evaluations, group_scores, parse_finite
from phalanx.logging.report.run_data import (
    MAX_EPISODES,
    MAX_IMAGE_BYTES,
    RunData,
    embed_episodes,
    embed_policy_episodes,
    load_run,
)
from phalanx.logging.report.seed_statistics import success_interval

SCRIPTS = ("dom.js", "charts.js", "episodes.js", "policy_episodes.js", "config_table.js")
"""Scripts of the page in loading order. They are followed by `page.js`."""
STATUSES = ("running", "finished", "interrupted")

_MAX_NAME_LENGTH = 120
_MAX_TEXT_LENGTH = 4000


def write_report(runs: Sequence[str | os.PathLike[str]], out: str | os.PathLike[str] | None = None) -> Path:
    """Write a report on a run, or a comparison of several runs.

    Args:
        runs: Run folders.
        out: Path of the page. By default, the page is `report.html` in the run folder or, for several runs,
            `compare-OTHERS.html` in the first run folder, where `OTHERS` are the names of the other folders.

    Returns:
        The path of the page.
    """
    data = [load_run(run) for run in runs]
    path = report_path(data, out)
    page = build_page(data)
    with atomic_write(path, "w") as file:
        file.write(page)
    return path


def report_path(runs: Sequence[RunData], out: str | os.PathLike[str] | None = None) -> Path:
    """Return the path to which `write_report` writes the page.

    This is `out` if it is given, and otherwise a file in the folder of the first run.
    """
    if not runs:
        raise ValueError("a report needs at least one run folder")
    if out is not None:
        return Path(out)
    if len(runs) == 1:
        return runs[0].path / "report.html"
    others = "-".join(run.path.name for run in runs[1:])
    name = others if len(others) <= _MAX_NAME_LENGTH else f"{len(runs) - 1}-others"
    return runs[0].path / f"compare-{name}.html"


def build_page(runs: Sequence[RunData]) -> str:
    """Build the page as HTML text. The same data always results in the same page."""
    data = _escape_texts(page_data(runs))
    scripts = [_load_template(name) for name in (*SCRIPTS, "page.js")]
    script = "(() => {\n'use strict';\n" + "\n".join(scripts) + "\n})();"
    # The page's content security policy allows only this script and no network access.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    parts = {
        "title": html.escape(data["title"].encode(errors="replace").decode()),
        "script-hash": digest,
        "style": _load_template("page.css"),
        "script": script,
        "data": _embeddable_json(data),
        "submissions": "\n".join(_submission_sections(run) for run in runs),
    }
    # All placeholders are replaced in one pass, because a text may look like a placeholder.
    return re.sub(r"\{\{([a-z-]+)\}\}", lambda match: parts[match[1]], _load_template("page.html"))


def _submission_sections(run: RunData) -> str:
    sections = []
    for submission in run.submissions:
        lines = "".join(f"<p>{html.escape(line)}</p>" for line in submission.lines)
        encoded = {name: base64.b64encode(svg).decode() for name, svg in submission.images.items()}
        images = "".join(
            f'<img alt="{name}" src="data:image/svg+xml;base64,{svg}">' for name, svg in encoded.items()
        )
        heading = f"<h2>Submission: {html.escape(submission.title)}</h2>"
        sections.append(f'<section class="wrap submission">{heading}{lines}{images}</section>')
    return "\n".join(sections)


def page_data(runs: Sequence[RunData]) -> dict[str, Any]:
    """Return the data for the page's scripts as JSON values."""
    labels = _labels(runs)
    charts = evaluation_charts([run.evaluations for run in runs])
    charts += metric_charts([run.metrics for run in runs])
    axes = share_axes(charts)
    max_episodes, max_bytes = max(1, MAX_EPISODES // len(runs)), MAX_IMAGE_BYTES // len(runs)
    episodes = [embed_episodes(run.episodes, i, max_episodes, max_bytes) for i, run in enumerate(runs)]
    policies = [embed_policy_episodes(run, i, max_bytes) for i, run in enumerate(runs)]
    return {
        "title": " and ".join(labels) + (" compared" if len(runs) > 1 else ""),
        "runs": [
            {
                "label": label,
                "path": str(run.path),
                "status": run_status(run),
                "subtitle": subtitle(run),
                "tiles": tiles(run),
                "groups": group_bars(run),
                "config": run.config,
                "notes": run.notes,
                "num_omitted": num_omitted,
            }
            for run, label, (_, num_omitted) in zip(runs, labels, episodes, strict=True)
        ],
        "chart_groups": ["Evaluation", *GROUPS],
        "axes": axes,
        "charts": charts,
        "episodes": [episode for embedded, _ in episodes for episode in embedded],
        "policies": [policy for policy in policies if policy is not None],
    }


def _escape_texts(value: Any) -> Any:
    """Escape control characters in all strings and limit their lengths, recursively.

    Compressed images (`images`) are not changed.
    """
    if isinstance(value, str):
        if value.isprintable() and len(value) <= _MAX_TEXT_LENGTH:
            return value
        escaped = escape_untrusted(value[:_MAX_TEXT_LENGTH], lines=True)
        return escaped + ("…" if len(value) > _MAX_TEXT_LENGTH else "")
    if isinstance(value, dict):
        return {
            _escape_texts(name): item if name == "images" else _escape_texts(item)
            for name, item in value.items()
        }
    return [_escape_texts(item) for item in value] if isinstance(value, list) else value


def _labels(runs: Sequence[RunData]) -> list[str]:
    """Return distinct labels for the runs.

    If the names of the runs are not distinct, the names of their folders are used. Names that still occur
    several times are numbered.
    """
    names = [run.name for run in runs]
    if len(set(names)) < len(names):
        names = [run.path.name for run in runs]
    return [
        name if names.count(name) == 1 else f"{name} ({names[: index + 1].count(name)})"
        for index, name in enumerate(names)
    ]


def _embeddable_json(data: dict[str, Any]) -> str:
    """Format data as JSON for a `<script>` element. Characters that could end the element are escaped."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _load_template(name: str) -> str:
    return (importlib.resources.files(f"{__package__}.template") / name).read_text(encoding="utf-8")


def tiles(run: RunData) -> list[dict[str, str]]:
    """Return the key figures of a run, such as the success rate, as records of `label`, `value` and `detail`.

    Unknown figures are omitted.
    """
    steps = _metadata_or_last(run, "env_steps", "steps")
    seconds = _metadata_or_last(run, "seconds", "seconds")
    updates = _metadata_or_last(run, "updates", "update")
    figures = (
        _success_tile(run),
        _count_tile("Environment steps", steps),
        ("Updates", "" if updates is None else f"{updates:,.0f}", ""),
        ("Training time", "" if seconds is None else format_duration(seconds), ""),
        _throughput_tile(run, steps, seconds),
        _count_tile("Parameters", parse_finite(run.metadata.get("num_parameters"))),
    )
    return [{"label": label, "value": value, "detail": detail} for label, value, detail in figures if value]


def subtitle(run: RunData) -> list[str]:
    """Return the start time, the time of the last change, the hardware and the Phalanx version of a run.

    Unknown values are omitted.
    """
    machine = run.metadata.get("machine")
    machine = machine if isinstance(machine, Mapping) else {}
    times = {name: _format_time(run.metadata.get(name)) for name in ("started", "updated")}
    cores = parse_finite(machine.get("nproc"))
    version = run.metadata.get("phalanx")
    parts = (
        *(f"{name} {time}" for name, time in times.items() if time),
        machine.get("cpu"),
        "" if cores is None else f"{cores:.0f} core{'' if cores == 1 else 's'}",
        machine.get("device") or machine.get("backend"),
        f"Phalanx {version}" if version else "",
    )
    return [str(part) for part in parts if part]


def run_status(run: RunData) -> str:
    """Return the status in `run.json` if it is one of `STATUSES`, otherwise `unknown`."""
    status = run.metadata.get("status")
    return status if status in STATUSES else "unknown"


def group_bars(run: RunData) -> list[dict[str, Any]]:
    """Return the data for the bar charts, which show the success rate of each group of tasks.

    There is one chart for each pair of split and mode. Each chart compares the last evaluation with the first
    one.
    """
    bars = []
    for (split, mode), records in group_evaluations(run.evaluation_records).items():
        first, last = records[0] if len(records) > 1 else None, records[-1]
        before = {} if first is None else group_scores(first)
        rows = [_bar("All tasks", last, first)]
        rows += [
            _bar(format_title(name), scores, before.get(name)) for name, scores in group_scores(last).items()
        ]
        bars.append({"split": split, "mode": mode, "update": last["step"], "rows": rows})
    return bars


def format_duration(seconds: float) -> str:
    """Format a duration with its two largest units.

    >>> format_duration(8.4), format_duration(161), format_duration(7384), format_duration(200_000)
    ('8.4 s', '2 min 41 s', '2 h 03 min', '2 d 07 h')
    """
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    total = round(seconds)
    if total < 3600:
        return f"{total // 60} min {total % 60:02d} s"
    if total < 86400:
        return f"{total // 3600} h {total % 3600 // 60:02d} min"
    return f"{total // 86400} d {total % 86400 // 3600:02d} h"


def _count_tile(label: str, number: float | None) -> tuple[str, str, str]:
    """Return a tile `(label, value, detail)` with a short form of a count and the exact count.

    The detail is empty if the short form is exact. The value is empty if the count is unknown.
    """
    if number is None:
        return (label, "", "")
    short, exact = format_compact(number), f"{number:,.0f}"
    return (label, short, "" if exact == short else exact)


def _success_tile(run: RunData) -> tuple[str, str, str]:
    if run.evaluations:
        key = primary_evaluation(run.evaluations)
        table, detail = run.evaluations[key], f"{key[0]} tasks, {key[1]}"
        last = group_evaluations(run.evaluation_records).get(key, [{}])[-1]
        number = parse_finite(last.get("num_episodes", last.get("episodes")))
        if number is not None:
            detail = f"{key[0]}, {key[1]}, {format_count(int(number), 'episode')}"
    else:
        table, detail = run.metrics, "in training"
    before, after = table.first("success_rate"), table.last("success_rate")
    if before is None or after is None:
        return ("Success rate", "", "")
    detail = success_interval(run, table) or detail
    start = f"{format_percent(before)} → " if len(table) > 1 else ""
    return ("Success rate", start + format_percent(after), detail)


def _throughput_tile(run: RunData, steps: float | None, seconds: float | None) -> tuple[str, str, str]:
    if steps is not None and seconds:
        return ("Steps per second", format_compact(steps / seconds), "average of the run")
    for name, values in run.metrics.columns.items():
        if name.endswith("_per_second") and np.isfinite(values).any():
            return (format_title(name), format_compact(float(np.nanmedian(values))), "median")
    return ("", "", "")


def _metadata_or_last(run: RunData, key: str, axis: str) -> float | None:
    value = parse_finite(run.metadata.get(key))
    if value is None and len(run.metrics) and axis in run.metrics.axes:
        return float(run.metrics.axes[axis][-1])
    return value


def _bar(name: str, last: Mapping[str, Any], first: Mapping[str, Any] | None) -> dict[str, Any]:
    pass_at_k = last.get("pass_at_k")
    pass_at_k = pass_at_k if isinstance(pass_at_k, Mapping) else {}
    return {
        "name": name,
        "value": parse_finite(last.get("success_rate")),
        "before": None if first is None else parse_finite(first.get("success_rate")),
        "similarity": parse_finite(last.get("similarity")),
        "num_episodes": parse_finite(last.get("num_episodes")),
        "pass_at_k": {
            str(k): rate for k, value in pass_at_k.items() if (rate := parse_finite(value)) is not None
        },
    }


def _format_time(value: Any) -> str:
    try:
        return datetime.datetime.fromisoformat(value).strftime("%Y-%m-%d %H:%M")
    except (TypeError, ValueError):
        return ""

"""The page: a run, or several side by side, put into the template; its figures, and what a notebook shows.

Curves are in `curves`; what a run directory holds is in `run_directory`.
"""

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

from phalanx.formatting import escape_untrusted, format_percent
from phalanx.io.atomic import atomic_write
from phalanx.logging.report.charts import (
    GROUPS,
    evaluation_charts,
    metric_charts,
    primary,
    share_axes,
    title_of,
)
from phalanx.logging.report.panels import panel_scripts
from phalanx.logging.report.run_data import MAX_BYTES, MAX_EPISODES, RunData, embed_episodes, read_run
from phalanx.logging.report.seed_statistics import success_interval
from phalanx.logging.report.tables import Table, families_of, finite, following
from phalanx.svg import MUTED, card, hstack, line_chart, text_block, to_drawing, to_html, vstack

SCRIPTS = ("dom.js", "charts.js", "episodes.js", "config_table.js")
"""Scripts of the page in order, without those of panels and `page.js`, which comes last."""

STATUSES = ("running", "finished", "interrupted")

_TELLING = ("success_rate", "mrr_100", "mrr", "token_accuracy", "loss", "reward_mean", "policy_loss")
"""The curves that a run is judged by, the first that it has."""

_LONGEST_NAME = 120
_LONGEST_TEXT = 4000


def write_report(runs: Sequence[str | os.PathLike[str]], out: str | os.PathLike[str] | None = None) -> Path:
    """Write the report of a run, or of several side by side, and say where it is.

    Without `out` it is `report.html` in the run, or `compare-OTHER.html` in the first of several.
    """
    data = [read_run(run) for run in runs]
    target = report_path(data, out)
    save_page(build_page(data), target)
    return target


def report_path(runs: Sequence[RunData], out: str | os.PathLike[str] | None = None) -> Path:
    """Where the report of these runs goes."""
    if not runs:
        raise ValueError("a report needs at least one run directory")
    if out is not None:
        return Path(out)
    if len(runs) == 1:
        return runs[0].path / "report.html"
    others = "-".join(run.path.name for run in runs[1:])
    name = others if len(others) <= _LONGEST_NAME else f"{len(runs) - 1}-others"
    return runs[0].path / f"compare-{name}.html"


def save_page(page: str, path: Path) -> None:
    """Write the page whole, or not at all."""
    with atomic_write(path, "w") as file:
        file.write(page)


def build_page(runs: Sequence[RunData]) -> str:
    """The page as text. Equal runs make equal pages, to the byte."""
    # The data of panels was validated when it was read, and may be longer than other texts.
    panels: dict[str, list[dict[str, Any]]] = {}
    for index, run in enumerate(runs):
        for panel in run.panels:
            entry = {"run": index, "seeds": finite(run.facts.get("num_seeds")), **panel.data}
            panels.setdefault(panel.name, []).append(entry)
    data = _shown(page_data(runs)) | {"panels": panels}
    scripts = [_template(name) for name in SCRIPTS]
    scripts += [panel_scripts([panel for run in runs for panel in run.panels]), _template("page.js")]
    script = "(() => {\n'use strict';\n" + "\n".join(scripts) + "\n})();"
    # Only this script may run, and nothing may be fetched: what a run's files say can do no harm.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    parts = {
        "title": html.escape(data["title"].encode(errors="replace").decode()),
        "script-hash": digest,
        "style": _template("page.css"),
        "script": script,
        "data": _embedded_json(data),
        "handed-in": "\n".join(_handed_in(run) for run in runs),
    }
    # In one pass, so that a text that looks like a placeholder stays a text.
    return re.sub(r"\{\{([a-z-]+)\}\}", lambda match: parts[match[1]], _template("page.html"))


def _handed_in(run: RunData) -> str:
    """What a policy has handed in, data set by data set, and pictures of what was not right."""
    parts = []
    for found in run.handed_in:
        lines = "".join(f"<p>{html.escape(line)}</p>" for line in found.lines)
        encoded = {name: base64.b64encode(svg).decode() for name, svg in found.pictures.items()}
        pictures = "".join(
            f'<img alt="{name}" src="data:image/svg+xml;base64,{svg}">' for name, svg in encoded.items()
        )
        heading = f"<h2>Handed in: {html.escape(found.title)}</h2>"
        parts.append(f'<section class="wrap handed-in">{heading}{lines}{pictures}</section>')
    return "\n".join(parts)


def page_data(runs: Sequence[RunData]) -> dict[str, Any]:
    """Everything that the page shows, as its script reads it."""
    labels = _labels(runs)
    charts = evaluation_charts([run.evaluations for run in runs])
    charts += metric_charts([run.metrics for run in runs])
    axes = share_axes(charts)
    limit, budget = max(1, MAX_EPISODES // len(runs)), MAX_BYTES // len(runs)
    share = [embed_episodes(run.episodes, place, limit, budget) for place, run in enumerate(runs)]
    return {
        "title": " and ".join(labels) + (" compared" if len(runs) > 1 else ""),
        "runs": [
            {
                "label": label,
                "path": str(run.path),
                "status": status(run),
                "subtitle": subtitle(run),
                "tiles": tiles(run),
                "families": families(run),
                "config": run.config,
                "notes": run.notes,
                "left_out": left_out,
            }
            for run, label, (_, left_out) in zip(runs, labels, share, strict=True)
        ],
        "groups": ["Evaluation", *GROUPS],
        "axes": axes,
        "charts": charts,
        "episodes": [episode for episodes, _ in share for episode in episodes],
    }


def _shown(value: Any) -> Any:
    """The same with every text of it safe to show, and no longer than one reads; pictures are packed."""
    if isinstance(value, str):
        return value if value.isprintable() and len(value) <= _LONGEST_TEXT else _cut(value)
    if isinstance(value, dict):
        return {_shown(name): item if name == "pictures" else _shown(item) for name, item in value.items()}
    return [_shown(item) for item in value] if isinstance(value, list) else value


def _cut(text: str) -> str:
    return escape_untrusted(text[:_LONGEST_TEXT], lines=True) + ("…" if len(text) > _LONGEST_TEXT else "")


def _labels(runs: Sequence[RunData]) -> list[str]:
    """Names that tell the runs apart: their own, else their folders', else numbered."""
    names = [run.name for run in runs]
    if len(set(names)) < len(names):
        names = [run.path.name for run in runs]
    seen: dict[str, int] = {}
    labels = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        labels.append(name if names.count(name) == 1 else f"{name} ({seen[name]})")
    return labels


def _embedded_json(data: dict[str, Any]) -> str:
    """JSON that cannot end the element it stands in: no `<`, and nothing beyond ASCII."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _template(name: str) -> str:
    return (importlib.resources.files(f"{__package__}.template") / name).read_text(encoding="utf-8")


def tiles(run: RunData) -> list[dict[str, str]]:
    """The figures at the head: label, value, and a word of explanation; only those that are known."""
    steps, seconds = _steps(run), _seconds(run)
    found = [_success(run)]
    if steps is not None:
        found.append(_large("Environment steps", steps))
    updates = finite(run.facts.get("updates"))
    if updates is None and len(run.metrics):
        updates = float(run.metrics.axes["update"][-1])
    if updates is not None:
        found.append(("Updates", f"{updates:,.0f}", ""))
    if seconds is not None:
        found.append(("Training time", duration(seconds), ""))
    found.append(_rate(run, steps, seconds))
    parameters = finite(run.facts.get("num_parameters"))
    if parameters is not None:
        found.append(_large("Parameters", parameters))
    return [{"label": label, "value": value, "detail": detail} for label, value, detail in found if value]


def subtitle(run: RunData) -> list[str]:
    """When, where and with what the run was made."""
    machine = run.facts.get("machine")
    machine = machine if isinstance(machine, Mapping) else {}
    times = [
        f"{word} {when}" for word in ("started", "updated") if (when := _moment(run.facts.get(word))) != ""
    ]
    cores = finite(machine.get("nproc"))
    where = [str(machine["cpu"])] if machine.get("cpu") else []
    where += [f"{cores:.0f} core{'' if cores == 1 else 's'}"] if cores is not None else []
    device = machine.get("device") or machine.get("backend")
    where += [str(device)] if device else []
    version = run.facts.get("phalanx")
    return [*times, *where, *([f"Phalanx {version}"] if version else [])]


def status(run: RunData) -> str:
    """How the run stands, as `run.json` says."""
    said = run.facts.get("status")
    return said if said in STATUSES else "unknown"


def families(run: RunData) -> list[dict[str, Any]]:
    """For each mode, success over all tasks and by family: in the first evaluation and in the last."""
    grouped: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for record in run.evaluation_records:
        key = (str(record.get("split", "held-out")), str(record.get("mode", "greedy")))
        grouped.setdefault(key, []).append(record)
    found = []
    for (split, mode), records in grouped.items():
        ordered = following(records)
        if ordered:
            first, last = ordered[0], ordered[-1]
            rows = [_bar("All tasks", last, first if len(ordered) > 1 else None)]
            before = families_of(first) if len(ordered) > 1 else {}
            rows += [
                _bar(title_of(name), family, before.get(name)) for name, family in families_of(last).items()
            ]
            found.append({"split": split, "mode": mode, "update": last["step"], "rows": rows})
    return found


def compact(value: float) -> str:
    """A number short enough for a tile.

    >>> compact(950), compact(12_345), compact(3_200_000), compact(2e9)
    ('950', '12.3 k', '3.2 M', '2 G')
    """
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == 'k' else size):.3g} {letter}"
    return f"{value:,.0f}"


def duration(seconds: float) -> str:
    """
    >>> duration(8.4), duration(161), duration(7384), duration(200_000)
    ('8.4 s', '2 min 41 s', '2 h 03 min', '2 d 07 h')
    """
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600:02d} h"


def _large(label: str, number: float) -> tuple[str, str, str]:
    """A number in short, and in full beneath where that says more."""
    short, full = compact(number), f"{number:,.0f}"
    return (label, short, "" if full == short else full)


def _success(run: RunData) -> tuple[str, str, str]:
    if run.evaluations:
        key = primary(run.evaluations)
        table, detail = run.evaluations[key], f"{key[0]} tasks, {key[1]}"
    else:
        table, detail = run.metrics, "in training"
    before, after = table.first("success_rate"), table.last("success_rate")
    if before is None or after is None:
        return ("Success", "", "")
    detail = success_interval(run, table) or detail
    if len(table) < 2:
        return ("Success", format_percent(after), detail)
    return ("Success", f"{format_percent(before)} → {format_percent(after)}", detail)


def _rate(run: RunData, steps: float | None, seconds: float | None) -> tuple[str, str, str]:
    if steps is not None and seconds:
        return ("Steps per second", compact(steps / seconds), "over the whole run")
    for name, values in run.metrics.columns.items():
        if name.endswith("_per_second") and np.isfinite(values).any():
            return (title_of(name), compact(float(np.nanmedian(values))), "median")
    return ("", "", "")


def _steps(run: RunData) -> float | None:
    return _said_or_last(run, "environment_steps", "steps")


def _seconds(run: RunData) -> float | None:
    return _said_or_last(run, "seconds", "seconds")


def _said_or_last(run: RunData, fact: str, axis: str) -> float | None:
    said = finite(run.facts.get(fact))
    if said is None and len(run.metrics) and axis in run.metrics.axes:
        return float(run.metrics.axes[axis][-1])
    return said


def _bar(name: str, last: Mapping[str, Any], first: Mapping[str, Any] | None) -> dict[str, Any]:
    passes = last.get("pass_at_k")
    passes = passes if isinstance(passes, Mapping) else {}
    return {
        "name": name,
        "value": finite(last.get("success_rate")),
        "before": None if first is None else finite(first.get("success_rate")),
        "similarity": finite(last.get("similarity")),
        "episodes": finite(last.get("num_episodes", last.get("episodes"))),
        "pass": {str(k): share for k, value in passes.items() if (share := finite(value)) is not None},
    }


def _moment(said: Any) -> str:
    try:
        return datetime.datetime.fromisoformat(said).strftime("%Y-%m-%d %H:%M")
    except (TypeError, ValueError):
        return ""


def run_html(run: RunData) -> str:
    """Name, tiles and the curve that a run is judged by; without scripts, so that saved notebooks keep it."""
    blocks = [text_block(f"{run.name}: {status(run) or 'a run'}", 15, bold=True)]
    shown = tiles(run)[:6]
    if shown:
        figures = [
            card(
                vstack(
                    [text_block(one["label"], 11, fill=MUTED), text_block(one["value"], 16, bold=True)], gap=2
                ),
                8,
            )
            for one in shown
        ]
        blocks.append(hstack(figures))
    found = _headline_curve(run)
    if found is not None:
        where, table, name = found
        values, band = table.columns[name], [table.columns.get(f"{name}:{edge}") for edge in ("low", "high")]
        low, high = (None if edge is None else edge.tolist() for edge in band)
        ends = (0.0, 1.0) if name.endswith(("rate", "accuracy")) or name.startswith("mrr") else None
        last = table.last(name)
        told = f"{title_of(name)}{where}" + ("" if last is None else f", at last {last:.3g}")
        updates = table.axes["update"]
        axis = f"update {int(updates[0])} to {int(updates[-1])}"
        blocks += [
            text_block(told, 12),
            line_chart(values.tolist(), 480, 110, low=low, high=high, ends=ends),
            text_block(axis, 10, fill=MUTED),
        ]
    blocks.append(text_block(str(run.path), 10, fill=MUTED))
    return to_html(to_drawing(vstack(blocks, gap=10), run.name))


def _headline_curve(run: RunData) -> tuple[str, Table, str] | None:
    """Where, in which table, and by which name there is something to see; evaluations before metrics."""
    tables = []
    if run.evaluations:
        key = primary(run.evaluations)
        tables.append((f" ({', '.join(part for part in key if part)})", run.evaluations[key]))
    if len(run.metrics):
        tables.append(("", run.metrics))
    for where, table in tables:
        names = [*_TELLING, *sorted(table.columns)]
        for name in names:
            if name in table.columns and ":" not in name and table.last(name) is not None:
                return where, table, name
    return None

"""The page itself: the template with its style, its script and the data of the runs.

What the data is made of is in the modules beside this one.
"""

import base64
import hashlib
import html
import importlib.resources
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from phalanx.core.files import atomic_write
from phalanx.logs.report.curves import GROUPS, evaluation_charts, metric_charts, share_axes
from phalanx.logs.report.episodes import MAX_BYTES, MAX_EPISODES, embedded
from phalanx.logs.report.run_directory import RunData, read_run
from phalanx.logs.report.summary import families, status, subtitle, tiles

SCRIPTS = ("elements.js", "scales.js", "charts.js", "bars.js", "episodes.js", "config.js", "page.js")
"""Parts of the script, in the order in which they are put together."""

_LONGEST_NAME = 120


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
    data = page_data(runs)
    script = "(() => {\n'use strict';\n" + "\n".join(_template(name) for name in SCRIPTS) + "\n})();"
    # Only this script may run, and nothing may be fetched: what a run's files say can do no harm.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    parts = {
        "title": html.escape(data["title"].encode(errors="replace").decode()),
        "script-hash": digest,
        "style": _template("page.css"),
        "script": script,
        "data": _embedded_json(data),
    }
    # In one pass, so that a text that looks like a placeholder stays a text.
    return re.sub(r"\{\{([a-z-]+)\}\}", lambda match: parts[match[1]], _template("page.html"))


def page_data(runs: Sequence[RunData]) -> dict[str, Any]:
    """Everything that the page shows, as its script reads it."""
    labels = _labels(runs)
    charts = evaluation_charts([run.evaluations for run in runs])
    charts += metric_charts([run.metrics for run in runs])
    axes = share_axes(charts)
    limit, budget = max(1, MAX_EPISODES // len(runs)), MAX_BYTES // len(runs)
    share = [embedded(run.episodes, place, limit, budget) for place, run in enumerate(runs)]
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
    return (importlib.resources.files(__package__) / "template" / name).read_text(encoding="utf-8")

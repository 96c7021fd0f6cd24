"""A run as a notebook shows it: its figures, and its most telling curve.

The whole page is `page`; this draws without scripts, so that a saved notebook keeps it.
"""

from phalanx.core.drawing import MUTED, beside, card, curve, inline, sheet, stacked, text
from phalanx.logs.report.curves import primary, title_of
from phalanx.logs.report.page import status, tiles
from phalanx.logs.report.records import Table
from phalanx.logs.report.run_directory import RunData

_TELLING = ("success_rate", "mrr_100", "mrr", "token_accuracy", "loss", "reward_mean", "policy_loss")


def run_html(run: RunData) -> str:
    """Name, tiles, and the curve that a run is judged by, with the band over its seeds."""
    blocks = [text(f"{run.name}: {status(run) or 'a run'}", 15, bold=True)]
    shown = tiles(run)[:6]
    if shown:
        figures = [
            card(stacked([text(one["label"], 11, fill=MUTED), text(one["value"], 16, bold=True)], gap=2), 8)
            for one in shown
        ]
        blocks.append(beside(figures))
    found = _telling(run)
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
            text(told, 12),
            curve(values.tolist(), 480, 110, low=low, high=high, ends=ends),
            text(axis, 10, fill=MUTED),
        ]
    blocks.append(text(str(run.path), 10, fill=MUTED))
    return inline(sheet(stacked(blocks, gap=10), run.name))


def _telling(run: RunData) -> tuple[str, Table, str] | None:
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

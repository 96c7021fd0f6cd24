"""Compact view of a run for notebooks: a static SVG with its name, key figures and most important curve."""

from phalanx.logging.report.charts import format_title, primary_evaluation
from phalanx.logging.report.metric_tables import MetricTable
from phalanx.logging.report.page import run_status, tiles
from phalanx.logging.report.run_data import RunData
from phalanx.svg import MUTED, card, hstack, line_chart, text_block, to_drawing, to_html, vstack

_HEADLINE_METRICS = (
    "success_rate",
    "mrr_100",
    "mrr",
    "mean_token_accuracy",
    "loss",
    "reward_mean",
    "policy_loss",
)
"""Candidates for the metric that is shown as a curve, most preferred first."""
_MAX_TILES = 6


def render_run_card(run: RunData) -> str:
    """Render a run as SVG inside HTML. It has no scripts, so it remains visible in saved notebooks."""
    blocks = [text_block(f"{run.name}: {run_status(run)}", 15, bold=True)]
    figures = [
        card(
            vstack(
                [text_block(tile["label"], 11, fill=MUTED), text_block(tile["value"], 16, bold=True)], gap=2
            ),
            8,
        )
        for tile in tiles(run)[:_MAX_TILES]
    ]
    if figures:
        blocks.append(hstack(figures))
    curve = _headline_curve(run)
    if curve is not None:
        source, table, name = curve
        low, high = [bound.tolist() for bound in table.intervals.get(name, ())] or (None, None)
        limits = (0.0, 1.0) if name.endswith(("rate", "accuracy")) or name.startswith("mrr") else None
        updates = table.axes["update"]
        blocks += [
            text_block(f"{format_title(name)}{source}, last value {table.last(name):.3g}", 12),
            line_chart(table.columns[name].tolist(), 480, 110, low=low, high=high, ends=limits),
            text_block(f"update {int(updates[0])} to {int(updates[-1])}", 10, fill=MUTED),
        ]
    blocks.append(text_block(str(run.path), 10, fill=MUTED))
    return to_html(to_drawing(vstack(blocks, gap=10), run.name))


def _headline_curve(run: RunData) -> tuple[str, MetricTable, str] | None:
    """Return the metric to show as a curve, or None if the run has no metrics.

    Evaluation metrics take precedence over training metrics.

    Returns:
        A suffix for the title, the table that contains the metric, and the name of the metric.
    """
    tables = []
    if run.evaluations:
        key = primary_evaluation(run.evaluations)
        tables.append((f" ({', '.join(part for part in key if part)})", run.evaluations[key]))
    if len(run.metrics):
        tables.append(("", run.metrics))
    for source, table in tables:
        for name in (*_HEADLINE_METRICS, *sorted(table.columns)):
            if name in table.columns and ":" not in name and table.last(name) is not None:
                return source, table, name
    return None

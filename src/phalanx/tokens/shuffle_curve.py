"""Padding against shuffling: what each size of the sorted pools gives, measured, as records and as a drawing.

The other figures are in `benchmark`; the setting itself is `BatchingConfig.pool_batches`.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import drawsvg as draw
import numpy as np

from phalanx.tokens.benchmark import batching_config, draw_lengths
from phalanx.tokens.benchmark_facts import conditions, plan_facts
from phalanx.tokens.lengths.table import LengthTable
from phalanx.tokens.plans.builder import BatchPlanBuilder
from phalanx.tokens.plans.config import BatchingMode
from phalanx.tokens.plans.plan import EpochPlan

POOLS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)
"""Batches' worth of samples in a pool."""

_WIDTH, _HEIGHT = 860, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 190, 70, 56
_FONT = "Inter, 'Segoe UI', 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif"
_TEXT, _MUTED, _BORDER = "#1B2330", "#667085", "#DFE3EA"
_COLORS = {"efficiency": "#3B5BDB", "mixing": "#B5472A"}
_NAMES = {
    "efficiency": ("real over padded", "tokens"),
    "mixing": ("spread of lengths inside a", "batch, over that of all"),
}


def measure_curve(samples: int = 1_000_000, pools: Sequence[int] = POOLS) -> Iterator[dict[str, Any]]:
    """One record for each size of the pools."""
    table = LengthTable.from_arrays(None, draw_lengths("lognormal", samples))
    for pool in pools:
        config = batching_config(BatchingMode.THROUGHPUT, pool_batches=pool)
        plan = BatchPlanBuilder(table, config).build_now()
        yield {
            "benchmark": "tokens",
            "figure": "padding over shuffling",
            "samples": samples,
            "pool_batches": pool,
            **plan_facts(plan),
            "mixing": round(mixing(plan.get_epoch(0)), 6),
            **conditions(),
        }


def mixing(epoch: EpochPlan) -> float:
    """How different batch mates are: the deviation of lengths inside batches over that of all samples.

    1 if they are as different as strangers, 0 if they are all equally long.
    """
    lengths = epoch.lengths.astype(np.float64)
    total = float(lengths.var())
    if not total:
        return 1.0
    counts = epoch.batches.counts
    means = np.add.reduceat(lengths, epoch.batches.offsets[:-1]) / counts
    inside = float(((lengths - np.repeat(means, counts)) ** 2).mean())
    return math.sqrt(inside / total)


def draw_curve(records: Sequence[dict[str, Any]]) -> draw.Drawing:
    """Efficiency and mixing over the size of the pools, which is logarithmic."""
    if len(records) < 2:
        raise ValueError(f"a curve needs at least two sizes of pools, got {len(records)}")
    pools = [record["pool_batches"] for record in records]
    low, high = np.log2(min(pools)), np.log2(max(pools))

    def across(pool: int) -> float:
        return round(_LEFT + (_WIDTH - _LEFT - _RIGHT) * float((np.log2(pool) - low) / (high - low)), 1)

    def up(share: float) -> float:
        return round(_HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * share, 1)

    sheet = draw.Drawing(_WIDTH, _HEIGHT, font_family=_FONT)
    sheet.append(draw.Rectangle(0, 0, _WIDTH, _HEIGHT, fill="#FCFCFD"))
    sheet.append(draw.Text("Padding against shuffling", 18, _LEFT, 30, fill=_TEXT, font_weight="bold"))
    subtitle = f"{records[0]['samples']:,} log-normal samples, throughput mode, budget 16,384"
    sheet.append(draw.Text(subtitle, 13, _LEFT, 50, fill=_MUTED))
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = up(tick)
        sheet.append(draw.Line(_LEFT, y, _WIDTH - _RIGHT, y, stroke=_BORDER))
        sheet.append(draw.Text(f"{tick:.2f}", 12, _LEFT - 8, y + 4, fill=_MUTED, text_anchor="end"))
    for pool in pools:
        sheet.append(
            draw.Text(
                f"{pool:,}", 12, across(pool), _HEIGHT - _BOTTOM + 18, fill=_MUTED, text_anchor="middle"
            )
        )
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    label = "pool_batches: batches' worth of samples that are sorted together"
    sheet.append(draw.Text(label, 12, middle, _HEIGHT - 14, fill=_MUTED, text_anchor="middle"))
    for field, color in _COLORS.items():
        places = [(across(record["pool_batches"]), up(record[field])) for record in records]
        flat = [number for place in places for number in place]
        sheet.append(draw.Lines(*flat, stroke=color, stroke_width=2.5, fill="none"))
        for (x, y), record in zip(places, records, strict=True):
            dot = draw.Circle(x, y, 3.5, fill=color)
            dot.append_title(f"{record['pool_batches']:,}: {record[field]:.4f}")
            sheet.append(dot)
        x, y = places[-1]
        for line, words in enumerate(_NAMES[field]):
            sheet.append(draw.Text(words, 13, x + 14, y + 4 + 17 * (line - (y > _TOP + 60)), fill=color))
    return sheet

"""Padding against shuffling: what each size of the sorted pools gives, measured, as records and as a drawing.

The other figures are in `tokens`, which has the command line too; the setting itself is
`BatchingConfig.pool_batches`.
"""

import math
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import drawsvg
import numpy as np
from line_chart import Axis, line_chart
from measuring.conditions import conditions
from measuring.records import Column, tell
from token_facts import draw_lengths, plan_facts
from tokens import batching_config, build_plan

from phalanx.data import BatchingMode, EpochPlan, LengthTable
from phalanx.io import atomic_write

POOLS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)
"""Batches' worth of samples in a pool."""
_LINES = {"efficiency": "real over padded tokens", "mixing": "spread inside a batch"}


def measure_curve(samples: int, pools: Sequence[int] = POOLS) -> Iterator[dict[str, Any]]:
    """One record for each size of the pools."""
    table = LengthTable.from_arrays(None, draw_lengths("lognormal", samples))
    for pool in pools:
        plan = build_plan(table, batching_config(BatchingMode.THROUGHPUT, pool_batches=pool))
        yield {
            "benchmark": "tokens",
            "figure": "padding over shuffling",
            "samples": samples,
            "pool_batches": pool,
            **plan_facts(plan),
            "mixing": round(mixing(plan.get_epoch(0)), 6),
            **conditions("numpy"),
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


def draw_curve(records: Sequence[dict[str, Any]]) -> drawsvg.Drawing:
    """Efficiency and mixing over the size of the pools."""
    if len(records) < 2:
        raise ValueError(f"a curve needs at least two sizes of pools, got {len(records)}")
    pools = [record["pool_batches"] for record in records]
    lines = {
        name: [(record["pool_batches"], record[field]) for record in records]
        for field, name in _LINES.items()
    }
    return line_chart(
        f"Padding against shuffling, {records[0]['samples']:,} samples",
        Axis("pool_batches: batches' worth of samples sorted together", pools, logarithmic=True),
        Axis("share", (0.0, 0.25, 0.5, 0.75, 1.0), form="{:.2f}".format),
        lines,
    )


def tell_curve(samples: int, path: pathlib.Path, as_json: bool) -> int:
    """Measure, print as JSON lines or as a table, and draw to a file."""
    names = ("pool_batches", "batches", "efficiency", "mixing", "drift")
    columns = [Column(name, f"{{{name}:,}}".format_map, number=True) for name in names]
    records: list[dict[str, Any]] = []

    def measured() -> Iterator[dict[str, Any]]:
        for record in measure_curve(samples):
            records.append(record)
            yield record

    tell(measured(), as_json, "Padding against shuffling", columns, lambda _: [str(path)])
    with atomic_write(path, "w") as file:
        draw_curve(records).as_svg(output_file=file)
    return 0

"""Plans for every pair of the ARC data sets: whether they are exact, how short they are, how long they take.

Every plan is carried out by the environment itself. The peer is the cell-by-cell script: a resize where the
sizes differ, then one fill for each cell that is wrong. One JSON line for each data set and action format,
and one for all data sets together; the exit code is 1 if a plan is not exact or box plans miss the target.
"""

import argparse
import dataclasses
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np

from phalanx.arc import ActionConfig, ArcConfig, ArcEnvironment, ArcTask, EpisodeConfig, load_tasks
from phalanx.arc.config import SelectionFormat
from phalanx.arc.planner import ActionPlan, action_from_arrays, plan_grids

DATASETS = ("arc-agi-1", "arc-agi-2", "concept-arc", "mini-arc")
TARGET = 0.35
"""At most this long are box plans, beside the cell-by-cell script: the median over pairs."""
BATCH = 512


@dataclasses.dataclass(frozen=True)
class Measured:
    """Plans of many pairs."""

    steps: np.ndarray
    """How long they are."""
    cells: np.ndarray
    """How long the cell-by-cell scripts are."""
    exact: np.ndarray
    """Whether they lead to the output."""
    planning_seconds: float
    """Of processor time: planning runs on one core, whatever else the machine does."""
    replay_seconds: float
    """By the clock."""

    def record(self) -> dict[str, Any]:
        # Pairs whose output is their input need no step, and no ratio can be told.
        some = self.cells > 0
        return {
            "pairs": len(self.steps),
            "exact": round(float(self.exact.mean()), 6),
            "steps_median": float(np.median(self.steps)),
            "steps_mean": round(float(self.steps.mean()), 2),
            "steps_most": int(self.steps.max()),
            "cell_by_cell_median": float(np.median(self.cells)),
            "cell_by_cell_mean": round(float(self.cells.mean()), 2),
            "ratio_median": round(float(np.median(self.steps[some] / self.cells[some])), 3),
            "ratio_of_medians": round(float(np.median(self.steps) / np.median(self.cells)), 3),
            "ratio_of_means": round(float(self.steps.mean() / self.cells.mean()), 3),
            "planning_seconds": round(self.planning_seconds, 2),
            "replay_seconds": round(self.replay_seconds, 2),
        }


def together(parts: Sequence[Measured]) -> Measured:
    """Several data sets as one."""
    arrays = [np.concatenate([getattr(part, name) for part in parts]) for name in ("steps", "cells", "exact")]
    return Measured(
        *arrays, sum(part.planning_seconds for part in parts), sum(part.replay_seconds for part in parts)
    )


def cell_by_cell(before: np.ndarray, after: np.ndarray) -> int:
    """How long the script is that resizes and then paints every wrong cell by itself."""
    kept = np.zeros_like(after)
    height, width = np.minimum(before.shape, after.shape)
    kept[:height, :width] = before[:height, :width]
    return int(before.shape != after.shape) + int((kept != after).sum())


def every_pair(tasks: Sequence[ArcTask]) -> list[ArcTask]:
    """The tasks with all their pairs as demonstrations, from which episodes start."""
    return [ArcTask(task.id, tuple(p for p in task.pairs if p.output is not None), ()) for task in tasks]


def measure(tasks: Sequence[ArcTask], selection_format: SelectionFormat, engine: str = "auto") -> Measured:
    """Plan all pairs, and carry the plans out."""
    tasks = every_pair(tasks)
    config = ArcConfig(
        episode=EpisodeConfig(max_episode_steps=2000),
        action=ActionConfig(selection_format=selection_format),
        backend=engine,  # type: ignore[arg-type]
    )
    start = time.process_time()
    plans = [plan_grids(pair.input, pair.output, config) for task in tasks for pair in task.demos]
    planning = time.process_time() - start
    start = time.perf_counter()
    exact = carried_out(ArcEnvironment.create(config, tasks), plans)
    replay = time.perf_counter() - start
    cells = [cell_by_cell(pair.input, pair.output) for task in tasks for pair in task.demos]
    return Measured(np.array([*map(len, plans)]), np.array(cells), exact, planning, replay)


def carried_out(environment: ArcEnvironment, plans: Sequence[ActionPlan]) -> np.ndarray:
    """Whether each plan ends with similarity 1; plans are those of the tasks' demonstrations, in order."""
    names = [(task, pair) for task, t in enumerate(environment.task_buffer) for pair in range(len(t.demos))]
    where = np.array(names, np.int32)
    order = np.argsort([len(plan) for plan in plans], kind="stable")
    exact = np.zeros(len(plans), bool)
    step = jax.jit(environment.batch_step)
    for first in range(0, len(order), BATCH):
        chosen = np.resize(order[first : first + BATCH], min(BATCH, len(order)))
        states, _ = environment.batch_reset_to(*jnp.asarray(where[chosen].T))
        for at in range(max(len(plans[i]) for i in chosen)):
            # After a plan's end comes an operation that does not exist, which changes nothing.
            operations = np.array([plans[i].operations[at] if at < len(plans[i]) else -1 for i in chosen])
            nothing = np.zeros_like(plans[order[-1]].selections[0])
            cells = [plans[i].selections[at] if at < len(plans[i]) else nothing for i in chosen]
            states, *_ = step(states, action_from_arrays(operations, np.stack(cells)))
        exact[chosen] = np.asarray(states.similarity_score) == 1.0
    return exact


def main() -> int:
    formats = get_args(SelectionFormat)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path, help="where the data sets lie, instead of $PHALANX_DATA")
    parser.add_argument("--datasets", nargs="+", default=DATASETS, choices=DATASETS)
    parser.add_argument("--formats", nargs="+", default=formats, choices=formats)
    parser.add_argument("--every", type=int, default=1, help="only every so many-th task, for a quick look")
    arguments = parser.parse_args()
    passed = True
    for selection_format in arguments.formats:
        parts = []
        for name in arguments.datasets:
            tasks = load_tasks(name, "all", data_dir=arguments.data_dir)[:: arguments.every]
            parts.append(measure(tasks, selection_format))
            tell(name, selection_format, parts[-1])
        whole = together(parts)
        tell("all", selection_format, whole)
        short = selection_format != "bbox" or whole.record()["ratio_median"] <= TARGET
        passed = passed and bool(whole.exact.all()) and short
    return 0 if passed else 1


def tell(dataset: str, selection_format: str, measured: Measured) -> None:
    load = round(os.getloadavg()[0], 2)
    told = {"dataset": dataset, "selection_format": selection_format, **measured.record()}
    print(json.dumps({**told, "load_average": load}), flush=True)


if __name__ == "__main__":
    sys.exit(main())

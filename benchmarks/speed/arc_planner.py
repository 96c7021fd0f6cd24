"""ARC planner: the number of steps and the CPU time of plans for all pairs of four datasets.

A plan is a sequence of actions that turns the input of a pair into its output. Every plan is executed in the
environment to check that it is exact. The baseline is the plan that resizes the grid and then fills each
wrong cell with a separate action.
"""

import dataclasses
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.datasets import arc_data_dir
from benchmarks.suite import Suite
from benchmarks.timing import Measurement
from phalanx.arc import ActionConfig, ArcConfig, ArcEnvironment, ArcTask, EpisodeConfig, load_tasks
from phalanx.arc.generators.generate import generate_tasks
from phalanx.arc.planner import ActionPlan, action_from_arrays, plan_grids

suite = Suite("arc_planner", unit="steps", packages=("jax", "numpy"))

DATASETS = ("arc-agi-1", "arc-agi-2", "concept-arc", "mini-arc")
BATCH_SIZE = 512


class PlanResults(NamedTuple):
    """Results of planning some pairs."""

    steps: np.ndarray
    """Number of steps of each plan."""
    cell_steps: np.ndarray
    """Number of steps of each cell-by-cell plan."""
    exact: np.ndarray
    """Whether each plan reaches the output."""
    cpu_seconds: float
    """CPU time of planning."""

    def median_ratio(self) -> float:
        """Return the median ratio of the two numbers of steps.

        Pairs whose output equals their input are left out, because their ratio is not defined.
        """
        is_changed = self.cell_steps > 0
        return float(np.median(self.steps[is_changed] / self.cell_steps[is_changed]))


def measure_plans(tasks: Sequence[ArcTask], selection_format: str, backend: str = "auto") -> PlanResults:
    """Plan all pairs of some tasks, and execute the plans in the environment."""
    tasks = with_all_pairs_as_demos(tasks)
    pairs = [pair for task in tasks for pair in task.demos]
    config = ArcConfig(
        episode=EpisodeConfig(max_episode_steps=2000),
        action=ActionConfig(selection_format=selection_format),
        backend=backend,
    )
    cpu_start = time.process_time()
    plans = [plan_grids(pair.input, pair.output, config) for pair in pairs]
    cpu_seconds = time.process_time() - cpu_start
    return PlanResults(
        np.array([len(plan) for plan in plans]),
        np.array([num_cell_fills(pair.input, pair.output) for pair in pairs]),
        is_exact(ArcEnvironment.create(config, tasks), plans),
        cpu_seconds,
    )


def with_all_pairs_as_demos(tasks: Sequence[ArcTask]) -> list[ArcTask]:
    """Return the tasks with all pairs as demonstrations, because episodes start from demonstrations."""
    return [ArcTask(task.id, tuple(p for p in task.pairs if p.output is not None), ()) for task in tasks]


def load_datasets(names: Sequence[str]) -> list[ArcTask]:
    """Load all tasks of several datasets. Ids start with the dataset, because some tasks are in several."""
    return [
        dataclasses.replace(task, id=f"{name}/{task.id}")
        for name in names
        for task in load_tasks(name, "all", data_dir=arc_data_dir())
    ]


@suite.experiment("plans")
def plan_datasets(smoke: bool) -> Iterator[Measurement]:
    """Plan all pairs with each action format."""
    if smoke:
        tasks = generate_tasks(num_tasks=4, seed=0, max_height=5, max_width=5)
    else:
        tasks = load_datasets(DATASETS)
    for selection_format in ("point", "bbox", "mask"):
        results = measure_plans(tasks, selection_format)
        num_pairs = len(results.steps)
        settings = {
            "datasets": ["generated"] if smoke else list(DATASETS),
            "num_pairs": num_pairs,
            "selection_format": selection_format,
            "exact_fraction": float(results.exact.mean()),
            "mean_steps": float(results.steps.mean()),
            "mean_cell_by_cell_steps": float(results.cell_steps.mean()),
            "max_steps": int(results.steps.max()),
        }
        for name, unit, value in (
            ("steps", "steps", float(np.median(results.steps))),
            ("ratio-to-cell-by-cell", "ratio", results.median_ratio()),
            ("cpu-time-per-pair", "ms", 1000 * results.cpu_seconds / num_pairs),
        ):
            yield Measurement(f"{selection_format}-{name}", "phalanx", unit, [value], (), settings)
    median = float(np.median(results.cell_steps))
    yield Measurement("cell-by-cell-steps", "fill each wrong cell", "steps", [median], (), settings)


def num_cell_fills(before: np.ndarray, after: np.ndarray) -> int:
    """Return the length of the plan that resizes the grid and then fills each wrong cell."""
    kept = np.zeros_like(after)
    height, width = np.minimum(before.shape, after.shape)
    kept[:height, :width] = before[:height, :width]
    return int(before.shape != after.shape) + int((kept != after).sum())


def is_exact(environment: ArcEnvironment, plans: Sequence[ActionPlan]) -> np.ndarray:
    """Execute the plans of all demonstrations, in order, and return which of them reach the output."""
    starts = np.array(
        [
            (index, pair)
            for index, task in enumerate(environment.task_buffer)
            for pair in range(len(task.demos))
        ],
        np.int32,
    )
    # Plans of similar length are executed together.
    order = np.argsort([len(plan) for plan in plans], kind="stable")
    exact = np.zeros(len(plans), bool)
    step = jax.jit(environment.batch_step)
    nothing = np.zeros_like(plans[order[-1]].selections[0])
    for first in range(0, len(order), BATCH_SIZE):
        rows = np.resize(order[first : first + BATCH_SIZE], min(BATCH_SIZE, len(order)))
        states, _ = environment.batch_reset_to(*jnp.asarray(starts[rows].T))
        for index in range(max(len(plans[row]) for row in rows)):
            # Operation -1 does not exist. It keeps the state of plans that have ended.
            is_running = [index < len(plans[row]) for row in rows]
            operations = [
                plans[row].operations[index] if run else -1 for row, run in zip(rows, is_running, strict=True)
            ]
            selections = [
                plans[row].selections[index] if run else nothing
                for row, run in zip(rows, is_running, strict=True)
            ]
            states, *_ = step(states, action_from_arrays(np.array(operations), np.stack(selections)))
        exact[rows] = np.asarray(states.similarity_score) == 1.0
    return exact

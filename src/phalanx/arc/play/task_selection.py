"""Selects the tasks that `phalanx play arc` shows."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from phalanx.arc.config import GENERATED
from phalanx.arc.datasets import available_datasets, load_tasks, select_ids
from phalanx.arc.generators.generate import FAMILIES, generate_task
from phalanx.arc.play.session import PlayTestPair
from phalanx.arc.task_files import ALL
from phalanx.arc.tasks import ArcTask

NUM_GENERATED = 60
"""Number of tasks to generate, cycling through the selected families."""


def select_tasks(
    task_id: str = "",
    source: str = "",
    split: str = ALL,
    *,
    families: Sequence[str] = (),
    max_size: int | None = None,
    seed: int = 0,
    data_dir: Path | None = None,
) -> list[PlayTestPair]:
    """Return the test pairs to solve, in order. The pairs of the given task come first, followed by those of
    the other tasks in its source. Tasks with a secret test output are left out.

    Args:
        task_id: Id of the first task. If empty, the first task of the source comes first. If `source` is
            empty, this can be the id of a generated task, such as `gravity-000017`, the name of a family, or
            the id of a task in any available dataset.
        source: Name of a dataset, or a path. If it is empty, tasks are generated, unless `task_id` is the id
            of a task in a dataset, which is then the source.
        split: Split of the source.
        families: Task families to use. If empty, all are used.
        max_size: Maximum number of rows and columns of the grids. If None, there is no limit for tasks from
            files.
        seed: Random seed for generating tasks.
        data_dir: Folder that contains the datasets. If None, $PHALANX_DATA or ~/.cache/phalanx/arc is used.
    """
    generated: dict[str, Any] = {"max_size": max_size, "num_tasks": NUM_GENERATED, "seed": seed}
    if source:
        split = "training" if source == GENERATED and split == ALL else split
        tasks = load_tasks(source, split, families=families, data_dir=data_dir, **generated)
    else:
        if task_id in FAMILIES:
            families, task_id = (task_id,), ""
        named = _generated(task_id)
        if task_id and not named:
            source, tasks = _search(task_id, split, data_dir)
        else:
            source, tasks = GENERATED, load_tasks(GENERATED, "training", families=families, **generated)
            tasks = named + tasks
    if task_id:
        first = tasks.index(select_ids(tasks, [task_id], source)[0])
        tasks = tasks[first:] + tasks[:first]
    pairs = [
        PlayTestPair(task, test)
        for task in tasks
        for test in range(len(task.tests))
        if all(pair.output is not None for pair in task.tests)
    ]
    if not pairs:
        raise ValueError(f"no selected task of {source} has known test outputs")
    if task_id and pairs[0].task.id != task_id:
        raise ValueError(f"the test outputs of task {task_id!r} are secret, so solutions cannot be checked")
    return pairs


def _generated(task_id: str) -> list[ArcTask]:
    """Generate the task with the given id. Returns an empty list if this is not the id of a generated
    task."""
    family, _, seed = task_id.rpartition("-")
    return [generate_task(family, int(seed))] if family in FAMILIES and seed.isdecimal() else []


def _search(task_id: str, split: str, data_dir: Path | None) -> tuple[str, list[ArcTask]]:
    """Return the name and the tasks of the first dataset that contains the task with the given id."""
    names = [name for name in available_datasets(data_dir) if name != GENERATED]
    for name in names:
        tasks = load_tasks(name, split, data_dir=data_dir)
        if any(task.id == task_id for task in tasks):
            return name, tasks
    raise ValueError(
        f"no task {task_id!r} in {', '.join(names) or 'any dataset'}, and no family of that name; "
        f"set its dataset or path with --data, or use one of {', '.join(FAMILIES)}"
    )

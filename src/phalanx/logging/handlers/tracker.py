"""Base class of experiment trackers, and `make_tracker` with the list of trackers.

The library of a tracker is imported when the tracker is created.
"""

import abc
import importlib
import json
import os
import re
from pathlib import Path
from typing import Any

from phalanx.io.atomic import atomic_write
from phalanx.io.untrusted import read_json
from phalanx.logging.handlers.handler import EpisodeCounter, Handler
from phalanx.logging.records import Metrics, Record, evaluation_scalars, select_scalars

TRACKERS = {
    "wandb": ("phalanx.logging.handlers.wandb", "WandbHandler"),
    "tensorboard": ("phalanx.logging.handlers.tensorboard", "TensorBoardHandler"),
    "mlflow": ("phalanx.logging.handlers.mlflow", "MLflowHandler"),
}
"""Module and class of each tracker, by the name that `--tracker` accepts."""

_IDS_FILE = "trackers.json"
_SEED_DIR = re.compile(r"seed_\d+")


class Tracker(Handler, abc.ABC):
    """A handler for an experiment tracker.

    Names of metrics: `batch/<name>` for an update, `episode_<index>/<name>` for sampled episodes,
    `evaluation/<split>/<mode>/<name>` for evaluations, `step/<name>` for single steps.
    """

    def __init__(self) -> None:
        self._episode_counter = EpisodeCounter()

    @classmethod
    @abc.abstractmethod
    def for_run(cls, folder: Path, name: str, group: str | None) -> "Tracker":
        """Create the tracker of a run folder. A resumed run continues in the same run of the tracker."""

    @abc.abstractmethod
    def _log_scalars(self, values: dict[str, float], step: int) -> None:
        """Send metrics of an update to the tracker."""

    def log_step(self, step_data: Record) -> None:
        """Log the scalars of a step under the number of the step."""
        scalars = select_scalars(step_data)
        step = int(scalars.pop("step_num", 0))
        self._log_scalars(_add_prefix("step", scalars), step)

    def log_episode_summary(self, summary_data: Record) -> None:
        """Log the scalars of an episode."""
        step, index = self._episode_counter.next(summary_data)
        scalars = {k: value for k, value in select_scalars(summary_data).items() if k != "episode_num"}
        self._log_scalars(_add_prefix(f"episode_{index}", scalars), step)

    def log_aggregated_metrics(self, metrics: Metrics, step: int) -> None:
        """Log the metrics of an update."""
        self._log_scalars(_add_prefix("batch", metrics), step)

    def log_evaluation(self, record: Record) -> None:
        """Log the metrics of an evaluation, including those of groups but not those of single tasks."""
        prefix = f"evaluation/{record.get('split', 'held-out')}/{record.get('mode', 'greedy')}"
        self._log_scalars(_add_prefix(prefix, evaluation_scalars(record)), int(record["step"]))


def make_tracker(kind: str, folder: str | os.PathLike[str]) -> Handler:
    """Create the tracker of a run folder.

    Args:
        kind: Name of the tracker: `wandb`, `tensorboard` or `mlflow`.
        folder: Run folder. The folders of seeds become runs of one group.
    """
    if kind not in TRACKERS:
        raise ValueError(f"unknown tracker {kind!r}; choose one of {', '.join(TRACKERS)}")
    module, class_name = TRACKERS[kind]
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    is_seed = _SEED_DIR.fullmatch(path.name) is not None
    group = path.parent.name if is_seed else None
    name = f"{group}/{path.name}" if is_seed else path.name
    return getattr(importlib.import_module(module), class_name).for_run(path, name, group)


def load_run_id(folder: Path, kind: str) -> str | None:
    """Return the tracker's id of the run in a folder; None if the run is new to the tracker."""
    return _load_ids(folder / _IDS_FILE).get(kind)


def save_run_id(folder: Path, kind: str, run_id: str) -> None:
    """Save the tracker's id of a run, with which the run continues when it is resumed."""
    path = folder / _IDS_FILE
    ids = _load_ids(path)
    with atomic_write(path, "w") as file:
        json.dump({**ids, kind: run_id}, file)


def _load_ids(path: Path) -> dict[str, str]:
    ids = read_json(path) if path.exists() else {}
    if not isinstance(ids, dict):
        raise ValueError(f"{path}: expected a JSON object with the ids of trackers; remove the file")
    return ids


def import_library(module: str, extra: str) -> Any:
    """Import a tracker's library; if it is not installed, raise an error with the install command."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            raise
        raise ModuleNotFoundError(
            f"{module} is not installed; run `pip install 'phalanx[{extra}]'`", name=module
        ) from error


def _add_prefix(prefix: str, metrics: Metrics) -> dict[str, float]:
    return {f"{prefix}/{name}": float(value) for name, value in metrics.items()}

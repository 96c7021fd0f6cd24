"""Base class for experiment-tracker handlers, and `make_tracker`, which creates a handler by name.

A tracker's library, such as `wandb`, is imported when the handler is created.
"""

import abc
import importlib
import json
import os
import re
from pathlib import Path
from typing import Any

from phalanx.extras import require_extra
from phalanx.import_path import import_object
from phalanx.io.atomic import atomic_write
from phalanx.io.untrusted import read_json
from phalanx.logging.handlers.handler import EpisodeIndexAssigner, Handler
from phalanx.logging.records import Metrics, Record, evaluation_scalars, select_scalars

TRACKERS = {
    "wandb": "phalanx.logging.handlers.wandb:WandbHandler",
    "tensorboard": "phalanx.logging.handlers.tensorboard:TensorBoardHandler",
    "mlflow": "phalanx.logging.handlers.mlflow:MLflowHandler",
}
"""Import path of the handler for each tracker. The keys are the names that `--tracker` accepts."""

_IDS_FILE = "trackers.json"
_SEED_DIR = re.compile(r"seed_\d+")


class Tracker(Handler, abc.ABC):
    """Base class for handlers that log to an experiment tracker.

    The names of metrics have a prefix: `batch/<name>` for the metrics of an update, `episode_<index>/<name>`
    for those of a sampled episode, `evaluation/<split>/<mode>/<name>` for those of an evaluation, and
    `step/<name>` for those of a single step.
    """

    def __init__(self) -> None:
        self._episode_indices = EpisodeIndexAssigner()

    @classmethod
    @abc.abstractmethod
    def for_run(cls, folder: Path, name: str, group: str | None) -> "Tracker":
        """Create the handler for a run folder. A resumed run continues the same run in the tracker.

        Args:
            folder: Run folder.
            name: Name of the run.
            group: Name of the group of runs that differ only in their seed. None if the run belongs to no
                such group.
        """

    @abc.abstractmethod
    def _log_scalars(self, values: dict[str, float], step: int) -> None:
        """Send scalars to the tracker. `step` is the position of the values on the horizontal axis."""

    def log_step(self, step_data: Record) -> None:
        """Log the scalars of an environment step, with `step_num` on the horizontal axis."""
        scalars = select_scalars(step_data)
        step = int(scalars.pop("step_num", 0))
        self._log_scalars(_add_prefix("step", scalars), step)

    def log_episode_summary(self, summary_data: Record) -> None:
        """Log the scalars of a finished episode."""
        step, index = self._episode_indices.next(summary_data)
        scalars = {k: value for k, value in select_scalars(summary_data).items() if k != "episode_num"}
        self._log_scalars(_add_prefix(f"episode_{index}", scalars), step)

    def log_aggregated_metrics(self, metrics: Metrics, step: int) -> None:
        """Log the metrics of an update."""
        self._log_scalars(_add_prefix("batch", metrics), step)

    def log_evaluation(self, record: Record) -> None:
        """Log the metrics of an evaluation and of its task groups, but not those of individual tasks."""
        prefix = f"evaluation/{record.get('split', 'held-out')}/{record.get('mode', 'greedy')}"
        self._log_scalars(_add_prefix(prefix, evaluation_scalars(record)), int(record["step"]))


def make_tracker(kind: str, folder: str | os.PathLike[str]) -> Handler:
    """Create the handler that logs a run to an experiment tracker.

    Args:
        kind: Name of the tracker: `wandb`, `tensorboard` or `mlflow`.
        folder: Run folder, created if necessary. If it is named `seed_<number>`, the run belongs to a group
            that is named after the parent folder.
    """
    if kind not in TRACKERS:
        raise ValueError(f"unknown tracker {kind!r}; choose one of {', '.join(TRACKERS)}")
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    is_seed = _SEED_DIR.fullmatch(path.name) is not None
    group = path.parent.name if is_seed else None
    name = f"{group}/{path.name}" if is_seed else path.name
    handler: Handler = import_object(TRACKERS[kind]).for_run(path, name, group)
    return handler


def load_run_id(folder: Path, kind: str) -> str | None:
    """Return the id that the `kind` tracker assigned to a run, or None if the run folder contains no id."""
    return _load_ids(folder / _IDS_FILE).get(kind)


def save_run_id(folder: Path, kind: str, run_id: str) -> None:
    """Save the id that the `kind` tracker assigned to a run, so that a resumed run can continue it."""
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
    """Import a tracker's library.

    Args:
        module: Name of the module.
        extra: Name of the extra that installs the library.

    Raises:
        MissingExtraError: If the library is not installed. The message contains the install command.
    """
    with require_extra("the tracker", extra, module.partition(".")[0]):
        return importlib.import_module(module)


def _add_prefix(prefix: str, metrics: Metrics) -> dict[str, float]:
    return {f"{prefix}/{name}": float(value) for name, value in metrics.items()}

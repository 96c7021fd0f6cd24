"""Experiment trackers: which there are, what all of them are told, and under which names.

Each tracker is a file of its own beside this one, and a line of `TRACKERS`; its library is imported when one
is made.
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
from phalanx.logging.records import Data, Metrics, evaluation_scalars, scalars_of

TRACKERS = {
    "wandb": ("phalanx.logging.handlers.wandb", "WandbHandler"),
    "tensorboard": ("phalanx.logging.handlers.tensorboard", "TensorBoardHandler"),
    "mlflow": ("phalanx.logging.handlers.mlflow", "MLflowHandler"),
}
"""Where each tracker's handler is, by the name that a command takes."""

_IDS = "trackers.json"
_SEED = re.compile(r"seed_\d+")


class Tracker(Handler, abc.ABC):
    """A handler whose place takes numbers, pictures and settings by name.

    Metrics of a batch are `batch/<name>` by update, sampled episodes `episode_0/<name>` and so on in their
    order, evaluations `evaluation/<split>/<mode>/<name>`.
    """

    def __init__(self) -> None:
        self._places = EpisodeCounter()

    @classmethod
    @abc.abstractmethod
    def for_run(cls, folder: Path, name: str, group: str | None) -> "Tracker":
        """The tracker of a run's folder; a run that goes on in it goes on in the tracker too."""

    @abc.abstractmethod
    def _numbers(self, values: dict[str, float], step: int) -> None:
        """Numbers at an update."""

    def log_step(self, step_data: Data) -> None:
        """A step's numbers, by the step's own number."""
        numbers = scalars_of(step_data)
        step = int(numbers.pop("step_num", 0))
        self._numbers(_prefixed("step", numbers), step)

    def log_episode_summary(self, summary_data: Data) -> None:
        """An episode's numbers."""
        step, place = self._places.next(summary_data)
        numbers = {name: value for name, value in scalars_of(summary_data).items() if name != "episode_num"}
        self._numbers(_prefixed(f"episode_{place}", numbers), step)

    def log_aggregated_metrics(self, metrics: Metrics, step: int) -> None:
        """The batch's metrics."""
        self._numbers(_prefixed("batch", metrics), step)

    def log_evaluation(self, record: Data) -> None:
        """An evaluation's figures; those of families below them, those of single tasks not."""
        place = f"evaluation/{record.get('split', 'held-out')}/{record.get('mode', 'greedy')}"
        self._numbers(_prefixed(place, evaluation_scalars(record)), int(record["step"]))


def make_tracker(kind: str, folder: str | os.PathLike[str]) -> Handler:
    """The tracker of this kind for a run's folder; the folders of seeds are runs of one group."""
    if kind not in TRACKERS:
        raise ValueError(f"there is no tracker {kind!r}; trackers are {', '.join(TRACKERS)}")
    module, handler = TRACKERS[kind]
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    seeded = _SEED.fullmatch(path.name) is not None
    group = path.parent.name if seeded else None
    name = f"{group}/{path.name}" if seeded else path.name
    return getattr(importlib.import_module(module), handler).for_run(path, name, group)


def recall_id(folder: Path, kind: str) -> str | None:
    """The tracker's own id of the run in this folder; None if it has not been there."""
    return _known_ids(folder / _IDS).get(kind)


def remember_id(folder: Path, kind: str, run_id: str) -> None:
    """Keep it with the run, so that the run goes on under it."""
    path = folder / _IDS
    known = _known_ids(path)
    with atomic_write(path, "w") as file:
        json.dump({**known, kind: run_id}, file)


def _known_ids(path: Path) -> dict[str, str]:
    known = read_json(path) if path.exists() else {}
    if not isinstance(known, dict):
        raise ValueError(f"{path} does not tell trackers' ids: it holds no JSON object; remove it")
    return known


def imported(module: str, extra: str) -> Any:
    """A tracker's library; one that is not installed says how to get it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            raise
        raise ModuleNotFoundError(
            f"{module} is not installed; `pip install 'phalanx[{extra}]'` brings it", name=module
        ) from error


def _prefixed(prefix: str, metrics: Metrics) -> dict[str, float]:
    return {f"{prefix}/{name}": float(value) for name, value in metrics.items()}

"""The run in experiment trackers: Weights & Biases and TensorBoard, imported only when one is asked for.

Files of our own are in `file_handler`.
"""

import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

from phalanx.logs.records import Data, Handler, Metrics, scalars_of


class WandbHandler(Handler):
    """Sends metrics to a Weights & Biases run, aggregated ones as `batch/<name>` by update.

    Sampled episodes are `episode_0/<name>`, `episode_1/<name>`... in the order of their update. `mode` is
    W&B's: `offline` writes under `output_dir` and needs no network or account. A `run` that is already open
    is used as it is and left open; `settings` are passed on to `wandb.init`.
    """

    def __init__(
        self,
        output_dir: str | os.PathLike[str] | None = None,
        config: BaseModel | Mapping[str, Any] | None = None,
        *,
        project: str = "phalanx",
        name: str | None = None,
        mode: Literal["online", "offline", "disabled"] = "online",
        run: Any = None,
        **settings: Any,
    ) -> None:
        self.run = run
        self._owned = run is None
        self._places = _EpisodePlaces()
        if run is None:
            wandb = _imported("wandb", "wandb")
            if output_dir is not None:
                Path(output_dir).mkdir(parents=True, exist_ok=True)
            values = config.model_dump(mode="json") if isinstance(config, BaseModel) else dict(config or {})
            self.run = wandb.init(
                project=project, name=name, mode=mode, dir=output_dir, config=values, **settings
            )

    def log_step(self, step_data: Data) -> None:
        """A step's numbers, kept with whatever is logged next: W&B takes one row an update."""
        if self.run is not None:
            self.run.log(_prefixed("step", scalars_of(step_data)), commit=False)

    def log_episode_summary(self, summary_data: Data) -> None:
        """An episode's numbers."""
        if self.run is not None:
            step, place = self._places.of(summary_data)
            self.run.log(_prefixed(f"episode_{place}", _results(summary_data)), step=step)

    def log_aggregated_metrics(self, metrics: Metrics, step: int) -> None:
        """The batch's metrics, told apart from those of single steps by their prefix."""
        if self.run is not None:
            self.run.log(_prefixed("batch", metrics), step=step)

    def close(self) -> None:
        """Finish the run, if this handler opened it."""
        if self.run is not None and self._owned:
            self.run.finish()
        self.run = None


class TensorBoardHandler(Handler):
    """Writes TensorBoard event files: `batch/<name>` by update, `episode_0/<name>`... for sampled ones."""

    def __init__(self, output_dir: str | os.PathLike[str], *, flush_seconds: int = 30) -> None:
        tensorboard = _imported("tensorboardX", "tensorboard")
        self._writer = tensorboard.SummaryWriter(str(output_dir), flush_secs=flush_seconds)
        self._places = _EpisodePlaces()

    def log_step(self, step_data: Data) -> None:
        """A step's numbers, by the step's own number."""
        self._add("step", _without_names(scalars_of(step_data)), int(step_data.get("step_num", 0)))

    def log_episode_summary(self, summary_data: Data) -> None:
        """An episode's numbers."""
        step, place = self._places.of(summary_data)
        self._add(f"episode_{place}", _results(summary_data), step)

    def log_aggregated_metrics(self, metrics: Metrics, step: int) -> None:
        """The batch's metrics."""
        self._add("batch", metrics, step)

    def close(self) -> None:
        """Write what is still in memory and close the event file."""
        self._writer.close()

    def _add(self, prefix: str, metrics: Metrics, step: int) -> None:
        for name, value in _prefixed(prefix, metrics).items():
            self._writer.add_scalar(name, value, step)


class _EpisodePlaces:
    """Numbers the episodes of one update, which would else overwrite one another under the same name."""

    def __init__(self) -> None:
        self._last = (-1, -1)

    def of(self, summary_data: Data) -> tuple[int, int]:
        step = int(summary_data.get("episode_num", 0))
        self._last = (step, self._last[1] + 1 if step == self._last[0] else 0)
        return self._last


def _prefixed(prefix: str, metrics: Metrics) -> dict[str, float]:
    return {f"{prefix}/{name}": float(value) for name, value in metrics.items()}


def _results(summary_data: Data) -> dict[str, float]:
    return _without_names(scalars_of(summary_data))


def _without_names(scalars: dict[str, float]) -> dict[str, float]:
    """Numbers that say which episode or step this is are no results of it."""
    return {name: value for name, value in scalars.items() if name not in ("episode_num", "step_num")}


def _imported(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise ModuleNotFoundError(
            f"{module} is not installed; `pip install 'phalanx[{extra}]'` brings it", name=module
        ) from error

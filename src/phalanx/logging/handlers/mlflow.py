"""The run in MLflow: a server's, or a database in the run's own folder.

What is told, and under which names, is in `trackers`.
"""

import os
import time
from pathlib import Path
from typing import Any

from phalanx.logging.handlers.handler import Picture, settings_of
from phalanx.logging.handlers.tracker import Tracker, imported, recall_id, remember_id
from phalanx.logging.records import Data, flat_settings, plain

_LONGEST_VALUE = 6000
"""What MLflow takes as the value of a parameter."""
_AT_ONCE = 100
"""Parameters that it takes in one call."""


class MLflowHandler(Tracker):
    """Sends a run to MLflow; pictures are SVG files among its artifacts.

    Without `tracking_uri` it is what `MLFLOW_TRACKING_URI` says, or else a database under `output_dir`, which
    `mlflow ui --backend-store-uri sqlite:///OUTPUT_DIR/mlflow.db` shows. With a `run_id` that run goes on.
    """

    def __init__(
        self,
        output_dir: str | os.PathLike[str],
        *,
        tracking_uri: str | None = None,
        experiment: str | None = None,
        name: str | None = None,
        run_id: str | None = None,
        tags: dict[str, str] | None = None,
    ) -> None:
        super().__init__()
        self._library = imported("mlflow", "mlflow")
        folder = Path(output_dir).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        uri = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI")
        self._client = self._library.MlflowClient(uri or f"sqlite:///{folder / 'mlflow.db'}")
        if run_id is not None:
            self._client.update_run(run_id, status="RUNNING")
        self.run_id = run_id or self._begin(folder if uri is None else None, experiment, name, tags)

    def _begin(
        self, folder: Path | None, experiment: str | None, name: str | None, tags: dict[str, str] | None
    ) -> str:
        title = experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME", "phalanx")
        found = self._client.get_experiment_by_name(title)
        artifacts = None if folder is None else (folder / "mlflow").as_uri()
        number = self._client.create_experiment(title, artifacts) if found is None else found.experiment_id
        return self._client.create_run(number, run_name=name, tags=tags or {}).info.run_id

    @classmethod
    def for_run(cls, folder: Path, name: str, group: str | None) -> "MLflowHandler":
        """The tracker of a run's folder: the same run when it goes on; seeds carry their group's tag."""
        known = recall_id(folder, "mlflow")
        if group is None:
            handler = cls(folder, name=name, run_id=os.environ.get("MLFLOW_RUN_ID", known))
        else:
            # Beside one another in one database, so that one page compares them.
            handler = cls(folder.parent, name=name, tags={"group": group}, run_id=known)
        remember_id(folder, "mlflow", handler.run_id)
        return handler

    def log_config(self, config: Any, facts: Data) -> None:
        """The settings as parameters, which MLflow never lets change, and the facts as `facts.json`."""
        known = self._client.get_run(self.run_id).data.params
        settings = {
            name: value[:_LONGEST_VALUE] for name, value in flat_settings(settings_of(config)).items()
        }
        new = [
            self._library.entities.Param(name, value) for name, value in settings.items() if name not in known
        ]
        for start in range(0, len(new), _AT_ONCE):
            self._client.log_batch(self.run_id, params=new[start : start + _AT_ONCE])
        self._client.log_dict(self.run_id, plain(facts), "facts.json")

    def log_picture(self, name: str, picture: Picture, step: int) -> None:
        """The picture's SVG as an artifact."""
        if picture.svg is not None:
            self._client.log_text(self.run_id, picture.svg, f"pictures/{name}_{step:06d}.svg")

    def _numbers(self, values: dict[str, float], step: int) -> None:
        now = int(1000 * time.time())
        metrics = [self._library.entities.Metric(name, value, now, step) for name, value in values.items()]
        self._client.log_batch(self.run_id, metrics=metrics)

    def close(self) -> None:
        """Mark the run as finished."""
        self._client.set_terminated(self.run_id)

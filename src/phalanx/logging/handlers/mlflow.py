"""Experiment tracking with MLflow, using a tracking server or a database in the run folder."""

import os
import time
from pathlib import Path
from typing import Any

from phalanx.io.untrusted import reject_symlink
from phalanx.logging.handlers.handler import Picture, config_values
from phalanx.logging.handlers.tracker import Tracker, import_library, load_run_id, save_run_id
from phalanx.logging.records import Record, flatten_settings, to_json_value

_MAX_PARAM_LENGTH = 6000
_MAX_PARAMS_PER_CALL = 100


class MLflowHandler(Tracker):
    """Logs a run to MLflow. Images are logged as SVG artifacts.

    The `MLFLOW_TRACKING_URI` environment variable contains the address of the tracking server, and
    `MLFLOW_EXPERIMENT_NAME` the name of the experiment, which is `phalanx` by default.

    Args:
        output_dir: Folder for the SQLite database that is used if there is no tracking server. To view the
            database, run `mlflow ui --backend-store-uri sqlite:///OUTPUT_DIR/mlflow.db`.
        name: Name of the run. If None, MLflow chooses a name.
        run_id: MLflow id of a run to continue. If None, a new run is started.
        tags: Tags for a new run.
    """

    def __init__(
        self,
        output_dir: str | os.PathLike[str],
        *,
        name: str | None = None,
        run_id: str | None = None,
        tags: dict[str, str] | None = None,
    ) -> None:
        super().__init__()
        self._library = import_library("mlflow", "mlflow")
        folder = Path(output_dir).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        uri = os.environ.get("MLFLOW_TRACKING_URI")
        self._client = self._library.MlflowClient(uri or f"sqlite:///{folder / 'mlflow.db'}")
        if run_id is not None:
            self._client.update_run(run_id, status="RUNNING")
        self.run_id = run_id or self._create_run(None if uri else folder, name, tags)

    def _create_run(self, folder: Path | None, name: str | None, tags: dict[str, str] | None) -> str:
        experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME", "phalanx")
        existing = self._client.get_experiment_by_name(experiment)
        if existing is None:
            artifacts = None if folder is None else (folder / "mlflow").as_uri()
            experiment_id = self._client.create_experiment(experiment, artifacts)
        else:
            experiment_id = existing.experiment_id
        return self._client.create_run(experiment_id, run_name=name, tags=tags or {}).info.run_id

    @classmethod
    def for_run(cls, folder: Path, name: str, group: str | None) -> "MLflowHandler":
        """Create the handler for a run folder. A resumed run continues the same MLflow run.

        Args:
            folder: Run folder.
            name: Name of the run.
            group: Name of the parent folder if the run is one of several seeds, otherwise None. The name is
                logged as the `group` tag, and all seeds share one database in the parent folder.
        """
        for part in ("mlflow", "mlflow.db"):
            reject_symlink((folder if group is None else folder.parent) / part)
        run_id = load_run_id(folder, "mlflow")
        if group is None:
            handler = cls(folder, name=name, run_id=os.environ.get("MLFLOW_RUN_ID", run_id))
        else:
            # One database for all seeds, so that MLflow can compare them.
            handler = cls(folder.parent, name=name, tags={"group": group}, run_id=run_id)
        save_run_id(folder, "mlflow", handler.run_id)
        return handler

    def log_config(self, config: Any, metadata: Record) -> None:
        """Log the settings as parameters and the metadata as the `metadata.json` artifact.

        Parameters that the run already has are skipped, because MLflow does not allow changing them.
        """
        logged = self._client.get_run(self.run_id).data.params
        settings = flatten_settings(config_values(config))
        params = [
            self._library.entities.Param(name, value[:_MAX_PARAM_LENGTH])
            for name, value in settings.items()
            if name not in logged
        ]
        for start in range(0, len(params), _MAX_PARAMS_PER_CALL):
            self._client.log_batch(self.run_id, params=params[start : start + _MAX_PARAMS_PER_CALL])
        self._client.log_dict(self.run_id, to_json_value(metadata), "metadata.json")

    def log_picture(self, name: str, picture: Picture, step: int) -> None:
        """Log an image as an SVG artifact. Images that are not available as SVG are skipped."""
        if picture.svg is not None:
            self._client.log_text(self.run_id, picture.svg, f"pictures/{name}_{step:06d}.svg")

    def _log_scalars(self, values: dict[str, float], step: int) -> None:
        now = int(1000 * time.time())
        metrics = [self._library.entities.Metric(name, value, now, step) for name, value in values.items()]
        self._client.log_batch(self.run_id, metrics=metrics)

    def close(self) -> None:
        """Mark the run as finished."""
        self._client.set_terminated(self.run_id)

"""Experiment tracking with Weights & Biases."""

import os
import secrets
from pathlib import Path
from typing import Any

from phalanx.io.untrusted import reject_symlink
from phalanx.logging.handlers.handler import Picture, config_values
from phalanx.logging.handlers.tracker import Tracker, import_library, load_run_id, save_run_id
from phalanx.logging.records import Record, select_scalars, to_json_value


class WandbHandler(Tracker):
    """Logs a run to Weights & Biases. Images are logged as SVG.

    Args:
        output_dir: Folder for W&B's files. If None, W&B chooses a folder.
        run: Existing W&B run to log to. It stays open when the handler is closed. If None, a new run is
            started.
        settings: Other arguments of `wandb.init`, such as `name`, `mode` or `project`. The default project is
            `phalanx`, unless the `WANDB_PROJECT` environment variable is set. With `mode="offline"`, W&B
            writes to `output_dir` and needs neither a network connection nor an account.
    """

    def __init__(
        self,
        output_dir: str | os.PathLike[str] | None = None,
        *,
        run: Any = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        self.run = run
        self._owns_run = run is None
        if run is None:
            if output_dir is not None:
                Path(output_dir).mkdir(parents=True, exist_ok=True)
            defaults = {
                "project": os.environ.get("WANDB_PROJECT", "phalanx"),
                "dir": output_dir,
                # By default, a second run in a process would replace the first one.
                "reinit": "create_new",
            }
            self.run = import_library("wandb", "wandb").init(**defaults | settings)

    @classmethod
    def for_run(cls, folder: Path, name: str, group: str | None) -> "WandbHandler":
        """Create the handler for a run folder. A resumed run continues the same W&B run.

        W&B's environment variables, such as `WANDB_NAME`, take precedence over the arguments.

        Args:
            folder: Run folder.
            name: Name of the run.
            group: Name of the group of runs that differ only in their seed. None if the run belongs to no
                such group.
        """
        env = os.environ.get
        reject_symlink(folder / "wandb")
        # Several seeds cannot share one id.
        run_id = (None if group else env("WANDB_RUN_ID")) or load_run_id(folder, "wandb")
        settings: dict[str, Any] = {"id": run_id or secrets.token_hex(4)}
        if run_id is not None and env("WANDB_MODE") != "offline":
            settings["resume"] = env("WANDB_RESUME", "allow")
        handler = cls(
            env("WANDB_DIR", folder),
            name=env("WANDB_NAME", name),
            group=env("WANDB_RUN_GROUP", group),
            **settings,
        )
        # After opening the run, because a run that could not be opened cannot be resumed.
        save_run_id(folder, "wandb", handler.run.id)
        return handler

    def log_config(self, config: Any, metadata: Record) -> None:
        """Log the settings as the config of the W&B run, with the metadata under the `metadata` key."""
        if self.run is not None:
            values = {**config_values(config), "metadata": to_json_value(metadata)}
            self.run.config.update(values, allow_val_change=True)

    def log_picture(self, name: str, picture: Picture, step: int) -> None:
        """Log an image as SVG, which W&B shows as HTML. Images that are not available as SVG are skipped."""
        if self.run is not None and picture.svg is not None:
            self.run.log({name: import_library("wandb", "wandb").Html(picture.svg, inject=False)}, step=step)

    def log_step(self, step_data: Record) -> None:
        """Log the scalars of an environment step together with the next update.

        W&B stores one row per update, so individual environment steps have no rows of their own.
        """
        if self.run is not None:
            scalars = {f"step/{name}": value for name, value in select_scalars(step_data).items()}
            self.run.log(scalars, commit=False)

    def _log_scalars(self, values: dict[str, float], step: int) -> None:
        if self.run is not None:
            self.run.log(values, step=step)

    def close(self) -> None:
        """Finish the W&B run if the handler started it."""
        if self.run is not None and self._owns_run:
            self.run.finish()
        self.run = None

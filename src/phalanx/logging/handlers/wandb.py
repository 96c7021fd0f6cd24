"""The run in Weights & Biases.

What is told, and under which names, is in `trackers`.
"""

import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

from phalanx.logging.handlers.handler import Picture, settings_of
from phalanx.logging.handlers.tracker import Tracker, imported, recall_id, remember_id
from phalanx.logging.records import Data, plain, scalars_of


class WandbHandler(Tracker):
    """Sends a run to Weights & Biases; pictures are SVG.

    `mode` is W&B's: `offline` writes under `output_dir` and needs no network or account. What is not given is
    what W&B's own variables (`WANDB_MODE`, `WANDB_PROJECT`, ...) say. A `run` that is already open is used as
    it is and left open; `settings` are passed on to `wandb.init`.
    """

    def __init__(
        self,
        output_dir: str | os.PathLike[str] | None = None,
        config: BaseModel | Mapping[str, Any] | None = None,
        *,
        project: str | None = None,
        name: str | None = None,
        mode: Literal["online", "offline", "disabled"] | None = None,
        run: Any = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        self.run = run
        self._owned = run is None
        if run is None:
            if output_dir is not None:
                Path(output_dir).mkdir(parents=True, exist_ok=True)
            given = {
                "project": project or os.environ.get("WANDB_PROJECT", "phalanx"),
                "name": name,
                "mode": mode or os.environ.get("WANDB_MODE"),
                "dir": output_dir,
                "config": {} if config is None else settings_of(config),
            }
            # Each its own run: by default a second one of a process would take the first one's place.
            self.run = imported("wandb", "wandb").init(**{"reinit": "create_new", **given, **settings})

    @classmethod
    def for_run(cls, folder: Path, name: str, group: str | None) -> "WandbHandler":
        """The tracker of a run's folder: the same W&B run when it goes on; seeds are runs of one group."""
        # What W&B's variables say comes first; but one id cannot be that of several seeds.
        said = os.environ.get
        known = (None if group else said("WANDB_RUN_ID")) or recall_id(folder, "wandb")
        settings: dict[str, Any] = {"id": known or secrets.token_hex(4)}
        if known is not None and said("WANDB_MODE") != "offline":
            settings["resume"] = said("WANDB_RESUME", "allow")
        handler = cls(
            said("WANDB_DIR", folder),
            name=said("WANDB_NAME", name),
            group=said("WANDB_RUN_GROUP", group),
            **settings,
        )
        # Only now: a run that could not be opened has no id to come back to.
        remember_id(folder, "wandb", handler.run.id)
        return handler

    def log_config(self, config: Any, facts: Data) -> None:
        """The settings as W&B's config, and the facts under `facts`."""
        if self.run is not None:
            self.run.config.update({**settings_of(config), "facts": plain(facts)}, allow_val_change=True)

    def log_picture(self, name: str, picture: Picture, step: int) -> None:
        """The picture's SVG, which W&B shows as a page."""
        if self.run is not None and picture.svg is not None:
            self.run.log({name: imported("wandb", "wandb").Html(picture.svg, inject=False)}, step=step)

    def log_step(self, step_data: Data) -> None:
        """A step's numbers, kept with whatever is logged next: W&B takes one row an update."""
        if self.run is not None:
            numbers = {f"step/{name}": value for name, value in scalars_of(step_data).items()}
            self.run.log(numbers, commit=False)

    def _numbers(self, values: dict[str, float], step: int) -> None:
        if self.run is not None:
            self.run.log(values, step=step)

    def close(self) -> None:
        """Finish the run, if this handler opened it."""
        if self.run is not None and self._owned:
            self.run.finish()
        self.run = None

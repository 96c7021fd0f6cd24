"""Experiment tracking with TensorBoard event files."""

import json
import os
from pathlib import Path
from typing import Any

from phalanx.io.untrusted import reject_symlink
from phalanx.logging.handlers.handler import Picture, config_values
from phalanx.logging.handlers.tracker import Tracker, import_library
from phalanx.logging.records import Record, flatten_settings, to_json_value

_HPARAM_METRICS = ("batch/success_rate", "batch/reward_mean", "evaluation/held-out/greedy/success_rate")
"""Metrics that TensorBoard shows next to the hyperparameters of a run."""


class TensorBoardHandler(Tracker):
    """Writes scalars, hyperparameters and images to TensorBoard event files.

    Images that are available only as SVG are skipped.

    Args:
        output_dir: Folder for the event files.
    """

    def __init__(self, output_dir: str | os.PathLike[str]) -> None:
        super().__init__()
        library = import_library("tensorboardX", "tensorboard")
        self._writer = library.SummaryWriter(str(output_dir), flush_secs=30)

    @classmethod
    def for_run(cls, folder: Path, name: str, group: str | None) -> "TensorBoardHandler":
        """Create the handler for a run folder. Event files are written to the `tensorboard` subfolder.

        A resumed run adds another event file to this subfolder. `name` and `group` are not used.
        """
        reject_symlink(folder / "tensorboard")
        return cls(folder / "tensorboard")

    def log_config(self, config: Any, metadata: Record) -> None:
        """Log the settings as hyperparameters and the metadata as text."""
        settings = flatten_settings(config_values(config))
        hparams = import_library("tensorboardX.summary", "tensorboard").hparams
        for summary in hparams(settings, dict.fromkeys(_HPARAM_METRICS, 0.0)):
            self._writer.file_writer.add_summary(summary)
        text = json.dumps(to_json_value(metadata), indent=2)
        self._writer.add_text("metadata", f"```\n{text}\n```")

    def log_picture(self, name: str, picture: Picture, step: int) -> None:
        """Log the pixels of an image. Images that are not available as pixels are skipped."""
        if picture.pixels is not None:
            import_library("PIL", "tensorboard")  # tensorboardX encodes images with it
            self._writer.add_image(name, picture.pixels, step, dataformats="HWC")

    def _log_scalars(self, values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Flush and close the event file."""
        self._writer.close()

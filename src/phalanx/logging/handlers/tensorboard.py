"""The run in TensorBoard's event files.

What is told, and under which names, is in `trackers`.
"""

import json
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

from phalanx.logging.handlers.handler import Picture, settings_of
from phalanx.logging.handlers.tracker import Tracker, imported
from phalanx.logging.records import Data, flat_settings, plain

_COMPARED = ("batch/success_rate", "batch/reward_mean", "evaluation/held-out/greedy/success_rate")
"""What the table of hyperparameters shows beside them."""


class TensorBoardHandler(Tracker):
    """Writes TensorBoard event files: scalars, hyperparameters, and pictures of states that have pixels."""

    def __init__(self, output_dir: str | os.PathLike[str], *, flush_seconds: int = 30) -> None:
        super().__init__()
        self._board = imported("tensorboardX", "tensorboard")
        self._writer = self._board.SummaryWriter(str(output_dir), flush_secs=flush_seconds)

    @classmethod
    def for_run(cls, folder: Path, name: str, group: str | None) -> "TensorBoardHandler":
        """Event files in the run's folder; a run that goes on adds one."""
        return cls(folder / "tensorboard")

    def log_config(self, config: Any, facts: Data) -> None:
        """The settings as hyperparameters, and the facts as a text."""
        settings = flat_settings(settings_of(config))
        parts = imported("tensorboardX.summary", "tensorboard").hparams(
            settings, dict.fromkeys(_COMPARED, 0.0)
        )
        for part in parts:
            self._writer.file_writer.add_summary(part)
        self._writer.add_text("facts", f"```\n{json.dumps(plain(facts), indent=2)}\n```")

    def log_picture(self, name: str, picture: Picture, step: int) -> None:
        """The picture's pixels, where it has any."""
        if picture.pixels is None:
            return
        height, width, _ = picture.pixels.shape
        summary = imported("tensorboardX.proto.summary_pb2", "tensorboard").Summary
        image = summary.Image(
            height=height, width=width, colorspace=3, encoded_image_string=png_bytes(picture.pixels)
        )
        self._writer.file_writer.add_summary(summary(value=[summary.Value(tag=name, image=image)]), step)

    def _numbers(self, values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write what is still in memory and close the event file."""
        self._writer.close()


def png_bytes(pixels: UInt8[np.ndarray, "height width 3"]) -> bytes:
    """An image as a PNG file; TensorBoard's own writer would need a library for it."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    height, width, _ = pixels.shape
    # Each row begins with its filter: 0, as it is.
    rows = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], axis=1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows.tobytes(), 9)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body

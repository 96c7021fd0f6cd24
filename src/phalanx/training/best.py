"""The best checkpoint of a run by a number of its evaluations, kept beside the newest ones.

What is measured is the `Algorithm`'s; a run goes on from its newest checkpoint, never from this one.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import PyTree

from phalanx.io.checksum import CorruptFileError
from phalanx.training.checkpoints import BEST, Checkpointer
from phalanx.training.config import CheckpointConfig

_LOG = logging.getLogger("phalanx.training")


class BestCheckpoint:
    """One checkpoint in a run's `best`, replaced by a better one; a run that goes on knows the old one."""

    def __init__(self, run: Path, settings: CheckpointConfig, *, writes: bool = True) -> None:
        """With `writes` off, as in all processes but the first, nothing is read or saved."""
        self._metric, self._sign = settings.best, 1 if settings.best_mode == "max" else -1
        self._score, self._checkpoints = -math.inf, None
        if settings.best is not None and writes:
            self._checkpoints = Checkpointer(run, keep=1, folder=BEST)
            step = self._checkpoints.latest()
            if step is not None:
                self._score = self._known(self._checkpoints, step)

    def _known(self, checkpoints: Checkpointer, step: int) -> float:
        try:
            return self._sign * float(checkpoints.facts(step)["best"]["value"])
        except (CorruptFileError, FileNotFoundError) as error:
            _LOG.warning("the best checkpoint is passed over, the next evaluation saves another: %s", error)
            return -math.inf

    def close(self) -> None:
        """Let go of the folder."""
        if self._checkpoints is not None:
            self._checkpoints.close()

    def score(self, records: Sequence[Mapping[str, Any]]) -> float | None:
        """The number in an evaluation's first record of each seed, the mean over the seeds."""
        if self._metric is None or not records:
            return None
        first = {record.get("seed", 0): record for record in reversed(records)}
        values = [record.get(self._metric) for record in first.values()]
        if any(isinstance(value, bool) or not isinstance(value, int | float) for value in values):
            numbers = [
                name for name, value in records[0].items() if isinstance(value, float) and name != "timestamp"
            ]
            raise ValueError(
                f"checkpoint.best is {self._metric!r}, which is no number of this training's evaluations; "
                f"they have {', '.join(numbers)}"
            )
        return float(np.mean(values))

    def keep(self, score: float, step: int, learner: PyTree, facts: Mapping[str, Any]) -> None:
        """Save it if it is better than what is there."""
        if self._checkpoints is None or not self._sign * score > self._score:
            return
        self._checkpoints.save(step, learner, {**facts, "best": {"metric": self._metric, "value": score}})
        self._score = self._sign * score

"""Episodes from files as labeled steps: what was seen and what was done then.

How samples are written is in `phalanx.streams` and `phalanx.cli.play`; learning from them is in `training`.
"""

import dataclasses
import hashlib
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Int, PyTree

from phalanx.arc.actions import Action
from phalanx.arc.environment import ArcEnvironment


@dataclasses.dataclass(frozen=True)
class EpisodeSteps:
    """All steps of a file."""

    observations: PyTree
    actions: Action
    fingerprint: str

    def drawn(self, rng: np.random.Generator, count: int) -> tuple[PyTree, Action]:
        """So many steps at random; each as often as the others, as far as that goes."""
        return self.observations, self.actions


def read_episodes(path: Path, environment: ArcEnvironment) -> EpisodeSteps:
    raise NotImplementedError

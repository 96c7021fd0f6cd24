"""The task that the seeds' code blocks call for with `create_mock_task` and leave out."""

import numpy as np

from phalanx.arc import GridPair, JaxArcTask, as_grid


def create_mock_task() -> JaxArcTask:
    """A black 16x16 grid that is to have a blue column 7."""
    before = np.zeros((16, 16), np.int8)
    after = before.copy()
    after[:, 7] = 1
    return JaxArcTask(id="mock", demos=(GridPair(as_grid(before), as_grid(after)),), tests=())

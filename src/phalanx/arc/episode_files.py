"""Episodes from files as labeled steps: what was seen, and what was done then.

How samples are written is in `phalanx.data` and `phalanx.arc.play`; learning from them is in `training`.
"""

import dataclasses
import hashlib
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Int, PyTree

from phalanx.arc.env import ArcEnvironment
from phalanx.arc.episode_tokens import ArcTokenizer, GridName
from phalanx.arc.observation import ArcObservation
from phalanx.arc.operations import Operation
from phalanx.arc.planner import action_from_arrays
from phalanx.core.expert import ExpertLabels
from phalanx.data.samples import Sample, read_samples

_SHOWN: tuple[tuple[GridName, ...], ...] = (
    ("input", "working"),
    ("working", "target"),
    ("input", "working", "target"),
    ("working",),
)
"""What samples may show of a state."""


@dataclasses.dataclass(frozen=True)
class LabeledSteps:
    """The steps of a file's successful episodes, each of which ends by handing in."""

    observations: PyTree
    labels: ExpertLabels
    fingerprint: str

    def __len__(self) -> int:
        return len(jax.tree.leaves(self.observations)[0])

    def sample(self, rng: np.random.Generator, count: int) -> tuple[PyTree, ExpertLabels]:
        """Sample steps with replacement."""
        rows = rng.integers(len(self), size=count)
        return jax.tree.map(lambda leaf: np.asarray(leaf)[rows], (self.observations, self.labels))


def read_recorded_episodes(path: Path, environment: ArcEnvironment) -> LabeledSteps:
    """The steps of a `.jsonl` file of samples, as the environment's agents see and do them.

    Episodes that did not succeed are left out. One that ended with the right grid, but without handing it in,
    gets that step.
    """
    see = environment.config.observation
    if see.target_grid or see.selected or see.clipboard or see.num_demonstrations or see.scalars:
        raise ValueError("episodes from files show the working grid and the input: observe nothing else")
    episodes: dict[str, list[Sample]] = {}
    for sample in read_samples(path):
        if sample.info is not None and sample.info.success and sample.info.episode_id is not None:
            episodes.setdefault(sample.info.episode_id, []).append(sample)
    if not episodes:
        raise ValueError(f"{path} has no episode that succeeded: there is nothing to learn from")
    read = _Reader(path, environment)
    for samples in episodes.values():
        read.add(sorted(samples, key=lambda sample: (sample.info and sample.info.step_index) or 0))
    return read.steps()


class _Reader:
    """Puts the steps of episodes together."""

    def __init__(self, path: Path, environment: ArcEnvironment) -> None:
        self.path, self.environment = path, environment
        self.step = jax.jit(environment.step)
        self.working: list[np.ndarray] = []
        self.inputs: list[np.ndarray] = []
        self.operations: list[int] = []
        self.cells: list[list[int]] = []

    def add(self, samples: list[Sample]) -> None:
        for sample in samples:
            seen, action = self._decoded(sample)
            if self.environment.config.observation.input_grid and "input" not in seen:
                raise ValueError(
                    f"{self.path}: sample {sample.sample_id} does not show the input, which the policy is to "
                    "see; save with --grids input,working or set arc.observation.input_grid=false"
                )
            operation, *cells = action.values()
            self._append(self._canvas(seen["working"]), self._canvas(seen.get("input")), operation, cells)
        if self.operations[-1] != Operation.SUBMIT:
            after = self._after(self.working[-1], self.inputs[-1], self.operations[-1], self.cells[-1])
            self._append(after, self.inputs[-1], Operation.SUBMIT, [0] * len(self.cells[-1]))

    def _append(self, working: np.ndarray, given: np.ndarray, operation: int, cells: list[int]) -> None:
        self.working.append(working)
        self.inputs.append(given)
        self.operations.append(int(operation))
        self.cells.append(cells)

    def _decoded(self, sample: Sample) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        tokens = np.asarray(sample.input_ids, np.int32)
        selection_format = self.environment.config.action.selection_format
        for grids in _SHOWN:
            try:
                return ArcTokenizer(selection_format, grids).decode(tokens)
            except (ValueError, IndexError):
                continue
        raise ValueError(
            f"{self.path}: sample {sample.sample_id} is no step of ARC with {selection_format} actions"
        )

    def _canvas(self, grid: np.ndarray | None) -> np.ndarray:
        """A grid on the environment's canvas."""
        rows, columns = self.environment.config.grid_shape
        canvas = np.full((rows, columns), -1, np.int8)
        if grid is not None:
            if grid.shape[0] > rows or grid.shape[1] > columns:
                raise ValueError(
                    f"{self.path}: a grid of {grid.shape[0]}x{grid.shape[1]} does not fit the canvas of "
                    f"{rows}x{columns}; raise arc.dataset.max_grid_height and max_grid_width"
                )
            canvas[: grid.shape[0], : grid.shape[1]] = grid
        return canvas

    def _after(
        self, working: np.ndarray, given: np.ndarray, operation: int, cells: list[int]
    ) -> Int[np.ndarray, "rows columns"]:
        """The grid that a step leads to."""
        if operation == Operation.COPY_INPUT:
            return given
        action = action_from_arrays(np.int32(operation), np.array(cells, np.int32))
        return np.asarray(self.step(self.environment.state_from_grid(working), action)[0].working_grid)

    def steps(self) -> LabeledSteps:
        allowed = self.environment.config.action.allowed_operations
        if allowed is not None and (strange := sorted(set(self.operations) - set(allowed))):
            raise ValueError(
                f"{self.path}: operation {strange[0]} is not among arc.action.allowed_operations"
            )
        working = jax.device_put(np.stack(self.working))
        observations: PyTree = working
        if not self.environment.config.observation.is_single_array:
            observations = ArcObservation(working, input_grid=jax.device_put(np.stack(self.inputs)))
        operations = np.array(self.operations, np.int32)[:, None]
        cells = np.array(self.cells, np.int32)[:, None]
        leaves = jax.tree.leaves((observations, operations, cells))
        digest = hashlib.sha256(b"".join(np.asarray(leaf).tobytes() for leaf in leaves)).hexdigest()
        labels = ExpertLabels(action_from_arrays(operations, cells), operations >= 0)
        return LabeledSteps(observations, labels, digest)

"""The steps of an episode for drawing: `GridStep`, with the grid after the step, and functions that create
them."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int8, Int32, PyTree

from phalanx.arc.operations import operation_name
from phalanx.arc.rendering.snapshot import Cells, GridLike, Mask, MaskLike, as_cells, as_mask
from phalanx.arc.state import ArcState
from phalanx.core.autoreset import AutoResetInfo
from phalanx.core.episodes import BatchTrajectory
from phalanx.formatting import format_count, format_percent, format_signed


@dataclasses.dataclass(frozen=True, eq=False)
class GridStep:
    """A step of an episode, and the working grid after it. The start of an episode, with the initial grid, is
    a step whose `operation` is None."""

    grid: Cells
    """Working grid, without padding."""
    selected: Mask
    """Mask of the selected cells of the working grid."""
    step: int = 0
    """Number of steps taken so far."""
    operation: int | None = None
    """Id of the operation; -1 if the action was invalid. None at the start of the episode."""
    reward: float | None = None
    """Reward of the step; None if it is not shown."""
    similarity: float | None = None
    """Similarity of the working grid to the target after the step; None if it is not shown."""
    done: bool = False
    """True if the episode has ended."""
    solved: bool = False
    """True if the episode has ended with a correct solution."""
    num_selected: int = 0
    """Number of selected cells on the canvas, including those outside the grid."""

    @property
    def name(self) -> str:
        """Name of the operation; `Start` at the start of the episode."""
        return "Start" if self.operation is None else operation_name(self.operation)

    @property
    def status(self) -> str:
        """Status of the episode: `solved`, `ended` (without a solution) or `running`."""
        return "solved" if self.solved else "ended" if self.done else "running"

    @property
    def result_text(self) -> str:
        """Reward and similarity, such as `+0.5 · 75.0%`. Values that are not shown are omitted."""
        reward = [] if self.reward is None else [format_signed(self.reward)]
        similarity = [] if self.similarity is None else [format_percent(self.similarity)]
        return " · ".join(reward + similarity)

    @property
    def selection_text(self) -> str:
        """Description of the selected cells, with rows and columns counted from 0. At the start of the
        episode, the size of the grid."""
        if self.operation is None:
            return f"{self.grid.shape[0]}×{self.grid.shape[1]} grid"
        inside = np.argwhere(self.selected)
        if not inside.size:
            return "outside the grid" if self.num_selected else "no cells"
        (top, left), (bottom, right) = inside.min(axis=0).tolist(), inside.max(axis=0).tolist()
        if len(inside) == 1:
            return f"cell {top}, {left}"
        height, width = bottom - top + 1, right - left + 1
        if len(inside) == height * width:
            return f"{height}×{width} box at {top}, {left}"
        return f"{len(inside)} cells from {top}, {left}"


def episode_step(grid: GridLike, *, selected: MaskLike | None = None, **details: Any) -> GridStep:
    """Create a step of an episode.

    Args:
        grid: Working grid, which may be padded with -1.
        selected: Mask of the selected cells, with the shape of `grid`. None if no cell is selected.
        details: Values of the other fields of `GridStep`, such as `operation` and `reward`.
    """
    num_selected = 0 if selected is None else int(np.sum(selected))
    return GridStep(as_cells(grid), as_mask(selected, grid), num_selected=num_selected, **details)


def episode_steps(
    trajectory: BatchTrajectory, index: int = 0, *, initial: ArcState | PyTree = None
) -> tuple[GridStep, ...]:
    """Return the steps of one environment in a trajectory, up to the end of its first episode.

    Args:
        trajectory: BatchTrajectory returned by `run_episode_batch`.
        index: Index of the environment in the batch.
        initial: Batch of states or observations before the first step. If it is given, the first entry
            is the start of the episode.
    """
    num_steps, batch = trajectory.dones.shape
    if not 0 <= index < batch:
        raise ValueError(f"environment {index} is not in the batch of {batch}; choose 0 to {batch - 1}")
    grids, masks, rewards, dones, info = jax.device_get(_history(trajectory, jnp.int32(index)))
    steps = [] if initial is None else [episode_step(_working_grid(initial)[index])]
    for t in range(num_steps):
        steps.append(
            episode_step(
                grids[t],
                selected=masks[t],
                operation=int(info.operation_type[t]),
                step=int(info.step_count[t]),
                reward=float(rewards[t]),
                similarity=float(info.similarity[t]),
                done=bool(dones[t]),
                solved=bool(info.solved[t]),
            )
        )
        if dones[t]:
            break
    return tuple(steps)


# Compiled, so that only the history of one environment is copied from the device.
@jax.jit
def _history(trajectory: BatchTrajectory, index: Int32[Array, ""]) -> tuple[PyTree, ...]:
    """Return the working grids, selections, rewards, dones and infos of one environment, each with the steps
    as its leading axis."""
    one = jax.tree.map(lambda leaf: leaf[:, index], trajectory)
    observations, info = one.observations, one.infos
    if isinstance(info, AutoResetInfo):
        # The observation of a step that ends an episode already belongs to the next one.
        observations, info = info.final_observation, info.info
    grids = _working_grid(observations)
    return grids, one.actions.to_selection_mask(grids.shape[1:]), one.rewards, one.dones, info


def _working_grid(observations: ArcState | PyTree) -> Int8[Array, "_ _ _"]:
    """Return the working grids of states or observations. Raises `ValueError` if the observations do not
    contain them."""
    grid = observations if isinstance(observations, Array) else observations.working_grid
    if not grid.size:
        raise ValueError(
            "the observations do not contain the working grid: set observation.working_grid=true"
        )
    return grid


def steps_to_show(steps: Sequence[GridStep], max_steps: int) -> list[GridStep | str]:
    """Select the steps of an episode to draw. If there are more than `max_steps`, some steps in the middle
    are replaced with a string such as `… 27 steps omitted …`."""
    if not steps:
        raise ValueError("an episode needs at least one step")
    if max_steps < 2:
        raise ValueError(f"max_steps must be at least 2 (the beginning and the end), got {max_steps}")
    omitted = len(steps) - max_steps
    if omitted <= 0:
        return list(steps)
    first = max_steps - max_steps // 2
    text = f"… {format_count(omitted, 'step')} omitted …"
    return [*steps[:first], text, *steps[first + omitted :]]

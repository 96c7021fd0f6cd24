"""The steps of one episode as frames: the grid, where the action pointed, what it was and what it paid.

Drawing them is in `film` (SVG) and `terminal`.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int8, Int32, PyTree

from phalanx.arc.operations import operation_name
from phalanx.arc.render.snapshots import Cells, GridLike, Mask, MaskLike, as_cells, as_mask, snapshot
from phalanx.arc.render.wording import Number
from phalanx.arc.state import ArcState
from phalanx.core.autoreset import AutoResetInfo
from phalanx.core.episodes import Trajectory


@dataclasses.dataclass(frozen=True, eq=False)
class Frame:
    """The grid after a step, and the step that led there; the first frame of an episode has no step."""

    grid: Cells
    """Cut to its area."""
    selected: Mask
    """The cells that the action named, inside the grid's area."""
    step: int = 0
    """Steps taken so far."""
    operation: int | None = None
    """The operation's id, -1 for an invalid action, None where the episode starts."""
    reward: Number | None = None
    similarity: Number | None = None
    done: bool = False
    solved: bool = False
    aimed: int = 0
    """How many cells the action named on the whole canvas, those outside the grid included."""

    @property
    def name(self) -> str:
        """The operation in words."""
        return "Start" if self.operation is None else operation_name(self.operation)

    @property
    def status(self) -> str:
        """One word: `solved`, `ended` or `running`."""
        return "solved" if self.solved else "ended" if self.done else "running"

    @property
    def place(self) -> str:
        """The selection in words, rows and columns counted from 0."""
        if self.operation is None:
            return f"{self.grid.shape[0]}×{self.grid.shape[1]} grid"
        inside = np.argwhere(self.selected)
        if not inside.size:
            return "outside the grid" if self.aimed else "no cells"
        (top, left), (bottom, right) = inside.min(axis=0).tolist(), inside.max(axis=0).tolist()
        if len(inside) == 1:
            return f"cell {top}, {left}"
        height, width = bottom - top + 1, right - left + 1
        if len(inside) == height * width:
            return f"{height}×{width} box at {top}, {left}"
        return f"{len(inside)} cells from {top}, {left}"


def frame(
    grid: GridLike,
    *,
    selected: MaskLike | None = None,
    operation: int | None = None,
    step: int = 0,
    reward: Number | None = None,
    similarity: Number | None = None,
    done: bool = False,
    solved: bool = False,
) -> Frame:
    """A frame from a canvas (-1 outside the area) and the mask, on the same canvas, that an action named."""
    return Frame(
        grid=as_cells(grid),
        selected=as_mask(selected, grid),
        step=step,
        operation=operation,
        reward=reward,
        similarity=similarity,
        done=done,
        solved=solved,
        aimed=0 if selected is None else int(np.sum(selected)),
    )


def episode_frames(
    trajectory: Trajectory, index: int = 0, *, initial: ArcState | PyTree = None
) -> tuple[Frame, ...]:
    """The frames of environment `index` of a trajectory, up to the end of its first episode.

    `trajectory` comes from `run_episode_batch`. `initial` is the batch of states or observations that the
    run started from; with it the first frame shows the grid before the first step.
    """
    steps, batch = trajectory.dones.shape
    if not 0 <= index < batch:
        raise ValueError(f"environment {index} is not in the batch of {batch}; choose 0 to {batch - 1}")
    grids, masks, rewards, dones, info = jax.device_get(_history(trajectory, jnp.int32(index)))
    frames = [] if initial is None else [frame(_first_grid(initial, index))]
    for t in range(steps):
        frames.append(
            frame(
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
    return tuple(frames)


# Compiled, so that what leaves the device is one environment's history and not the whole batch's.
@jax.jit
def _history(trajectory: Trajectory, index: Int32[Array, ""]) -> tuple[PyTree, ...]:
    """Grids, selections, rewards, ends and infos of one environment, step by step."""
    one = jax.tree.map(lambda leaf: leaf[:, index], trajectory)
    observations, info = one.observations, one.infos
    if isinstance(info, AutoResetInfo):
        # The observation of a step that ends an episode already belongs to the next one.
        observations, info = info.final_observation, info.info
    grids = _working_grid(observations)
    return grids, one.actions.to_selection_mask(grids.shape[1:]), one.rewards, one.dones, info


def _first_grid(initial: ArcState | PyTree, index: int) -> Cells:
    if isinstance(initial, ArcState):
        return snapshot(initial[index]).working
    return np.asarray(_working_grid(initial)[index])


def _working_grid(observations: PyTree) -> Int8[Array, "_ _ _"]:
    """The grids of observations, which are those grids themselves unless they hold more."""
    grid = observations if isinstance(observations, Array) else observations.working_grid
    if not grid.size:
        raise ValueError(
            "the observations do not hold the working grid; draw episodes with observation.working_grid=true"
        )
    return grid

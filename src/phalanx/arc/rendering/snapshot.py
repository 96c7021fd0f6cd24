"""Converts states and grids to NumPy arrays for rendering, without the canvas padding."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Integer

from phalanx.arc.operations import NUM_COLORS, operation_name
from phalanx.arc.state import ArcState, attached_tasks, state_fields
from phalanx.arc.task_buffer import TaskBuffer

GridLike = Integer[np.ndarray, "_ _"] | Integer[jax.Array, "_ _"] | Sequence[Sequence[int]]
"""A grid as rows of cells. Cells are colors 0 to 9, or -1 outside the grid."""
MaskLike = Bool[np.ndarray, "_ _"] | Bool[jax.Array, "_ _"] | Sequence[Sequence[bool]]
"""Mask of cells, with the same shape as the grid."""

Cells = Integer[np.ndarray, "_ _"]
Mask = Bool[np.ndarray, "_ _"]


def as_cells(grid: GridLike) -> Cells:
    """Convert a grid to a NumPy array, without the -1 padding at the bottom and on the right."""
    cells = np.asarray(grid)
    if cells.ndim != 2:
        raise ValueError(
            f"a grid must have rows and columns, got shape {cells.shape}; pass one grid of a batch"
        )
    if cells.size and not np.issubdtype(cells.dtype, np.integer):
        raise ValueError(f"a grid must contain integers, got {cells.dtype}")
    wrong = np.argwhere((cells < -1) | (cells >= NUM_COLORS))
    if wrong.size:
        r, c = (int(i) for i in wrong[0])
        raise ValueError(f"cell ({r}, {c}) must be a color from 0 to 9 or -1 for none, got {cells[r, c]}")
    inside = np.argwhere(cells >= 0)
    height, width = (inside.max(axis=0) + 1) if inside.size else (0, 0)
    return cells[:height, :width].astype(np.int8)


def as_mask(selected: MaskLike | None, grid: GridLike) -> Mask:
    """Convert a mask to a NumPy array with the size of the unpadded grid. If the mask is None, no cells are
    selected.

    Args:
        selected: Mask with the shape of `grid`, or None.
        grid: The grid, which may be padded with -1.
    """
    cells = as_cells(grid)
    if selected is None:
        return np.zeros(cells.shape, bool)
    mask = np.asarray(selected, bool)
    if mask.shape != np.shape(grid):
        raise ValueError(f"the selection has shape {mask.shape}, the grid {np.shape(grid)}")
    return mask[: cells.shape[0], : cells.shape[1]] & (cells >= 0)


@dataclasses.dataclass(frozen=True, eq=False)
class StateSnapshot:
    """Copy of a single state on the host, without the padding of the grids."""

    title: str
    """Task id and pair, such as `mirror-7 · demo 2 of 3`."""
    input: Cells
    """Input grid of the current pair."""
    working: Cells
    """Working grid, which the actions edit."""
    target: Cells
    """Target grid. It has no cells if the output is hidden, as for test pairs in evaluation mode."""
    selected: Mask
    """Mask of the selected cells of the working grid."""
    clipboard: Cells
    """The object in the clipboard, trimmed to its bounding box, with -1 for cells that do not belong to the
    object. The grid has no cells if the clipboard is empty."""
    operation: int | None
    """Id of the last valid operation; None at the start of an episode."""
    similarity: float
    """Similarity of the working grid to the target, 0 to 1."""
    step: int
    """Number of steps taken in the episode."""
    done: bool
    """True if the episode has ended."""
    solved: bool
    """True if the episode has ended with a correct solution."""

    @property
    def operation_name(self) -> str:
        """Name of the last valid operation; `none` at the start of an episode."""
        return "none" if self.operation is None else operation_name(self.operation)

    @property
    def status(self) -> str:
        """Status of the episode: `solved`, `ended` (without a solution) or `running`."""
        return "solved" if self.solved else "ended" if self.done else "running"


def snapshot(state: ArcState | StateSnapshot) -> StateSnapshot:
    """Copy a single state to the host. A snapshot is returned unchanged."""
    if isinstance(state, StateSnapshot):
        return state
    if state.batch_shape:
        raise ValueError(
            f"expected a single state, got a batch of shape {state.batch_shape}; take one of them, "
            "such as states[0], or use snapshots(states, limit)"
        )
    return snapshots(state, limit=1)[0]


def snapshots(states: ArcState, limit: int = 4) -> tuple[StateSnapshot, ...]:
    """Copy the first `limit` states of a batch to the host. A single state is treated as a batch of one."""
    tasks = attached_tasks(states)
    columns = jax.device_get(state_fields(states, _VIEW, limit))
    return tuple(_one(tasks, dict(zip(_VIEW, row, strict=True))) for row in zip(*columns, strict=True))


_VIEW = (
    *("input_grid", "working_grid", "target_grid", "selected", "clipboard", "task_index", "pair_index"),
    *("last_operation", "similarity", "step_count", "episode_done", "solved"),
)
"""Properties of a state that a snapshot needs."""


def _one(tasks: TaskBuffer, view: dict[str, Any]) -> StateSnapshot:
    """Create a snapshot of one state. `view` maps the names of the state's attributes to their values."""
    task, pair, operation = tasks[int(view["task_index"])], view["pair_index"], int(view["last_operation"])
    demos = len(task.demos)
    name = f"demo {pair + 1} of {demos}" if pair < demos else f"test {pair - demos + 1} of {len(task.tests)}"
    return StateSnapshot(
        title=f"{task.id} · {name}",
        input=as_cells(view["input_grid"]),
        working=as_cells(view["working_grid"]),
        target=as_cells(view["target_grid"]),
        selected=as_mask(view["selected"], view["working_grid"]),
        clipboard=as_cells(view["clipboard"]),
        operation=None if operation < 0 else operation,
        similarity=float(view["similarity"]),
        step=int(view["step_count"]),
        done=bool(view["episode_done"]),
        solved=bool(view["solved"]),
    )

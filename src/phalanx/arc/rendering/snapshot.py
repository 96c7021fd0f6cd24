"""Converts states and grids to NumPy arrays for rendering, without the padding of the canvas."""

import dataclasses
import functools
from collections.abc import Sequence

import jax
import numpy as np
from jaxtyping import Array, Bool, Integer

from phalanx.arc.operations import NUM_COLORS, operation_name
from phalanx.arc.state import ArcState, named_tasks
from phalanx.arc.task_buffer import TaskBuffer

GridLike = Integer[np.ndarray, "_ _"] | Integer[jax.Array, "_ _"] | Sequence[Sequence[int]]
"""A grid as rows of cells. Cells are colors 0 to 9, or -1 outside the grid."""
MaskLike = Bool[np.ndarray, "_ _"] | Bool[jax.Array, "_ _"] | Sequence[Sequence[bool]]
"""Mask of cells, with the same shape as the grid."""

Cells = Integer[np.ndarray, "_ _"]
Mask = Bool[np.ndarray, "_ _"]


def as_cells(grid: GridLike) -> Cells:
    """Convert a grid to a NumPy array, and remove the rows and columns of -1 at the bottom and on the
    right."""
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
    """Convert a mask to a NumPy array with the size of the trimmed grid. None is converted to an empty
    selection.

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
    """Copy of a single state on the host. All grids are trimmed to their size."""

    title: str
    """Task id and pair, such as `mirror-7 · demo 2 of 3`."""
    input: Cells
    working: Cells
    target: Cells
    """Target grid. It has no cells if the output is secret."""
    selected: Mask
    """Mask of the selected cells of the working grid."""
    clipboard: Cells
    """Bounding box of the object in the clipboard, -1 for cells that do not belong to the object. It has no
    cells if the clipboard is empty."""
    operation: int | None
    """Id of the last valid operation; None at the start of an episode."""
    similarity: float
    """Similarity of the working grid to the target, 0 to 1."""
    step: int
    """Number of steps taken in the episode."""
    done: bool
    """Whether the episode has ended."""
    solved: bool
    """Whether the episode has ended with a correct solution."""

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
    tasks = named_tasks(states)
    columns = jax.device_get(_view(states, limit))
    return tuple(_one(tasks, *row) for row in zip(*columns, strict=True))


# One program, because each property on its own would compile several.
@functools.partial(jax.jit, static_argnums=1)
def _view(states: ArcState, limit: int) -> tuple[Array, ...]:
    """Compute the arrays that snapshots of the first `limit` states contain."""
    batch = len(states.batch_shape)
    few = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[batch:])[:limit], states)
    grids = (few.input_grid, few.working_grid, few.target_grid, few.selected, few.clipboard)
    scalars = (few.task_index, few.pair_index, few.last_operation, few.step_count, few.similarity)
    return *grids, *scalars, few.episode_done, few.solved


def _one(
    tasks: TaskBuffer,
    before: np.ndarray,
    working: np.ndarray,
    target: np.ndarray,
    selected: np.ndarray,
    clipboard: np.ndarray,
    task_index: np.integer,
    pair: np.integer,
    operation: np.integer,
    step: np.integer,
    similarity: np.floating,
    done: np.bool_,
    solved: np.bool_,
) -> StateSnapshot:
    task = tasks[int(task_index)]
    demos = len(task.demos)
    name = f"demo {pair + 1} of {demos}" if pair < demos else f"test {pair - demos + 1} of {len(task.tests)}"
    return StateSnapshot(
        title=f"{task.id} · {name}",
        input=as_cells(before),
        working=as_cells(working),
        target=as_cells(target),
        selected=as_mask(selected, working),
        clipboard=as_cells(clipboard),
        operation=None if operation < 0 else int(operation),
        similarity=float(similarity),
        step=int(step),
        done=bool(done),
        solved=bool(solved),
    )

"""Planner that finds short sequences of actions that turn one grid into another.

The C++ extension searches for short plans. If it is not available, plans consist only of a resize and fills.
"""

import dataclasses
from collections.abc import Collection, Iterator

import numpy as np
from jaxtyping import Bool, Int32
from numpy.typing import ArrayLike

from phalanx.arc.actions import Action, create_bbox_action, create_mask_action, create_point_action
from phalanx.arc.config import MAX_GRID_SIDE, ActionConfig, ArcConfig, DatasetConfig, SelectionFormat
from phalanx.arc.operations import Operation, operation_name
from phalanx.arc.tasks import ArcTask, Grid, Solution, as_grid, format_shape
from phalanx.native import native_module

CANVAS = (MAX_GRID_SIDE, MAX_GRID_SIDE)
"""Default height and width of the canvas."""

Cells = Bool[np.ndarray, "rows columns"]


@dataclasses.dataclass(frozen=True, eq=False)
class ActionPlan:
    """A sequence of actions, stored as arrays."""

    operations: Int32[np.ndarray, " steps"]
    """Operation id of each step."""
    selections: Int32[np.ndarray, "steps corners"] | Bool[np.ndarray, "steps rows columns"]
    """Selected cells of each step: (row, column) of a point, (r1, c1, r2, c2) for the two corners of a box,
    or a mask of the canvas."""

    def __len__(self) -> int:
        return len(self.operations)

    def actions(self) -> list[Action]:
        """Return the steps as a list of actions."""
        return [action_from_arrays(*step) for step in zip(self.operations, self.selections, strict=True)]

    def then(self, other: "ActionPlan") -> "ActionPlan":
        """Return this plan followed by another plan with the same selection format."""
        return ActionPlan(
            np.concatenate([self.operations, other.operations]),
            np.concatenate([self.selections, other.selections]),
        )


def action_from_arrays(operations: ArrayLike, selections: np.ndarray) -> Action:
    """Create an action, or a batch of actions, from operation ids and selected cells.

    Args:
        operations: Operation ids, one per action.
        selections: Selected cells, in one of the formats of `ActionPlan.selections`. The format determines
            the type of the action.
    """
    if selections.dtype == np.bool_:
        return create_mask_action(operations, selections)
    corners = np.moveaxis(selections, -1, 0)
    create = create_point_action if len(corners) == 2 else create_bbox_action
    return create(operations, *corners)


def plan_pair(
    input: object,
    output: object,
    selection_format: SelectionFormat = "bbox",
    *,
    grid_shape: tuple[int, int] = CANVAS,
    allowed_operations: Collection[int] | None = None,
    submit: bool = False,
) -> list[Action]:
    """Plan actions that turn the input of a pair into its output.

    The plan is deterministic and always produces exactly the output. It is short, but not always the
    shortest.

    Args:
        input: Input grid of the pair.
        output: Grid to reach.
        selection_format: `point`, `bbox` or `mask`.
        grid_shape: Height and width of the environment's canvas.
        allowed_operations: Ids of the operations that the plan may use. If None, all are allowed.
        submit: Append the operation `SUBMIT` to the plan.

    >>> [int(action.operation) for action in plan_pair([[1, 2]], [[2, 1]])]
    [26]
    """
    config = _config(selection_format, grid_shape, allowed_operations)
    plan = plan_grids(as_grid(input, "input"), as_grid(output, "output"), config)
    return (plan.then(_submit_plan(config)) if submit else plan).actions()


def solution_actions(
    task: ArcTask,
    pair: int,
    selection_format: SelectionFormat = "bbox",
    *,
    grid_shape: tuple[int, int] = CANVAS,
    allowed_operations: Collection[int] | None = None,
    submit: bool = False,
) -> list[Action]:
    """Return actions that solve a pair of a task.

    The task's known solution is used if there is one and it can be expressed with the selection format and
    the allowed operations. Otherwise, the actions are planned.

    Args:
        task: The task.
        pair: Index of the pair in `ArcTask.pairs`, which starts with the demonstrations.
        selection_format: `point`, `bbox` or `mask`.
        grid_shape: Height and width of the environment's canvas.
        allowed_operations: Ids of the operations that may be used. If None, all are allowed.
        submit: Append Submit to the actions.
    """
    config = _config(selection_format, grid_shape, allowed_operations)
    return solution_plan(task, pair, config, submit=submit).actions()


def _config(
    selection_format: SelectionFormat, grid_shape: tuple[int, int], allowed: Collection[int] | None
) -> ArcConfig:
    """Create a config with the settings that a plan depends on. The config validates these settings."""
    operations = None if allowed is None else tuple(allowed)
    return ArcConfig(
        action=ActionConfig(selection_format=selection_format, allowed_operations=operations),
        dataset=DatasetConfig(max_grid_height=grid_shape[0], max_grid_width=grid_shape[1]),
    )


def _submit_plan(config: ArcConfig) -> ActionPlan:
    """Create a plan whose only step is Submit."""
    if Operation.SUBMIT not in config.action.operations:
        raise ValueError(f"a plan needs Submit ({int(Operation.SUBMIT)}), which is not allowed")
    shapes = {"point": (1, 2), "bbox": (1, 4), "mask": (1, *config.grid_shape)}
    selection_format = config.action.selection_format
    dtype = np.bool_ if selection_format == "mask" else np.int32
    return ActionPlan(np.array([Operation.SUBMIT], np.int32), np.zeros(shapes[selection_format], dtype))


def solution_plan(task: ArcTask, pair: int, config: ArcConfig, *, submit: bool = False) -> ActionPlan:
    """Return a plan that solves a pair of a task with the settings in `config`; see `solution_actions`."""
    if not 0 <= pair < len(task.pairs):
        raise ValueError(f"task {task.id!r} has pairs 0 to {len(task.pairs) - 1}, got {pair}")
    before, after = task.pairs[pair].input, task.pairs[pair].output
    if after is None:
        raise ValueError(f"task {task.id!r}: pair {pair} has no output to plan for")
    plan = _convert_solution(task.solutions[pair], config) if task.solutions else None
    if plan is None or not set(config.action.operations).issuperset(plan.operations.tolist()):
        try:
            plan = plan_grids(before, after, config)
        except ValueError as error:
            raise ValueError(f"task {task.id!r}: pair {pair}: {error}") from error
    return plan.then(_submit_plan(config)) if submit else plan


def _convert_solution(solution: Solution, config: ArcConfig) -> ActionPlan | None:
    """Convert a solution to the selection format of `config`. Return None if the format is `point` and the
    solution cannot be expressed with points."""
    operations = np.array([step.operation for step in solution], np.int32)
    boxes = np.array([(step.r1, step.c1, step.r2, step.c2) for step in solution], np.int32).reshape(-1, 4)
    match config.action.selection_format:
        case "bbox":
            return ActionPlan(operations, boxes)
        case "point":
            first, last = boxes[:, :2], boxes[:, 2:]
            # Paste uses the top-left cell of its box, Resize the bottom-right cell.
            resizes = operations == Operation.RESIZE
            if not ((first == last).all(axis=1) | resizes | (operations == Operation.PASTE)).all():
                return None
            return ActionPlan(operations, np.where(resizes[:, None], last, first))
        case "mask":
            rows, columns = (np.arange(side) for side in config.grid_shape)
            r1, c1, r2, c2 = (corner[:, None] for corner in boxes.T)
            in_rows, in_columns = (r1 <= rows) & (rows <= r2), (c1 <= columns) & (columns <= c2)
            return ActionPlan(operations, in_rows[:, :, None] & in_columns[:, None, :])


def plan_grids(start: Grid, output: Grid, config: ArcConfig) -> ActionPlan:
    """Plan actions that turn one grid into another. Raises `ValueError` with the reason if there is no
    plan."""
    rows, columns = config.grid_shape
    for grid in (start, output):
        if grid.shape[0] > rows or grid.shape[1] > columns:
            size = format_shape(grid.shape)
            raise ValueError(f"a grid of {size} does not fit a canvas of {rows}x{columns}")
    selection_format, allowed = config.action.selection_format, config.action.operations
    if (native := native_module()) is None:
        steps, masks = _plan_fills(start, output, config)
        is_possible = set(allowed).issuperset(steps.tolist())
    else:
        operations, bits, missing = native.plan_grid_edit(
            start, output, rows, columns, selection_format, config.action.operation_bits
        )
        steps, is_possible = np.frombuffer(operations, np.int32), not missing
        cells = np.frombuffer(bits, np.uint32).reshape(len(steps), rows, 1)
        masks = ((cells >> np.arange(columns, dtype=np.uint32)) & 1).astype(bool)
    if not is_possible:
        after, before = format_shape(output.shape), format_shape(start.shape)
        reason = f"its size is {after}, not {before}, and Resize is not allowed"
        if start.shape == output.shape or Operation.RESIZE in allowed:
            lacking = [operation_name(color) for color in np.unique(output).tolist() if color not in allowed]
            reason = f"it would take some of {', '.join(lacking)}"
        raise ValueError(f"no plan with the allowed operations leads to the output: {reason}")
    if selection_format == "mask":
        return ActionPlan(steps, masks)
    in_rows, in_columns = masks.any(axis=2), masks.any(axis=1)
    first = [lines.argmax(axis=1) for lines in (in_rows, in_columns)]
    last = [lines.shape[1] - 1 - np.flip(lines, axis=1).argmax(axis=1) for lines in (in_rows, in_columns)]
    corners = first if selection_format == "point" else first + last
    return ActionPlan(steps, np.stack(corners, axis=1).astype(np.int32))


def _plan_fills(
    start: Grid, output: Grid, config: ArcConfig
) -> tuple[Int32[np.ndarray, " steps"], Bool[np.ndarray, "steps rows columns"]]:
    """Plan a resize, if necessary, followed by fills. This function does not check whether the operations are
    allowed.

    The plan is correct, but often longer than that of the C++ extension, because it does not move, copy or
    flood-fill.

    Returns:
        The operation of each step, and the mask of the cells that each step selects.
    """
    operations: list[int] = []
    masks: list[Cells] = []
    rows, columns = output.shape
    if start.shape != output.shape:
        operations.append(Operation.RESIZE)
        masks.append(np.zeros(config.grid_shape, bool))
        masks[0][rows - 1, columns - 1] = True
    grid = np.zeros_like(output)
    both = tuple(slice(min(sides)) for sides in zip(start.shape, output.shape, strict=True))
    grid[both] = start[both]
    for color in np.unique(output[grid != output]).tolist():
        wrong = (grid != output) & (output == color)
        for cells in _selections(wrong, output == color, config.action.selection_format):
            operations.append(color)
            masks.append(np.zeros(config.grid_shape, bool))
            masks[-1][:rows, :columns] = cells
    return np.array(operations, np.int32), np.array(masks, bool).reshape(-1, *config.grid_shape)


def _selections(wrong: Cells, may_be_filled: Cells, selection_format: SelectionFormat) -> Iterator[Cells]:
    """Yield selections for fills that together cover all cells in `wrong`.

    Args:
        wrong: Mask of the cells that must be covered.
        may_be_filled: Mask of the cells that may be covered, which include all cells in `wrong`.
        selection_format: With `mask`, a single mask is yielded. With `bbox`, each mask is a box. With
            `point`, each mask is a single cell.
    """
    if selection_format == "mask":
        yield wrong
        return
    left = wrong.copy()
    while left.any():
        row, column = np.argwhere(left)[0]
        bottom, right = row + 1, column + 1
        if selection_format == "bbox":
            while right < left.shape[1] and may_be_filled[row, right]:
                right += 1
            while bottom < left.shape[0] and may_be_filled[bottom, column:right].all():
                bottom += 1
        cells = np.zeros_like(left)
        cells[row:bottom, column:right] = True
        left &= ~cells
        yield cells

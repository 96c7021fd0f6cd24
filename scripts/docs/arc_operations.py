"""Generate `docs/reference/arc-operations.md`: all ARC operations, each with an image of a step.

The images show steps of the real environment.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence

import jax.numpy as jnp
import numpy as np

from phalanx.arc import (
    ArcConfig,
    ArcEnvironment,
    ArcState,
    ArcTask,
    DatasetConfig,
    EpisodeConfig,
    GridPair,
    Operation,
    arc_step,
    as_grid,
    create_mask_action,
)
from phalanx.arc.operations import CATEGORIES, OPERATIONS, OperationInfo
from phalanx.arc.rendering import StateSnapshot, snapshot
from phalanx.arc.rendering.svg_cells import grid_block
from phalanx.arc.rendering.svg_task import arrow, status_pill
from phalanx.svg import MUTED, SvgBlock, hstack, text_block, to_drawing, vstack

PAGE = "reference/arc-operations.md"
IMAGE_FOLDER = "images/operations"
_CELL_SIZE = 16

_DESCRIPTIONS = {
    "fill": "Fill operations set the color of the selected cells. Cells outside the grid are not changed. An "
    "empty selection has no effect.",
    "flood fill": "Exactly one cell of the grid must be selected; otherwise, the operation has no effect. "
    "Cells that touch only at a corner are not connected.",
    "move": "The selected object moves by one cell, and the cells that it leaves become 0. With an empty "
    "selection, the entire grid moves.",
    "transform": "The selected object is rotated or mirrored within its bounding box. Cells of the "
    "box that are not selected are not part of the object. With an empty selection, the object is the entire "
    "grid.",
    "clipboard": "The clipboard stores an object with its shape. It is kept when the episode continues with "
    "another pair. With an empty selection, Copy and Cut apply to the entire grid, and Paste has no effect.",
    "grid": "These operations change cells or the size of the grid. With an empty selection, Clear applies "
    "to the entire grid. Resize also uses selected cells outside the grid, which is how a grid can grow, and "
    "has no effect only if no cell of the canvas is selected. Copy input ignores the selection.",
    "submit": "A pair is solved if the submitted grid matches the output in size and in every cell. The "
    "selection is ignored.",
    "pair": "The episode continues with another pair of the same task. The clipboard is kept, and the "
    "selection is ignored.",
}

_LOST = "cells that move off the grid are lost."
_PAIR = "The episode continues with the input of the"
# Prompts describe the operations in their own words (`OperationInfo.text`). Models are trained on these
# texts, so they do not change between versions.
_EFFECTS = {
    Operation.MOVE_UP: f"The selected object moves one row up; {_LOST}",
    Operation.MOVE_DOWN: f"The selected object moves one row down; {_LOST}",
    Operation.MOVE_LEFT: f"The selected object moves one column to the left; {_LOST}",
    Operation.MOVE_RIGHT: f"The selected object moves one column to the right; {_LOST}",
    Operation.ROTATE_CLOCKWISE: "The selected object is rotated 90 degrees clockwise; its top-left corner "
    "stays in place.",
    Operation.ROTATE_COUNTERCLOCKWISE: "The selected object is rotated 90 degrees counterclockwise; its "
    "top-left corner stays in place.",
    Operation.FLIP_HORIZONTAL: "The selected object is mirrored left to right.",
    Operation.FLIP_VERTICAL: "The selected object is mirrored top to bottom.",
    Operation.COPY: "The selected object is copied to the clipboard.",
    Operation.PASTE: "The object in the clipboard is pasted at the top-left corner of the selection.",
    Operation.CUT: "The selected object is moved to the clipboard, and its cells become 0.",
    Operation.CLEAR: "The selected cells become 0.",
    Operation.COPY_INPUT: "The grid is replaced by the pair's input, including its size.",
    Operation.RESIZE: "The grid is resized so that its bottom-right corner is that of the selection; new "
    "cells are 0.",
    Operation.SUBMIT: "The grid is submitted, and the episode ends.",
    Operation.NEXT_DEMO_PAIR: f"{_PAIR} next demonstration pair.",
    Operation.PREVIOUS_DEMO_PAIR: f"{_PAIR} previous demonstration pair.",
    Operation.NEXT_TEST_PAIR: f"{_PAIR} next test pair.",
    Operation.PREVIOUS_TEST_PAIR: f"{_PAIR} previous test pair.",
    Operation.RESET_PAIR: "The grid is reset to the input of the current pair.",
    Operation.FIRST_UNSOLVED_DEMO_PAIR: f"{_PAIR} first unsolved demonstration pair.",
    Operation.FIRST_UNSOLVED_TEST_PAIR: f"{_PAIR} first unsolved test pair.",
}

SIDE = 5
"""Height and width of the grids."""

Cells = tuple[tuple[int, int], ...]


def box(r1: int, c1: int, r2: int, c2: int) -> Cells:
    """Return the cells of a box, including both corners."""
    return tuple((row, column) for row in range(r1, r2 + 1) for column in range(c1, c2 + 1))


CORNER: Cells = ((1, 1), (1, 2), (2, 1))
"""Cells of the red object in the input of the first demonstration pair."""
ANYWHERE: Cells = ((0, 0),)
"""Selection of operations that ignore it."""


def _pair(before: str, after: str) -> GridPair:
    grids = (as_grid([[int(cell) for cell in row] for row in text.split("/")]) for text in (before, after))
    return GridPair(*grids)


TASK = ArcTask(
    "operations",
    (
        _pair("00000/02200/02004/00000/30000", "00000/02200/02004/00000/33333"),
        _pair("00000/01110/01010/01110/00000", "00000/01110/01810/01110/00000"),
    ),
    (
        _pair("00000/07000/00700/00070/00000", "00000/00070/00700/07000/00000"),
        _pair("66000/66000/00000/00000/00000", "66066/66066/00000/00000/00000"),
    ),
)


@dataclasses.dataclass(frozen=True)
class Scene:
    """Example of an operation: the selected cells, and the steps before it."""

    cells: Cells
    before: tuple[tuple[Operation, Cells], ...] = ()


def _scenes() -> dict[int, Scene]:
    fills = {color: Scene(box(1, 1, 2, 3)) for color in range(10)}
    # The object is red already, so red fills the background.
    floods = {10 + color: Scene(((4, 4),) if color == 2 else ((1, 1),)) for color in range(10)}
    solve = (Operation.FILL_3, box(4, 0, 4, 4))
    objects = {int(operation): Scene(CORNER) for operation in range(Operation.MOVE_UP, Operation.PASTE)}
    return {
        **fills,
        **floods,
        **objects,
        Operation.PASTE: Scene(((2, 3),), ((Operation.COPY, CORNER),)),
        Operation.CUT: Scene(CORNER),
        Operation.CLEAR: Scene(box(1, 1, 2, 3)),
        Operation.COPY_INPUT: Scene(
            ANYWHERE, ((Operation.FILL_8, box(0, 0, 1, 2)), (Operation.RESIZE, ((3, 3),)))
        ),
        Operation.RESIZE: Scene(((2, 3),)),
        Operation.SUBMIT: Scene(ANYWHERE, (solve,)),
        Operation.NEXT_DEMO_PAIR: Scene(ANYWHERE),
        Operation.PREVIOUS_DEMO_PAIR: Scene(ANYWHERE, ((Operation.NEXT_DEMO_PAIR, ANYWHERE),)),
        Operation.NEXT_TEST_PAIR: Scene(ANYWHERE),
        Operation.PREVIOUS_TEST_PAIR: Scene(ANYWHERE),
        Operation.RESET_PAIR: Scene(ANYWHERE, ((Operation.FILL_8, box(0, 0, 3, 3)),)),
        Operation.FIRST_UNSOLVED_DEMO_PAIR: Scene(ANYWHERE, (solve,)),
        Operation.FIRST_UNSOLVED_TEST_PAIR: Scene(ANYWHERE, ((Operation.PREVIOUS_TEST_PAIR, ANYWHERE),)),
    }


SCENES = _scenes()
"""Examples of all operations, by operation id."""

# Otherwise, episodes would end when a scene solves a pair before its operation.
CONFIG = ArcConfig(
    dataset=DatasetConfig(max_grid_height=SIDE, max_grid_width=SIDE),
    episode=EpisodeConfig(require_submit=True),
)


@functools.cache
def _start() -> ArcState:
    states, _ = ArcEnvironment.create(CONFIG, TASK).batch_reset_to(jnp.zeros(1, int), jnp.zeros(1, int))
    return states[0]


def mask_of(cells: Sequence[tuple[int, int]]) -> np.ndarray:
    """Return a mask of the selected cells."""
    mask = np.zeros((SIDE, SIDE), bool)
    mask[tuple(np.transpose(cells))] = True
    return mask


def run_scene(operation: int) -> tuple[StateSnapshot, StateSnapshot]:
    """Return the states before and after the step of an operation.

    Raises:
        ValueError: A step of the scene is invalid.
    """
    scene = SCENES[operation]
    state = _start()
    states = [state]
    for number, cells in (*scene.before, (operation, scene.cells)):
        state, _, _, _, info = arc_step(state, create_mask_action(number, mask_of(cells)), CONFIG)
        if int(info.operation_type) != number:
            raise ValueError(f"operation {number} is invalid in the scene of operation {operation}")
        states.append(state)
    return snapshot(states[-2]), snapshot(states[-1])


def image_name(info: OperationInfo) -> str:
    """Return the file name of an operation's image."""
    return f"{info.id:02d}-{info.name.lower().replace(' ', '-')}.svg"


def draw_operation(info: OperationInfo) -> str:
    """Draw the grid before a step with the selected cells, and the grid after it, as SVG."""
    before, after = run_scene(info.id)
    cells = SCENES[info.id].cells
    uses_selection = info.category not in ("submit", "pair") and info.id != Operation.COPY_INPUT
    height, width = before.working.shape
    mask = mask_of(cells)[:height, :width] if uses_selection else None
    left = grid_block(before.working, _CELL_SIZE, selected=mask)
    right = grid_block(after.working, _CELL_SIZE)
    blocks = [_with_caption(left, info, before), arrow(), _with_caption(right, info, after)]
    if info.category == "clipboard":
        clipboard = grid_block(after.clipboard, 10)
        blocks.append(vstack([text_block("clipboard", 11, fill=MUTED), clipboard], 6))
    return to_drawing(hstack(blocks, 12, "middle"), info.name).as_svg() + "\n"


def _with_caption(grid: SvgBlock, info: OperationInfo, view: StateSnapshot) -> SvgBlock:
    if info.category == "submit":
        return vstack([grid, status_pill(view.status)], 8, "middle")
    if info.category == "pair":
        return vstack([grid, text_block(view.title.partition(" · ")[2], 11, fill=MUTED)], 8, "middle")
    return grid


def images() -> dict[str, str]:
    """Return all images by their path in `docs/`."""
    return {f"{IMAGE_FOLDER}/{image_name(info)}": draw_operation(info) for info in OPERATIONS}


def page() -> str:
    """Return the Markdown of the page."""
    return "\n".join(_lines()) + "\n"


def _effect(info: OperationInfo) -> str:
    if info.category == "fill":
        return f"The selected cells become {info.id}."
    if info.category == "flood fill":
        color = info.id - Operation.FLOOD_FILL_0
        return f"The same-color region that contains the selected cell becomes {color}."
    return _EFFECTS[Operation(info.id)]


def _lines() -> Iterator[str]:
    yield "# ARC operations"
    yield ""
    yield (
        "An action of the ARC environment consists of one of 42 operations and a selection of cells. Each "
        "image shows one step: the grid with the selected cells outlined, and the grid after the step. An "
        "invalid action leaves the grid unchanged, counts as a step, and incurs a penalty."
    )
    yield ""
    yield (
        "A selection is **empty** if it contains no cell of the grid, such as a point on the canvas outside "
        "the grid. Some operations then apply to the entire grid, as described below."
    )
    yield ""
    yield (
        "The ids of operations 0 to 34 are the same as in JaxARC. ARCLE's `O2ARCv2Env` has different "
        "operations for ids 22 (move right), 23 (move left), 24 (rotate counter-clockwise), 25 (rotate "
        "clockwise), 28 (copy from the input), 29 (copy from the grid), 30 (paste), 31 (copy the entire "
        "input) and 32 (clear the entire grid)."
    )
    for category in CATEGORIES:
        yield from ("", f"## {category.capitalize()}", "", _DESCRIPTIONS[category], "")
        yield "| id | operation | effect | example |"
        yield "| ---: | --- | --- | --- |"
        for info in OPERATIONS:
            if info.category == category:
                name = Operation(info.id).name
                image = f"![{info.name}: before and after](../{IMAGE_FOLDER}/{image_name(info)})"
                yield f"| {info.id} | **{info.name}**<br>`{name}` | {_effect(info)} | {image} |"

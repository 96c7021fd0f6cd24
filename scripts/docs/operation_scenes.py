"""One small true example of every ARC operation: a grid, the steps before it, and the cells it is given.

The steps are taken by the real environment; how they are drawn is in `operations_page`.
"""

import dataclasses
import functools
from collections.abc import Sequence

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
from phalanx.arc.rendering import StateSnapshot, snapshot

SIDE = 5
"""Rows and columns of the canvas."""

Cells = tuple[tuple[int, int], ...]


def box(r1: int, c1: int, r2: int, c2: int) -> Cells:
    """The cells of a box, corners included."""
    return tuple((row, column) for row in range(r1, r2 + 1) for column in range(c1, c2 + 1))


CORNER: Cells = ((1, 1), (1, 2), (2, 1))
"""The red object of the first demonstration's input."""
ANYWHERE: Cells = ((0, 0),)
"""For operations that ask for no cells."""


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
    """What is done before the operation, and the cells that it is given."""

    cells: Cells
    before: tuple[tuple[Operation, Cells], ...] = ()


def _scenes() -> dict[int, Scene]:
    fills = {color: Scene(box(1, 1, 2, 3)) for color in range(10)}
    # A region that has the colour already would show nothing: red flows over the background instead.
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
"""A scene for each of the 42 operations."""

# A solved grid must be handed in, or the scenes that solve a pair first would end before their operation.
CONFIG = ArcConfig(
    dataset=DatasetConfig(max_grid_height=SIDE, max_grid_width=SIDE),
    episode=EpisodeConfig(require_submit=True),
)


@functools.cache
def _start() -> ArcState:
    states, _ = ArcEnvironment.create(CONFIG, TASK).batch_reset_to(jnp.zeros(1, int), jnp.zeros(1, int))
    return states[0]


def mask_of(cells: Sequence[tuple[int, int]]) -> np.ndarray:
    """The cells as a mask of the canvas."""
    mask = np.zeros((SIDE, SIDE), bool)
    mask[tuple(np.transpose(cells))] = True
    return mask


def play(operation: int) -> tuple[StateSnapshot, StateSnapshot]:
    """The states before and after an operation's step; a step that the environment refuses is an error."""
    scene = SCENES[operation]
    state = _start()
    states = [state]
    for number, cells in (*scene.before, (operation, scene.cells)):
        state, _, _, _, info = arc_step(state, create_mask_action(number, mask_of(cells)), CONFIG)
        if int(info.operation_type) != number:
            raise ValueError(f"the scene of operation {operation} takes an invalid step, {number}")
        states.append(state)
    return snapshot(states[-2]), snapshot(states[-1])

"""The 42 operations of the ARC environment: ids, names, categories and descriptions.

The rule of an operation, which says how it changes a state, is in several files. A new operation must be
added to all of them:

| file | rule |
| --- | --- |
| `src/native/arc/operations.h`, `src/native/arc/step_kernel.cc` | effect on a state, in the native backend |
| `phalanx/arc/backends/xla.py` | the same effect, in the XLA backend |
| `phalanx/arc/evaluation_mode.py` | submissions and switches between pairs, in evaluation mode |
| `tests/reference/arc.py` | the same rules in plain Python, with which the tests compare both backends |

The planner (`src/native/arc/planner_grid.h`) predicts the effects of the operations that its plans use.
"""

import dataclasses
import enum

NUM_COLORS = 10
"""Number of colors that a cell can have. Color 0 is black, which is usually the background."""
NUM_OPERATIONS = 42


class Operation(enum.IntEnum):
    """Ids of the operations. Ids 0 to 34 are the same as in JaxARC. In ARCLE's `O2ARCv2Env`, ids 22 to 25 and
    28 to 32 are other operations.

    If no cell of the grid is selected, moves, rotations, flips, Copy, Cut and Clear apply to the entire grid.
    Fills, flood fills and Paste have no effect.
    """

    FILL_0, FILL_1, FILL_2, FILL_3, FILL_4 = range(5)
    FILL_5, FILL_6, FILL_7, FILL_8, FILL_9 = range(5, 10)
    FLOOD_FILL_0, FLOOD_FILL_1, FLOOD_FILL_2, FLOOD_FILL_3, FLOOD_FILL_4 = range(10, 15)
    FLOOD_FILL_5, FLOOD_FILL_6, FLOOD_FILL_7, FLOOD_FILL_8, FLOOD_FILL_9 = range(15, 20)
    MOVE_UP, MOVE_DOWN, MOVE_LEFT, MOVE_RIGHT = range(20, 24)
    ROTATE_CLOCKWISE, ROTATE_COUNTERCLOCKWISE = 24, 25
    FLIP_HORIZONTAL, FLIP_VERTICAL = 26, 27
    COPY, PASTE, CUT, CLEAR = range(28, 32)
    COPY_INPUT, RESIZE, SUBMIT = 32, 33, 34
    NEXT_DEMO_PAIR, PREVIOUS_DEMO_PAIR, NEXT_TEST_PAIR, PREVIOUS_TEST_PAIR = range(35, 39)
    RESET_PAIR = 39
    FIRST_UNSOLVED_DEMO_PAIR, FIRST_UNSOLVED_TEST_PAIR = 40, 41


@dataclasses.dataclass(frozen=True)
class OperationInfo:
    """Name, category and description of an operation."""

    id: int
    """Integer that selects the operation in an action, 0 to 41."""
    name: str
    """Short name for display."""
    category: str
    """One of `fill`, `flood fill`, `move`, `transform`, `clipboard`, `grid`, `submit` and `pair`."""
    text: str
    """One sentence that describes the effect of the operation."""


_REST = {
    20: ("Move up", "move", "The selected object moves one row up; what leaves the grid is lost."),
    21: ("Move down", "move", "The selected object moves one row down; what leaves the grid is lost."),
    22: ("Move left", "move", "The selected object moves one column left; what leaves the grid is lost."),
    23: ("Move right", "move", "The selected object moves one column right; what leaves the grid is lost."),
    24: ("Rotate clockwise", "transform", "The selected object turns by 90 degrees, its top left stays."),
    25: ("Rotate counter-clockwise", "transform", "The selected object turns back by 90 degrees."),
    26: ("Flip horizontally", "transform", "The selected object is mirrored left to right in its box."),
    27: ("Flip vertically", "transform", "The selected object is mirrored top to bottom in its box."),
    28: ("Copy", "clipboard", "The selected object is remembered."),
    29: ("Paste", "clipboard", "The remembered object is written at the selection's top left."),
    30: ("Cut", "clipboard", "The selected object is remembered and its cells become 0."),
    31: ("Clear", "grid", "Selected cells become 0."),
    32: ("Copy input", "grid", "The grid is replaced by the pair's input."),
    33: ("Resize", "grid", "The grid ends at the bottom-right corner of the selection; new cells are 0."),
    34: ("Submit", "submit", "The grid is handed in and the episode ends."),
    35: ("Next demo pair", "pair", "Work goes on at the next demonstration pair's input."),
    36: ("Previous demo pair", "pair", "Work goes on at the previous demonstration pair's input."),
    37: ("Next test pair", "pair", "Work goes on at the next test pair's input."),
    38: ("Previous test pair", "pair", "Work goes on at the previous test pair's input."),
    39: ("Reset pair", "pair", "Work starts again from this pair's input."),
    40: ("First unsolved demo pair", "pair", "Work goes on at the first demonstration not yet solved."),
    41: ("First unsolved test pair", "pair", "Work goes on at the first test pair not yet solved."),
}


PAIR_SWITCHES = (*range(Operation.NEXT_DEMO_PAIR, Operation.RESET_PAIR), 40, 41)
"""Ids of the operations that switch to a different pair of the task."""
CELLS_IGNORED = (Operation.COPY_INPUT, Operation.SUBMIT, Operation.RESET_PAIR, *PAIR_SWITCHES)
"""Ids of the operations that ignore the selected cells."""
_FLOOD_FILL_TEXT = "The region of equal colour around the one selected cell becomes {}."
OPERATIONS: tuple[OperationInfo, ...] = (
    *(OperationInfo(c, f"Fill {c}", "fill", f"Selected cells become {c}.") for c in range(NUM_COLORS)),
    *(
        OperationInfo(10 + c, f"Flood fill {c}", "flood fill", _FLOOD_FILL_TEXT.format(c))
        for c in range(NUM_COLORS)
    ),
    *(OperationInfo(id, *row) for id, row in _REST.items()),
)
"""The operations, in the order of their ids."""
CATEGORIES: tuple[str, ...] = tuple(dict.fromkeys(info.category for info in OPERATIONS))
"""Categories of operations, in the order in which they first occur in `OPERATIONS`."""


def operation_name(operation: int) -> str:
    """Return the display name of an operation, or "Invalid" for an unknown id such as -1.

    >>> operation_name(24)
    'Rotate clockwise'
    """
    return OPERATIONS[operation].name if 0 <= operation < NUM_OPERATIONS else "Invalid"


def operations_in(category: str) -> tuple[int, ...]:
    """Return the ids of the operations in a category.

    >>> operations_in("clipboard")
    (28, 29, 30)
    """
    if category not in CATEGORIES:
        raise ValueError(f"unknown operation category {category!r}; choose from {', '.join(CATEGORIES)}")
    return tuple(info.id for info in OPERATIONS if info.category == category)

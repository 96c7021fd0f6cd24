"""Text observations and text actions of the ARC environment, for language models."""

import difflib
import functools
import re
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from phalanx.arc.actions import Action, BboxAction, MaskAction, PointAction
from phalanx.arc.config import ArcConfig, SelectionFormat
from phalanx.arc.operations import (
    CELLS_IGNORED,
    NUM_OPERATIONS,
    OPERATIONS,
    Operation,
    operation_name,
)
from phalanx.arc.state import ArcState, attached_tasks, state_fields
from phalanx.arc.task_buffer import TaskBuffer
from phalanx.arc.tasks import ArcTask, shorten
from phalanx.core.text import TextInterface
from phalanx.core.vector import parse_each

OPERATION_NAMES = tuple(Operation(number).name.lower() for number in range(NUM_OPERATIONS))
"""Names of the operations in text actions, such as `fill_3` or `rotate_clockwise`, in the order of their
ids."""

_OPERATION_IDS = {name: number for number, name in enumerate(OPERATION_NAMES)}

_FORMS: dict[SelectionFormat, tuple[str, str]] = {
    "point": ("<operation> <row> <column>", "one cell, such as `{} {} {}`"),
    "bbox": (
        "<operation> <row> <column> <row> <column>",
        "two opposite corners of a box of cells, such as `{} {} {} 0 0`",
    ),
    "mask": (
        "<operation> <row>,<column> ...",
        "any cells, and boxes from corner to corner, such as `{0} {1},{2} 0,0:{1},0`; none is allowed too",
    ),
}
_GROUPS = {"fill": "Selected cells become that color.", "flood fill": "The region of equal color around the "
           "one selected cell becomes that color."}  # fmt: skip
_KINDS: dict[SelectionFormat, Any] = {"point": PointAction, "bbox": BboxAction, "mask": MaskAction}
_LETTERS = np.frombuffer(b"0123456789.", np.uint8)
"""Characters for the colors 0 to 9, followed by the character for -1 (no color)."""
_VIEW = "input_grid", "working_grid", "clipboard", "task_index", "pair_index", "step_count", "episode_done"
"""Properties of a state from which the texts are created."""
_CELLS = re.compile(r"(\d+),(\d+)(?::(\d+),(\d+))?")


class ArcText(TextInterface[Any]):
    """Text interface of the ARC environment."""

    def prompt(self, state: ArcState) -> str:
        if state.batch_shape:
            raise ValueError(f"expected a single state, got a batch of shape {state.batch_shape}")
        return self.prompts(state)[0]

    def prompts(self, states: ArcState, prompt_format: str = "full") -> list[str]:
        if prompt_format == "compact":
            return compact_observation_texts(self.environment.task_buffer, states)
        return observation_texts(self.environment.config, self.environment.attach_names(states))

    def parse(self, answer: str, state: ArcState) -> Action:
        return parse_action(self.environment.config, answer)

    def parse_batch(self, answers: Sequence[str], states: ArcState) -> tuple[Action | None, list[str]]:
        return parse_actions(self.environment.config, answers)

    def format(self, action: Action, state: ArcState) -> str:
        return action_text(action)

    def describe(self, action: Action, state: ArcState) -> str:
        """Describe an action, such as `Fill 3, rows 1 to 2, column 4`. Rows and columns count from 1."""
        name = operation_name(int(action.operation))
        if int(action.operation) in CELLS_IGNORED or isinstance(action, MaskAction):
            return name
        corners = [int(corner) + 1 for corner in action.corners]

        def span(axis: str, one: int, other: int) -> str:
            low, high = sorted((one, other))
            return f"{axis} {low}" if low == high else f"{axis}s {low} to {high}"

        return f"{name}, {span('row', *corners[::2])}, {span('column', *corners[1::2])}"

    def episode_keys(self, states: ArcState) -> list[str]:
        tasks = np.asarray(states.task_index).tolist()
        return [episode_key(self.environment.task_buffer[task]) for task in tasks]


def observation_texts(config: ArcConfig, states: ArcState) -> list[str]:
    """Create the text observation of each state. Each text contains the rules, the demonstrations of the task
    (except the current pair, if it is a demonstration), the current grids, and the format of the answer.

    Args:
        config: Settings of the environment.
        states: States with their tasks attached.
    """
    tasks = attached_tasks(states)
    *grids, task_indices, pairs, steps, dones = jax.device_get(state_fields(states, _VIEW))
    scalars = (part.tolist() for part in (task_indices, pairs, steps, dones))
    texts = []
    for given, working, clipboard, task, pair, step, done in zip(*map(_trim, grids), *scalars, strict=True):
        parts = [_rules(config), *_demonstrations(tasks[task], pair), _grid("Input", given)]
        parts.append(_grid("Working grid", working))
        if clipboard.size:
            parts.append(_grid("Remembered object", clipboard))
        ending = " The episode is over." if done else ""
        parts.append(f"Step {step} of at most {config.episode.max_episode_steps}.{ending}")
        texts.append("\n\n".join([*parts, _answers(config)]))
    return texts


def _trim(grids: np.ndarray) -> list[np.ndarray]:
    """Remove the -1 padding at the bottom and on the right of each grid in a batch."""
    inside = np.asarray(grids >= 0)
    sides = []
    for axis in (2, 1):
        some = np.asarray(inside.any(axis))
        sides.append(np.where(some.any(1), some.shape[1] - some[:, ::-1].argmax(1), 0).tolist())
    return [grid[:height, :width] for grid, height, width in zip(grids, *sides, strict=True)]


@functools.lru_cache(maxsize=64)
def _rules(config: ArcConfig) -> str:
    rows, columns = config.grid_shape
    ending = "The episode ends as soon as it does."
    if config.episode.require_submit:
        ending = "Submit it when it does."
    elif Operation.SUBMIT in config.action.operations:
        ending = "The episode ends as soon as it does, or when you submit."
    return (
        "This is an ARC puzzle. Edit the working grid until it is the output that belongs to the input, by "
        f"the rule that the demonstrations show. {ending} Cells are colors from 0 to 9; rows and columns "
        f"count from 0 at the top left. The canvas has {rows} rows and {columns} columns."
    )


@functools.lru_cache(maxsize=4096)
def _demonstrations(task: ArcTask, pair: int) -> tuple[str, ...]:
    # The current demonstration would reveal its own output.
    others = [demo for index, demo in enumerate(task.demos) if index != pair]
    texts = []
    for number, demo in enumerate(others, 1):
        assert demo.output is not None
        texts.append(f"Demonstration {number}\n{_grid('Input', demo.input)}\n{_grid('Output', demo.output)}")
    return tuple(texts)


@functools.lru_cache(maxsize=64)
def _answers(config: ArcConfig) -> str:
    (rows, columns), legal = config.grid_shape, config.action.operations
    form, cells = _FORMS[config.action.selection_format]
    cells = cells.format(_name(legal[0]), min(2, rows - 1), min(4, columns - 1))
    operations = "Operations, by number and name:\n" + "\n".join(_operation_lines(legal))
    return f"{operations}\n\nAnswer with one line: `{form}`, the operation by name or number and {cells}."


def parse_action(config: ArcConfig, text: str) -> Action:
    """Parse a text action in the config's selection format, such as `fill_3 2 4` or, equivalently, `3 2 4`.
    Raises `ValueError` if the text is not a valid action."""
    return _KINDS[config.action.selection_format](*_parse_action(config, text))


def parse_actions(config: ArcConfig, texts: Sequence[str]) -> tuple[Action | None, list[str]]:
    """Parse a batch of text actions; see `Environment.parse_actions` for the result."""
    rows, reasons = parse_each(_parse_action, ((config, text) for text in texts))
    if rows is None:
        return None, reasons
    columns = (np.stack([np.asarray(part) for part in column]) for column in zip(*rows, strict=True))
    return _KINDS[config.action.selection_format](*columns), reasons


def _parse_action(config: ArcConfig, text: str) -> tuple[Any, ...]:
    """Parse a text action and return the fields of the action: the operation id and the selected cells."""
    selection_format = config.action.selection_format
    form = _FORMS[selection_format][0]
    word, _, rest = " ".join(text.split()).partition(" ")
    if not word:
        raise ValueError(f"an answer reads `{form}`, got nothing")
    operation = _operation(word, config.action.operations)
    if selection_format == "mask":
        return operation, _cells(rest, config.grid_shape)
    numbers = re.split(r"[\s,]+", rest) if rest else []
    wanted = 2 if selection_format == "point" else 4
    if len(numbers) != wanted or not all(re.fullmatch(r"-?\d+", number) for number in numbers):
        raise ValueError(
            f"an answer reads `{form}`: after the operation come {wanted} whole numbers, got {shorten(rest)}"
        )
    positions = [int(number) for number in numbers]
    for row, column in zip(positions[::2], positions[1::2], strict=True):
        _check_cell(row, column, config.grid_shape)
    return operation, *positions


def action_text(action: Action) -> str:
    """Convert an action to text that `parse_action` can parse."""
    name = _name(int(action.operation))
    if isinstance(action, MaskAction):
        cells = np.argwhere(np.asarray(action.selection))
        if len(cells) > 1:
            (top, left), (bottom, right) = cells.min(axis=0), cells.max(axis=0)
            if len(cells) == (bottom - top + 1) * (right - left + 1):
                return f"{name} {top},{left}:{bottom},{right}"
        return " ".join([name, *(f"{row},{column}" for row, column in cells)])
    _, *positions = jax.tree.leaves(action)
    return " ".join([name, *(str(int(position)) for position in positions)])


def _name(operation: int) -> str:
    return OPERATION_NAMES[operation] if 0 <= operation < NUM_OPERATIONS else str(operation)


def _grid(title: str, cells: np.ndarray) -> str:
    height, width = cells.shape
    # Two characters per cell; the last one in a row is the line break.
    page = np.full((height, 2 * width), ord(" "), np.uint8)
    page[:, ::2] = _LETTERS[cells]
    page[:, -1:] = ord("\n")
    return f"{title}, {height}x{width}:\n" + page.tobytes().decode("ascii").rstrip()


def _operation_lines(legal: Sequence[int]) -> list[str]:
    """Describe the legal operations in lines of text. There is one line for all fills, one for all flood
    fills, and one for each of the other operations."""
    lines = []
    for category, text in _GROUPS.items():
        these = [number for number in legal if OPERATIONS[number].category == category]
        if these:
            lines.append(", ".join(f"{number} {_name(number)}" for number in these) + f": {text}")
    others = [number for number in legal if OPERATIONS[number].category not in _GROUPS]
    return lines + [f"{number} {_name(number)}: {OPERATIONS[number].text}" for number in others]


def _operation(word: str, legal: Sequence[int]) -> int:
    name = word.lower()
    number = int(name) if name.isdecimal() else _OPERATION_IDS.get(name, NUM_OPERATIONS)
    if number in legal:
        return number
    if number < NUM_OPERATIONS:
        named = f"{number} ({_name(number)})"
        raise ValueError(f"operation {named} is not legal here; legal are {_listed(legal)}")
    near = difflib.get_close_matches(name, [_name(operation) for operation in legal], 1)
    hint = f"did you mean {near[0]!r}?" if near else f"legal are {_listed(legal)}"
    raise ValueError(f"there is no operation {shorten(word)}; {hint}")


def _cells(text: str, grid_shape: tuple[int, int]) -> np.ndarray:
    mask = np.zeros(grid_shape, bool)
    for word in text.split():
        found = _CELLS.fullmatch(word)
        if found is None:
            raise ValueError(
                f"cells read `<row>,<column>`, a box `<row>,<column>:<row>,<column>`, got {shorten(word)}"
            )
        row, column, *corner = (int(number) for number in found.groups() if number is not None)
        other_row, other_column = corner or (row, column)
        for cell in ((row, column), (other_row, other_column)):
            _check_cell(*cell, grid_shape)
        rows, columns = sorted((row, other_row)), sorted((column, other_column))
        mask[rows[0] : rows[1] + 1, columns[0] : columns[1] + 1] = True
    return mask


def _check_cell(row: int, column: int, grid_shape: tuple[int, int]) -> None:
    if not (0 <= row < grid_shape[0] and 0 <= column < grid_shape[1]):
        raise ValueError(
            f"cell ({row}, {column}) is not on the canvas of {grid_shape[0]} rows and {grid_shape[1]} columns"
        )


def _listed(legal: Sequence[int]) -> str:
    shown = [f"{number} {_name(number)}" for number in legal]
    return ", ".join(shown[:8]) + (f" and {len(shown) - 8} more" if len(shown) > 8 else "")


def compact_observation_texts(tasks: TaskBuffer, states: ArcState) -> list[str]:
    """Create a short text observation, which omits the rules of the environment, for each state in a batch.

    Args:
        tasks: The tasks that the states refer to by index.
        states: The states.
    """
    given_grids, working_grids, _, task_indices, pairs, *_ = jax.device_get(state_fields(states, _VIEW))
    rows = zip(task_indices.tolist(), pairs.tolist(), working_grids, given_grids, strict=True)
    return [compact_task(tasks[task], pair, working, given) for task, pair, working, given in rows]


def episode_key(task: ArcTask) -> str:
    """Return the string that determines to which split (train, validation or test) the episodes of a task
    belong. It is the input grid of the task's first pair, as text."""
    return _grid_digits((task.demos or task.tests)[0].input)


def compact_task(task: ArcTask, pair: int, working: np.ndarray, given: np.ndarray) -> str:
    """Create the short text observation of a state.

    It contains the task's demonstrations (except the current pair), the input grid and the working grid.

    Args:
        task: The task.
        pair: Index of the current pair.
        working: Working grid.
        given: Input grid of the current pair.
    """
    lines = [
        f"{_grid_digits(each.input)}={_grid_digits(each.output)}"
        for index, each in enumerate(task.demos or task.tests)
        if index != pair and each.output is not None
    ]
    return "\n".join(["arc", *lines, f"{_grid_digits(given)}=?", _grid_digits(working), ""])


def _grid_digits(grid: Any) -> str:
    """Convert a grid to rows of digits separated by slashes. Padding is omitted."""
    cells = np.asarray(grid)
    rows = ("".join(str(cell) for cell in row if cell >= 0) for row in cells.tolist())
    return "/".join(row for row in rows if row)

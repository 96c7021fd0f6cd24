"""ARC steps as tokens: grids row by row, then the operation and the cells that were chosen.

    WORKING c c c ROW c c c ROW  TARGET c c ROW c c ROW  ACTION operation row column END
    |------------------ seen, loss mask 0 -------------| |------ done, loss mask 1 ------|

Colours, operations and coordinates have tokens of their own; `ArcTokenizer.name` tells each. Playing the
episodes is in `environment_stream`.
"""

import dataclasses
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Array, Bool, Float64, Int8, Int32

from phalanx.arc.config import ArcConfig, SelectionFormat
from phalanx.arc.operations import NUM_OPERATIONS, operation_name
from phalanx.arc.state import ArcState
from phalanx.streams.episode_tokens import Part, TokenRows, full, join, mark

GridName = Literal["input", "working", "target"]

PAD, END, ROW, INPUT, WORKING, TARGET, ACTION = range(7)
_MARKS = {"input": INPUT, "working": WORKING, "target": TARGET}
_COLOURS = 7
_OPERATIONS = _COLOURS + 10
_NO_OPERATION = _OPERATIONS + NUM_OPERATIONS
_PLACES = _NO_OPERATION + 1
_NO_PLACE = _PLACES + 32
VOCAB_SIZE = _NO_PLACE + 1


@dataclasses.dataclass(frozen=True)
class ArcTokenizer:
    """93 tokens for grids of up to 32 by 32. An operation that does not exist, or a cell off the board, has a
    token too, and is read back as -1.

    Views are a dictionary of grids [rows, columns] with -1 outside the area, and the `similarity`. An episode
    succeeds when it is solved; its difficulty is the part of the cells that are wrong at the start.
    """

    selection_format: SelectionFormat = "point"
    """How actions name cells."""
    grids: tuple[GridName, ...] = ("working", "target")
    """What is seen of a state, in this order."""

    def __post_init__(self) -> None:
        if not self.grids or any(grid not in get_args(GridName) for grid in self.grids):
            raise ValueError(f"grids must be some of {get_args(GridName)}, got {self.grids}")

    @classmethod
    def for_config(cls, config: ArcConfig) -> "ArcTokenizer":
        """The tokenizer that fits a config; in evaluation the target is not seen."""
        hidden = config.environment.mode == "evaluation"
        return cls(config.action.selection_format, ("input", "working") if hidden else ("working", "target"))

    @property
    def vocab_size(self) -> int:
        """93."""
        return VOCAB_SIZE

    def view(self, states: ArcState) -> dict[str, Array]:
        """The grids, and how much of the target is reached."""
        every = {
            "input": lambda: states.input_grid,
            "working": lambda: states.working_grid,
            "target": lambda: states.target_grid,
        }
        return {name: every[name]() for name in self.grids} | {"similarity": states.similarity}

    def encode(self, seen: dict[str, np.ndarray], actions: Any) -> TokenRows:
        """The tokens of a batch of views and actions."""
        steps = len(seen["similarity"])
        parts: list[Part] = []
        for name in self.grids:
            parts += [mark(_MARKS[name], steps), _grid(seen[name])]
        operation = np.asarray(actions.operation)
        known = (operation >= 0) & (operation < NUM_OPERATIONS)
        token = np.where(known, _OPERATIONS + operation, _NO_OPERATION).astype(np.int32)
        done = [mark(ACTION, steps), full(token[:, None])]
        if self.selection_format == "mask":
            done.append(_grid(np.asarray(actions.selection).astype(np.int8)))
        else:
            names = ("row", "col") if self.selection_format == "point" else ("r1", "c1", "r2", "c2")
            places = np.stack([np.asarray(getattr(actions, name)) for name in names], axis=1)
            inside = (places >= 0) & (places < 32)
            done.append(full(np.where(inside, _PLACES + places, _NO_PLACE).astype(np.int32)))
        return join(parts, [*done, mark(END, steps)])

    def decode(self, tokens: Int32[np.ndarray, " tokens"]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Grids by name, each as large as its area, and the action's fields."""
        rest = tokens.tolist()
        seen: dict[str, np.ndarray] = {}
        for name in self.grids:
            _expect(rest, _MARKS[name])
            seen[name] = _read_grid(rest)
        _expect(rest, ACTION)
        operation = rest.pop(0) - _OPERATIONS
        action: dict[str, Any] = {"operation": operation if operation < NUM_OPERATIONS else -1}
        if self.selection_format == "mask":
            action["selection"] = _read_grid(rest).astype(bool)
        else:
            for field in ("row", "col") if self.selection_format == "point" else ("r1", "c1", "r2", "c2"):
                place = rest.pop(0) - _PLACES
                action[field] = place if place < 32 else -1
        _expect(rest, END)
        return seen, action

    def success(self, infos: Any) -> Bool[np.ndarray, " episodes"]:
        """Whether the episodes were solved."""
        return np.asarray(infos.solved)

    def difficulty(self, seen: dict[str, np.ndarray]) -> Float64[np.ndarray, " episodes"]:
        """The part of the cells that are wrong at the start."""
        return np.clip(1.0 - np.asarray(seen["similarity"], np.float64), 0.0, 1.0)

    def name(self, token: int) -> str:
        """What a token stands for."""
        if not 0 <= token < VOCAB_SIZE:
            raise ValueError(f"there is no token {token}; tokens are 0 to {VOCAB_SIZE - 1}")
        if token < _COLOURS:
            return ("PAD", "END", "ROW", "INPUT", "WORKING", "TARGET", "ACTION")[token]
        if token < _OPERATIONS:
            return str(token - _COLOURS)
        if token < _NO_OPERATION:
            return operation_name(token - _OPERATIONS)
        if token == _NO_OPERATION:
            return "no operation"
        return "off the board" if token == _NO_PLACE else f"@{token - _PLACES}"


def _grid(grids: Int8[np.ndarray, "steps rows columns"]) -> Part:
    """Row after row, each with ROW behind it; cells of -1 are outside and do not count."""
    steps, rows, columns = grids.shape
    tokens = np.full((steps, rows, columns + 1), ROW, np.int32)
    tokens[:, :, :columns] = grids.astype(np.int32) + _COLOURS
    counts = np.empty(tokens.shape, bool)
    counts[:, :, :columns] = grids >= 0
    counts[:, :, columns] = counts[:, :, :columns].any(axis=2)
    return Part(tokens.reshape(steps, -1), counts.reshape(steps, -1))


def _read_grid(rest: list[int]) -> Int8[np.ndarray, "rows columns"]:
    """Take rows off the front while there are any."""
    rows: list[list[int]] = []
    while _COLOURS <= rest[0] < _OPERATIONS:
        end = rest.index(ROW)
        rows.append([token - _COLOURS for token in rest[:end]])
        del rest[: end + 1]
    return np.array(rows, np.int8).reshape(len(rows), -1 if rows else 0)


def _expect(rest: list[int], token: int) -> None:
    if not rest or rest[0] != token:
        found = "the end" if not rest else f"token {rest[0]}"
        raise ValueError(f"these are not the tokens of a step: expected token {token}, found {found}")
    del rest[0]

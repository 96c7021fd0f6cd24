"""ARC episodes as token sequences. The tokens of one step are, for example:

WORKING c c c ROW c c c ROW  TARGET c c ROW c c ROW  ACTION operation row column END
|-------- observation: loss mask 0 -------------| |---- action: loss mask 1 ----|
"""

import dataclasses
import enum
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from jaxtyping import Array, Bool, Float64, Int8, Int32

from phalanx.arc.config import ArcConfig, SelectionFormat
from phalanx.arc.operations import NUM_COLORS, NUM_OPERATIONS
from phalanx.arc.state import ArcState
from phalanx.data.episode_tokens import (
    PaddedStepTokens,
    TokenizedSteps,
    full_part,
    join_parts,
    repeated_token,
)

GridName = Literal["input", "working", "target"]

_ArcMark = enum.IntEnum("_ArcMark", ("PAD", "END", "ROW", "INPUT", "WORKING", "TARGET", "ACTION"), start=0)
_COLORS = len(_ArcMark)
_OPERATIONS = _COLORS + NUM_COLORS
_NO_OPERATION = _OPERATIONS + NUM_OPERATIONS
_CELLS = _NO_OPERATION + 1
_NO_CELL = _CELLS + 32
_CELL_FIELDS = {"point": ("row", "col"), "bbox": ("r1", "c1", "r2", "c2")}


@dataclasses.dataclass(frozen=True)
class ArcTokenizer:
    """Converts episode steps to tokens and back. The vocabulary has 93 tokens, for grids of up to 32x32
    cells.

    All invalid operation ids are encoded as one token, and all coordinates outside 0 to 31 as another token.
    Both tokens are decoded to -1.

    A view contains the parts of a state that the tokenizer needs. It is a dictionary with one int8 array
    [rows, columns] per grid, -1 outside the grid, and the `similarity` of the working grid to the target,
    which is not encoded but determines the `difficulty`.
    """

    selection_format: SelectionFormat = "point"
    """Selection format of the actions."""
    grids: tuple[GridName, ...] = ("working", "target")
    """Names of the grids that are encoded, in this order."""

    max_steps: int | None = None
    """Maximum number of steps in an episode; None if it is unknown."""
    name: ClassVar[str] = "arc"
    vocab_size: ClassVar[int] = _NO_CELL + 1
    """Number of tokens in the vocabulary."""

    def __post_init__(self) -> None:
        if not self.grids or any(grid not in get_args(GridName) for grid in self.grids):
            raise ValueError(f"grids must be some of {get_args(GridName)}, got {self.grids}")

    @classmethod
    def for_config(cls, config: ArcConfig) -> "ArcTokenizer":
        """Create the tokenizer for an environment's config.

        In training mode, it encodes the working grid and the target. In evaluation mode, it encodes the input
        and the working grid.
        """
        hidden = config.episode.mode == "evaluation"
        grids: tuple[GridName, ...] = ("input", "working") if hidden else ("working", "target")
        return cls(config.action.selection_format, grids, config.episode.max_episode_steps)

    def view(self, states: ArcState) -> dict[str, Array]:
        """Return the parts of the states that `encode` and `difficulty` need: the grids in `grids`, and the
        similarity of the working grid to the target."""
        grids = {name: getattr(states, f"{name}_grid") for name in self.grids}
        return grids | {"similarity": states.similarity}

    def encode(self, seen: dict[str, np.ndarray], actions: Any) -> TokenizedSteps:
        """Encode a batch of steps.

        Args:
            seen: Views of the states before the steps, as returned by `view`.
            actions: Actions of the steps.
        """
        steps = len(seen["similarity"])
        parts: list[PaddedStepTokens] = []
        for name in self.grids:
            parts += [repeated_token(_ArcMark[name.upper()], steps), _grid(seen[name])]
        operation = np.asarray(actions.operation)
        known = (operation >= 0) & (operation < NUM_OPERATIONS)
        token = np.where(known, _OPERATIONS + operation, _NO_OPERATION).astype(np.int32)
        done = [repeated_token(_ArcMark.ACTION, steps), full_part(token[:, None])]
        if self.selection_format == "mask":
            done.append(_grid(np.asarray(actions.selection).astype(np.int8)))
        else:
            names = _CELL_FIELDS[self.selection_format]
            cells = np.stack([np.asarray(getattr(actions, name)) for name in names], axis=1)
            inside = (cells >= 0) & (cells < 32)
            done.append(full_part(np.where(inside, _CELLS + cells, _NO_CELL).astype(np.int32)))
        return join_parts(parts, [*done, repeated_token(_ArcMark.END, steps)])

    def decode(self, tokens: Int32[np.ndarray, " tokens"]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Decode the tokens of one step.

        Returns:
            The grids by name, trimmed to their size, and the fields of the action by name.
        """
        rest = tokens.tolist()
        seen: dict[str, np.ndarray] = {}
        for name in self.grids:
            _expect(rest, _ArcMark[name.upper()])
            seen[name] = _decode_grid(rest)
        _expect(rest, _ArcMark.ACTION)
        operation = rest.pop(0) - _OPERATIONS
        action: dict[str, Any] = {"operation": operation if operation < NUM_OPERATIONS else -1}
        if self.selection_format == "mask":
            action["selection"] = _decode_grid(rest).astype(bool)
        else:
            for field in _CELL_FIELDS[self.selection_format]:
                cell = rest.pop(0) - _CELLS
                action[field] = cell if cell < 32 else -1
        _expect(rest, _ArcMark.END)
        return seen, action

    def success(self, infos: Any) -> Bool[np.ndarray, " episodes"]:
        """Return whether each episode was solved, given the infos of the last step of each episode."""
        return np.asarray(infos.solved)

    def difficulty(self, seen: dict[str, np.ndarray]) -> Float64[np.ndarray, " episodes"]:
        """Return the difficulty of each episode, from 0 to 1, given the view of its first state.

        The difficulty is 1 minus the similarity of the working grid to the target.
        """
        return np.clip(1.0 - np.asarray(seen["similarity"], np.float64), 0.0, 1.0)


def grid_names(tokens: Int32[np.ndarray, " tokens"]) -> tuple[GridName, ...]:
    """Return the names of the grids in the tokens of one step, in the order in which they are encoded."""
    names: dict[int, GridName] = {_ArcMark[name.upper()]: name for name in get_args(GridName)}
    return tuple(names[token] for token in tokens.tolist() if token in names)


def _grid(grids: Int8[np.ndarray, "steps rows columns"]) -> PaddedStepTokens:
    """Encode grids row by row. Each row is followed by a ROW token. Cells outside the grid (with the value
    -1) have no token."""
    steps, rows, columns = grids.shape
    tokens = np.full((steps, rows, columns + 1), _ArcMark.ROW, np.int32)
    tokens[:, :, :columns] = grids.astype(np.int32) + _COLORS
    inside = grids >= 0
    counts = np.concatenate([inside, inside.any(axis=2, keepdims=True)], axis=2)
    return PaddedStepTokens(tokens.reshape(steps, -1), counts.reshape(steps, -1))


def _decode_grid(rest: list[int]) -> Int8[np.ndarray, "rows columns"]:
    """Decode the grid at the start of a list of tokens, and remove its tokens from the list."""
    rows: list[list[int]] = []
    while _COLORS <= rest[0] < _OPERATIONS:
        end = rest.index(_ArcMark.ROW)
        rows.append([token - _COLORS for token in rest[:end]])
        del rest[: end + 1]
    return np.array(rows, np.int8).reshape(len(rows), -1 if rows else 0)


def _expect(rest: list[int], token: int) -> None:
    if not rest or rest[0] != token:
        found = "the end" if not rest else f"token {rest[0]}"
        raise ValueError(f"these are not the tokens of a step: expected token {int(token)}, found {found}")
    del rest[0]

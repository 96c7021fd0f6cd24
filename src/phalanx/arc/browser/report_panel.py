"""Validates a run's exported ARC policy, and creates the panel in which readers of the report can run it."""

import base64
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from phalanx.arc.operations import NUM_COLORS, PAIR_SWITCHES
from phalanx.config import format_validation_error
from phalanx.formatting import escape_untrusted
from phalanx.logging.report.metric_tables import load_object
from phalanx.logging.report.panels import ReportPanel

FILE_NAME = "browser_policy.json"
"""Name of the file in the run folder that contains the exported policy."""
SCRIPTS = ("rules.js", "network.js", "grids.js", "panel.js")
OBSERVED_GRIDS = ("working", "input", "clipboard", "selected")
"""Names of the grids that a network can observe, in the order in which it takes them as input."""
_CHANNELS = 4
_NUM_FILL_OPERATIONS = 2 * NUM_COLORS
"""Number of fill and flood-fill operations, whose ids are 0 to 19. In the output layers of the network, the
ten fills share one set of weights, and so do the ten flood fills. Every other operation has its own
weights."""

_Name = Annotated[str, AfterValidator(lambda name: escape_untrusted(name)[:120])]
_Grid = Annotated[list[Annotated[str, Field(pattern=r"\A[0-9]+\z")]], Field(min_length=1)]
"""Rows of a grid, as strings of digits."""


class _Record(BaseModel):
    """Base class for the parts of an exported policy.

    Values are not converted to other types, and unknown fields are ignored.
    """

    model_config = ConfigDict(strict=True)


class _Operation(_Record):
    id: int = Field(ge=0, le=39)
    name: _Name


class _Network(_Record):
    width: int = Field(ge=1, le=256)
    depth: int = Field(ge=1, le=64)
    weights: str


class _Puzzle(_Record):
    task: _Name
    family: _Name | None
    input: _Grid
    output: _Grid | None


class _Policy(_Record):
    """An exported policy with example tasks."""

    format: Literal[1]
    canvas: list[Annotated[int, Field(ge=1, le=30)]] = Field(min_length=2, max_length=2)
    max_steps: int = Field(ge=1, le=10_000)
    selection: Literal["point", "bbox"]
    operations: list[_Operation] = Field(min_length=1, max_length=42)
    sees: list[str]
    palette: list[Annotated[str, Field(pattern=r"\A#[0-9A-Fa-f]{6}\z")]] = Field(
        min_length=NUM_COLORS, max_length=NUM_COLORS
    )
    network: _Network
    puzzles: list[_Puzzle] = Field(max_length=200)

    @model_validator(mode="after")
    def _check(self) -> "_Policy":
        ids = [operation.id for operation in self.operations]
        if ids != sorted(set(ids)) or set(ids) & set(PAIR_SWITCHES):
            raise ValueError("operations must be sorted, without those that change the pair")
        if self.sees != [name for name in OBSERVED_GRIDS if name == OBSERVED_GRIDS[0] or name in self.sees]:
            raise ValueError(f"sees must be some of {', '.join(OBSERVED_GRIDS)}, in this order")
        for grid in (grid for puzzle in self.puzzles for grid in (puzzle.input, puzzle.output) if grid):
            width = len(grid[0])
            if any(len(row) != width for row in grid) or len(grid) > self.canvas[0] or width > self.canvas[1]:
                raise ValueError("the rows of a grid must have equal lengths and fit on the canvas")
        weights = np.frombuffer(base64.b64decode(self.network.weights, validate=True), "<f4")
        expected = self._num_weights()
        if len(weights) != expected or not np.isfinite(weights).all():
            raise ValueError(f"the network must have {expected:,} finite weights, got {len(weights):,}")
        return self

    def _num_weights(self) -> int:
        """Compute the number of weights that the network must have, given its width, depth, inputs and
        operations."""
        width, cells = self.network.width, 1 if self.selection == "point" else 2
        others = sum(operation.id >= _NUM_FILL_OPERATIONS for operation in self.operations)
        block = 9 * width * width + 2 * _dense_size(2 * width, width)
        heads = _dense_size(width, 2 * cells) + _dense_size(2 * width, 2 + others)
        heads += _dense_size(2 * width, others * cells)
        stem = _dense_size(len(self.sees) * _CHANNELS, width) + NUM_COLORS * width
        return stem + self.network.depth * block + heads


def _dense_size(inputs: int, outputs: int) -> int:
    return (inputs + 1) * outputs


def load_agent_panel(folder: Path, notes: list[str]) -> ReportPanel | None:
    """Read a run's exported policy and return the panel for the report page.

    Returns None if there is no policy or if it cannot be used; in the latter case, the reason is added to
    `notes`. The file may be untrusted, so only validated values are used.
    """
    record = load_object(folder / FILE_NAME, notes)
    if not record:
        return None
    if isinstance(reason := record.get("unsupported_reason"), str):
        notes.append(f"The agent cannot be tried in this page: {escape_untrusted(reason)[:300]}.")
        return None
    try:
        policy = _Policy.model_validate(record)
    except ValidationError as error:
        problem = format_validation_error(error, _Policy).partition("\n")[0]
        notes.append(f"{FILE_NAME} was skipped: {escape_untrusted(problem)[:300]}.")
        return None
    scripts = tuple(Path(__file__).parent / name for name in SCRIPTS)
    return ReportPanel("arc_policy", policy.model_dump(exclude={"format"}), scripts)

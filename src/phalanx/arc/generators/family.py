"""A task family: a rule that can be drawn, and from it any number of pairs.

The families themselves are listed in `registry`.
"""

import dataclasses
import hashlib
from collections.abc import Callable

import numpy as np

from phalanx.arc.config import MAX_GRID_SIDE
from phalanx.arc.generators.draft import Draft
from phalanx.arc.tasks import Grid

PairMaker = Callable[[], Draft | None]
"""Draws the next pair of one task; None when the draw did not work out and should be repeated."""

RuleMaker = Callable[[np.random.Generator, int, int], PairMaker]
"""Draws a task's rule for a grid of so many rows and columns."""

_PATIENCE = 500
"""Draws in a row that bring no new pair before a task is given up."""


@dataclasses.dataclass(frozen=True)
class Family:
    """One kind of puzzle. Its rule maker's docstring says what it asks and why its solutions are shortest."""

    name: str
    """As in task ids and configs."""
    text: str
    """One sentence: what happens from input to output."""
    make_rule: RuleMaker
    """Draws one task's rule."""
    point_solvable: bool = False
    """Whether every step of every solution selects one cell."""
    needs_demos: bool = False
    """Whether tasks differ in a rule that only their demonstrations tell."""
    min_size: int = 3
    """The fewest rows and columns that it can be drawn on."""

    def generate(
        self, rng: np.random.Generator, height: int, width: int, num_pairs: int = 4, half: int | None = None
    ) -> tuple[Draft, ...]:
        """Draw a rule and pairs with different inputs that follow it.

        With `half` 0 or 1 only inputs from that half of all grids are taken (see `half_of`).
        """
        for side, size in (("height", height), ("width", width)):
            if not self.min_size <= size <= MAX_GRID_SIDE:
                raise ValueError(
                    f"{self.name}: {side} must be between {self.min_size} and {MAX_GRID_SIDE}, got {size}"
                )
        pair = self.make_rule(rng, height, width)
        drafts: dict[bytes, Draft] = {}
        fruitless = 0
        while len(drafts) < num_pairs and fruitless < _PATIENCE:
            draft = pair()
            fruitless += 1
            if draft is not None and (half is None or half_of(draft.input) == half):
                cells = draft.input.tobytes()
                if cells not in drafts:
                    drafts[cells] = draft
                    fruitless = 0
        if len(drafts) == num_pairs:
            return tuple(drafts.values())
        raise ValueError(
            f"{self.name}: only {len(drafts)} of {num_pairs} different pairs found at {height}x{width}; "
            "ask for fewer pairs or a larger grid"
        )


def half_of(grid: Grid) -> int:
    """0 or 1: a fixed division of all grids into two halves, so that two splits never share an input."""
    return hashlib.blake2b(grid.tobytes(), digest_size=1).digest()[0] & 1

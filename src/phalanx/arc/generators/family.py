"""The `TaskFamily` class, and functions that create pairs with their solutions."""

import dataclasses
import functools
import hashlib
from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np

from phalanx.arc.config import MAX_GRID_SIDE
from phalanx.arc.operations import Operation
from phalanx.arc.tasks import Grid, Solution, SolutionStep


class Rect(NamedTuple):
    """A box of cells. The last row `r2` and the last column `c2` belong to the box."""

    r1: int
    """First row."""
    c1: int
    """First column."""
    r2: int
    """Last row."""
    c2: int
    """Last column."""

    @property
    def height(self) -> int:
        """Number of rows."""
        return self.r2 - self.r1 + 1

    @property
    def width(self) -> int:
        """Number of columns."""
        return self.c2 - self.c1 + 1

    @property
    def cells(self) -> tuple[slice, slice]:
        """Index that selects the cells of the box in a grid."""
        return slice(self.r1, self.r2 + 1), slice(self.c1, self.c2 + 1)


class GeneratedPair(NamedTuple):
    """A generated pair, with a shortest solution (a sequence of steps that turns the input into the
    output)."""

    input: Grid
    output: Grid
    solution: Solution
    """Steps of the solution."""


def blank(height: int, width: int) -> Grid:
    """Create a grid filled with 0."""
    return np.zeros((height, width), np.int8)


def select(operation: int, box: Rect) -> SolutionStep:
    """Create a solution step that applies an operation to a box."""
    return SolutionStep(int(operation), *box)


def point(operation: int, row: int, col: int) -> SolutionStep:
    """Create a solution step that applies an operation to one cell."""
    return SolutionStep(int(operation), row, col, row, col)


def fill(color: int, box: Rect) -> SolutionStep:
    """Create a solution step that fills a box with a color."""
    return select(Operation.FILL_0 + color, box)


def flood(color: int, row: int, col: int) -> SolutionStep:
    """Create a solution step that flood-fills the region around a cell with a color."""
    return point(Operation.FLOOD_FILL_0 + color, row, col)


_TRANSPOSED_OPERATIONS = (
    (Operation.MOVE_UP, Operation.MOVE_LEFT),
    (Operation.MOVE_DOWN, Operation.MOVE_RIGHT),
    (Operation.ROTATE_CLOCKWISE, Operation.ROTATE_COUNTERCLOCKWISE),
    (Operation.FLIP_HORIZONTAL, Operation.FLIP_VERTICAL),
)
"""Pairs of operations that are exchanged when a grid is transposed."""
_TRANSPOSE = {int(a): int(b) for pair in _TRANSPOSED_OPERATIONS for a, b in (pair, pair[::-1])}


def transpose_pair(pair: GeneratedPair) -> GeneratedPair:
    """Transpose the grids and the solution of a pair. The new solution is also a shortest one, because every
    operation has a transposed counterpart."""
    solution = tuple(
        SolutionStep(_TRANSPOSE.get(step.operation, step.operation), step.c1, step.r1, step.c2, step.r2)
        for step in pair.solution
    )
    before, after = (np.ascontiguousarray(grid.T) for grid in (pair.input, pair.output))
    return GeneratedPair(before, after, solution)


PairSampler = Callable[[], GeneratedPair | None]
"""Function that samples one pair of a task. It returns None if the attempt failed and should be repeated."""

RuleSampler = Callable[[np.random.Generator, int, int], PairSampler]
"""Function that samples the rule of a task, given a random generator and the height and width of the inputs.
It returns a function that samples pairs that follow this rule."""

PairFunction = Callable[[np.random.Generator, int, int], GeneratedPair | None]
"""Function that samples a pair, given a random generator and the height and width of the input. It returns
None if the attempt failed and should be repeated."""

_MAX_ATTEMPTS = 500
"""Number of consecutive attempts without a new pair after which generation fails."""


@dataclasses.dataclass(frozen=True)
class TaskFamily:
    """A family of generated tasks. For each built-in family, the docstring of `sample_rule` describes the
    pairs, and proves that no solution is shorter than the generated one."""

    name: str
    """Name of the family, as used in task ids and configs."""
    description: str
    """One sentence that describes how the output follows from the input."""
    sample_rule: RuleSampler
    """Function that samples the rule of one task."""
    point_solvable: bool = False
    """True if every step of every solution selects a single cell."""
    min_size: int = 3
    """Minimum height and width of the grids."""

    def generate(
        self, rng: np.random.Generator, height: int, width: int, num_pairs: int = 4, half: int | None = None
    ) -> tuple[GeneratedPair, ...]:
        """Sample a rule and pairs that follow it. All pairs have different inputs.

        Args:
            rng: Random generator.
            height: Height of the inputs.
            width: Width of the inputs.
            num_pairs: Number of pairs.
            half: Half of the inputs to use, 0 or 1; see `half_of`. If None, all inputs are used.

        Raises:
            ValueError: If the size is not supported, or if there are not enough different pairs.
        """
        for side, size in (("height", height), ("width", width)):
            if not self.min_size <= size <= MAX_GRID_SIDE:
                raise ValueError(
                    f"{self.name}: {side} must be between {self.min_size} and {MAX_GRID_SIDE}, got {size}"
                )
        sample_pair = self.sample_rule(rng, height, width)
        pairs: dict[bytes, GeneratedPair] = {}
        attempts = 0
        while len(pairs) < num_pairs and attempts < _MAX_ATTEMPTS:
            pair = sample_pair()
            attempts += 1
            if pair is not None and half in (None, half_of(pair.input)):
                cells = pair.input.tobytes()
                if cells not in pairs:
                    pairs[cells] = pair
                    attempts = 0
        if len(pairs) == num_pairs:
            return tuple(pairs.values())
        raise ValueError(
            f"{self.name}: only {len(pairs)} of {num_pairs} different pairs found at {height}x{width}; "
            "use fewer pairs or a larger grid"
        )


def half_of(grid: Grid) -> int:
    """Assign a grid to half 0 or 1 based on its hash. Training tasks use inputs of one half, and evaluation
    tasks use inputs of the other half, so that the splits never share an input."""
    return hashlib.blake2b(grid.tobytes(), digest_size=1).digest()[0] & 1


def rule_family(description: str, **options: bool) -> Callable[[RuleSampler], TaskFamily]:
    """Create a decorator that turns a `RuleSampler` into a task family named after the function.

    Args:
        description: Description of the family.
        options: Other fields of `TaskFamily`.
    """
    return lambda sample_rule: TaskFamily(sample_rule.__name__, description, sample_rule, **options)


def pair_family(
    description: str, *, transpose: Literal["never", "task", "pair"] = "never", **options: bool
) -> Callable[[PairFunction], TaskFamily]:
    """Create a decorator that turns a `PairFunction` into a task family named after the function.

    Args:
        description: Description of the family.
        transpose: Whether to transpose the sampled pairs with a probability of one half: `never`, `task` (one
            random decision for all pairs of a task), or `pair` (a separate decision for each pair).
        options: Other fields of `TaskFamily`.
    """

    def decorate(sample_pair: PairFunction) -> TaskFamily:
        @functools.wraps(sample_pair)
        def sample_rule(rng: np.random.Generator, height: int, width: int) -> PairSampler:
            transpose_task = transpose == "task" and rng.random() < 0.5

            def pair() -> GeneratedPair | None:
                if not transpose_task and (transpose != "pair" or rng.random() >= 0.5):
                    return sample_pair(rng, height, width)
                pair = sample_pair(rng, width, height)
                return None if pair is None else transpose_pair(pair)

            return pair

        return TaskFamily(sample_pair.__name__, description, sample_rule, **options)

    return decorate

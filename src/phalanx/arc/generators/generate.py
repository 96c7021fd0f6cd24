"""The registry of task families, and functions that generate tasks from a seed."""

import difflib
import itertools
import zlib
from collections.abc import Sequence
from typing import Literal

import numpy as np

from phalanx.arc.config import MAX_GRID_SIDE
from phalanx.arc.generators import (
    color_families as coloring,
    line_families as lines,
    motion_families as motion,
)
from phalanx.arc.generators.family import TaskFamily
from phalanx.arc.tasks import ArcTask, GridPair

GeneratedSplit = Literal["training", "evaluation"]

MIN_GRID_SIDE = 3
"""Minimum height and width of generated grids."""

TASKS_PER_SEED = 1_000_000
"""Maximum number of tasks that `generate_tasks` can generate for each family, split and seed. Every task of a
family is generated from its own seed. Each split and each value of the `seed` argument has this number of
such seeds, which no other split or value uses."""

_SPLITS: tuple[GeneratedSplit, ...] = ("training", "evaluation")

_SEED_NAMES = {"recolor": "recolour"}
"""Old names of renamed families, by new name. The random generator is still seeded with the old name, so that
the generated tasks stay the same."""

FAMILIES: dict[str, TaskFamily] = {
    family.name: family
    for family in (
        coloring.recolor,
        coloring.fill_enclosed,
        lines.complete_symmetry,
        motion.move_until_hit,
        motion.mirror,
        motion.rotate,
        motion.crop_to_object,
        lines.extend_line,
        coloring.count_to_color,
        lines.draw_border,
        motion.gravity,
        lines.denoise,
        coloring.swap_colors,
        coloring.fill_rooms,
        motion.stamp,
    )
}
"""All task families by name."""


def register_family(family: TaskFamily) -> TaskFamily:
    """Add a task family to `FAMILIES`, so that `generate_tasks` and configs in this process can use it.
    Returns the family."""
    if family.name in FAMILIES:
        raise ValueError(f"there already is a task family {family.name!r}; choose another name")
    FAMILIES[family.name] = family
    return family


def find_family(name: str) -> TaskFamily:
    """Return the family with the given name. If the name is unknown, the error suggests a similar name.

    >>> find_family("gravity").description
    'Rectangles in the air fall to the ground.'
    """
    if name in FAMILIES:
        return FAMILIES[name]
    near = difflib.get_close_matches(name, FAMILIES, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ValueError(f"unknown task family {name!r}; {hint}choose from {', '.join(FAMILIES)}")


def generate_task(
    family: str,
    seed: int,
    *,
    height: int | None = None,
    width: int | None = None,
    min_size: int = 3,
    max_size: int = 10,
    num_demos: int = 3,
    num_tests: int = 1,
) -> ArcTask:
    """Generate one task.

    Args:
        family: Name of the family.
        seed: Random seed.
        height: Height of the inputs. If None, it is sampled between `min_size` and `max_size`.
        width: Width of the inputs. If None, it is sampled between `min_size` and `max_size`.
        min_size: Minimum sampled height and width.
        max_size: Maximum sampled height and width.
        num_demos: Number of demonstration pairs.
        num_tests: Number of test pairs.

    >>> task = generate_task("recolor", 17, height=3, width=4)
    >>> task.id, task.demos[0].input.shape, len(task.solutions)
    ('recolor-000017', (3, 4), 4)
    """
    if height is None or width is None:
        _check_range("size", min_size, max_size)
    heights = (min_size, max_size) if height is None else (height, height)
    widths = (min_size, max_size) if width is None else (width, width)
    return _build(find_family(family), seed, heights, widths, num_demos, num_tests)


def generate_tasks(
    families: Sequence[str] = (),
    num_tasks: int = 64,
    seed: int = 0,
    *,
    split: GeneratedSplit = "training",
    min_height: int = 3,
    max_height: int = 10,
    min_width: int = 3,
    max_width: int = 10,
    num_demos: int = 3,
    num_tests: int = 1,
) -> list[ArcTask]:
    """Generate tasks, cycling through the given families.

    The k-th task of a family does not depend on which other families are used. Different seeds and different
    splits give different tasks.

    Args:
        families: Names of the families. If empty, all families are used.
        num_tasks: Number of tasks.
        seed: Random seed.
        split: Split to which the tasks belong.
        min_height: Minimum height of the inputs.
        max_height: Maximum height of the inputs.
        min_width: Minimum width of the inputs.
        max_width: Maximum width of the inputs.
        num_demos: Number of demonstration pairs per task.
        num_tests: Number of test pairs per task.

    >>> [task.id for task in generate_tasks(("gravity", "mirror"), 3, seed=2)]
    ['gravity-4000000', 'mirror-4000000', 'gravity-4000002']
    """
    chosen = [find_family(name) for name in (families or FAMILIES)]
    if len({family.name for family in chosen}) < len(chosen):
        raise ValueError(f"a family occurs twice in {', '.join(families)}; list each once")
    if split not in _SPLITS:
        raise ValueError(f"split must be 'training' or 'evaluation', got {split!r}")
    most = TASKS_PER_SEED * len(chosen)
    if not 1 <= num_tasks <= most:
        raise ValueError(f"num_tasks must be between 1 and {most}, got {num_tasks}")
    _check_range("height", min_height, max_height)
    _check_range("width", min_width, max_width)
    heights, widths = (min_height, max_height), (min_width, max_width)
    first = 2 * TASKS_PER_SEED * seed + _SPLITS.index(split)
    seeds = (first + 2 * (index // len(chosen)) for index in range(num_tasks))
    pairs = zip(itertools.cycle(chosen), seeds, strict=False)
    return [_build(family, seed, heights, widths, num_demos, num_tests) for family, seed in pairs]


def _build(
    family: TaskFamily,
    seed: int,
    heights: tuple[int, int],
    widths: tuple[int, int],
    num_demos: int,
    num_tests: int,
) -> ArcTask:
    if num_demos < 0 or num_tests < 0 or num_demos + num_tests < 1:
        raise ValueError(
            f"a task needs at least one pair, got num_demos={num_demos} and num_tests={num_tests}"
        )
    if seed < 0:
        raise ValueError(f"seed must not be negative, got {seed}")
    # The name is part of the seed, so that families do not use the same random numbers.
    name = _SEED_NAMES.get(family.name, family.name)
    rng = np.random.default_rng((seed, zlib.crc32(name.encode())))
    height = _draw_side(rng, family, "height", heights)
    width = _draw_side(rng, family, "width", widths)
    drafts = family.generate(rng, height, width, num_demos + num_tests, half=seed % 2)
    pairs = tuple(GridPair(draft.input, draft.output) for draft in drafts)
    return ArcTask(
        id=f"{family.name}-{seed:06d}",
        demos=pairs[:num_demos],
        tests=pairs[num_demos:],
        family=family.name,
        solutions=tuple(draft.solution for draft in drafts),
    )


def _draw_side(rng: np.random.Generator, family: TaskFamily, side: str, sizes: tuple[int, int]) -> int:
    low, high = max(sizes[0], family.min_size), sizes[1]
    if low > high:
        raise ValueError(f"{family.name} needs a {side} of at least {family.min_size}, got at most {high}")
    return int(rng.integers(low, high + 1))


def _check_range(side: str, low: int, high: int) -> None:
    if not MIN_GRID_SIDE <= low <= high <= MAX_GRID_SIDE:
        raise ValueError(
            f"min_{side} and max_{side} must satisfy {MIN_GRID_SIDE} <= min <= max <= {MAX_GRID_SIDE}, "
            f"got {low} and {high}"
        )

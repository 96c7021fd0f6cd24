"""The table of task families, and tasks drawn from it by seed.

How a family draws its pairs, and why its solutions are shortest, is in `coloring`, `lines` and `motion`.
"""

import difflib
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
from phalanx.arc.generators.family import GridPairBuilder, TaskFamily
from phalanx.arc.tasks import ArcTask, GridPair

Split = Literal["training", "evaluation"]

MIN_GRID_SIDE = 3
"""The smallest grid that families are drawn on."""

TASKS_PER_SEED = 1_000_000
"""How many tasks of one family and split a seed of `generate_tasks` has before it meets the next seed's."""

_SPLITS: tuple[Split, ...] = ("training", "evaluation")

_SEED_NAMES = {"recolor": "recolour"}
"""Families whose tasks are drawn by a former name, so that a renaming changes no task."""

_TABLE = (
    TaskFamily(
        "recolor",
        "Objects of some colors take new colors, by a mapping that the demonstrations show.",
        coloring.recolor,
        point_solvable=True,
        needs_demos=True,
    ),
    TaskFamily(
        "fill_enclosed",
        "What a closed ring encloses takes the ring's color; open rings stay as they are.",
        coloring.fill_enclosed,
        point_solvable=True,
    ),
    TaskFamily(
        "complete_symmetry",
        "A picture that is its own mirror image gets its missing cells back.",
        lines.complete_symmetry,
        point_solvable=True,
    ),
    TaskFamily(
        "move_until_hit",
        "An object moves the way its red head points until it hits a gray wall or the grid's side.",
        motion.move_until_hit,
    ),
    TaskFamily(
        "mirror",
        "Every object is mirrored in its box, along the axis that the demonstrations show.",
        motion.mirror,
        needs_demos=True,
    ),
    TaskFamily(
        "rotate",
        "Every object turns by 90 degrees, its top left corner stays; the demonstrations show which way.",
        motion.rotate,
        needs_demos=True,
    ),
    TaskFamily(
        "crop_to_object",
        "The grid is cut down to the object.",
        motion.crop_to_object,
    ),
    TaskFamily(
        "extend_line",
        "Lines that start at one side go on to the other side, or up to a gray cell.",
        lines.extend_line,
    ),
    TaskFamily(
        "count_to_color",
        "The output is one cell: its color is the number of objects.",
        coloring.count_to_color,
        point_solvable=True,
    ),
    TaskFamily(
        "draw_border",
        "A rectangle gets rings around it, in the colors that the demonstrations show.",
        lines.draw_border,
        needs_demos=True,
    ),
    TaskFamily(
        "gravity",
        "Rectangles in the air fall to the ground.",
        motion.gravity,
    ),
    TaskFamily(
        "denoise",
        "Bands of one color each lose the cells that do not belong.",
        lines.denoise,
    ),
    TaskFamily(
        "swap_colors",
        "Two objects exchange their colors.",
        coloring.swap_colors,
        point_solvable=True,
    ),
    TaskFamily(
        "fill_rooms",
        "Gray walls make rooms; a room with a colored cell takes its color.",
        coloring.fill_rooms,
        point_solvable=True,
    ),
    TaskFamily(
        "stamp",
        "A copy of the object appears at every gray cell.",
        motion.stamp,
    ),
)

FAMILIES: dict[str, TaskFamily] = {family.name: family for family in _TABLE}
"""All task families by name."""


def register_family(family: TaskFamily) -> TaskFamily:
    """Make a family of one's own known by its name, to `generate_tasks` and to configs of this process."""
    if family.name in FAMILIES:
        raise ValueError(f"there is a task family {family.name!r} already; give yours another name")
    FAMILIES[family.name] = family
    return family


def list_families() -> list[str]:
    """The names of all task families.

    >>> list_families()[:2]
    ['recolor', 'fill_enclosed']
    """
    return list(FAMILIES)


def find_family(name: str) -> TaskFamily:
    """The family of that name; an unknown name is answered with the nearest one.

    >>> find_family("gravity").text
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
    """One task. A side that is not given is drawn between `min_size` and `max_size`.

    >>> task = generate_task("recolor", 17, height=3, width=4)
    >>> task.id, task.demos[0].input.shape, len(task.solutions)
    ('recolor-000017', (3, 4), 4)
    """
    heights = (min_size, max_size) if height is None else (height, height)
    widths = (min_size, max_size) if width is None else (width, width)
    chosen = find_family(family)
    _check_pairs(num_demos, num_tests)
    if height is None or width is None:
        _check_range("size", min_size, max_size)
    for side, fixed in (("height", height), ("width", width)):
        if fixed is not None and not MIN_GRID_SIDE <= fixed <= MAX_GRID_SIDE:
            raise ValueError(f"{side} must be between {MIN_GRID_SIDE} and {MAX_GRID_SIDE}, got {fixed}")
    return _build(chosen, seed, heights, widths, num_demos, num_tests)


def generate_tasks(
    families: Sequence[str] = (),
    num_tasks: int = 64,
    seed: int = 0,
    *,
    split: Split = "training",
    min_height: int = 3,
    max_height: int = 10,
    min_width: int = 3,
    max_width: int = 10,
    num_demos: int = 3,
    num_tests: int = 1,
) -> list[ArcTask]:
    """Many tasks, the families taken in turn (all of them, if none is named).

    A family's tasks are the same whichever other families are asked for. Different seeds and different splits
    give different tasks.

    >>> [task.id for task in generate_tasks(("gravity", "mirror"), 3, seed=2)]
    ['gravity-4000000', 'mirror-4000000', 'gravity-4000002']
    """
    chosen = [find_family(name) for name in (families or FAMILIES)]
    if len({family.name for family in chosen}) < len(chosen):
        raise ValueError(f"a family is named twice in {', '.join(families)}; name each once")
    if split not in _SPLITS:
        raise ValueError(f"split must be 'training' or 'evaluation', got {split!r}")
    most = TASKS_PER_SEED * len(chosen)
    if not 1 <= num_tasks <= most:
        raise ValueError(f"num_tasks must be between 1 and {most}, got {num_tasks}")
    _check_pairs(num_demos, num_tests)
    _check_range("height", min_height, max_height)
    _check_range("width", min_width, max_width)
    first = 2 * TASKS_PER_SEED * seed + _SPLITS.index(split)
    return [
        _build(
            chosen[index % len(chosen)],
            first + 2 * (index // len(chosen)),
            (min_height, max_height),
            (min_width, max_width),
            num_demos,
            num_tests,
        )
        for index in range(num_tasks)
    ]


def _build(
    family: TaskFamily,
    seed: int,
    heights: tuple[int, int],
    widths: tuple[int, int],
    num_demos: int,
    num_tests: int,
) -> ArcTask:
    if seed < 0:
        raise ValueError(f"seed must not be negative, got {seed}")
    # The name goes into the seed, so that two families do not draw in step.
    name = _SEED_NAMES.get(family.name, family.name)
    rng = np.random.default_rng((seed, zlib.crc32(name.encode())))
    height = _draw_side(rng, family, "height", heights)
    width = _draw_side(rng, family, "width", widths)
    drafts = family.generate(rng, height, width, num_demos + num_tests, half=seed % 2)
    pairs = tuple(_frozen(draft) for draft in drafts)
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


def _frozen(draft: GridPairBuilder) -> GridPair:
    for grid in (draft.input, draft.output):
        grid.setflags(write=False)
    return GridPair(draft.input, draft.output)


def _check_range(side: str, low: int, high: int) -> None:
    if not MIN_GRID_SIDE <= low <= high <= MAX_GRID_SIDE:
        raise ValueError(
            f"min_{side} and max_{side} must satisfy {MIN_GRID_SIDE} <= min <= max <= {MAX_GRID_SIDE}, "
            f"got {low} and {high}"
        )


def _check_pairs(num_demos: int, num_tests: int) -> None:
    if num_demos < 0 or num_tests < 0 or num_demos + num_tests < 1:
        raise ValueError(
            f"a task needs at least one pair, got num_demos={num_demos} and num_tests={num_tests}"
        )

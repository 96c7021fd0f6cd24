"""The table of task families.

How each draws its pairs, and why its solutions are shortest, is in the functions that the table names.
"""

import difflib

from phalanx.arc.generators import coloring, copying, lines, motion, pictures, regions, turning
from phalanx.arc.generators.family import Family

_TABLE = (
    Family(
        "recolour",
        "Objects of some colours take new colours, by a mapping that the demonstrations show.",
        coloring.recolour,
        point_solvable=True,
        needs_demos=True,
    ),
    Family(
        "fill_enclosed",
        "What a closed ring encloses takes the ring's colour; open rings stay as they are.",
        regions.fill_enclosed,
        point_solvable=True,
    ),
    Family(
        "complete_symmetry",
        "A picture that is its own mirror image gets its missing cells back.",
        pictures.complete_symmetry,
        point_solvable=True,
    ),
    Family(
        "move_until_hit",
        "An object moves the way its red head points until it hits a grey wall or the grid's side.",
        motion.move_until_hit,
    ),
    Family(
        "mirror",
        "Every object is mirrored in its box, along the axis that the demonstrations show.",
        turning.mirror,
        needs_demos=True,
    ),
    Family(
        "rotate",
        "Every object turns by 90 degrees, its top left corner stays; the demonstrations show which way.",
        turning.rotate,
        needs_demos=True,
    ),
    Family(
        "crop_to_object",
        "The grid is cut down to the object.",
        copying.crop_to_object,
    ),
    Family(
        "extend_line",
        "Lines that start at one side go on to the other side, or up to a grey cell.",
        lines.extend_line,
    ),
    Family(
        "count_to_color",
        "The output is one cell: its colour is the number of objects.",
        coloring.count_to_color,
        point_solvable=True,
    ),
    Family(
        "draw_border",
        "A rectangle gets rings around it, in the colours that the demonstrations show.",
        lines.draw_border,
        needs_demos=True,
    ),
    Family(
        "gravity",
        "Rectangles in the air fall to the ground.",
        motion.gravity,
    ),
    Family(
        "denoise",
        "Bands of one colour each lose the cells that do not belong.",
        pictures.denoise,
    ),
    Family(
        "swap_colors",
        "Two objects exchange their colours.",
        coloring.swap_colors,
        point_solvable=True,
    ),
    Family(
        "fill_rooms",
        "Grey walls make rooms; a room with a coloured cell takes its colour.",
        regions.fill_rooms,
        point_solvable=True,
    ),
    Family(
        "stamp",
        "A copy of the object appears at every grey cell.",
        copying.stamp,
    ),
)

FAMILIES: dict[str, Family] = {family.name: family for family in _TABLE}
"""All task families by name."""


def register_family(family: Family) -> Family:
    """Make a family of one's own known by its name, to `generate_tasks` and to configs of this process."""
    if family.name in FAMILIES:
        raise ValueError(f"there is a task family {family.name!r} already; give yours another name")
    FAMILIES[family.name] = family
    return family


def list_families() -> list[str]:
    """The names of all task families.

    >>> list_families()[:2]
    ['recolour', 'fill_enclosed']
    """
    return list(FAMILIES)


def find_family(name: str) -> Family:
    """The family of that name; an unknown name is answered with the nearest one.

    >>> find_family("gravity").text
    'Rectangles in the air fall to the ground.'
    """
    if name in FAMILIES:
        return FAMILIES[name]
    near = difflib.get_close_matches(name, FAMILIES, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ValueError(f"unknown task family {name!r}; {hint}choose from {', '.join(FAMILIES)}")

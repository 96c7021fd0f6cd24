# The public names of this room, and where each is defined; `__init__.py` loads them when first asked for.

from .family import Draft as Draft, Family as Family, PairMaker as PairMaker, blank as blank, point as point
from .generate import (
    FAMILIES as FAMILIES,
    Split as Split,
    find_family as find_family,
    generate_task as generate_task,
    generate_tasks as generate_tasks,
    list_families as list_families,
    register_family as register_family,
)
from .placement import palette as palette, pick as pick

# The public names of this package and where each is defined; `__init__.py` loads them on first use.

from .family import (
    GeneratedPair as GeneratedPair,
    PairSampler as PairSampler,
    Rect as Rect,
    TaskFamily as TaskFamily,
    blank as blank,
    fill as fill,
    flood as flood,
    point as point,
    select as select,
)
from .generate import (
    FAMILIES as FAMILIES,
    GeneratedSplit as GeneratedSplit,
    find_family as find_family,
    generate_task as generate_task,
    generate_tasks as generate_tasks,
    register_family as register_family,
)
from .placement import chance as chance, palette as palette, pick as pick

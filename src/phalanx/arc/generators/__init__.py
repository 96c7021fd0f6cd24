"""Procedural ARC tasks with known shortest solutions: the public names.

Tasks that people made come from files, through `phalanx.arc.readers`.
"""

from phalanx.arc.generators.draft import Draft, blank, point
from phalanx.arc.generators.family import Family, PairMaker
from phalanx.arc.generators.generate import Split, generate_task, generate_tasks
from phalanx.arc.generators.placement import palette, pick
from phalanx.arc.generators.registry import FAMILIES, find_family, list_families, register_family

__all__ = [
    "FAMILIES",
    "Draft",
    "Family",
    "PairMaker",
    "Split",
    "blank",
    "find_family",
    "generate_task",
    "generate_tasks",
    "list_families",
    "palette",
    "pick",
    "point",
    "register_family",
]

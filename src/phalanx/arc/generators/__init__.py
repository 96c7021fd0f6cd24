"""Procedural ARC tasks with known shortest solutions: the public names.

Tasks that people made come from files, through `phalanx.arc.readers`.
"""

from phalanx.arc.generators.family import Family
from phalanx.arc.generators.generate import Split, generate_task, generate_tasks
from phalanx.arc.generators.registry import FAMILIES, find_family, list_families

__all__ = ["FAMILIES", "Family", "Split", "find_family", "generate_task", "generate_tasks", "list_families"]

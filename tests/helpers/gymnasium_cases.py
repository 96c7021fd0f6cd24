"""Environments of the Gymnasium tests, with the settings for `gymnasium.make`.

Equal environments share compiled programs, so each batch size compiles once.
"""

from typing import Any

from phalanx import make
from phalanx.arc.tasks import ArcTask
from phalanx.kg.atoms import parse_atom, parse_rule
from phalanx.kg.knowledge_base import KnowledgeBase

PAINTINGS: dict[str, Any] = {
    "tasks": tuple(
        ArcTask.from_dict({"train": [{"input": [[c, 0]], "output": [[3, 0]]}], "test": []}, f"from-{c}")
        for c in (0, 1, 2, 4, 5, 6)
    ),
    "dataset": {"max_grid_height": 2, "max_grid_width": 3},
    "episode": {"max_episode_steps": 4},
    "action": {"allowed_operations": (2, 3, 34)},
}
"""Six tasks that differ in their first cell, which must be filled with 3. Four steps, with Submit (34)."""

ANCESTORS: dict[str, Any] = {
    "knowledge_base": KnowledgeBase(
        train=tuple(map(parse_atom, ("parent(a,b)", "parent(b,c)", "parent(c,d)"))),
        valid=tuple(map(parse_atom, ("grandparent(a,c)", "grandparent(b,d)"))),
        test=(),
        rules=(parse_rule("r0:1.0:parent(x,y), parent(y,z) -> grandparent(x,z)"),),
    ),
    "split": "valid",
    "max_actions": 4,
    "max_goals": 3,
    "max_episode_steps": 2,
}
"""Four people in a line with rules for grandparents, and at most two steps."""

paintings = make("arc-v2", **PAINTINGS)
ancestors = make("proofs-v1", **ANCESTORS)

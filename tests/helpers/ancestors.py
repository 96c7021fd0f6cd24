"""A knowledge base of four people in a line, small enough to prove by hand, and batches of it.

`grandparent(a,c)` and `grandparent(b,d)` are true, `grandparent(a,d)` is false. Within two steps, action 0
proves a true query; the false query is then still at `parent(b,d)` and is truncated.
"""

import tempfile
from typing import Any

from phalanx.compat.deepprooflog.batched_env import BatchedVecEnv
from phalanx.compat.deepprooflog.data_handler import DataHandler
from phalanx.compat.deepprooflog.index_manager import IndexManager
from phalanx.kg.atoms import parse_atom, parse_rule
from phalanx.kg.knowledge_base import KnowledgeBase

FACTS = tuple(map(parse_atom, ("parent(a,b)", "parent(b,c)", "parent(c,d)")))
TRUE = tuple(map(parse_atom, ("grandparent(a,c)", "grandparent(b,d)")))
FALSE = parse_atom("grandparent(a,d)")
RULE = parse_rule("r0:1.0:parent(x,y), parent(y,z) -> grandparent(x,z)")

with tempfile.TemporaryDirectory() as folder:
    KnowledgeBase(
        train=FACTS, valid=TRUE[:1], test=TRUE[1:], rules=(RULE,), split_depths={"valid": {TRUE[0]: 2}}
    ).save(folder)
    data_handler = DataHandler(path=folder)
index_manager = IndexManager(data_handler, padding_atoms=3)


def ancestors(batch_size: int = 3, **settings: Any) -> BatchedVecEnv:
    """Create an environment that evaluates the two true queries and the false one by default."""
    given: dict[str, Any] = {"queries": [*TRUE, FALSE], "labels": [1, 1, 0], "mode": "eval"}
    return BatchedVecEnv(
        index_manager=index_manager,
        data_handler=data_handler,
        batch_size=batch_size,
        **{"padding_states": 4, "max_depth": 2, **given, **settings},
    )


def goals(row: Any) -> list[str]:
    """Return the goals in the `sub_index` of one environment."""
    return [str(atom) for atom in index_manager.decode_state(row.squeeze(0).numpy())]

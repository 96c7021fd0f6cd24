"""A knowledge base small enough to prove by hand, and batches of it: four people in a line.

`grandparent` is a parent's parent: (a,c) and (b,d) are true, (a,d) is not. With two steps at most, taking
action 0 twice proves a true one; the false one is still at `parent(b,d)` then, and is cut off.
"""

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

data_handler = DataHandler.from_knowledge(
    KnowledgeBase(
        train=FACTS, valid=TRUE[:1], test=TRUE[1:], rules=(RULE,), split_depths={"valid": {TRUE[0]: 2}}
    )
)
index_manager = IndexManager(data_handler, padding_atoms=3)


def ancestors(batch_size: int = 3, **settings: Any) -> BatchedVecEnv:
    """`eval` of the two true queries and the false one, unless told otherwise."""
    given: dict[str, Any] = {"queries": [*TRUE, FALSE], "labels": [1, 1, 0], "mode": "eval"}
    return BatchedVecEnv(
        index_manager=index_manager,
        data_handler=data_handler,
        batch_size=batch_size,
        **{"padding_states": 4, "max_depth": 2, **given, **settings},
    )


def goals(row: Any) -> list[str]:
    """The goals of one environment's `sub_index`."""
    return [str(atom) for atom in index_manager.decode_state(row.squeeze(0).numpy())]

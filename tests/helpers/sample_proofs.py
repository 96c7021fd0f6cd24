"""Proof episodes in the format of `phalanx.core.record_episodes`."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from phalanx.kg.atoms import parse_atom, parse_rule
from phalanx.kg.knowledge_base import KnowledgeBase
from phalanx.proofs.queries import SampledQuery
from phalanx.proofs.state import ProofState, SearchNode
from phalanx.proofs.vocabulary import ProofVocabulary

ATOMS, STATES, MEMORY = 3, 4, 5


def index_manager() -> ProofVocabulary:
    base = KnowledgeBase(
        tuple(map(parse_atom, ("wife(eve,dan)", "uncle(dan,cat)", "parent(dan,cat)"))),
        (parse_rule("r0:1:wife(X,Z), uncle(Z,Y) -> aunt(X,Y)"),),
    )
    return ProofVocabulary(base, max_goals=ATOMS)


def encoded(index: ProofVocabulary, text: str) -> tuple[int, int, int]:
    """Encode an atom such as `aunt(eve,_1)`, `True`, `False` or `End` as a row."""
    if "(" not in text:
        return index.predicate_indices[text], 0, 0
    atom = parse_atom(text)
    names = {name: number for number, name in index.term_names.items()}
    return index.predicate_indices[atom.predicate], names[atom.first], names[atom.second]


def proof_state(
    index: ProofVocabulary,
    goals: str,
    *,
    query: str = "aunt(eve,cat)",
    offered: Sequence[str] = ("True",),
    step: int = 0,
    status: int = 0,
    label: bool = True,
    depth: int = 2,
) -> ProofState:
    """Create a state; `goals` and each item of `offered` are atoms separated by spaces."""

    def rows(text: str) -> np.ndarray:
        table = np.zeros((ATOMS, 3), np.int32)
        for row, atom in enumerate(text.split()):
            table[row] = encoded(index, atom)
        return table

    successors = np.zeros((STATES, ATOMS, 3), np.int32)
    for row, text in enumerate(offered):
        successors[row] = rows(text)
    node = SearchNode(
        goals=jnp.asarray(rows(goals)),
        successors=jnp.asarray(successors),
        num_actions=jnp.int32(len(offered)),
        visited=jnp.zeros((MEMORY, ATOMS, 3), jnp.int32),
        num_visited=jnp.int32(0),
        overflow=jnp.bool_(False),
        num_too_long=jnp.int32(0),
        num_skipped=jnp.int32(0),
    )
    sampled = SampledQuery(jnp.asarray(encoded(index, query), jnp.int32), jnp.bool_(label), jnp.int32(depth))
    return ProofState(node, sampled, jnp.int32(step), jnp.int32(status))


def proved_episode(index: ProofVocabulary, update: int = 50) -> dict[str, Any]:
    """Return an episode that proves `aunt(eve,cat)` in two steps."""
    states = [
        proof_state(index, "aunt(eve,cat)", offered=("wife(eve,_1) uncle(_1,cat)", "End")),
        proof_state(index, "wife(eve,_1) uncle(_1,cat)", offered=("True", "End"), step=1),
        proof_state(index, "True", step=2, status=1),
    ]
    return _episode(states, update, 0, success=True)


def given_up_episode(index: ProofVocabulary, update: int = 50) -> dict[str, Any]:
    """Return an episode that gives up on the false query `aunt(cat,eve)` at once."""
    settings: dict[str, Any] = {"query": "aunt(cat,eve)", "label": False, "depth": -1}
    states = [
        proof_state(index, "aunt(cat,eve)", offered=("wife(cat,_1) uncle(_1,eve)", "End"), **settings),
        proof_state(index, "False", offered=("False",), step=1, status=1, **settings),
    ]
    return _episode(states, update, 1, success=True)


def _episode(states: list[ProofState], update: int, environment: int, *, success: bool) -> dict[str, Any]:
    return {
        "episode_num": update,
        "environment_id": environment,
        "task_id": "",
        "total_reward": 1.0,
        "total_steps": len(states) - 1,
        "success": success,
        "initial_state": states[0],
        "final_state": states[-1],
        "step_states": states[1:],
    }

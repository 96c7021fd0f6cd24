"""A small family with rules for ancestors, as encoded integers."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from phalanx.proofs.config import ProofConfig
from phalanx.proofs.env import ProofEnvironment
from phalanx.proofs.program import Program
from phalanx.proofs.state import ProofState
from tests.helpers.proof_cases import pad_states

PARENT, ANCESTOR, SIBLING = 1, 2, 3
ANN, BOB, CAT, DAN, EVE = 1, 2, 3, 4, 5
TRUE, FALSE, END = ((4, 0, 0),), ((5, 0, 0),), ((6, 0, 0),)
X, Y, Z = 6, 7, 8

FACTS = np.array(
    [(PARENT, ANN, BOB), (PARENT, BOB, CAT), (PARENT, CAT, DAN), (PARENT, ANN, EVE), (ANCESTOR, ANN, CAT)],
    np.int32,
)
RULES = [
    ((ANCESTOR, -1, -2), [(PARENT, -1, -2)]),
    ((ANCESTOR, -1, -3), [(PARENT, -1, -2), (ANCESTOR, -2, -3)]),
    ((SIBLING, -1, -2), [(PARENT, -3, -1), (PARENT, -3, -2)]),
]
QUERIES = np.array([(ANCESTOR, ANN, CAT), (ANCESTOR, ANN, DAN), (SIBLING, BOB, EVE)], np.int32)
DEPTHS = np.array([2, 3, 2], np.int32)


def program() -> Program:
    return Program.create(FACTS, RULES, 3, 5)


def environment(**settings: Any) -> ProofEnvironment:
    settings = {"max_actions": 8, "max_goals": 3, "max_episode_steps": 6, **settings}
    return ProofEnvironment.create(ProofConfig(**settings), program(), QUERIES, depths=DEPTHS)


def start(env: ProofEnvironment, query: Any, label: bool = True) -> ProofState:
    return env.reset_to(jnp.asarray(query, jnp.int32), jnp.asarray(label))[0]


def offered(state: ProofState) -> list:
    """Return the successors as tuples of atoms."""
    rows = np.asarray(state.successors)[: int(state.num_actions)]
    return [tuple(tuple(int(x) for x in atom) for atom in row if atom[0]) for row in rows]


def without_counters(state: ProofState) -> ProofState:
    """Return a state without its step count and status, which illegal actions may change."""
    zero = jnp.zeros_like(state.status)
    return dataclasses.replace(state, step_count=zero, status=zero)


def take(env: ProofEnvironment, state: ProofState, *successors: Any) -> tuple:
    """Take several steps and return the result of the last one."""
    result: tuple = ()
    for successor in successors:
        assert successor in offered(state), f"{successor} is not among {offered(state)}"
        result = env.step(state, jnp.int32(offered(state).index(successor)))
        state = result[0]
    return result


def goals_of(env: ProofEnvironment, *atoms: Any) -> jnp.ndarray:
    return jnp.asarray(pad_states([atoms], 1, env.config.max_goals)[0])

"""Random knowledge bases and goal lists, and how the engines are asked about them.

What the answers must be is in `oracle`.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from phalanx.core.backends import register_ffi_targets
from phalanx.native import is_native_available
from phalanx.proofs.backends import native, xla
from phalanx.proofs.config import ProofConfig
from phalanx.proofs.program import Program
from phalanx.proofs.state import ExpandRequest, ExpandSettings, SearchNode
from tests.reference import resolution as oracle

ENGINES = ("native", "xla") if is_native_available() else ("xla",)

PREDICATES, CONSTANTS, FACTS, RULES = 4, 7, 60, 9


class Case(NamedTuple):
    """A goal list to expand."""

    goals: oracle.State
    query: oracle.Atom
    positive: bool
    visited: tuple[oracle.State, ...]


def random_rule(rng: np.random.Generator, arity: int = 2) -> oracle.Rule:
    """Up to three body atoms over few variables, so that heads and bodies repeat them; some constants."""

    def term() -> int:
        return int(rng.integers(1, CONSTANTS + 1)) if rng.random() < 0.08 else -int(rng.integers(1, 5))

    def atom() -> oracle.Atom:
        return (int(rng.integers(1, PREDICATES + 1)), *(term() for _ in range(arity)))

    return atom(), [atom() for _ in range(rng.integers(1, 4))]


def random_program(seed: int, arity: int = 2) -> tuple[Program, oracle.KnowledgeBase]:
    """All of an arity have arrays of the same shapes, so that they share one compilation."""
    rng = np.random.default_rng(seed)
    facts = 1 + np.stack(
        np.unravel_index(
            rng.choice(PREDICATES * CONSTANTS**arity, FACTS, replace=False),
            (PREDICATES, *[CONSTANTS] * arity),
        ),
        axis=1,
    )
    rules = [random_rule(rng, arity) for _ in range(RULES - 1)]
    longest = [(2, -1, -3), (3, -3, -4), (4, -4, -2)]
    # As atoms of two arguments are held among those of three: the last one repeated.
    wide = [(p, a, *[b] * (arity - 1)) for p, a, b in longest]
    rules.append(((1, -1, *[-2] * (arity - 1)), wide))
    program = Program.create(facts.astype(np.int32), rules, PREDICATES, CONSTANTS)
    return program, oracle.KnowledgeBase(facts, rules, PREDICATES, CONSTANTS, arity)


def random_case(kb: oracle.KnowledgeBase, rng: np.random.Generator, max_atoms: int, memory: int) -> Case:
    """Goals that share variables; a query that is often a fact and often among the goals; some memories."""

    def term() -> int:
        top = 6 if rng.random() < 0.6 else 0
        return int(
            rng.integers(CONSTANTS + 1, CONSTANTS + top + 1) if top else rng.integers(1, CONSTANTS + 1)
        )

    length = int(rng.integers(1, max_atoms + 1))
    arity = len(kb.facts[0]) - 1
    goals = [(int(rng.integers(1, PREDICATES + 1)), *(term() for _ in range(arity))) for _ in range(length)]
    query = kb.facts[rng.integers(len(kb.facts))]
    if rng.random() < 0.3:
        goals[int(rng.integers(length))] = query
    state = oracle.canonical(kb, goals)
    positive = bool(rng.random() < 0.5)
    found = oracle.expand(kb, state, query if positive else None, max_atoms=max_atoms).states
    visited = [
        successor for successor in found if rng.random() < 0.2 and successor not in (kb.true, kb.false)
    ]
    return Case(state, query, positive, tuple(visited[: memory - 1]))


def padded(states: Any, count: int, atoms: int, arity: int = 2) -> np.ndarray:
    table = np.zeros((count, atoms, 1 + arity), np.int32)
    for row, state in enumerate(states):
        table[row, : len(state)] = state
    return table


def unpadded(rows: np.ndarray) -> oracle.State:
    return tuple(tuple(atom) for atom in rows.tolist() if atom[0] != 0)


_empty_nodes = jax.jit(SearchNode.empty, static_argnums=(0, 1, 2))


def expand_cases(program: Program, config: ProofConfig, cases: list[Case]) -> SearchNode:
    """A batch of cases on the engine that the rules name, without the layer that fits any batch shape."""
    node = _empty_nodes(config, program, (len(cases),))
    atoms = config.max_goals, program.arity
    node = node._replace(
        goals=jnp.asarray(padded([case.goals for case in cases], len(cases), *atoms)),
        visited=jnp.asarray(np.stack([padded(case.visited, config.memory_size, *atoms) for case in cases])),
        num_visited=jnp.asarray([len(case.visited) for case in cases], jnp.int32),
    )
    return expand_nodes(program, config, cases, node, np.ones(len(cases), bool))


def expand_nodes(
    program: Program, config: ProofConfig, cases: list[Case], node: SearchNode, where: np.ndarray
) -> SearchNode:
    """The same for nodes that are there already, in some rows."""
    asked = ExpandRequest(
        jnp.asarray(where),
        jnp.asarray([case.query for case in cases], jnp.int32),
        jnp.asarray([case.positive for case in cases]),
    )
    if config.backend == "native":
        register_ffi_targets()
        return jax.tree.map(np.asarray, _native(config, program, asked, node))
    return jax.tree.map(np.asarray, _xla(_Shape(config, program), program.arrays, asked, node))


class _Shape:
    """Settings that compare equal if they compile to the same code: facts and rules are arguments."""

    def __init__(self, config: ProofConfig, program: Program) -> None:
        self.config, self.program = config, program
        shapes = (program.num_predicates, program.num_constants, program.arity, config.end_proof_action)
        self._key = (*shapes, config.max_skipped_states, config.prune_visited)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Shape) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


def _settings(config: ProofConfig) -> ExpandSettings:
    return ExpandSettings(config.max_skipped_states, config.end_proof_action, config.prune_visited, False)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _native(config: ProofConfig, program: Program, asked: ExpandRequest, node: SearchNode) -> SearchNode:
    return native.expand(program, _settings(config), (), asked, node)


@functools.partial(jax.jit, static_argnums=0)
def _xla(shape: _Shape, arrays: Any, asked: ExpandRequest, node: SearchNode) -> SearchNode:
    return xla.expand(shape.program, _settings(shape.config), arrays, asked, node)


# Both engines are asked about the same cases, and what the oracle says of them is the same.
_expected = functools.cache(oracle.expand)


def check_against_reference(
    kb: oracle.KnowledgeBase, config: ProofConfig, cases: list[Case], node: SearchNode
) -> None:
    """Successors as sequences, counts and flags of a batch, and the padding behind the successors."""
    for index, case in enumerate(cases):
        expected = _expected(
            kb,
            case.goals,
            case.query if case.positive else None,
            visited=(*case.visited, case.goals) if config.prune_visited else (),
            max_atoms=config.max_goals,
            max_states=config.max_actions,
            end_action=config.end_proof_action,
        )
        count = int(node.num_actions[index])
        got = [unpadded(rows) for rows in node.successors[index, :count]]
        assert got == expected.states, f"case {index}: {case}"
        assert not node.successors[index, count:].any(), f"case {index}: the padding is not empty"
        assert bool(node.overflow[index]) == expected.overflow, f"case {index}: {case}"
        assert int(node.num_too_long[index]) == expected.too_long, f"case {index}: {case}"

"""Random knowledge bases and goal lists, and functions that expand them and check the results."""

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
from tests.reference import proofs as oracle

ENGINES = ("native", "xla") if is_native_available() else ("xla",)

PREDICATES, CONSTANTS, FACTS, RULES = 4, 7, 60, 9


class Case(NamedTuple):
    """A goal list to expand."""

    goals: oracle.State
    query: oracle.Atom
    positive: bool
    visited: tuple[oracle.State, ...]


def random_rule(rng: np.random.Generator, arity: int = 2) -> oracle.Rule:
    """Draw a rule with up to three body atoms, few variables, so that they repeat, and some constants."""

    def term() -> int:
        return int(rng.integers(1, CONSTANTS + 1)) if rng.random() < 0.08 else -int(rng.integers(1, 5))

    def atom() -> oracle.Atom:
        return (int(rng.integers(1, PREDICATES + 1)), *(term() for _ in range(arity)))

    return atom(), [atom() for _ in range(rng.integers(1, 4))]


def random_program(seed: int, arity: int = 2) -> tuple[Program, oracle.KnowledgeBase]:
    """Draw a program. Programs of the same arity have arrays of the same shapes and share one compilation."""
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
    # Atoms with two arguments are padded to three by repeating the last one.
    wide = [(p, a, *[b] * (arity - 1)) for p, a, b in longest]
    rules.append(((1, -1, *[-2] * (arity - 1)), wide))
    program = Program.create(facts.astype(np.int32), rules, PREDICATES, CONSTANTS)
    return program, oracle.KnowledgeBase(facts, rules, PREDICATES, CONSTANTS, arity)


def random_case(kb: oracle.KnowledgeBase, rng: np.random.Generator, max_atoms: int, memory: int) -> Case:
    """Draw goals that share variables, a query that is often a fact or a goal, and some visited states."""

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


def pad_states(states: Any, count: int, atoms: int, arity: int = 2) -> np.ndarray:
    table = np.zeros((count, atoms, 1 + arity), np.int32)
    for row, state in enumerate(states):
        table[row, : len(state)] = state
    return table


def unpadded(rows: np.ndarray) -> oracle.State:
    return tuple(tuple(atom) for atom in rows.tolist() if atom[0] != 0)


_empty_nodes = jax.jit(SearchNode.empty, static_argnums=(0, 1, 2))


def expand_cases(program: Program, config: ProofConfig, cases: list[Case]) -> SearchNode:
    """Expand a batch of cases with the backend of the config."""
    node = _empty_nodes(config, program, (len(cases),))
    atoms = config.max_goals, program.arity
    node = node._replace(
        goals=jnp.asarray(pad_states([case.goals for case in cases], len(cases), *atoms)),
        visited=jnp.asarray(
            np.stack([pad_states(case.visited, config.memory_size, *atoms) for case in cases])
        ),
        num_visited=jnp.asarray([len(case.visited) for case in cases], jnp.int32),
    )
    return expand_nodes(program, config, cases, node, np.ones(len(cases), bool))


def expand_nodes(
    program: Program, config: ProofConfig, cases: list[Case], node: SearchNode, where: np.ndarray
) -> SearchNode:
    """Expand existing nodes in the rows selected by `where`."""
    request = ExpandRequest(
        jnp.asarray(where),
        jnp.asarray([case.query for case in cases], jnp.int32),
        jnp.asarray([case.positive for case in cases]),
    )
    if config.backend == "native":
        register_ffi_targets()
        return jax.tree.map(np.asarray, _native(config, program, request, node))
    return jax.tree.map(np.asarray, _xla(_Shape(config, program), program.arrays, request, node))


class _Shape:
    """Static arguments that compare equal if they compile to the same code. Facts and rules are arrays."""

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
def _native(config: ProofConfig, program: Program, request: ExpandRequest, node: SearchNode) -> SearchNode:
    return native.expand(program, _settings(config), (), request, node)


@functools.partial(jax.jit, static_argnums=0)
def _xla(shape: _Shape, arrays: Any, request: ExpandRequest, node: SearchNode) -> SearchNode:
    return xla.expand(shape.program, _settings(shape.config), arrays, request, node)


# All backends expand the same cases, so the expected results are cached.
_expected = functools.cache(oracle.expand)


def check_against_reference(
    kb: oracle.KnowledgeBase, config: ProofConfig, cases: list[Case], node: SearchNode
) -> None:
    """Compare the successors, counts, flags and padding of a batch with the reference implementation."""
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

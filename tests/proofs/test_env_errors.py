"""The faults that were found in the original by comparing it with a plain prover: one test for each.

The fifth, a training file with the test queries in it, belongs to the data and is tested there. All faults of
resolution share one program, so that each engine is compiled once.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phalanx.proofs.config import ProofConfig, QueryConfig
from phalanx.proofs.env import ProofEnvironment
from phalanx.proofs.program import Program
from phalanx.proofs.state import ResolutionSettings, SearchNode
from tests.helpers import families as f, proof_cases as pc
from tests.reference import resolution as oracle

engines = pytest.mark.parametrize("engine", pc.ENGINES)

CHILD, PATH, EDGE, SELF, FLIP, SWAP, OTHER, LINK, CHAIN = range(1, 10)
CONSTANTS = 20_000
X, Y, Z = CONSTANTS + 1, CONSTANTS + 2, CONSTANTS + 3
TRUE, FALSE = ((10, 0, 0),), ((11, 0, 0),)

FACTS = [
    *((CHILD, 1, child) for child in range(11, 21)),
    *((CHILD, 2, child) for child in range(11, 14)),
    (SELF, 1, 1),
    *((LINK, number, CONSTANTS + 1 - number) for number in range(1, CONSTANTS + 1)),
]
RULES = [
    ((PATH, -1, -2), [(EDGE, -1, -3), (EDGE, -3, -2)]),
    ((FLIP, -1, -2), [(SELF, -1, -1), (FLIP, -2, -1)]),
    ((SWAP, -1, -2), [(SWAP, -2, -1)]),
    ((SWAP, -1, -2), [(OTHER, -1, -2)]),
    ((SWAP, -3, -4), [(OTHER, -3, -4)]),
    ((CHAIN, -1, -2), [(CHAIN, -2, -3), (OTHER, -1, -1)]),
]


@functools.cache
def program() -> Program:
    return Program.create(np.array(FACTS, np.int32), RULES, 9, CONSTANTS)


def expanded(engine: str, *goals: oracle.Atom) -> SearchNode:
    config = ProofConfig(padding_states=4, padding_atoms=4, engine=engine, end_proof_action=False)
    return pc.expand_cases(
        ResolutionSettings.of(config, program()), config, [pc.Case(goals, (EDGE, 1, 1), False, ())]
    )


def successors(engine: str, *goals: oracle.Atom) -> list:
    node = expanded(engine, *goals)
    return [pc.unpadded(row) for row in node.successors[0, : node.successor_count[0]]]


@engines
def test_1_overflow_is_flagged_and_never_proved(engine: str) -> None:
    """Ten children with an edge to show for it: ten successors, none of them True, however few fit."""
    node = expanded(engine, (CHILD, 1, X), (EDGE, X, 2))
    kept = [pc.unpadded(row) for row in node.successors[0]]
    assert kept == [((EDGE, child, 2),) for child in (11, 12, 13, 14)]
    assert bool(node.overflow[0]) and int(node.successor_count[0]) == 4


@engines
def test_1_as_many_successors_as_fit_are_no_overflow(engine: str) -> None:
    node = expanded(engine, (CHILD, 2, X), (EDGE, X, 2))
    assert int(node.successor_count[0]) == 3 and not bool(node.overflow[0])


def test_1_the_end_action_has_its_place_among_those_that_fit() -> None:
    env = ProofEnvironment.create(
        ProofConfig(padding_states=4), program(), np.array([[SELF, 2, 2]], np.int32)
    )
    state = f.start(env, (CHILD, 1, X))
    assert f.offered(state) == [TRUE, ((12, 0, 0),)]
    config = ProofConfig(padding_states=4, engine=pc.ENGINES[0])
    node = pc.expand_cases(
        ResolutionSettings.of(config, program()),
        config,
        [pc.Case(((CHILD, 1, X), (EDGE, X, 2)), (EDGE, 1, 1), False, ())],
    )
    last = [pc.unpadded(row) for row in node.successors[0, 2:]]
    assert last == [((EDGE, 13, 2),), ((12, 0, 0),)] and bool(node.overflow[0])


@engines
def test_2_fresh_variables_capture_none_of_the_goals(engine: str) -> None:
    """The rule's own third variable must not become the goals' second."""
    assert successors(engine, (PATH, 1, X), (OTHER, X, Y)) == [((EDGE, 1, X), (EDGE, X, Y), (OTHER, Y, Z))]


@engines
def test_3_a_leading_fact_is_dropped_without_leaving_a_hole(engine: str) -> None:
    """The body's first atom is a fact; what follows it moves to the front."""
    assert successors(engine, (FLIP, 1, 2), (OTHER, 3, 3)) == [((FLIP, 2, 1), (OTHER, 3, 3))]


@engines
def test_4_revisits_under_other_names_and_duplicates_are_removed(engine: str) -> None:
    """swap(X, Y) leads to swap(Y, X), which is swap(X, Y) again; two rules lead to the same other(X, Y)."""
    assert successors(engine, (SWAP, X, Y)) == [((OTHER, X, Y),)]


@engines
def test_4_variables_stay_in_their_pool_however_long_the_proof(engine: str) -> None:
    """Each step brings a new variable; names begin anew with the first."""
    goals: tuple = ((CHAIN, X, Y),)
    for length in (2, 3, 4):
        (goals,) = successors(engine, *goals)
        # chain(X, Y), other(Z, Z) once X has moved on, and so forth.
        olds = tuple((OTHER, Z + k, Z + k) for k in range(length - 1))
        assert goals == ((CHAIN, X, Y), *olds)
    assert successors(engine, *goals) == [FALSE]


def test_6_facts_and_queries_are_known_even_when_nothing_is_said_of_them() -> None:
    """Every triple of r but r(3, 3) is a fact, a query or known: r(3, 3) is the only negative."""
    cells = np.array([(1, a, b) for a in (1, 2, 3) for b in (1, 2, 3)], np.int32)
    program = Program.create(cells[:4], [], 1, 3)
    config = ProofConfig(queries=QueryConfig(negative_ratio=9.0), padding_states=4)
    env = ProofEnvironment.create(config, program, cells[4:7], known=cells[7:8])
    state, _ = jax.jit(env.batch_reset)(jax.random.split(jax.random.PRNGKey(0), 200))
    negatives = {tuple(row) for row in np.asarray(state.query)[~np.asarray(state.label)].tolist()}
    assert negatives == {(1, 3, 3)}


def test_7_any_batch_size_does_after_any_other() -> None:
    env = f.environment()
    keys = np.asarray(jax.random.split(jax.random.PRNGKey(0), 5))
    begin = jax.jit(env.batch_reset)
    large, small = (jax.device_get(begin(some)[0]) for some in (keys, keys[:2]))
    assert jax.tree.all(jax.tree.map(lambda a, b: np.array_equal(a[:2], b), large, small))


@engines
def test_8_no_fact_of_a_large_predicate_is_dropped(engine: str) -> None:
    """The last of 20,000 facts of one predicate is found by itself and from either side."""
    assert successors(engine, (LINK, CONSTANTS, 1)) == [TRUE]
    assert successors(engine, (LINK, CONSTANTS, X), (OTHER, X, 7)) == [((OTHER, 1, 7),)]
    assert successors(engine, (LINK, X, 1), (OTHER, X, 7)) == [((OTHER, CONSTANTS, 7),)]
    assert successors(engine, (LINK, 1, 1)) == [FALSE]


def test_8_a_step_expands_once() -> None:
    if "native" not in pc.ENGINES:
        pytest.skip("the native engine is not installed")
    env = f.environment(engine="native")
    state = f.start(env, f.QUERIES[0])
    text = jax.jit(env.step).lower(state, jnp.int32(0)).as_text()
    assert text.count("stablehlo.custom_call @phalanx_proofs_expand") == 1

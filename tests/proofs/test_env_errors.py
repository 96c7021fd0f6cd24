"""Faults that were found in the original implementation by comparing it with a reference prover.

The number of a fault is in the names of its tests. The fifth, a training file that contains the test
queries, is tested with the datasets. All faults of resolution share one program, so that each backend is
compiled once.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phalanx.proofs.config import ProofConfig, QueryConfig
from phalanx.proofs.env import ProofEnvironment
from phalanx.proofs.program import Program
from phalanx.proofs.state import SearchNode
from tests.helpers import families as f, proof_cases as pc
from tests.reference import proofs as reference

each_backend = pytest.mark.parametrize("backend", pc.ENGINES)

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


def expand(backend: str, *goals: reference.Atom) -> SearchNode:
    config = ProofConfig(max_actions=4, max_goals=4, backend=backend, end_proof_action=False)
    return pc.expand_cases(program(), config, [pc.Case(goals, (EDGE, 1, 1), False, ())])


def successors(backend: str, *goals: reference.Atom) -> list:
    node = expand(backend, *goals)
    return [pc.unpadded(row) for row in node.successors[0, : node.num_actions[0]]]


@each_backend
def test_1_overflow_is_flagged_and_never_proved(backend: str) -> None:
    """The goals have ten successors, of which four fit; none of them is True."""
    node = expand(backend, (CHILD, 1, X), (EDGE, X, 2))
    kept = [pc.unpadded(row) for row in node.successors[0]]
    assert kept == [((EDGE, child, 2),) for child in (11, 12, 13, 14)]
    assert bool(node.overflow[0]) and int(node.num_actions[0]) == 4


@each_backend
def test_1_successors_that_all_fit_are_not_an_overflow(backend: str) -> None:
    node = expand(backend, (CHILD, 2, X), (EDGE, X, 2))
    assert int(node.num_actions[0]) == 3 and not bool(node.overflow[0])


def test_1_end_action_is_among_the_successors_that_fit() -> None:
    env = ProofEnvironment.create(ProofConfig(max_actions=4), program(), np.array([[SELF, 2, 2]], np.int32))
    state = f.start(env, (CHILD, 1, X))
    assert f.offered(state) == [TRUE, ((12, 0, 0),)]
    config = ProofConfig(max_actions=4, backend=pc.ENGINES[0])
    node = pc.expand_cases(
        program(),
        config,
        [pc.Case(((CHILD, 1, X), (EDGE, X, 2)), (EDGE, 1, 1), False, ())],
    )
    last = [pc.unpadded(row) for row in node.successors[0, 2:]]
    assert last == [((EDGE, 13, 2),), ((12, 0, 0),)] and bool(node.overflow[0])


@each_backend
def test_2_fresh_variables_do_not_capture_variables_of_the_goals(backend: str) -> None:
    """The third variable of the rule must not become the second variable of the goals."""
    assert successors(backend, (PATH, 1, X), (OTHER, X, Y)) == [((EDGE, 1, X), (EDGE, X, Y), (OTHER, Y, Z))]


@each_backend
def test_3_leading_fact_is_removed_without_a_gap(backend: str) -> None:
    """The first atom of the body is a fact; the following atoms move to the front."""
    assert successors(backend, (FLIP, 1, 2), (OTHER, 3, 3)) == [((FLIP, 2, 1), (OTHER, 3, 3))]


@each_backend
def test_4_renamed_visited_states_and_duplicates_are_removed(backend: str) -> None:
    """swap(X, Y) leads to swap(Y, X), which is swap(X, Y) again; two rules lead to the same other(X, Y)."""
    assert successors(backend, (SWAP, X, Y)) == [((OTHER, X, Y),)]


@each_backend
def test_4_variables_are_reused_in_long_proofs(backend: str) -> None:
    """Each step adds a variable, and variables are numbered from the first one again."""
    goals: tuple = ((CHAIN, X, Y),)
    for length in (2, 3, 4):
        (goals,) = successors(backend, *goals)
        # chain(X, Y), and an atom such as other(Z, Z) for each earlier step.
        earlier = tuple((OTHER, Z + k, Z + k) for k in range(length - 1))
        assert goals == ((CHAIN, X, Y), *earlier)
    assert successors(backend, *goals) == [FALSE]


def test_6_facts_and_queries_are_known_by_default() -> None:
    """Every triple of r but r(3, 3) is a fact, a query or known: r(3, 3) is the only negative."""
    cells = np.array([(1, a, b) for a in (1, 2, 3) for b in (1, 2, 3)], np.int32)
    program = Program.create(cells[:4], [], 1, 3)
    config = ProofConfig(queries=QueryConfig(negative_ratio=9.0), max_actions=4)
    env = ProofEnvironment.create(config, program, cells[4:7], known=cells[7:8])
    state, _ = jax.jit(env.batch_reset)(jax.random.split(jax.random.PRNGKey(0), 200))
    negatives = {tuple(row) for row in np.asarray(state.query.atom)[~np.asarray(state.query.label)].tolist()}
    assert negatives == {(1, 3, 3)}


def test_7_result_does_not_depend_on_the_batch_size() -> None:
    env = f.environment()
    keys = np.asarray(jax.random.split(jax.random.PRNGKey(0), 5))
    reset = jax.jit(env.batch_reset)
    large, small = (jax.device_get(reset(some)[0]) for some in (keys, keys[:2]))
    assert jax.tree.all(jax.tree.map(lambda a, b: np.array_equal(a[:2], b), large, small))


@each_backend
def test_8_no_fact_of_a_large_predicate_is_dropped(backend: str) -> None:
    """The last of 20,000 facts of one predicate is found as a ground goal and from either argument."""
    assert successors(backend, (LINK, CONSTANTS, 1)) == [TRUE]
    assert successors(backend, (LINK, CONSTANTS, X), (OTHER, X, 7)) == [((OTHER, 1, 7),)]
    assert successors(backend, (LINK, X, 1), (OTHER, X, 7)) == [((OTHER, CONSTANTS, 7),)]
    assert successors(backend, (LINK, 1, 1)) == [FALSE]


def test_8_step_expands_once() -> None:
    if "native" not in pc.ENGINES:
        pytest.skip("the native backend is not installed")
    env = f.environment(backend="native")
    state = f.start(env, f.QUERIES[0])
    text = jax.jit(env.step).lower(state, jnp.int32(0)).as_text()
    assert text.count("stablehlo.custom_call @phalanx_proofs_expand") == 1

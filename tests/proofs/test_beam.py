"""Beam search for proofs, compared with a reference implementation and with forward chaining."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float32, Int32

from phalanx.core.device_memory import available_memory, batch_size_for_memory, retry_with_smaller_batches
from phalanx.kg.proof_depths import compute_proof_depths
from phalanx.proofs.config import ProofConfig
from phalanx.proofs.program import Program
from phalanx.proofs.search.beam import BeamSearchConfig, SearchResults, beam_search, bytes_per_query
from tests.reference.beam_search import ReferenceProver, TinyPolicy, beam, best_log_prob

pytestmark = pytest.mark.slow

WORLDS, PREDICATES, CONSTANTS = 5, 3, 4
"""Random knowledge bases without common names are in one program, which is compiled once."""
DEPTH = 4
UNPRUNED = ProofConfig(max_actions=48, max_goals=6, prune_visited=False)
PRUNED = ProofConfig(max_actions=48, max_goals=6)
WIDE = BeamSearchConfig(beam_width=64, max_depth=DEPTH, steps_after_first_proof=DEPTH)
NARROW = BeamSearchConfig(beam_width=3, max_depth=DEPTH)


def random_rule(random: np.random.Generator, world: int) -> tuple:
    """Return a chain of one or two atoms, some of them inverted, which binds both variables of the head."""
    length = int(random.integers(1, 3))
    variables = [-1, *range(-3, -2 - length, -1), -2]
    body = []
    for first, second in itertools.pairwise(variables):
        predicate = 1 + world * PREDICATES + int(random.integers(PREDICATES))
        body.append((predicate, first, second) if random.random() < 0.6 else (predicate, second, first))
    return (1 + world * PREDICATES + int(random.integers(PREDICATES)), -1, -2), tuple(body)


@pytest.fixture(scope="module")
def knowledge() -> tuple[np.ndarray, list, np.ndarray]:
    """Facts, rules, and all ground atoms of all worlds as queries."""
    random = np.random.default_rng(7)
    facts, rules, queries = [], [], []
    for world in range(WORLDS):
        atoms = [
            (1 + world * PREDICATES + p, 1 + world * CONSTANTS + a, 1 + world * CONSTANTS + b)
            for p, a, b in itertools.product(range(PREDICATES), range(CONSTANTS), range(CONSTANTS))
        ]
        facts += [atoms[k] for k in random.choice(len(atoms), 9, replace=False)]
        rules += [random_rule(random, world) for _ in range(4)]
        queries += atoms
    return np.array(facts, np.int32), rules, np.array(queries, np.int32)


@pytest.fixture(scope="module")
def program(knowledge: tuple) -> Program:
    return Program.create(knowledge[0], knowledge[1], WORLDS * PREDICATES, WORLDS * CONSTANTS)


@pytest.fixture(scope="module")
def prover(knowledge: tuple) -> ReferenceProver:
    return ReferenceProver(knowledge[0], knowledge[1], WORLDS * PREDICATES, WORLDS * CONSTANTS)


@pytest.fixture(scope="module")
def policy() -> TinyPolicy:
    return TinyPolicy(WORLDS * CONSTANTS + 13)


@pytest.fixture(scope="module")
def wide(knowledge: tuple, program: Program, policy: TinyPolicy) -> SearchResults:
    return beam_search(UNPRUNED, program, policy, knowledge[2], WIDE, batch_size=16)


@pytest.fixture(scope="module")
def narrow(knowledge: tuple, program: Program, policy: TinyPolicy) -> SearchResults:
    return beam_search(PRUNED, program, policy, knowledge[2], NARROW, batch_size=16)


def test_wide_search_proves_what_forward_chaining_entails_within_the_depth(
    knowledge: tuple, wide: SearchResults
) -> None:
    facts, rules, queries = knowledge
    depths = compute_proof_depths(queries, facts, rules, DEPTH)
    assert not wide.overflow.any()
    assert 0 < wide.proved.sum() < len(queries)
    np.testing.assert_array_equal(wide.proved, depths >= 0)
    # Some of the queries are facts, and some of these have no other proof.
    is_fact = np.isin(queries @ [10_000, 100, 1], facts @ [10_000, 100, 1])
    assert wide.proved[is_fact].any() and not wide.proved[is_fact].all()


def test_wide_search_finds_the_most_probable_proof(
    knowledge: tuple, prover: ReferenceProver, policy: TinyPolicy, wide: SearchResults
) -> None:
    expected = [best_log_prob(prover, policy, tuple(query), DEPTH) for query in knowledge[2].tolist()]
    np.testing.assert_allclose(wide.log_prob, expected, rtol=1e-4)


def test_narrow_search_keeps_the_most_probable_states_and_stops_at_the_first_proof(
    knowledge: tuple, prover: ReferenceProver, policy: TinyPolicy, wide: SearchResults, narrow: SearchResults
) -> None:
    expected = [beam(prover, policy, tuple(query), 3, DEPTH) for query in knowledge[2].tolist()]
    log_probs, lengths, expanded = (np.array(column) for column in zip(*expected, strict=True))
    np.testing.assert_allclose(narrow.log_prob, log_probs, rtol=1e-4)
    np.testing.assert_array_equal(narrow.length, lengths)
    np.testing.assert_array_equal(narrow.proved, lengths > 0)
    np.testing.assert_array_equal(narrow.expansions, expanded)
    assert narrow.proved.sum() < wide.proved.sum(), "a beam of three states should miss some proofs here"


def test_result_does_not_depend_on_order_or_batch_size(
    knowledge: tuple, program: Program, policy: TinyPolicy, narrow: SearchResults
) -> None:
    order = np.random.default_rng(0).permutation(len(knowledge[2]))
    shuffled = beam_search(PRUNED, program, policy, knowledge[2][order], NARROW, batch_size=5)
    np.testing.assert_array_equal(shuffled.length, narrow.length[order])
    np.testing.assert_array_equal(shuffled.expansions, narrow.expansions[order])
    np.testing.assert_allclose(shuffled.log_prob, narrow.log_prob[order], rtol=1e-4)
    single = beam_search(PRUNED, program, policy, knowledge[2][order[:1]], NARROW, batch_size=5)
    assert single.length[0] == narrow.length[order[0]]


def test_no_queries_give_an_empty_result(program: Program, policy: TinyPolicy) -> None:
    found = beam_search(PRUNED, program, policy, np.zeros((0, 3), np.int32), NARROW)
    assert [leaf.shape for leaf in found[:5]] == [(0,)] * 5


class ConstantPolicy(eqx.Module):
    """A policy with the same logit for every action."""

    logit: Float32[Array, ""]

    def embed_states(self, goals: Int32[Array, "*n atoms 3"]) -> Float32[Array, "*n 1"]:
        return jnp.zeros((*goals.shape[:-2], 1), jnp.float32) + self.logit

    def score(
        self, state: Float32[Array, "1"], successors: Float32[Array, "states 1"]
    ) -> Float32[Array, " states"]:
        return successors[:, 0]


# parent(ann,bob) and parent(bob,cat); a grandparent is a parent of a parent, or a nanny (there are none).
FAMILY = Program.create(
    np.array([(1, 1, 2), (1, 2, 3)], np.int32),
    [((2, -1, -2), [(1, -1, -3), (1, -3, -2)]), ((2, -1, -2), [(3, -1, -2)])],
    3,
    3,
)
GRANDPARENTS = np.array([(2, 1, 3), (2, 1, 2)], np.int32)


def search_grandparents(logit: float) -> SearchResults:
    settings = ProofConfig(max_actions=4, max_goals=3)
    policy = ConstantPolicy(jnp.float32(logit))
    return beam_search(settings, FAMILY, policy, GRANDPARENTS, BeamSearchConfig(beam_width=2), batch_size=2)


def test_equal_logits_give_equal_probabilities_including_giving_up() -> None:
    found = search_grandparents(1.5)
    # The query has three actions: two rules and giving up. parent(ann, X) has two: one fact and giving up.
    np.testing.assert_allclose(found.log_prob, [np.log(1 / 3 * 1 / 2), -np.inf], rtol=1e-6)
    assert found.length.tolist() == [2, -1]


def test_nan_logits_raise_an_error() -> None:
    with pytest.raises(ValueError, match=r"returned NaN logits in the search for \[2, 1, 3\]"):
        search_grandparents(np.nan)


def test_batch_size_is_a_power_of_two_that_fits_in_a_quarter_of_the_memory() -> None:
    assert batch_size_for_memory(1_000, available=300_000) == 64
    assert batch_size_for_memory(1_000, available=256_000, max_batch_size=48) == 32
    assert batch_size_for_memory(1_000, available=10) == 1
    with pytest.raises(ValueError, match="must be positive, got 0"):
        batch_size_for_memory(0)


def test_available_memory_holds_a_batch() -> None:
    assert available_memory() > 1 << 20
    assert batch_size_for_memory(bytes_per_query(PRUNED, NARROW), max_batch_size=8) == 8


def test_batch_is_halved_until_it_fits() -> None:
    tried = []

    def run(size: int) -> str:
        tried.append(size)
        if size > 4:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 99 bytes.")
        return "done"

    assert retry_with_smaller_batches(run, 32) == ("done", 4)
    assert tried == [32, 16, 8, 4]


@pytest.mark.parametrize(
    ("message", "size"), [("INTERNAL: something else", 8), ("RESOURCE_EXHAUSTED: no", 1)]
)
def test_other_errors_and_out_of_memory_for_one_query_are_raised(message: str, size: int) -> None:
    def run(_: int) -> None:
        raise jax.errors.JaxRuntimeError(message)

    with pytest.raises(jax.errors.JaxRuntimeError, match=message):
        retry_with_smaller_batches(run, size)

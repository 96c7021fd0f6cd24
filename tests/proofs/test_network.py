"""Networks for proofs: embeddings of atoms and states, and scores of successors."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phalanx.kg.atoms import Atom, parse_rule
from phalanx.kg.knowledge_base import KnowledgeBase
from phalanx.proofs import network as proof_scoring
from phalanx.proofs.network import (
    EmbeddingRows,
    ProofNetwork,
    ProofNetworkConfig,
    StateComposer,
    StateEncoder,
)
from phalanx.proofs.state import ProofObservation
from phalanx.proofs.vocabulary import ProofVocabulary

pytestmark = pytest.mark.slow

ATOMS = ("transe", "complex", "rotate", "mlp")
PARENT, SIBLING, TRUE, FALSE, END = 1, 2, 3, 4, 5
ANN, BOB, CAT, X, Y = 1, 2, 3, 4, 5
WIDTH = 4


@pytest.fixture(scope="module")
def index() -> ProofVocabulary:
    facts = (Atom("parent", "ann", "bob"), Atom("parent", "ann", "cat"))
    rule = parse_rule("r:1:parent(Z,X), parent(Z,Y) -> sibling(X,Y)")
    return ProofVocabulary(KnowledgeBase(facts, (rule,)), max_goals=3)


def config(atoms: str, states: str, dim: int = WIDTH) -> ProofNetworkConfig:
    return ProofNetworkConfig(atom_embedding=atoms, state_pooling=states, hidden_dim=dim)


def embedding(index: ProofVocabulary, atoms: str = "transe", states: str = "mean") -> StateEncoder:
    make = eqx.filter_jit(lambda key: StateEncoder(config(atoms, states), index, key=key))
    return make(jax.random.key(0))


def state(*atoms: tuple[int, int, int], size: int = 3) -> jax.Array:
    return jax.device_put(np.array([*atoms, *[(0, 0, 0)] * (size - len(atoms))], np.int32))


@pytest.mark.parametrize("atoms", ATOMS)
def test_every_index_of_a_state_has_its_own_embedding(index: ProofVocabulary, atoms: str) -> None:
    tables = embedding(index, atoms).tables
    assert len(tables.predicates) == index.num_predicate_embeddings == 1 + 2 + 3 + 2
    assert len(tables.terms) == index.num_constant_embeddings == 1 + 3 + 6
    assert len(np.unique(np.asarray(tables.terms), axis=0)) == len(tables.terms)


def test_too_small_tables_confuse_variables_and_special_predicates(
    index: ProofVocabulary,
) -> None:
    """JAX reads the last row if an index is too large, which a test of shapes would not detect."""
    correct = embedding(index)
    too_small = eqx.tree_at(
        lambda e: (e.tables.predicates, e.tables.terms),
        correct,
        (
            jax.device_put(np.asarray(correct.tables.predicates)[: index.num_predicates + 1]),
            jax.device_put(np.asarray(correct.tables.terms)[: index.num_constants + 1]),
        ),
    )
    correct, too_small = (eqx.filter_jit(embed.__call__) for embed in (correct, too_small))
    pairs = [(state((PARENT, X, ANN)), state((PARENT, Y, ANN))), (state((TRUE, 0, 0)), state((END, 0, 0)))]
    for one, other in pairs:
        assert not np.allclose(correct(one), correct(other))
        assert np.allclose(too_small(one), too_small(other))


def test_atom_embeddings_match_their_definitions() -> None:
    def atom(kind: str, predicate: list, first: list, second: list) -> list:
        @jax.jit
        def compose(key: jax.Array, rows: EmbeddingRows, goals: jax.Array) -> jax.Array:
            return StateComposer(config(kind, "sum", len(first)), key=key)(rows, goals)

        predicate_row, *terms = (np.array([row], np.float32) for row in (predicate, first, second))
        rows = EmbeddingRows(predicate_row, tuple(terms))
        found = compose(jax.random.key(0), rows, state((1, 1, 2), size=1))
        return [round(float(x), 5) for x in np.asarray(found)]

    assert atom("transe", [10, 20], [1, 2], [0.5, 3]) == [10.5, 19]
    # (1 + 2i) (3 + i) = 1 + 7i, and times 2 + i, the conjugate of 2 - i, that is -5 + 15i.
    assert atom("complex", [3, 1], [1, 2], [2, -1]) == [-5, 15]
    # 1 rotated by 90 degrees is i; subtract 0.5 + 2i.
    assert atom("rotate", [np.pi / 2], [1, 0], [0.5, 2]) == [-0.5, -1]


@pytest.mark.parametrize(
    ("atoms", "states"),
    [("transe", "mean"), ("complex", "sum"), ("rotate", "attention"), ("mlp", "mean")],
)
def test_padding_does_not_change_the_embedding(index: ProofVocabulary, atoms: str, states: str) -> None:
    embed = eqx.filter_jit(embedding(index, atoms, states).__call__)
    goals = [(PARENT, ANN, X), (SIBLING, X, CAT)]
    rows = np.stack([state(*goals), state(goals[0]), state(goals[1]), state()])
    both, first, second, empty = np.asarray(embed(rows))
    np.testing.assert_array_equal(empty, 0)
    np.testing.assert_allclose(embed(state(*goals, size=6)), both, rtol=1e-5)
    if states != "attention":
        np.testing.assert_allclose(both, (first + second) / (2 if states == "mean" else 1), rtol=1e-5)


@pytest.mark.parametrize("atoms", ATOMS)
def test_terminal_states_have_distinct_embeddings(index: ProofVocabulary, atoms: str) -> None:
    embed = eqx.filter_jit(embedding(index, atoms).__call__)
    ends = np.asarray(embed(np.stack([state((end, 0, 0)) for end in (TRUE, FALSE, END)])))
    assert np.all(np.abs(ends).max(axis=1) > 1e-3)
    assert len(np.unique(ends.round(4), axis=0)) == 3


def network(index: ProofVocabulary, **settings: Any) -> ProofNetwork:
    config = ProofNetworkConfig(hidden_dim=WIDTH, **settings)
    return eqx.filter_jit(lambda key: ProofNetwork(config, index, key=key))(jax.random.key(1))


@pytest.fixture(scope="module")
def observations() -> ProofObservation:
    """Five states with 3, 1, 4, 2 and 4 of at most four successors."""
    random = np.random.default_rng(0)
    counts = np.array([3, 1, 4, 2, 4])

    def goals(*shape: int) -> np.ndarray:
        rows = np.stack([random.integers(1, high, (*shape, 3)) for high in (3, 10, 10)], axis=-1)
        lengths = random.integers(1, 4, shape)
        return np.where(np.arange(3)[:, None] < lengths[..., None, None], rows, 0).astype(np.int32)

    mask = np.arange(4) < counts[:, None]
    return ProofObservation(
        goals=jax.device_put(goals(5, 1)[:, 0]),
        # Rows after the last successor are random and must have no effect.
        successors=jax.device_put(goals(5, 4)),
        action_mask=jax.device_put(mask),
        label=jax.device_put(np.array([True, False, True, False, True])),
        depth=jax.device_put(np.array([1, -1, 2, -1, 3], np.int32)),
        step_count=jax.device_put(np.zeros(5, np.int32)),
    )


def all_logits(net: ProofNetwork, observations: ProofObservation) -> Any:
    return jax.vmap(net.logits)(observations)


def reference_logits(net: ProofNetwork, observations: ProofObservation) -> jax.Array:
    """Compute the logits from the embeddings of all successors, including the padding."""

    def one(observation: ProofObservation) -> jax.Array:
        current = net.embed_states(observation.goals)
        logits = net.score(current, net.embed_states(observation.successors))
        return jnp.where(observation.action_mask, logits, 0.0)

    return jax.vmap(one)(observations)


@pytest.mark.parametrize(
    ("atoms", "states", "chunk"), [("transe", "mean", 256), ("mlp", "attention", 4), ("rotate", "sum", 1)]
)
def test_scores_and_gradients_match_the_reference(
    index: ProofVocabulary,
    observations: ProofObservation,
    monkeypatch: pytest.MonkeyPatch,
    atoms: str,
    states: str,
    chunk: int,
) -> None:
    monkeypatch.setattr(proof_scoring, "_CHUNK_SIZE", chunk)
    net = network(index, atom_embedding=atoms, state_pooling=states)
    targets = np.arange(20, dtype=np.float32).reshape(5, 4)

    def loss(net: ProofNetwork, logits: Any) -> tuple[jax.Array, jax.Array]:
        found = logits(net)
        return jnp.sum(jnp.square(found - targets)), found

    @eqx.filter_jit
    def both(net: ProofNetwork) -> Any:
        gradient = eqx.filter_grad(loss, has_aux=True)
        return (
            gradient(net, lambda net: jax.vmap(net.logits)(observations)[0]),
            gradient(net, lambda net: reference_logits(net, observations)),
        )

    (grads, found), (expected_grads, expected) = both(net)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert np.abs(expected).max() > 0.1
    for grad, expected_grad in zip(jax.tree.leaves(grads), jax.tree.leaves(expected_grads), strict=True):
        np.testing.assert_allclose(grad, expected_grad, rtol=1e-3, atol=1e-4)


def test_single_observation_and_vmap_over_networks_give_the_same_logits(
    index: ProofVocabulary, observations: ProofObservation
) -> None:
    net = network(index)
    logits, values = jax.device_get(eqx.filter_jit(all_logits)(net, observations))
    first = jax.tree.map(lambda leaf: jax.device_put(np.asarray(leaf)[0]), observations)
    single = eqx.filter_jit(net.logits)(first)
    np.testing.assert_allclose(single[0], logits[0], rtol=1e-5)
    np.testing.assert_allclose(single[1], values[0], rtol=1e-5)

    arrays, structure = eqx.partition(net, eqx.is_array)

    @jax.jit
    def logits_of_both(arrays: Any) -> Any:
        stacked = jax.tree.map(lambda leaf: jnp.stack([leaf, 2 * leaf]), arrays)
        return jax.vmap(lambda own: eqx.combine(own, structure).logits(first)[0])(stacked)

    one, other = np.asarray(logits_of_both(arrays))
    np.testing.assert_allclose(one, logits[0], rtol=1e-5)
    assert not np.allclose(other, logits[0])


def test_network_ignores_label_and_depth(index: ProofVocabulary, observations: ProofObservation) -> None:
    net, compute = network(index), eqx.filter_jit(all_logits)
    label, depth = ~np.asarray(observations.label), np.asarray(observations.depth) + 3
    other = dataclasses.replace(observations, label=jax.device_put(label), depth=jax.device_put(depth))
    for one, two in zip(compute(net, observations), compute(net, other), strict=True):
        np.testing.assert_array_equal(one, two)


def test_critic_has_a_separate_backbone_by_default(
    index: ProofVocabulary, observations: ProofObservation
) -> None:
    def trains_policy_embedding(net: ProofNetwork) -> bool:
        goals = np.asarray(observations.goals)[0]
        gradient = eqx.filter_jit(eqx.filter_grad(lambda net: net.value(jnp.asarray(goals))))(net)
        return bool(np.any(np.asarray(gradient.embedding.tables.terms)))

    assert not trains_policy_embedding(network(index))
    assert trains_policy_embedding(network(index, separate_critic=False))


def test_complex_embeddings_require_an_even_dimension() -> None:
    with pytest.raises(ValueError, match="hidden_dim must be even for atom_embedding=rotate, got 7"):
        ProofNetworkConfig(atom_embedding="rotate", hidden_dim=7)

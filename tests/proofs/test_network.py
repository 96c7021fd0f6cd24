"""Networks for proofs: what atoms and states embed to, and scores that cost what real successors cost."""

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
    AtomRows,
    ProofNetwork,
    ProofNetworkConfig,
    StateComposition,
    StateEmbedding,
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
    return ProofNetworkConfig(atom_embedding=atoms, state_pooling=states, embedding_dim=dim)


def embedding(index: ProofVocabulary, atoms: str = "transe", states: str = "mean") -> StateEmbedding:
    make = eqx.filter_jit(lambda key: StateEmbedding(config(atoms, states), index, key=key))
    return make(jax.random.key(0))


def state(*atoms: tuple[int, int, int], size: int = 3) -> jax.Array:
    return jax.device_put(np.array([*atoms, *[(0, 0, 0)] * (size - len(atoms))], np.int32))


@pytest.mark.parametrize("atoms", ATOMS)
def test_every_index_that_a_state_can_hold_has_a_row_of_its_own(index: ProofVocabulary, atoms: str) -> None:
    tables = embedding(index, atoms).tables
    assert len(tables.predicates) == index.num_predicate_embeddings == 1 + 2 + 3 + 2
    assert len(tables.terms) == index.num_constant_embeddings == 1 + 3 + 6
    assert len(np.unique(np.asarray(tables.terms), axis=0)) == len(tables.terms)


def test_tables_of_the_size_of_the_old_rule_confuse_variables_and_special_predicates(
    index: ProofVocabulary,
) -> None:
    """JAX reads the last row where an index is too large: what a test of shapes alone would not notice."""
    right = embedding(index)
    old = eqx.tree_at(
        lambda e: (e.tables.predicates, e.tables.terms),
        right,
        (
            jax.device_put(np.asarray(right.tables.predicates)[: index.num_predicates + 1]),
            jax.device_put(np.asarray(right.tables.terms)[: index.num_constants + 1]),
        ),
    )
    right, old = (eqx.filter_jit(embed.__call__) for embed in (right, old))
    pairs = [(state((PARENT, X, ANN)), state((PARENT, Y, ANN))), (state((TRUE, 0, 0)), state((END, 0, 0)))]
    for one, other in pairs:
        assert not np.allclose(right(one), right(other))
        assert np.allclose(old(one), old(other))


def test_atoms_are_composed_as_their_authors_do() -> None:
    def atom(kind: str, predicate: list, first: list, second: list) -> list:
        @jax.jit
        def compose(key: jax.Array, rows: AtomRows, goals: jax.Array) -> jax.Array:
            return StateComposition(config(kind, "sum", len(first)), key=key)(rows, goals)

        predicate_row, *terms = (np.array([row], np.float32) for row in (predicate, first, second))
        rows = AtomRows(predicate_row, tuple(terms))
        found = compose(jax.random.key(0), rows, state((1, 1, 2), size=1))
        return [round(float(x), 5) for x in np.asarray(found)]

    assert atom("transe", [10, 20], [1, 2], [0.5, 3]) == [10.5, 19]
    # (1 + 2i) (3 + i) = 1 + 7i, and times 2 + i, the conjugate of 2 - i, that is -5 + 15i.
    assert atom("complex", [3, 1], [1, 2], [2, -1]) == [-5, 15]
    # 1 turned by a right angle is i; minus 0.5 + 2i.
    assert atom("rotate", [np.pi / 2], [1, 0], [0.5, 2]) == [-0.5, -1]


@pytest.mark.parametrize(
    ("atoms", "states"),
    [("transe", "mean"), ("complex", "sum"), ("rotate", "attention"), ("mlp", "mean")],
)
def test_padding_counts_for_nothing(index: ProofVocabulary, atoms: str, states: str) -> None:
    embed = eqx.filter_jit(embedding(index, atoms, states).__call__)
    goals = [(PARENT, ANN, X), (SIBLING, X, CAT)]
    rows = np.stack([state(*goals), state(goals[0]), state(goals[1]), state()])
    both, first, second, empty = np.asarray(embed(rows))
    np.testing.assert_array_equal(empty, 0)
    np.testing.assert_allclose(embed(state(*goals, size=6)), both, rtol=1e-5)
    if states != "attention":
        np.testing.assert_allclose(both, (first + second) / (2 if states == "mean" else 1), rtol=1e-5)


@pytest.mark.parametrize("atoms", ATOMS)
def test_the_ends_have_vectors_of_their_own(index: ProofVocabulary, atoms: str) -> None:
    embed = eqx.filter_jit(embedding(index, atoms).__call__)
    ends = np.asarray(embed(np.stack([state((end, 0, 0)) for end in (TRUE, FALSE, END)])))
    assert np.all(np.abs(ends).max(axis=1) > 1e-3)
    assert len(np.unique(ends.round(4), axis=0)) == 3


def network(index: ProofVocabulary, **settings: Any) -> ProofNetwork:
    config = ProofNetworkConfig(embedding_dim=WIDTH, **settings)
    return eqx.filter_jit(lambda key: ProofNetwork(config, index, key=key))(jax.random.key(1))


@pytest.fixture(scope="module")
def seen() -> ProofObservation:
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
        # Rubbish behind the last successor: nothing may come of it.
        successors=jax.device_put(goals(5, 4)),
        action_mask=jax.device_put(mask),
        label=jax.device_put(np.array([True, False, True, False, True])),
        depth=jax.device_put(np.array([1, -1, 2, -1, 3], np.int32)),
        step_count=jax.device_put(np.zeros(5, np.int32)),
    )


def look_at_all(net: ProofNetwork, seen: ProofObservation) -> Any:
    return jax.vmap(net.logits)(seen)


def plain_logits(net: ProofNetwork, seen: ProofObservation) -> jax.Array:
    """All successors embedded, the padding too."""

    def one(observation: ProofObservation) -> jax.Array:
        current = net.embed_states(observation.goals)
        logits = net.score(current, net.embed_states(observation.successors))
        return jnp.where(observation.action_mask, logits, 0.0)

    return jax.vmap(one)(seen)


@pytest.mark.parametrize(
    ("atoms", "states", "chunk"), [("transe", "mean", 256), ("mlp", "attention", 4), ("rotate", "sum", 1)]
)
def test_scores_and_gradients_are_those_of_embedding_everything(
    index: ProofVocabulary,
    seen: ProofObservation,
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
            gradient(net, lambda net: jax.vmap(net.logits)(seen)[0]),
            gradient(net, lambda net: plain_logits(net, seen)),
        )

    (slopes, found), (expected_slopes, expected) = both(net)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert np.abs(expected).max() > 0.1
    for mine, plain in zip(jax.tree.leaves(slopes), jax.tree.leaves(expected_slopes), strict=True):
        np.testing.assert_allclose(mine, plain, rtol=1e-3, atol=1e-4)


def test_one_observation_and_many_networks_give_the_same(
    index: ProofVocabulary, seen: ProofObservation
) -> None:
    net = network(index)
    logits, values = jax.device_get(eqx.filter_jit(look_at_all)(net, seen))
    first = jax.tree.map(lambda leaf: jax.device_put(np.asarray(leaf)[0]), seen)
    alone = eqx.filter_jit(net.logits)(first)
    np.testing.assert_allclose(alone[0], logits[0], rtol=1e-5)
    np.testing.assert_allclose(alone[1], values[0], rtol=1e-5)

    arrays, structure = eqx.partition(net, eqx.is_array)

    @jax.jit
    def of_both(arrays: Any) -> Any:
        twice = jax.tree.map(lambda leaf: jnp.stack([leaf, 2 * leaf]), arrays)
        return jax.vmap(lambda own: eqx.combine(own, structure).logits(first)[0])(twice)

    one, other = np.asarray(of_both(arrays))
    np.testing.assert_allclose(one, logits[0], rtol=1e-5)
    assert not np.allclose(other, logits[0])


def test_label_and_depth_are_not_read(index: ProofVocabulary, seen: ProofObservation) -> None:
    net, look = network(index), eqx.filter_jit(look_at_all)
    label, depth = ~np.asarray(seen.label), np.asarray(seen.depth) + 3
    other = dataclasses.replace(seen, label=jax.device_put(label), depth=jax.device_put(depth))
    for one, two in zip(look(net, seen), look(net, other), strict=True):
        np.testing.assert_array_equal(one, two)


def test_the_critic_has_a_backbone_of_its_own_unless_told_otherwise(
    index: ProofVocabulary, seen: ProofObservation
) -> None:
    def moved(net: ProofNetwork) -> bool:
        goals = np.asarray(seen.goals)[0]
        gradient = eqx.filter_jit(eqx.filter_grad(lambda net: net.value(jnp.asarray(goals))))(net)
        return bool(np.any(np.asarray(gradient.embedding.tables.terms)))

    assert not moved(network(index))
    assert moved(network(index, separate_critic=False))


def test_complex_numbers_need_an_even_width() -> None:
    with pytest.raises(ValueError, match="embedding_dim must be even for atom_embedding=rotate, got 7"):
        ProofNetworkConfig(atom_embedding="rotate", embedding_dim=7)

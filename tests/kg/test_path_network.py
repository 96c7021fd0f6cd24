"""The path network: agreement with JAX, threads, learning and files."""

import numpy as np
import pytest

from phalanx.kg import (
    Ensemble,
    PathNetwork,
    PathNetworkConfig,
    evaluate_link_prediction,
    fit_path_network,
)
from phalanx.kg.atoms import Atom
from phalanx.kg.knowledge_base import KnowledgeBase
from phalanx.native import native_module
from tests.reference import path_network as reference, rule_mining

native = native_module()
needs_native = pytest.mark.skipif(native is None, reason="the compiled extension is not available")


def chains(families: int = 24) -> KnowledgeBase:
    """Create chains in which `c` is the composition of `a` and `b`. Some `c` facts are held out."""
    facts, held_out = [], []
    for n in range(families):
        facts += [Atom("a", f"x{n}", f"y{n}"), Atom("b", f"y{n}", f"z{n}"), Atom("d", f"x{n}", f"w{n}")]
        facts.append(Atom("b", f"z{n}", f"w{n}"))
        (held_out if n % 4 == 0 else facts).append(Atom("c", f"x{n}", f"z{n}"))
    splits = {"valid": tuple(held_out[:3]), "test": tuple(held_out[3:])}
    return KnowledgeBase(tuple(facts), **splits)


def random_inputs(specific: bool, layers: int = 3) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw triples of 9 entities and 2 relations, queries, and parameters."""
    draw = np.random.default_rng(3)
    triples = draw.integers(0, (2, 9, 9), (14, 3)).astype(np.int32)
    triples = triples[triples[:, 1] != triples[:, 2]]
    relation, head, tail = triples.T
    rows = np.concatenate(
        [np.stack([head, 2 * relation, tail], 1), np.stack([tail, 2 * relation + 1, head], 1)]
    )
    size = layers * (4 * 32 * (5 if specific else 1) + 2 * 32 * 32 + 3 * 32) + 2 * 4 * 32 + 4
    return triples, np.ascontiguousarray(rows), draw.normal(0, 0.3, size).astype(np.float32)


@needs_native
@pytest.mark.parametrize("specific", [False, True])
def test_native_losses_gradients_and_scores_match_jax(specific: bool) -> None:
    triples, rows, parameters = random_inputs(specific)
    # Entity 9 has no edges.
    network = native.PathNetwork(native.TripleGraph(triples, 10, 2), 3, specific, 2)
    expected = reference.PathNetwork(rule_mining.TripleGraph(triples, 10, 2), 3, specific, 1)
    gradient, expected_gradient = np.empty_like(parameters), np.empty_like(parameters)
    losses = (
        network.loss_and_gradient(parameters, rows[:5], gradient),
        expected.loss_and_gradient(parameters, rows[:5], expected_gradient),
    )
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert np.abs(expected_gradient).max() > 0.1
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-3, atol=1e-4)
    tables = [np.empty((4, 10), np.float32) for _ in range(2)]
    for implementation, table in zip((network, expected), tables, strict=True):
        implementation.score(parameters, np.ascontiguousarray(rows[:4, :2]), table)
    np.testing.assert_allclose(*tables, rtol=1e-4, atol=1e-5)
    assert tables[0][0, 9] == parameters[-4 + rows[0, 1]]


@needs_native
def test_invalid_queries_and_sizes_raise_error() -> None:
    triples, rows, parameters = random_inputs(specific=False)
    network = native.PathNetwork(native.TripleGraph(triples, 10, 2), 3, False, 1)
    gradient = np.empty_like(parameters)
    with pytest.raises(ValueError, match="unknown entity or relation"):
        network.loss_and_gradient(parameters, rows[:1] + 10, gradient)
    with pytest.raises(ValueError, match="length of parameters does not match"):
        network.loss_and_gradient(parameters[1:], rows[:1], gradient[1:])
    with pytest.raises(ValueError, match="num_layers must be 1 to 8"):
        native.PathNetwork(native.TripleGraph(triples, 10, 2), 9, False, 1)


@needs_native
def test_network_learns_compositions_independently_of_the_number_of_threads() -> None:
    data, settings = chains(), {"num_layers": 2, "num_epochs": 8, "batch_size": 8}
    learned = fit_path_network(data, num_threads=1, **settings)
    untrained = PathNetwork(data, learned.config)
    assert evaluate_link_prediction(learned, data, "test", ties="random").total.mrr == 1.0
    assert evaluate_link_prediction(untrained, data, "test", ties="random").total.mrr < 0.7
    again = fit_path_network(data, num_threads=2, **settings)
    np.testing.assert_array_equal(learned.parameters, again.parameters)


def test_saved_network_round_trips(tmp_path) -> None:
    data, file = chains(4), tmp_path / "network.npz"
    network = PathNetwork(data, PathNetworkConfig(num_layers=2, seed=5))
    network.save(file)
    read = PathNetwork.load(file, data)
    np.testing.assert_array_equal(read.parameters, network.parameters)
    rows = np.array([[0, 0], [3, 5]], np.int32)
    np.testing.assert_array_equal(read.score_pairs(rows), network.score_pairs(rows))
    other = KnowledgeBase((Atom("p", "a", "b"),))
    with pytest.raises(ValueError, match="fitted to a knowledge base with other relations, such as a"):
        PathNetwork.load(file, other)


def test_kge_weight_is_selected_on_validation() -> None:
    data = chains(4)
    network = PathNetwork(data, PathNetworkConfig(num_layers=1))
    alone = evaluate_link_prediction(network, data, "valid", ties="random")

    class OracleKGE:
        """Scores known triples 1 and all others 0."""

        def score_tails(self, relations, heads):
            return self._table(relations, heads, 0)

        def score_heads(self, relations, tails):
            return self._table(relations, tails, 1)

        def _table(self, relations, entities, back):
            known = data.known_triples
            table = np.zeros((len(entities), network.vocabulary.num_entities), np.float32)
            for row, (relation, entity) in enumerate(zip(relations, entities, strict=True)):
                is_answer = (known[:, 0] == relation) & (known[:, 1 + back] == entity)
                table[row, known[is_answer, 2 - back]] = 1
            return table

    ensemble = Ensemble.fit([network], OracleKGE(), data)
    combined = evaluate_link_prediction(ensemble, data, "valid", ties="random")
    assert combined.total.mrr == 1.0 > alone.total.mrr
    assert combined.selected["kge_weight"] > 0 and "by path network, with an embedding" in str(combined)


def test_fitting_without_facts_raises_error() -> None:
    with pytest.raises(ValueError, match="no facts about two different entities"):
        fit_path_network(KnowledgeBase((Atom("p", "a", "a"),)))

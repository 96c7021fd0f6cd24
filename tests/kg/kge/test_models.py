"""The scores of each model, against its formula written out, and the ways to ask for them."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pydantic import ValidationError

from phalanx.kg.kge.config import KGEConfig
from phalanx.kg.kge.embedding import KGE, is_scored, kge_scores

ENTITIES, RELATIONS = 5, 3
TRIPLES = np.array(list(product(range(1, 4), range(1, 6), range(1, 6))), np.int32)
"""Every triple there is."""
KINDS = [
    {"model": "transe", "norm": 1},
    {"model": "transe", "norm": 2},
    {"model": "distmult"},
    {"model": "complex"},
    {"model": "rotate", "norm": 1},
    {"model": "rotate", "norm": 2},
    {"model": "tucker", "relation_dim": 3},
]


def embedding(**settings) -> KGE:
    config = KGEConfig(dim=4, margin=2.0, **settings)
    return KGE.create(config, RELATIONS, ENTITIES, np.random.default_rng(3))


def complex_numbers(row: np.ndarray) -> np.ndarray:
    half = len(row) // 2
    return row[:half] + 1j * row[half:]


def by_formula(kge: KGE, settings: dict, relation: int, head: int, tail: int) -> float:
    """As the papers write it; rows count from 0."""
    h, t, r = (
        np.asarray(kge.model.entities, np.float64)[head],
        np.asarray(kge.model.entities, np.float64)[tail],
        np.asarray(kge.model.relations, np.float64)[relation],
    )
    match settings["model"]:
        case "transe":
            return 2.0 - np.linalg.norm(h + r - t, ord=settings["norm"])
        case "distmult":
            return float(sum(h[i] * r[i] * t[i] for i in range(4)))
        case "complex":
            h, r, t = (complex_numbers(row) for row in (h, r, t))
            return float(np.real(np.sum(h * r * np.conj(t))))
        case "rotate":
            difference = complex_numbers(h) * np.exp(1j * r) - complex_numbers(t)
            return 2.0 - np.linalg.norm(difference, ord=settings["norm"])
        case "tucker":
            core = np.asarray(kge.model.core, np.float64)
            return float(
                sum(core[k, i, j] * r[k] * h[i] * t[j] for k, i, j in product(range(3), range(4), range(4)))
            )
    raise AssertionError(settings)


@pytest.mark.parametrize("settings", KINDS, ids=str)
def test_a_score_is_the_formula_and_every_way_to_ask_gives_it(settings: dict) -> None:
    kge = embedding(reciprocal=False, **settings)
    expected = [by_formula(kge, settings, r - 1, h - 1, t - 1) for r, h, t in TRIPLES]
    np.testing.assert_allclose(kge.score(TRIPLES), expected, rtol=1e-4, atol=1e-4)
    check_all_ways(kge, np.array(expected))


@pytest.mark.parametrize("settings", [{"model": "complex"}, {"model": "rotate", "norm": 2}], ids=str)
def test_with_reciprocal_relations_a_score_is_the_mean_of_both_ways_to_read_it(settings: dict) -> None:
    kge = embedding(reciprocal=True, **settings)
    assert kge.model.relations.shape[0] == 2 * RELATIONS
    expected = [
        (
            by_formula(kge, settings, r - 1, h - 1, t - 1)
            + by_formula(kge, settings, r - 1 + RELATIONS, t - 1, h - 1)
        )
        / 2
        for r, h, t in TRIPLES
    ]
    np.testing.assert_allclose(kge.score(TRIPLES), expected, rtol=1e-4, atol=1e-4)
    check_all_ways(kge, np.array(expected))


def check_all_ways(kge: KGE, scores: np.ndarray) -> None:
    table = scores.reshape(RELATIONS, ENTITIES, ENTITIES)
    relations, given = (TRIPLES[:, column].reshape(3, 5, 5)[..., 0].reshape(-1) for column in (0, 1))
    tails = np.asarray(kge.score_tails(relations, given)).reshape(3, 5, 5)
    heads = np.asarray(kge.score_heads(relations, given)).reshape(3, 5, 5)
    np.testing.assert_allclose(tails, table, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(heads, table.transpose(0, 2, 1), rtol=1e-3, atol=1e-3)


def test_tables_have_a_row_for_each_real_constant_and_predicate() -> None:
    kge = embedding(model="distmult", reciprocal=False)
    assert kge.model.entities.shape == (ENTITIES, 4)
    assert kge.model.relations.shape == (RELATIONS, 4)
    assert (kge.num_entities, kge.num_relations) == (ENTITIES, RELATIONS)


def test_probabilities_follow_the_scores_and_their_logarithm_tells_likely_triples_apart() -> None:
    kge = embedding(model="complex")
    likely = np.asarray(kge.probability(TRIPLES))
    assert likely.min() > 0 and likely.max() < 1
    np.testing.assert_allclose(likely, 1 / (1 + np.exp(-np.asarray(kge.score(TRIPLES)))), rtol=1e-5)
    surest = kge.log_probability_of(jnp.array([20.0, 30.0]))
    assert surest[0] < surest[1] < 0


def test_atoms_of_a_state_are_scored_with_their_twins_and_without_what_has_no_score() -> None:
    kge = embedding(model="distmult", reciprocal=False)
    twin, true, variable = 2 + RELATIONS + 3, RELATIONS + 1, ENTITIES + 1
    state = jnp.array(
        [[[2, 1, 5], [twin, 1, 5], [true, 0, 0]], [[2, 1, variable], [twin + 1, 4, 4], [0, 0, 0]]], jnp.int32
    )
    expected = np.asarray(kge.score(np.array([(2, 1, 5), (3, 4, 4)], np.int32)))
    np.testing.assert_array_equal(is_scored(kge, state), [[True, True, False], [False, True, False]])
    np.testing.assert_allclose(
        kge_scores(kge, state, otherwise=-7.0),
        [[expected[0], expected[0], -7.0], [-7.0, expected[1], -7.0]],
        rtol=1e-6,
    )


@pytest.mark.parametrize("model", ["distmult", "complex", "rotate"])
def test_relations_begin_as_the_identity_on_a_share_of_the_coordinates(model: str) -> None:
    config = KGEConfig(model=model, dim=8, identity_share=0.5, reciprocal=False)
    kge = KGE.create(config, 2, 3, np.random.default_rng(0))
    heads = jnp.array([0, 1])
    changes = np.abs(kge.model.tail_queries(jnp.array([0, 1]), heads) - kge.model.entities[heads])
    relative = (changes / np.abs(kge.model.entities[heads]).max()).max(0)
    alike = [0, 1, 2, 3] if model == "distmult" else [0, 1, 4, 5]  # complex numbers have two halves
    assert relative[alike].max() < 0.2
    assert np.delete(relative, alike).max() > 0.3


def test_dropout_is_for_training_only() -> None:
    model = embedding(model="complex", dropout=0.5, reciprocal=False).model
    relation, head = jnp.array([0]), jnp.array([1])
    keys = [jax.random.key(seed, impl="rbg") for seed in range(2)]
    dropped = [np.asarray(model.tail_queries(relation, head, key)) for key in keys]
    assert not np.array_equal(dropped[0], dropped[1])
    plain = embedding(model="complex", reciprocal=False).model.tail_queries(relation, head)
    np.testing.assert_array_equal(model.tail_queries(relation, head), plain)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"model": "rotate", "dim": 5}, "dim must be even for rotate"),
        ({"model": "transe", "dropout": 0.1}, "dropout must be 0 for transe"),
        ({"model": "transe", "identity_share": 0.1}, "identity_share is for distmult, complex and rotate"),
        ({"adversarial_temperature": 1.0}, "set loss=binary and negatives to more than 0"),
        ({"loss": "binary", "negatives": 4, "label_smoothing": 0.1}, "set negatives=0"),
        ({"model": "transX"}, "tucker"),
    ],
)
def test_settings_that_do_not_fit_each_other_are_refused(settings: dict, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        KGEConfig(**settings)

"""Scores of each model compared with its formula, and the functions that compute them."""

import dataclasses
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pydantic import ValidationError

from phalanx.kg.kge import KGE, KGEModelConfig

ENTITIES, RELATIONS = 5, 3
TRIPLES = np.array(list(product(range(3), range(5), range(5))), np.int32)
"""All triples of these entities and relations."""
KINDS = [
    {"name": "transe", "norm": 1},
    {"name": "transe", "norm": 2},
    {"name": "distmult"},
    {"name": "complex"},
    {"name": "rotate", "norm": 1},
    {"name": "rotate", "norm": 2},
    {"name": "tucker", "relation_dim": 3},
]


def embedding(**settings) -> KGE:
    config = KGEModelConfig(embedding_dim=4, margin=2.0, **settings)
    return KGE.create(config, RELATIONS, ENTITIES, np.random.default_rng(3))


def complex_numbers(row: np.ndarray) -> np.ndarray:
    half = len(row) // 2
    return row[:half] + 1j * row[half:]


def formula_score(kge: KGE, settings: dict, relation: int, head: int, tail: int) -> float:
    """Compute the score with the formula of the paper."""
    h, t, r = (
        np.asarray(kge.model.entities, np.float64)[head],
        np.asarray(kge.model.entities, np.float64)[tail],
        np.asarray(kge.model.relations, np.float64)[relation],
    )
    match settings["name"]:
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
def test_scores_match_the_formula(settings: dict) -> None:
    kge = embedding(reciprocal=False, **settings)
    expected = [formula_score(kge, settings, r, h, t) for r, h, t in TRIPLES]
    np.testing.assert_allclose(kge.score(TRIPLES), expected, rtol=1e-4, atol=1e-4)
    check_tail_and_head_scores(kge, np.array(expected))


@pytest.mark.parametrize("settings", [{"name": "complex"}, {"name": "rotate", "norm": 2}], ids=str)
def test_reciprocal_score_is_the_mean_of_both_directions(settings: dict) -> None:
    kge = embedding(reciprocal=True, **settings)
    assert kge.model.relations.shape[0] == 2 * RELATIONS
    expected = [
        (formula_score(kge, settings, r, h, t) + formula_score(kge, settings, r + RELATIONS, t, h)) / 2
        for r, h, t in TRIPLES
    ]
    np.testing.assert_allclose(kge.score(TRIPLES), expected, rtol=1e-4, atol=1e-4)
    check_tail_and_head_scores(kge, np.array(expected))


def check_tail_and_head_scores(kge: KGE, scores: np.ndarray) -> None:
    table = scores.reshape(RELATIONS, ENTITIES, ENTITIES)
    relations, entities = (TRIPLES[:, column].reshape(3, 5, 5)[..., 0].reshape(-1) for column in (0, 1))
    tails = np.asarray(kge.score_tails(relations, entities)).reshape(3, 5, 5)
    heads = np.asarray(kge.score_heads(relations, entities)).reshape(3, 5, 5)
    np.testing.assert_allclose(tails, table, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(heads, table.transpose(0, 2, 1), rtol=1e-3, atol=1e-3)


def test_tables_have_one_row_per_entity_and_relation() -> None:
    kge = embedding(name="distmult", reciprocal=False)
    assert kge.model.entities.shape == (ENTITIES, 4)
    assert kge.model.relations.shape == (RELATIONS, 4)
    assert (kge.num_entities, kge.num_relations) == (ENTITIES, RELATIONS)


def test_probabilities_are_sigmoids_and_log_probabilities_do_not_saturate() -> None:
    kge = embedding(name="complex")
    probabilities = np.asarray(kge.probability(TRIPLES))
    assert probabilities.min() > 0 and probabilities.max() < 1
    np.testing.assert_allclose(probabilities, 1 / (1 + np.exp(-np.asarray(kge.score(TRIPLES)))), rtol=1e-5)
    shifted = [dataclasses.replace(kge, offset=jnp.float32(offset)) for offset in (20, 30)]
    log_probabilities = np.array([one.log_prob(TRIPLES) for one in shifted])
    assert (log_probabilities[0] < log_probabilities[1]).all() and (log_probabilities[1] < 0).all()


@pytest.mark.parametrize("model", ["distmult", "complex", "rotate"])
def test_identity_fraction_initializes_relations_near_identity(model: str) -> None:
    config = KGEModelConfig(name=model, embedding_dim=8, identity_init_dim_fraction=0.5, reciprocal=False)
    kge = KGE.create(config, 2, 3, np.random.default_rng(0))
    heads = jnp.array([0, 1])
    changes = np.abs(kge.model.tail_queries(jnp.array([0, 1]), heads) - kge.model.entities[heads])
    relative = (changes / np.abs(kge.model.entities[heads]).max()).max(0)
    identity = [0, 1, 2, 3] if model == "distmult" else [0, 1, 4, 5]  # real and imaginary parts
    assert relative[identity].max() < 0.2
    assert np.delete(relative, identity).max() > 0.3


def test_dropout_is_applied_only_with_a_key() -> None:
    model = embedding(name="complex", dropout=0.5, reciprocal=False).model
    relation, head = jnp.array([0]), jnp.array([1])
    keys = [jax.random.key(seed, impl="rbg") for seed in range(2)]
    dropped = [np.asarray(model.tail_queries(relation, head, key)) for key in keys]
    assert not np.array_equal(dropped[0], dropped[1])
    without_dropout = embedding(name="complex", reciprocal=False).model.tail_queries(relation, head)
    np.testing.assert_array_equal(model.tail_queries(relation, head), without_dropout)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "rotate", "embedding_dim": 5}, "embedding_dim must be even for rotate"),
        ({"name": "transe", "dropout": 0.1}, "dropout must be 0 for transe"),
        ({"name": "transe", "identity_init_dim_fraction": 0.1}, "it applies to distmult, complex and rotate"),
        ({"name": "transX"}, "tucker"),
    ],
)
def test_incompatible_settings_raise_error(settings: dict, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        KGEModelConfig(**settings)

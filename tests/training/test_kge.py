"""What an embedding learns from: the filter, the losses, the epochs, and that a seed decides them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phalanx.kg.evaluation import KnownAnswers, count_ranks, mean_reciprocal_rank, select_evenly
from phalanx.kg.knowledge_base import KnowledgeBase
from phalanx.training.kge import (
    Examples,
    KGEConfig,
    KGETrainer,
    KGETrainState,
    Minibatch,
    binary_loss,
    minibatch_loss,
    sampled_binary_loss,
    softmax_loss,
)
from tests.helpers.small_kge import ANN, BOB, CAT, DAN, PARENT, TRAIN

pytestmark = pytest.mark.slow

POSITIVE = jnp.array([1.0, -0.5])
CANDIDATES = jnp.array([[1.0, 0.3, 2.0], [0.1, -0.5, 4.0]])
KNOWN = jnp.array([[True, False, False], [False, True, True]])


@pytest.fixture(scope="module")
def examples() -> Examples:
    return Examples(TRAIN, 2, 4)


def triple_numbers(examples: Examples, *triples: tuple[int, int, int]) -> np.ndarray:
    found = [np.flatnonzero((examples.rows == triple).all(1)) for triple in triples]
    return np.concatenate(found).astype(np.int32)


def test_all_answers_of_the_training_triples_are_known_and_no_others(examples: Examples) -> None:
    batch = triple_numbers(examples, (PARENT, ANN, BOB), (PARENT, DAN, CAT))
    known = examples.known(batch, np.zeros(0, np.int32))
    ann, bob, cat, dan = range(4)
    # That Dan is Bob's parent is a validation query, and is not known.
    expected = [
        (0, bob),  # Ann is the parent of whom?
        (0, cat),
        (1, cat),  # Dan is the parent of whom?
        (2, ann),  # Who is Bob's parent?
        (3, ann),  # Who is Cat's parent?
        (3, dan),
    ]
    assert known.tolist() == [list(pair) for pair in expected]


def test_answers_that_are_no_candidates_are_unsupported(examples: Examples) -> None:
    batch = triple_numbers(examples, (PARENT, ANN, BOB))
    assert examples.known(batch, np.array([DAN, CAT], np.int32)).tolist() == [[0, 1]]
    assert examples.known(batch, np.array([DAN], np.int32)).tolist() == []


def test_an_epoch_takes_every_triple_and_draws_distinct_candidates(examples: Examples) -> None:
    config = KGEConfig(batch_size=3, negatives=3)
    epoch, again, other = (examples.epoch(config, number) for number in (5, 5, 6))
    assert epoch.triples.shape == (2, 2, 3)
    assert sorted(epoch.triples.reshape(-1, 3).tolist()) == sorted(TRAIN.tolist())
    assert all(len(set(row)) == 3 for row in epoch.candidates.tolist())
    np.testing.assert_array_equal(epoch.triples, again.triples)
    np.testing.assert_array_equal(epoch.candidates, again.candidates)
    assert not np.array_equal(epoch.triples, other.triples)
    for step in range(2):
        pairs = {tuple(pair) for pair in epoch.known[step].tolist() if pair[1] < 3}
        assert pairs == {
            (question, column)
            for question, (relation, head, tail) in enumerate(epoch.triples[step].tolist())
            for column, entity in enumerate(epoch.candidates[step].tolist())
            if [relation, head, entity] in TRAIN.tolist()
        } | {
            (question + 2, column)
            for question, (relation, head, tail) in enumerate(epoch.triples[step].tolist())
            for column, entity in enumerate(epoch.candidates[step].tolist())
            if [relation, entity, tail] in TRAIN.tolist()
        }


def test_triples_that_no_table_has_rows_for_are_refused() -> None:
    with pytest.raises(ValueError, match=r"triples must have ids below \[2, 4, 4\]"):
        Examples(np.array([(1, 1, 1), (3, 1, 1)], np.int32), 2, 4)
    with pytest.raises(ValueError, match="at least one training triple"):
        Examples(np.zeros((0, 3), np.int32), 2, 4)
    with pytest.raises(ValueError, match="at most the 4 entities, got 5"):
        KGETrainer(KGEConfig(negatives=5), TRAIN, 2, 4)


def test_the_softmax_loss_leaves_known_answers_out() -> None:
    first = -np.log(np.exp(1) / (np.exp(1) + np.exp(0.3) + np.exp(2)))
    second = -np.log(np.exp(-0.5) / (np.exp(-0.5) + np.exp(0.1)))
    np.testing.assert_allclose(softmax_loss(POSITIVE, CANDIDATES, KNOWN), [first, second], rtol=1e-5)
    smooth = softmax_loss(POSITIVE, CANDIDATES, KNOWN, 0.2)
    logits = np.array([-0.5, 0.1])
    logarithms = logits - np.log(np.exp(logits).sum())
    np.testing.assert_allclose(smooth[1], -(0.8 * logarithms[0] + 0.2 * logarithms.mean()), rtol=1e-5)


def test_adversarial_weights_favour_wrong_answers_that_score_high() -> None:
    def log_sigmoid(x: float) -> float:
        return -np.log1p(np.exp(-x))

    plain = sampled_binary_loss(POSITIVE, CANDIDATES, KNOWN)[0]
    expected = -(log_sigmoid(1) + (log_sigmoid(-0.3) + log_sigmoid(-2)) / 2) / 2
    np.testing.assert_allclose(plain, expected, rtol=1e-5)
    weights = np.exp([0.3, 2.0]) / np.exp([0.3, 2.0]).sum()
    sharp = sampled_binary_loss(POSITIVE, CANDIDATES, KNOWN, temperature=1.0)[0]
    expected = -(log_sigmoid(1) + weights @ [log_sigmoid(-0.3), log_sigmoid(-2)]) / 2
    np.testing.assert_allclose(sharp, expected, rtol=1e-5)


def test_the_binary_loss_says_yes_to_every_known_answer() -> None:
    likely = 1 / (1 + np.exp(-np.array(CANDIDATES[1], np.float64)))
    labels = np.array([0, 1, 1]) * 0.9 + 0.1 / 3
    expected = -np.mean(labels * np.log(likely) + (1 - labels) * np.log(1 - likely))
    np.testing.assert_allclose(binary_loss(CANDIDATES, KNOWN, 0.1)[1], expected, rtol=1e-5)


@pytest.mark.parametrize("reciprocal", [True, False])
def test_sampling_every_entity_costs_the_same_as_taking_all(examples: Examples, reciprocal: bool) -> None:
    settings = {"model": "complex", "dim": 4, "reciprocal": reciprocal, "regularization": 0.1}
    everything, sampled = KGEConfig(**settings), KGEConfig(**settings, negatives=4)
    model = KGETrainer(everything, TRAIN, 2, 4).start().params.model
    cost = jax.jit(minibatch_loss, static_argnums=(1, 3))
    batch = np.arange(3, dtype=np.int32)
    costs = []
    for config, drawn in ((everything, []), (sampled, [3, 0, 2, 1])):
        candidates = np.array(drawn, np.int32)
        minibatch = Minibatch(examples.rows[batch], candidates, examples.known(batch, candidates))
        costs.append(cost(model, config, minibatch, 2, None))
    np.testing.assert_allclose(costs[0], costs[1], rtol=1e-6)


@pytest.fixture(scope="module")
def family() -> tuple:
    handler = KnowledgeBase.generate(num_families=2, generations=3)
    numbers = handler.vocabulary
    return (
        numbers,
        numbers.encode(handler.facts),
        numbers.encode(handler.valid),
        numbers.encode(tuple(sorted(handler.known))),
    )


def learn(family: tuple, config: KGEConfig) -> tuple[KGETrainState, list[float]]:
    numbers, train, _, _ = family
    trainer = KGETrainer(config, train, numbers.num_predicates, numbers.num_entities)
    learner, losses = trainer.start(), []
    for _ in range(config.epochs):
        learner, loss = trainer.run_epoch(learner)
        losses.append(float(loss))
    return learner, losses


SETTINGS = [
    {"model": "transe", "loss": "binary", "negatives": 12, "adversarial_temperature": 1.0, "norm": 1},
    {"model": "distmult", "regularization": 0.01},
    {"model": "complex", "dropout": 0.1, "optimizer": "adagrad", "learning_rate": 0.5},
    {"model": "rotate", "negatives": 24, "schedule": "cosine"},
    {"model": "tucker", "loss": "binary", "relation_dim": 8, "reciprocal": False, "label_smoothing": 0.1},
]


def settled(settings: dict) -> KGEConfig:
    return KGEConfig(**{"dim": 32, "epochs": 25, "batch_size": 64, "learning_rate": 0.05, **settings})


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: settings["model"])
def test_every_model_learns_the_generated_family(family: tuple, settings: dict) -> None:
    config = settled(settings)
    numbers, train, _, known = family
    learner, losses = learn(family, config)
    start = KGETrainer(config, train, numbers.num_predicates, numbers.num_entities).start()
    answers, queries = KnownAnswers(known, numbers.num_entities), select_evenly(train, 100)
    before, after = (
        mean_reciprocal_rank(count_ranks(kge, queries, answers), "realistic")
        for kge in (start.params, learner.params)
    )
    assert losses[-1] < losses[0]
    assert int(learner.step) == 25
    assert before < 0.35 < 0.7 < after


def test_a_seed_decides_every_bit_of_a_training(family: tuple) -> None:
    # The settings of a test above, for which the epoch is compiled already.
    config = settled({"model": "rotate", "negatives": 24, "schedule": "cosine"})
    first, again = (learn(family, config)[0].params.model.entities for _ in range(2))
    np.testing.assert_array_equal(first, again)
    other = learn(family, config.model_copy(update={"seed": 1}))[0].params.model.entities
    assert not np.array_equal(first, other)

"""Training of embeddings: masked answers, losses, epochs and seeds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phalanx.kg.evaluation import count_ranks, mean_reciprocal_rank, select_evenly
from phalanx.kg.kge.models import KGEModelConfig
from phalanx.kg.knowledge_base import KnowledgeBase
from phalanx.training.kge import (
    KGEBatch,
    KGEConfig,
    KGETrainer,
    TrainingTriples,
    bce_loss,
    cross_entropy_loss,
    kge_loss,
    negative_sampling_loss,
)
from tests.helpers.small_kge import ANN, BOB, CAT, DAN, PARENT, TRAIN, four_people_base

pytestmark = pytest.mark.slow

POSITIVE = jnp.array([1.0, -0.5])
CANDIDATES = jnp.array([[1.0, 0.3, 2.0], [0.1, -0.5, 4.0]])
KNOWN = jnp.array([[True, False, False], [False, True, True]])


@pytest.fixture(scope="module")
def examples() -> TrainingTriples:
    return TrainingTriples(TRAIN, 2, 4)


def triple_indices(examples: TrainingTriples, *triples: tuple[int, int, int]) -> np.ndarray:
    found = [np.flatnonzero((examples.triples == triple).all(1)) for triple in triples]
    return np.concatenate(found).astype(np.int32)


def test_known_answers_are_those_of_the_training_triples(examples: TrainingTriples) -> None:
    batch = triple_indices(examples, (PARENT, ANN, BOB), (PARENT, DAN, CAT))
    known = examples.known_answers(batch, np.zeros(0, np.int32))
    ann, bob, cat, dan = range(4)
    # parent(Dan, Bob) is a validation query and therefore not a known answer.
    expected = [
        (0, bob),  # Ann is the parent of whom?
        (0, cat),
        (1, cat),  # Dan is the parent of whom?
        (2, ann),  # Who is Bob's parent?
        (3, ann),  # Who is Cat's parent?
        (3, dan),
    ]
    assert known.tolist() == [list(pair) for pair in expected]


def test_known_answers_are_limited_to_the_candidates(examples: TrainingTriples) -> None:
    batch = triple_indices(examples, (PARENT, ANN, BOB))
    assert examples.known_answers(batch, np.array([DAN, CAT], np.int32)).tolist() == [[0, 1]]
    assert examples.known_answers(batch, np.array([DAN], np.int32)).tolist() == []


def test_epoch_has_every_triple_and_distinct_candidates(examples: TrainingTriples) -> None:
    config = KGEConfig(batch_size=3, num_negatives_per_batch=3)
    epoch, again, other = (examples.sample_epoch(config, number) for number in (5, 5, 6))
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


def test_missing_triples_and_too_many_negatives_are_rejected() -> None:
    with pytest.raises(ValueError, match="at least one training triple"):
        TrainingTriples(np.zeros((0, 3), np.int32), 2, 4)
    with pytest.raises(ValueError, match="at most the number of entities, 4, got 5"):
        KGETrainer(KGEConfig(num_negatives_per_batch=5), four_people_base())


def test_cross_entropy_loss_ignores_known_answers() -> None:
    first = -np.log(np.exp(1) / (np.exp(1) + np.exp(0.3) + np.exp(2)))
    second = -np.log(np.exp(-0.5) / (np.exp(-0.5) + np.exp(0.1)))
    np.testing.assert_allclose(cross_entropy_loss(POSITIVE, CANDIDATES, KNOWN), [first, second], rtol=1e-5)
    smooth = cross_entropy_loss(POSITIVE, CANDIDATES, KNOWN, 0.2)
    logits = np.array([-0.5, 0.1])
    log_probs = logits - np.log(np.exp(logits).sum())
    np.testing.assert_allclose(smooth[1], -(0.8 * log_probs[0] + 0.2 * log_probs.mean()), rtol=1e-5)


def test_adversarial_weights_favor_negatives_with_high_scores() -> None:
    def log_sigmoid(x: float) -> float:
        return -np.log1p(np.exp(-x))

    unweighted = negative_sampling_loss(POSITIVE, CANDIDATES, KNOWN)[0]
    expected = -(log_sigmoid(1) + (log_sigmoid(-0.3) + log_sigmoid(-2)) / 2) / 2
    np.testing.assert_allclose(unweighted, expected, rtol=1e-5)
    weights = np.exp([0.3, 2.0]) / np.exp([0.3, 2.0]).sum()
    weighted = negative_sampling_loss(POSITIVE, CANDIDATES, KNOWN, adversarial_temperature=1.0)[0]
    expected = -(log_sigmoid(1) + weights @ [log_sigmoid(-0.3), log_sigmoid(-2)]) / 2
    np.testing.assert_allclose(weighted, expected, rtol=1e-5)


def test_bce_loss_labels_every_known_answer_as_true() -> None:
    probabilities = 1 / (1 + np.exp(-np.array(CANDIDATES[1], np.float64)))
    labels = np.array([0, 1, 1]) * 0.9 + 0.1 / 3
    expected = -np.mean(labels * np.log(probabilities) + (1 - labels) * np.log(1 - probabilities))
    np.testing.assert_allclose(bce_loss(CANDIDATES, KNOWN, 0.1)[1], expected, rtol=1e-5)


@pytest.mark.parametrize("reciprocal", [True, False])
def test_sampling_every_entity_gives_the_loss_over_all_entities(
    examples: TrainingTriples, reciprocal: bool
) -> None:
    model_config = KGEModelConfig(embedding_dim=4, reciprocal=reciprocal)
    all_entities = KGEConfig(model=model_config, regularization_weight=0.1)
    sampled = all_entities.model_copy(update={"num_negatives_per_batch": 4})
    model = KGETrainer(all_entities, four_people_base()).init(jax.random.key(0)).params.model
    loss = jax.jit(kge_loss, static_argnums=(1, 3))
    batch = np.arange(3, dtype=np.int32)
    losses = []
    for config, candidate_ids in ((all_entities, []), (sampled, [3, 0, 2, 1])):
        candidates = np.array(candidate_ids, np.int32)
        minibatch = KGEBatch(examples.triples[batch], candidates, examples.known_answers(batch, candidates))
        losses.append(loss(model, config, minibatch, 2, None))
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-6)


@pytest.fixture(scope="module")
def family() -> KnowledgeBase:
    return KnowledgeBase.generate(num_families=2, generations=3)


def train_embedding(family: KnowledgeBase, config: KGEConfig) -> tuple[list[float]]:
    trainer = KGETrainer(config, family)
    state, losses = trainer.init(jax.random.key(0)), []
    for _ in range(config.num_epochs):
        state, result = trainer.update(state)
        losses.append(float(result.metrics["loss"]))
    return state, losses


SETTINGS = [
    (
        "model.name=transe",
        "model.norm=1",
        "loss=bce",
        "num_negatives_per_batch=12",
        "adversarial_temperature=1.0",
    ),
    ("model.name=distmult", "regularization_weight=0.01"),
    ("model.name=complex", "model.dropout=0.1", "optimizer.name=adagrad", "optimizer.learning_rate=0.5"),
    ("model.name=rotate", "num_negatives_per_batch=24", "optimizer.lr_schedule=cosine"),
    (
        "model.name=tucker",
        "model.relation_dim=8",
        "model.reciprocal=false",
        "loss=bce",
        "label_smoothing=0.1",
    ),
]


def config_with(settings: tuple[str, ...]) -> KGEConfig:
    defaults = ("model.embedding_dim=32", "num_epochs=25", "batch_size=64", "optimizer.learning_rate=0.05")
    return KGEConfig.load(None, (*defaults, *settings))


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: settings[0])
def test_every_model_learns_the_generated_family(family: KnowledgeBase, settings: tuple[str, ...]) -> None:
    config = config_with(settings)
    state, losses = train_embedding(family, config)
    start = KGETrainer(config, family).init(jax.random.key(0))
    answers = family.known_answers
    queries = select_evenly(family.triples("train"), 100)
    before, after = (
        mean_reciprocal_rank(count_ranks(kge, queries, answers), "realistic")
        for kge in (start.params, state.params)
    )
    assert losses[-1] < losses[0]
    assert int(state.step) == 25
    assert before < 0.35 < 0.7 < after


def test_weights_are_determined_by_the_seed(family: KnowledgeBase) -> None:
    # A test above has already compiled an epoch with these settings.
    config = config_with(SETTINGS[3])
    first, again = (train_embedding(family, config)[0].params.model.entities for _ in range(2))
    np.testing.assert_array_equal(first, again)
    other = train_embedding(family, config.model_copy(update={"seed": 1}))[0].params.model.entities
    assert not np.array_equal(first, other)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("num_negatives=3", "did you mean 'num_negatives_per_batch'"),
        ("kge.epochs=3", "did you mean 'num_epochs'"),
        ("kge.schedule=cosine", "did you mean 'optimizer.lr_schedule'"),
        ("loss=softmax", "loss must be 'cross_entropy' or 'bce', got 'softmax'"),
        ("adversarial_temperature=1", "set loss=bce and num_negatives_per_batch"),
        ("model.embedding_dim=3", "model.*embedding_dim must be even for complex"),
    ],
)
def test_unknown_or_inconsistent_setting_is_rejected(override: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        KGEConfig.load(None, [override])
